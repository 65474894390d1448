// Three nodes that save together, with all of daemon/cluster, on a simulated etcd and a root in memory. Each
// has one rank, and would like to coordinate.
#ifndef CKPTD_TESTS_CONTRACT_THREE_NODES_H_
#define CKPTD_TESTS_CONTRACT_THREE_NODES_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/cluster/coordinator/save_coordinator.h"
#include "daemon/cluster/node/shared_saves.h"
#include "daemon/engine/seams/shared_root_io.h"
#include "daemon/ledger/nodes/run_coordinator.h"
#include "daemon/ledger/run/etcd_ledger.h"
#include "gtest/gtest.h"
#include "tests/testing/any_etcd.h"
#include "tests/testing/fake_shared_root.h"
#include "tests/testing/pausable_etcd.h"
#include "tests/testing/registered_nodes.h"

namespace ckptd {

class ThreeNodes : public ::testing::TestWithParam<EtcdKind> {
 protected:
  static constexpr int kNodes = 3;

  // What a node's engine knows of a save.
  struct Part {
    SharedSave save;
    Instant deadline;
    std::string heard;  // "COMMITTED", "ENDED NODE_LOST of node2, ranks 1", "FAILED LEDGER_UNAVAILABLE".
    std::string error;  // Its message.
    bool answered = false, sealed = false, durable = false;
    bool memory_lost = false;  // It was promised by a daemon that has ended.
    bool released = false;
    bool released_early = false;  // Before the save had ended.
  };
  struct Node {
    std::string name;
    int rank = 0;
    // What its engine does not do for now: "vote", "seal", "write".
    std::set<std::string> held;
    std::string no;    // Not empty: it has no room, for this reason.
    std::string fail;  // Not empty: what is admitted fails, for this reason.

    std::map<SaveName, Part> parts;
    std::vector<std::string> lost;  // Why its objects were told that they are over.
    bool replaced = false;          // Its registration is over.
    Pause pause;
    std::unique_ptr<NodeRegistration> registration;  // Null: it is dead.
    SimulatedEtcd::Client* client = nullptr;
    std::unique_ptr<PausableEtcd> etcd;
    std::unique_ptr<EtcdLedger> ledger;
    std::unique_ptr<SharedRootIo> io;
    std::unique_ptr<RunCoordinator> election;
    std::unique_ptr<SaveCoordinator> coordinator;  // Null: the leadership is not its.
    std::unique_ptr<SharedSaves> saves;
    bool coordinator_over = false;
  };

  void SetUp() override;
  void TearDown() override;

  // ---- what happens to nodes
  void Start(Node& node);
  void Kill(Node& node);  // Its process ends; its state directory and what it had sealed stay.
  void Restart(Node& node);
  void PauseNode(Node& node);
  void ResumeNode(Node& node);
  void CutOff(bool cut);  // All nodes from etcd.
  void ActLater();        // A later attempt acts.
  // The one whose leadership counts; null: none has noticed that it has it.
  Node* Coordinator();
  Node& Other();  // A node that does not coordinate.

  // ---- saves
  SaveName Named(const std::string& tag, int64_t ordinal = 1) const { return {attempts_, tag, ordinal}; }
  void Begin(Node& node, const SaveName& name, Duration patience = std::chrono::minutes(8));
  SaveName BeginAll(const std::string& tag, int64_t ordinal = 1, Duration patience = std::chrono::minutes(8));
  void Hold(const std::string& what);
  void LetGo();
  // Runs the nodes until then. Nodes whose registration is lost start again.
  void RunUntil(const std::function<bool()>& done);
  void RunFor(Duration time);
  // Until all living nodes have reached the phase: "SEALED".
  void RunUntilAll(const SaveName& name, const std::string& phase);
  // Whether all living nodes but this one have heard how the save has ended.
  bool AllOthersHaveHeard(const Node* node, const SaveName& name) const;
  // What all living nodes hear of its end. Different ends: all of them.
  std::string EndOfSave(const SaveName& name);
  std::string Save(const std::string& tag, int64_t ordinal = 1) { return EndOfSave(BeginAll(tag, ordinal)); }

  // Of all saves that were proposed, as etcd knows.
  bool AllHaveEnded();

  // Of the directories in flight, whether none is of a save that has a name.
  bool NothingIsInFlight();

  // What etcd has now below a prefix, by the rest of the key.
  std::map<std::string, std::string> KeysBelow(const std::string& prefix);
  // The sequences of the saves of which etcd has a state, a vote or an index; without prepared ones that no
  // node has voted for.
  std::set<int64_t> KnownSaves();

  // ---- invariants
  // All states that each save has had, as etcd knows.
  std::map<int64_t, std::vector<ledger::v1::SaveState>> History();
  // Of the last save with this name; empty: none has it.
  std::vector<ledger::v1::SaveState> HistoryOf(const SaveName& name);
  void CheckInvariants();

  AnyEtcd etcd_{GetParam()};
  RegisteredNodes nodes_{&etcd_};
  Duration ended_kept_for_ = std::chrono::hours(1);  // Of coordinators from now on, see OldSaves.
  // A publication may be decided while the checkpoint at its tag is hidden, and be decided again.
  bool stale_decisions_ = false;
  FakeSharedRoot root_{
      [this](Duration delay, absl::AnyInvocable<void()> event) { etcd_.After(delay, std::move(event)); },
      GetParam().seed, std::chrono::milliseconds(50)};
  std::array<Node, kNodes> all_;
  int64_t attempts_ = 1;

 private:
  void Tick();
  void Act(Node& node, const SaveName& name, Part& part);
  void OnLeadership(Node& node, const RunCoordinator::Leadership& leadership);
  SharedSaves::Hooks HooksOf(Node& node);
  std::function<void(absl::AnyInvocable<void()>)> PostOf(Node& node);
  void Join(Node& node, int64_t attempt);
  void Activate(Node& node, int64_t attempt);
  void CheckSave(int64_t sequence, const std::vector<ledger::v1::SaveState>& history);
  void CheckSealed(int64_t sequence, const std::vector<ledger::v1::SaveState>& history);
  void CheckPart(const Node& node, const Part& part, const std::vector<ledger::v1::SaveState>& history);
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_CONTRACT_THREE_NODES_H_
