// Two nodes that save together, for suites that run against every kind of etcd.
#ifndef CKPTD_TESTS_CONTRACT_SPANNING_SAVES_H_
#define CKPTD_TESTS_CONTRACT_SPANNING_SAVES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/run_coordinator.h"
#include "daemon/ledger/run/etcd_ledger.h"
#include "daemon/ledger/save/change_save.h"
#include "daemon/ledger/save/save_admission.h"
#include "daemon/ledger/save/save_reports.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "tests/testing/any_etcd.h"
#include "tests/testing/registered_nodes.h"

namespace ckptd {

// node1 coordinates, and has joined with rank 0 of two.
class SpanningSaves : public ::testing::TestWithParam<EtcdKind> {
 protected:
  using Save = SharedSave;

  struct Daemon {
    std::unique_ptr<NodeRegistration> registration;
    std::unique_ptr<EtcdLedger> ledger;
    std::unique_ptr<SaveAdmission> saves;
    std::unique_ptr<SaveReports> reports;
  };

  static void TearDownTestSuite() { AnyEtcd::StopCluster(); }
  void SetUp() override {
    first_ = Start("node1");
    second_ = Start("node2");
    nodes_.OnTick([this] {
      for (const Daemon* daemon : {&first_, &second_})
        if (daemon->ledger != nullptr) daemon->ledger->OnTick();
    });
    coordinator_ = std::make_unique<RunCoordinator>(
        nodes_.ClientOf(*first_.registration), etcd_.clock(),
        RunCoordinator::Options{nodes_.prefix() + "run/", first_.registration->identity(), "test"},
        [this](const RunCoordinator::Leadership& leadership) { leadership_ = leadership.held; },
        [](const absl::Status&) {});
    coordinator_->Start();
    etcd_.caller().RunUntil([this] { return !leadership_.key.empty(); });
    ASSERT_EQ(Join(first_, 0), 1);
  }
  void TearDown() override {
    nodes_.OnTick(nullptr);
    nodes_.DeliverLateCopies();
  }

  Daemon Start(const std::string& name) {
    Daemon daemon;
    daemon.registration = nodes_.Start(name);
    Etcd* const client = nodes_.ClientOf(*daemon.registration);
    const NodeIdentity& node = daemon.registration->identity();
    const std::string prefix = nodes_.prefix() + "run/";
    daemon.ledger =
        std::make_unique<EtcdLedger>(client, etcd_.clock(), EtcdLedger::Options{prefix, node, "test"});
    daemon.saves = std::make_unique<SaveAdmission>(client, SaveAdmission::Options{prefix, node, "test"});
    daemon.reports = std::make_unique<SaveReports>(client, SaveReports::Options{prefix, node, "test"});
    return daemon;
  }
  // The daemon's successor; the processes of its ranks go on.
  void Restart(Daemon& daemon) {
    const std::string name = daemon.registration->identity().name;
    daemon.reports = nullptr;
    daemon.saves = nullptr;
    daemon.ledger = nullptr;
    nodes_.Kill(daemon.registration);
    daemon = Start(name);
  }

  template <typename T>
  T Await(const std::function<void(absl::AnyInvocable<void(T)>)>& ask) {
    std::optional<T> result;
    ask([&result](T answer) { result = std::move(answer); });
    etcd_.caller().RunUntil([&] { return result.has_value(); });
    return result ? *std::move(result) : T(absl::UnknownError("no answer"));
  }
  // The attempt.
  int64_t Join(Daemon& daemon, int rank, const std::string& launch = "launch", int world_size = 2) {
    Ledger::JoinSpec spec;
    spec.rank = rank;
    spec.world_size = world_size;
    spec.launch_id = launch;
    spec.instance = launch + std::to_string(rank);
    const auto attempt =
        Await<absl::StatusOr<int64_t>>([&](auto answer) { daemon.ledger->Join(spec, std::move(answer)); });
    EXPECT_TRUE(attempt.ok()) << attempt.status();
    return attempt.value_or(-1);
  }
  void Activate(int64_t attempt) {
    const auto active =
        Await<absl::Status>([&](auto answer) { first_.ledger->Activate(attempt, std::move(answer)); });
    EXPECT_TRUE(active.ok()) << active;
  }
  absl::StatusOr<Save> TryBegin(Daemon& daemon, const std::string& tag, int64_t ordinal = 1,
                                const std::vector<int>& ranks = {}) {
    return Await<absl::StatusOr<Save>>([&](auto answer) {
      daemon.saves->Begin({1, tag, ordinal, ranks, std::chrono::minutes(1)}, std::move(answer));
    });
  }
  Save Begin(Daemon& daemon, const std::string& tag, int64_t ordinal = 1,
             const std::vector<int>& ranks = {}) {
    auto save = TryBegin(daemon, tag, ordinal, ranks);
    EXPECT_TRUE(save.ok()) << save.status();
    return save.value_or(Save());
  }
  // As "PROPOSED", or "ENDED REASON of node node2, ranks 1".
  static std::string Text(const absl::StatusOr<Save>& save) {
    if (!save.ok()) return ReasonOf(save.status());
    std::string text = ledger::v1::SaveState::Phase_Name(save->state.phase());
    if (!save->state.has_end()) return text;
    text += " " + save->state.end().reason();
    if (!save->state.end().node().empty()) text += " of " + save->state.end().node() + ", ranks";
    for (int rank : save->state.end().ranks()) text += " " + std::to_string(rank);
    return text;
  }
  std::string Vote(Daemon& daemon, const Save& save, const std::string& no = "") {
    ledger::v1::NodeVote vote;
    if (!no.empty()) vote.mutable_no()->set_reason(no);
    return TextOfVoted([&](auto answer) { daemon.saves->Vote(save, vote, std::nullopt, std::move(answer)); });
  }
  // A yes of ranks that keep the last `number` checkpoints; 0: all.
  std::string VoteKeeping(Daemon& daemon, const Save& save, int number) {
    ledger::v1::NodeVote vote;
    vote.mutable_retention();
    if (number > 0) vote.mutable_retention()->set_last(number);
    return TextOfVoted([&](auto answer) { daemon.saves->Vote(save, vote, std::nullopt, std::move(answer)); });
  }
  std::string TextOfVoted(
      const std::function<void(absl::AnyInvocable<void(absl::StatusOr<VotedSave>)>)>& ask) {
    const auto voted = Await<absl::StatusOr<VotedSave>>(ask);
    return Text(voted.ok() ? absl::StatusOr<Save>(voted->save) : voted.status());
  }
  std::string Decide(const Save& save, const std::string& inflight = "directory") {
    return Text(Await<absl::StatusOr<Save>>(
        [&](auto answer) { first_.saves->Decide(save, leadership_, inflight, std::move(answer)); }));
  }
  std::string End(const Save& save, const std::string& reason) {
    ledger::v1::SaveEnd end;
    end.set_reason(reason);
    return Text(Await<absl::StatusOr<Save>>(
        [&](auto answer) { first_.saves->End(save, leadership_, end, std::move(answer)); }));
  }

  // A save that both nodes have voted for.
  Save Admitted(const std::string& tag, int64_t ordinal = 1) {
    const Save save = Begin(first_, tag, ordinal);
    Vote(first_, save);
    Vote(second_, save);
    EXPECT_EQ(Decide(save), "ADMITTED");
    return save;
  }
  std::string Sealed(Daemon& daemon, const Save& save) {
    return TextOfVoted([&](auto answer) { daemon.reports->Sealed(save, std::nullopt, std::move(answer)); });
  }
  std::string Durable(Daemon& daemon, const Save& save, const std::string& digest) {
    return TextOfVoted(
        [&](auto answer) { daemon.reports->Durable(save, digest, std::nullopt, std::move(answer)); });
  }
  // What etcd knows of node2: "SEALED" or "DURABLE digest".
  std::string Stage(const Save& save) {
    ledger::v1::NodeVote vote;
    vote.ParseFromString(nodes_.Read(LedgerKeys(nodes_.prefix() + "run/").Vote(save.sequence, "node2")));
    return ledger::v1::NodeVote::Stage_Name(vote.stage()) +
           (vote.digest().empty() ? "" : " " + vote.digest());
  }

  AnyEtcd etcd_{GetParam()};
  RegisteredNodes nodes_{&etcd_};
  Daemon first_, second_;
  std::unique_ptr<RunCoordinator> coordinator_;
  CompareAndSwap::Held leadership_;
};

inline std::string NameOf(const ::testing::TestParamInfo<EtcdKind>& kind) { return kind.param.name(); }

}  // namespace ckptd
#endif  // CKPTD_TESTS_CONTRACT_SPANNING_SAVES_H_
