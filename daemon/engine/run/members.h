// The ranks of a run.
#ifndef CKPTD_DAEMON_ENGINE_RUN_MEMBERS_H_
#define CKPTD_DAEMON_ENGINE_RUN_MEMBERS_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "daemon/memory/segment_pool.h"

namespace ckptd {

// A rank of a run, as one session has joined it.
struct Member {
  SessionId session = 0;
  std::string instance;  // The client process.
  int rank = 0;
  int world_size = 0;
  int64_t attempt = 0;
  std::vector<int> local_ranks = {};  // Of the attempt, on this node, in order; empty: all of them.

  int local_count() const { return local_ranks.empty() ? world_size : static_cast<int>(local_ranks.size()); }
};

// Owns the sessions that have joined a run, each with its rank and attempt.
class Members {
 public:
  // A process that reconnects has a new session: its earlier membership as the same rank ends.
  void Join(Member member) {
    std::erase_if(members_, [&](const Member& other) {
      return other.rank == member.rank && other.instance == member.instance;
    });
    members_.push_back(std::move(member));
  }

  // Ends all memberships of a session and returns them.
  std::vector<Member> Leave(SessionId session) {
    std::vector<Member> left;
    for (const Member& member : members_) {
      if (member.session == session) left.push_back(member);
    }
    std::erase_if(members_, [session](const Member& member) { return member.session == session; });
    return left;
  }

  std::vector<Member> OfSession(SessionId session) const {
    std::vector<Member> of;
    std::copy_if(members_.begin(), members_.end(), std::back_inserter(of),
                 [session](const Member& member) { return member.session == session; });
    return of;
  }
  // Null: this session has not joined as this rank.
  const Member* Find(SessionId session, int rank) const {
    for (const Member& member : members_) {
      if (member.session == session && member.rank == rank) return &member;
    }
    return nullptr;
  }
  // Null: this rank of the attempt has not joined.
  const Member* FindRank(int64_t attempt, int rank) const {
    for (const Member& member : members_) {
      if (member.attempt == attempt && member.rank == rank) return &member;
    }
    return nullptr;
  }
  // A rank of the attempt that has joined; null: none has.
  const Member* AnyOfAttempt(int64_t attempt) const {
    for (const Member& member : members_) {
      if (member.attempt == attempt) return &member;
    }
    return nullptr;
  }
  // The rank as which the session has joined last; -1: it has not joined.
  int RankOf(SessionId session) const {
    int rank = -1;
    for (const Member& member : members_) {
      if (member.session == session) rank = member.rank;
    }
    return rank;
  }
  bool IsOfAttempt(SessionId session, int64_t attempt) const {
    return std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
      return member.session == session && member.attempt == attempt;
    });
  }
  bool empty() const { return members_.empty(); }

 private:
  std::vector<Member> members_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_MEMBERS_H_
