// One node of the simulation. Its daemon is the real engine with its pool, registered in the simulated etcd,
// and connected as daemon/runtime connects the two.
#ifndef CKPTD_TESTS_SIM_NODES_NODE_H_
#define CKPTD_TESTS_SIM_NODES_NODE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "daemon/engine/engine.h"
#include "daemon/ledger/nodes/node_membership.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/runtime/cluster/shared_roots.h"
#include "storage/base/callback_scope.h"
#include "tests/sim_nodes/world.h"
#include "tests/testing/pausable_etcd.h"
#include "tests/testing/simulated_etcd.h"

namespace ckptd::sim_nodes {

// That of the simulation; the date is another one.
class NodeClock : public Clock {
 public:
  NodeClock(Clock* clock, Duration ahead) : clock_(*clock), ahead_(ahead) {}
  Instant Now() override { return clock_.Now(); }
  int64_t UnixMicros() override { return clock_.UnixMicros() + ahead_ / std::chrono::microseconds(1); }

 private:
  Clock& clock_;
  const Duration ahead_;
};

class Node : public EngineObserver {
 public:
  // The path of the one root.
  static constexpr char kPath[] = "/shared/run";

  Node(World* world, int index);
  ~Node() override;

  int index() const { return index_; }
  const std::string& name() const { return name_; }
  bool up() const { return engine_ != nullptr; }
  bool paused() const { return pause_.paused(); }
  bool stopping() const { return stopping_; }
  bool knows_root() const { return knows_root_; }  // It opens it when it starts.
  bool coordinates() const;
  // The number of this daemon; counts up with each start.
  int64_t daemon() const { return daemon_; }
  SegmentPool* pool() { return pool_.get(); }
  SessionId NewSession() { return ++sessions_; }
  RootAttachment Attachment();

  // ---- faults and operations
  void Start();
  void Kill();
  // An orderly stop, as of the service: the daemon drains, and gives up its leadership and its name.
  void Stop();
  void BeginPause();
  void EndPause();
  void CutOff(bool cut);  // From etcd.
  // As by a run that cannot go on.
  void RegisterAnew();
  bool holds_registration() const { return membership_ != nullptr && membership_->identity() != nullptr; }
  // Whether the node is cut off from etcd, or was until a moment ago, and may not know recent decisions of
  // other nodes.
  bool may_lag() const;

  // Runs `call` with the engine when the daemon is not paused; never if the daemon ends before that.
  void Call(absl::AnyInvocable<void(Engine&)> call);
  // A reply that this daemon must call exactly once while it lives.
  template <typename T>
  Reply<T> Expect(std::string what, absl::AnyInvocable<void(absl::StatusOr<T>)> handler);

  // The saves, replies and memory that are under way, in words; empty: none.
  std::string Activity();
  // The uploads that wait; empty: none.
  std::string Waiting();
  v1::Status Status();
  // As `ckptctl resolve`.
  void Resolve(const std::string& tag, bool is_checkpoint);
  // As `ckptctl pin` and `unpin`.
  void SetPinned(const std::string& tag, bool pinned);
  // Finds the tags of the checkpoints that nothing keeps, and that retention has not removed.
  void FindUnkept(std::function<void(std::string tags)> found);
  // Whether the node lists the checkpoint.
  bool Lists(const std::string& tag, int64_t sequence);

  // ---- EngineObserver
  void OnSaveEnded(const SaveSummary& summary) override;
  void OnWarning(const std::string& message) override;
  void OnInfo(const std::string& message) override;
  void OnRootOpened(const std::string& run, const std::string& path, const ProbeResult&) override;

 private:
  class SimPopulator;
  template <typename T>
  struct Expected;

  // Runs an event of this daemon after a while, and when it is not paused.
  void Later(Duration delay, absl::AnyInvocable<void()> event);
  void StartEngine();
  void Join();
  void MembershipChanged(const absl::StatusOr<NodeIdentity>& changed);
  std::shared_ptr<const SharedRoots::Follower> Follow(SharedRoots::Follower follower);
  void TellFollowers();
  void Tick();
  void CheckLatest();
  template <typename... Args>
  void Trace(const Args&... args) {
    world_.Trace(name_, ": ", args...);
  }

  World& world_;
  const int index_;
  const std::string name_;
  sim::Random random_;
  NodeClock clock_;
  bool stopping_ = false;
  bool cut_off_ = false;
  Instant reached_at_{};  // When it was last reconnected to etcd.
  int64_t daemon_ = 0;
  SessionId sessions_ = 0;
  std::vector<std::string> state_directory_;  // Incarnations that etcd may know the node by.
  int incarnations_ = 0;
  bool knows_root_ = false;

  // Of the living daemon.
  Pause pause_;
  std::unique_ptr<SimulatedEtcd::Client> client_;
  std::unique_ptr<PausableEtcd> etcd_;
  std::unique_ptr<NodeMembership> membership_;
  const NodeIdentity* identity_ = nullptr;
  NodeIdentity registration_;
  std::vector<std::weak_ptr<const SharedRoots::Follower>> followers_;
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<SharedRoots> roots_;
  std::unique_ptr<Engine> engine_;
  std::string run_name_;
  std::map<int64_t, std::string> pending_;  // Replies that are due.
  int64_t next_pending_ = 0;
  std::optional<CallbackScope> scope_{std::in_place};  // Of the living daemon; ended once it has ended.
};

// ---- templates

template <typename T>
struct Node::Expected {
  Expected(Node* n, int64_t i, absl::AnyInvocable<void(absl::StatusOr<T>)> h)
      : node(n), daemon(n->daemon_), id(i), handler(std::move(h)) {}
  ~Expected() {
    if (daemon != node->daemon_ || !node->up()) return;
    const auto pending = node->pending_.find(id);
    if (pending == node->pending_.end()) return;
    node->world_.oracle().Violated(absl::StrCat("the reply to ", pending->second, " was dropped"));
  }
  void Answer(absl::StatusOr<T> answer) {
    if (daemon != node->daemon_ || !node->up()) return;
    const auto pending = node->pending_.find(id);
    if (pending == node->pending_.end()) return node->world_.oracle().Violated("a reply was called twice");
    node->Trace(pending->second, " -> ", answer.ok() ? "OK" : answer.status().ToString());
    node->pending_.erase(pending);
    handler(std::move(answer));
  }
  Node* const node;
  const int64_t daemon;
  const int64_t id;
  absl::AnyInvocable<void(absl::StatusOr<T>)> handler;
};

template <typename T>
Reply<T> Node::Expect(std::string what, absl::AnyInvocable<void(absl::StatusOr<T>)> handler) {
  const int64_t id = next_pending_++;
  pending_.emplace(id, std::move(what));
  return [expected = std::make_unique<Expected<T>>(this, id, std::move(handler))](absl::StatusOr<T> answer) {
    expected->Answer(std::move(answer));
  };
}

}  // namespace ckptd::sim_nodes
#endif  // CKPTD_TESTS_SIM_NODES_NODE_H_
