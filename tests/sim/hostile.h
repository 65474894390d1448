// A hostile user: it opens many sessions, begins saves that it never seals or that never fit, opens leases
// that it never closes, and tries to use the runs of others. It has two roots: the first belongs to an
// ordinary job, whose checkpoints it reads, the second holds its saves.
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
  // Kills its processes. It does nothing afterwards.
  void End();

 private:
  // A session that has joined, or is about to.
  struct Member {
    SessionId session = 0;
    std::string root;
    int rank = 0;
    int world_size = 1;
    int64_t attempt = 0;
    bool joined = false;
    std::vector<SaveName> begun;  // Begun and not sealed.
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
  // Returns a reply for a request that the daemon must refuse.
  template <typename T>
  Reply<T> ExpectRefusal(const std::string& what);
  Caller As(const Member& member) const { return Caller{member.session, uid_, false}; }

  World& world_;
  const int job_, saves_;  // The runs of its two roots.
  const uid_t uid_;
  Random random_;
  std::vector<MemberPtr> members_;
  int launches_ = 0, tags_ = 0;
  bool ended_ = false;
};

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_HOSTILE_H_
