// A user who takes what it can get and gives nothing back: many sessions, saves that it never seals, saves
// that never fit, leases that it never closes; and who tries the runs of others. It has two roots of its own:
// the first is that of a job like any other, whose checkpoints it reads, the second that of its saves.
#ifndef CKPTD_TESTS_SIM_HOSTILE_H_
#define CKPTD_TESTS_SIM_HOSTILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/world.h"

namespace ckptd::sim {

class Hostile : public std::enable_shared_from_this<Hostile> {
 public:
  Hostile(World* world, uint64_t seed);

  void Start() { ActLater(); }
  void DaemonGone() { members_.clear(); }
  // Its processes are killed, and it does nothing any more.
  void End();

 private:
  // A session that has joined, or tries to.
  struct Member {
    SessionId session = 0;
    std::string root;
    int rank = 0;
    int world_size = 1;
    int64_t attempt = 0;
    bool joined = false;
    std::vector<SaveName> begun;  // Answered, and not sealed.
  };
  using MemberPtr = std::shared_ptr<Member>;

  void ActLater();
  void Act();
  void Connect();
  void Begin(const MemberPtr& member);
  void Seal(const MemberPtr& member);
  void Read(const MemberPtr& member);
  void Locate(const MemberPtr& member, const std::string& lease);
  void Intrude(const MemberPtr& member);
  void Leave(const MemberPtr& member);
  // A reply to what must be refused.
  template <typename T>
  Reply<T> ExpectRefusal(const std::string& what);
  Caller As(const Member& member) const { return Caller{member.session, uid_, false}; }

  World& world_;
  const int job_, saves_;  // Its roots.
  const uid_t uid_;
  Random random_;
  std::vector<MemberPtr> members_;
  int launches_ = 0, tags_ = 0;
  bool ended_ = false;
};

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_HOSTILE_H_
