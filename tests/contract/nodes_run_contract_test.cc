// Authority over etcd: three nodes, as their engines see one run, on the simulated etcd with its faults and a
// root in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/cluster/nodes_root_io.h"
#include "daemon/cluster/nodes_run.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/state/checkpoint_readers.h"
#include "storage/base/errors.h"
#include "storage/ledger/retention_terms.h"
#include "tests/testing/any_etcd.h"
#include "tests/testing/fake_shared_files.h"
#include "tests/testing/fake_shared_root.h"
#include "tests/testing/pausable_etcd.h"
#include "tests/testing/registered_nodes.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Decision = Authority::Decision;

constexpr int kNodes = 3;

using SharedFetched = Callback<absl::StatusOr<SharedUploads::Newest>>;

// One node: what its engine has heard, and what it does when it hears it.
struct Node {
  std::string name;
  int rank = 0;
  bool seals = true, writes = true, accepts = true;
  std::map<std::string, std::vector<std::string>> heard;  // By tag: "PROPOSED 1", ..., "ENDED NODE_LOST".
  std::optional<storage::v1::RetentionPolicy> keeps;      // What its ranks name.
  std::vector<std::string> newest;                        // "2 last 3": what it has heard of the newest one.
  std::vector<int64_t> removed;
  std::vector<std::string> damage;     // "2 chunk 3", "2 repaired".
  std::vector<std::string> pins;       // "step_2 2 pinned", "step_2 2 unpinned".
  std::vector<std::string> deletions;  // That this node was asked for: "step_2 2 by force".
  bool holds_deletions = false;        // It does not answer them.
  std::vector<Callback<absl::Status>> held_deletions;
  std::vector<std::string> restores;  // That this node was asked for: "1 s3://bucket/run mine".
  absl::StatusOr<SharedUploads::Newest> restored = SharedUploads::Newest{"step_9", 9};  // Its answer.
  bool holds_restores = false;                                                          // It gives none.
  std::vector<std::string> lost, noticed, coordinators;
  std::vector<std::string> errors;      // In its log.
  absl::Status failed;                  // What it was told last of a save that has failed here.
  std::vector<std::string> asked_anew;  // Why it has asked for a new registration.
  int root_changes = 0, leadership_changes = 0;
  std::vector<int64_t> silences;  // With which it has stepped down, in seconds.

  Pause pause;
  std::unique_ptr<NodeRegistration> registration;  // Null: it is dead.
  std::unique_ptr<PausableEtcd> etcd;
  FakeSharedFiles* files = nullptr;
  std::unique_ptr<NodesRootIo> io;
  std::unique_ptr<NodesRun> run;  // Ends before io.
};

class NodesRunContract : public ::testing::TestWithParam<EtcdKind> {
 protected:
  void SetUp() override {
    nodes_.OnTick([this] { Tick(); });
    for (int i = 0; i < kNodes; ++i) {
      all_[i].name = absl::StrCat("node", i + 1);
      all_[i].rank = i;
      Start(all_[i]);
    }
    for (Node& node : all_) EXPECT_EQ(Join(node, "launch1").value_or(-1), 1);
    EXPECT_TRUE(Activate(all_[0], 1).ok());
    RunUntil([this] { return Coordinator() != nullptr && Coordinator()->root_changes > 0; });
    for (Node& node : all_) node.root_changes = 0;
  }
  void TearDown() override {
    nodes_.OnTick(nullptr);
    for (Node& node : all_) {
      if (node.registration != nullptr) Kill(node);
    }
    nodes_.DeliverLateCopies();
  }

  // ---- nodes

  void Start(Node& node) {
    const absl::Status opened = TryStart(node);
    ASSERT_TRUE(opened.ok()) << opened;
  }
  absl::Status TryStart(Node& node) {
    node.registration = nodes_.Start(node.name);
    node.etcd = std::make_unique<PausableEtcd>(nodes_.ClientOf(*node.registration), &node.pause);
    const auto after = [this](Duration delay, absl::AnyInvocable<void()> event) {
      etcd_.After(delay, std::move(event));
    };
    auto files = std::make_unique<FakeSharedFiles>(&root_, &node.pause, after, run_id_);
    node.files = files.get();
    files->root_inode = inode_;
    files->root_uid = uid_;
    node.io = std::make_unique<NodesRootIo>(std::move(files));
    NodesRun::Options options;
    options.cluster_prefix = nodes_.prefix();
    options.bound = bound_;
    options.ended_kept_for = ended_kept_for_;
    options.path = "/shared/run";
    options.post = [after](absl::AnyInvocable<void()> work) { after(milliseconds(1), std::move(work)); };
    options.register_anew = [&node](const absl::Status& why) { node.asked_anew.push_back(ReasonOf(why)); };
    options.log_error = [&node](const std::string& message) { node.errors.push_back(message); };
    node.run = std::make_unique<NodesRun>(node.etcd.get(), etcd_.clock(), node.io->files(), options);
    node.io->Connect(node.run.get());
    if (opens_without_etcd_) CutOff(node, true);
    const auto opened = Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { node.io->Open(std::move(done)); });
    if (opens_without_etcd_) CutOff(node, false);
    if (!opened.ok()) return opened.status();
    node.run->Start(HooksOf(node));
    node.run->SetNode(&node.registration->identity());
    return absl::OkStatus();
  }
  void Kill(Node& node) {
    node.run = nullptr;
    node.io = nullptr;
    node.etcd = nullptr;
    node.pause.Drop();
    nodes_.Kill(node.registration);
  }
  // Its daemon lives, and its lease has ended: it registers anew, but its run does not know yet.
  void EndRegistration(Node& node) {
    node.run->SetNode(nullptr);
    nodes_.Kill(node.registration);
    node.registration = nodes_.Start(node.name);
  }
  void RegisterAnew(Node& node) {
    EndRegistration(node);
    node.run->SetNode(&node.registration->identity());
  }
  // Etcd is full right after that.
  void RegisterAnewWithAFullEtcd(Node& node) {
    EndRegistration(node);
    etcd_.simulation().SetFull(true);
    node.run->SetNode(&node.registration->identity());
  }
  Node* Coordinator() {
    for (Node& node : all_) {
      if (node.run != nullptr && node.run->coordinates()) return &node;
    }
    return nullptr;
  }
  Node& Other() { return &all_[0] == Coordinator() ? all_[1] : all_[0]; }
  Node& LivingOther() {
    return *std::find_if(all_.begin(), all_.end(),
                         [this](const Node& node) { return node.run != nullptr && &node != Coordinator(); });
  }
  void CutOff(Node& node, bool cut) {
    static_cast<SimulatedEtcd::Client*>(nodes_.ClientOf(*node.registration))->CutOff(cut);
  }

  Authority::Hooks HooksOf(Node& node) {
    Authority::Hooks hooks;
    hooks.changed = [this, &node](const SaveId& save, const Decision& decision) {
      OnChanged(node, save, decision);
    };
    hooks.failed = [&node](const SaveId& save, const absl::Status& why) {
      node.failed = why;
      node.heard[save.tag].push_back("FAILED " + ReasonOf(why));
    };
    hooks.released = [&node](const SaveId& save) { node.heard[save.tag].emplace_back("RELEASED"); };
    hooks.removed = [&node](int64_t sequence) { node.removed.push_back(sequence); };
    hooks.damage_changed = [&node](int64_t sequence, const std::optional<storage::v1::Damage>& damage,
                                   const absl::AnyInvocable<void()>&) {
      node.damage.push_back(absl::StrCat(sequence, " ", damage ? damage->message() : "repaired"));
    };
    hooks.pin_changed = [&node](const std::string& tag, int64_t sequence, bool pinned) {
      node.pins.push_back(absl::StrCat(tag, " ", sequence, pinned ? " pinned" : " unpinned"));
    };
    hooks.delete_requested = [&node](const std::string& tag, int64_t sequence, bool force,
                                     Callback<absl::Status> deleted) {
      node.deletions.push_back(absl::StrCat(tag, " ", sequence, force ? " by force" : ""));
      if (node.holds_deletions) return node.held_deletions.push_back(std::move(deleted));
      node.io->Evict(tag, sequence, std::move(deleted));
    };
    hooks.restore_requested = [&node](const SharedUploads::Restore& restore, SharedFetched brought) {
      node.restores.push_back(absl::StrCat(restore.attempt, " ", restore.url, " ", restore.run_id));
      if (!node.holds_restores) brought(node.restored);
    };
    hooks.root_changed = [&node] { ++node.root_changes; };
    hooks.newest_committed = [&node](int64_t sequence,
                                     const std::optional<storage::v1::RetentionPolicy>& policy) {
      node.newest.push_back(absl::StrCat(sequence, " ", policy ? DescribePolicy(*policy) : "unset"));
    };
    hooks.leadership_changed = [&node] { ++node.leadership_changes; };
    hooks.stepped_down = [&node](Duration silence) { node.silences.push_back(silence / seconds(1)); };
    hooks.coordinator_changed = [&node](const std::string& name, int64_t term) {
      node.coordinators.push_back(absl::StrCat(name, " ", term));
    };
    hooks.noticed = [&node](const std::string& message) { node.noticed.push_back(message); };
    hooks.lost = [&node](const absl::Status& why) { node.lost.push_back(ReasonOf(why)); };
    return hooks;
  }
  static std::string NameOf(const Decision& decision) {
    static const char* const kNames[] = {"PROPOSED",  "ADMITTED", "SEALED", "PUBLISHING",
                                         "COMMITTED", "ENDED",    "UNKNOWN"};
    const std::string name = kNames[decision.phase];
    return decision.phase == Decision::kEnded ? absl::StrCat(name, " ", ReasonOf(decision.end)) : name;
  }
  void OnChanged(Node& node, const SaveId& save, const Decision& decision) {
    node.heard[save.tag].push_back(NameOf(decision));
    if (decision.phase == Decision::kProposed && node.accepts) node.run->Accept(save, node.keeps);
    if (decision.phase == Decision::kAdmitted) {
      EXPECT_FALSE(decision.inflight.empty());
      if (node.seals) node.run->Sealed(save);
    }
    if (decision.phase == Decision::kSealed && node.writes) node.run->Durable(save, "of " + node.name);
  }
  void AskForEnd(Node& node, const std::string& tag, std::string* end) {
    node.run->WhenEnded(Id(tag), [end](const std::optional<Decision>& decision) {
      *end = decision ? NameOf(*decision) : "unknown";
    });
  }
  std::string EndOf(Node& node, const std::string& tag) {
    std::string end;
    AskForEnd(node, tag, &end);
    RunUntil([&] { return !end.empty(); });
    return end;
  }
  void Tick() {
    for (Node& node : all_) {
      if (node.run != nullptr && !node.pause.paused()) node.run->OnTick();
    }
    if (check_) check_();
  }

  // ---- time

  void RunUntil(const std::function<bool()>& done) { etcd_.caller().RunUntil(done); }
  void RunFor(Duration time) {
    const Instant end = etcd_.clock()->Now() + time;
    RunUntil([&] { return etcd_.clock()->Now() >= end; });
  }
  template <typename T>
  T Ask(const std::function<void(Callback<T>)>& ask) {
    auto answer = std::make_shared<std::optional<T>>();
    ask([answer](T result) { *answer = std::move(result); });
    RunUntil([&] { return answer->has_value(); });
    if (!answer->has_value()) return T(absl::UnknownError("no answer"));
    return **std::move(answer);
  }
  static Ledger::JoinSpec SpecOf(const Node& node, const std::string& launch, int world) {
    Ledger::JoinSpec spec;
    spec.rank = node.rank;
    spec.world_size = world;
    spec.launch_id = launch;
    spec.instance = absl::StrCat(launch, ".", node.rank);
    return spec;
  }
  absl::StatusOr<int64_t> Join(Node& node, const std::string& launch, int world = kNodes) {
    const Ledger::JoinSpec spec = SpecOf(node, launch, world);
    return Ask<absl::StatusOr<int64_t>>([&](auto done) { node.run->ledger()->Join(spec, std::move(done)); });
  }
  // A launch of one process, whose attempt acts; 0: it could not join.
  int64_t LaunchAlone(Node& node, const std::string& launch = "launch2") {
    Ledger::JoinSpec spec;
    spec.world_size = 1;
    spec.launch_id = launch;
    spec.instance = launch + ".0";
    spec.takeover = true;
    const auto attempt =
        Ask<absl::StatusOr<int64_t>>([&](auto done) { node.run->ledger()->Join(spec, std::move(done)); });
    EXPECT_TRUE(attempt.ok()) << attempt.status();
    if (!attempt.ok()) return 0;
    EXPECT_TRUE(Activate(node, *attempt).ok());
    return *attempt;
  }
  // The attempt, or why a launch of another job, of one process, cannot join on the node.
  std::string JoinAnotherJob(Node& node) {
    Ledger::JoinSpec spec;
    spec.world_size = 1;
    spec.launch_id = spec.instance = spec.job = "another job";
    const auto attempt =
        Ask<absl::StatusOr<int64_t>>([&](auto done) { node.run->ledger()->Join(spec, std::move(done)); });
    return attempt.ok() ? absl::StrCat(*attempt) : ReasonOf(attempt.status());
  }
  absl::Status Activate(Node& node, int64_t attempt) {
    return Ask<absl::Status>([&](auto done) { node.run->ledger()->Activate(attempt, std::move(done)); });
  }

  // What another coordinator sees of the root when it looks at it, as it must when its term has begun.
  RootSnapshot ScanOfNextCoordinator() {
    RunUntil([this] { return Coordinator() != nullptr && Coordinator()->root_changes > 0; });
    if (Coordinator() == nullptr || Coordinator()->root_changes == 0) {
      ADD_FAILURE() << "the next coordinator does not look at the root";
      return {};
    }
    return *Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { Coordinator()->io->Rescan(std::move(done)); });
  }

  // Saves step_1 and step_2, and pauses the coordinator after etcd knows that step_1 goes, before it is
  // removed.
  Node& PauseWhereStep1IsRemoved() {
    SaveAll("step_1");
    SaveAll("step_2");
    Node& first = *Coordinator();
    root_.before = [&first](const std::string& what) {
      if (what == "Remove") first.pause.Begin();
      return what != "Remove";
    };
    first.io->Evict("step_1", 1, [](const absl::Status&) {});
    RunUntil([&] { return !Other().removed.empty(); });
    return first;
  }

  // ---- saves

  SaveId Id(const std::string& tag, int64_t attempt = 1) const { return {attempt, tag, 1}; }
  void BeginAll(const std::string& tag, int64_t attempt = 1, Duration patience = minutes(8)) {
    for (Node& node : all_) {
      if (node.run != nullptr) node.run->Begin(Id(tag, attempt), etcd_.clock()->Now() + patience, {});
    }
  }
  static bool Heard(const Node& node, const std::string& tag, const std::string& what) {
    const auto found = node.heard.find(tag);
    return found != node.heard.end() && std::count(found->second.begin(), found->second.end(), what) > 0;
  }
  void RunUntilAllHeard(const std::string& tag, const std::string& what) {
    RunUntil([&] {
      return std::all_of(all_.begin(), all_.end(),
                         [&](const Node& node) { return node.run == nullptr || Heard(node, tag, what); });
    });
    for (const Node& node : all_) {
      EXPECT_TRUE(node.run == nullptr || Heard(node, tag, what))
          << node.name << " has not heard " << what << " of " << tag;
    }
  }
  void BeginAllWithSkip(const std::string& tag) {
    BeginAll(tag);
    for (Node& node : all_) node.run->SkipAfter(Id(tag), seconds(3));
  }
  Duration TimeUntilAllSkip(const std::string& tag) {
    const Instant begun = etcd_.clock()->Now();
    RunUntil([&] {
      return std::all_of(all_.begin(), all_.end(), [&](const Node& node) {
        return Heard(node, tag, "FAILED SKIPPED") || Heard(node, tag, "ENDED SKIPPED");
      });
    });
    return etcd_.clock()->Now() - begun;
  }
  void SaveAll(const std::string& tag, int64_t attempt = 1) {
    BeginAll(tag, attempt);
    RunUntilAllHeard(tag, "COMMITTED");
  }

  // Starts all nodes anew, with attempt 2 of the run. Sets ended_kept_for_.
  void StartWithAnEtcdThatForgetsAfter(Duration time) {
    ended_kept_for_ = time;
    for (Node& node : all_) Kill(node);
    for (Node& node : all_) Start(node);
    for (Node& node : all_) ASSERT_TRUE(Join(node, "launch2").ok());
    ASSERT_TRUE(Activate(all_[0], 2).ok());
    RunUntil([this] { return Coordinator() != nullptr; });
  }
  // Saves step_1 of the rank of `node` alone, which leaves with `leave` before it can hear of the end, and
  // step_2 of the others; until etcd has forgotten step_1.
  void PublishWhatEtcdForgets(Node& node, const std::function<void()>& leave) {
    root_.before = [&leave](const std::string& what) {
      if (what == "Publish") leave();
      return true;
    };
    node.run->Begin(Id("step_1", 2), etcd_.clock()->Now() + minutes(8), {node.rank});
    RunUntil([this] { return !root_.published.empty(); });
    root_.before = nullptr;
    ASSERT_FALSE(Heard(node, "step_1", "COMMITTED"));
    std::vector<int> others;
    for (const Node& other : all_) {
      if (&other != &node) others.push_back(other.rank);
    }
    for (const int i : others) all_[i].run->Begin(Id("step_2", 2), etcd_.clock()->Now() + minutes(8), others);
    RunUntil([this] { return nodes_.Read(keys_.SaveIndex(2, "step_1", 1)) == "(none)"; });
  }

  // Saves step_1, and again: the coordinator, which it returns, has removed the first one, and is paused
  // before it can publish the second one.
  Node& PauseWhereASaveReplacesStep1() {
    SaveAll("step_1");
    Node& coordinator = *Coordinator();
    root_.before = [&coordinator](const std::string& what) {
      if (what == "Publish") coordinator.pause.Begin();
      return what != "Publish";
    };
    const SaveId again{1, "step_1", 2};
    for (Node& node : all_) node.run->Begin(again, etcd_.clock()->Now() + minutes(8), {});
    RunUntil([&] { return !Other().removed.empty(); });
    return coordinator;
  }

  void PutKey(const std::string& key, const std::string& value) {
    etcdserverpb::TxnRequest put;
    const std::string before = nodes_.Read(key);  // Not for a late copy.
    *put.add_compare() = before == "(none)" ? Absent(key) : HasValue(key, before);
    *put.add_success() = Put(key, value);
    ASSERT_TRUE(etcd_.caller().Txn(put).ok());
  }
  // What etcd says of a run of this user that is not one of these nodes.
  void PutUse(uint32_t uid, int64_t keys) {
    ledger::v1::RunUse use;
    use.set_keys(keys);
    use.set_bytes(1 << 19);
    use.set_path("/shared/other");
    PutKey(absl::StrCat(nodes_.prefix(), "users/", uid, "/other"), use.SerializeAsString());
  }
  // Until a process that joins on the node is answered with this reason; empty: it may join.
  void WaitUntilJoin(Node& node, const std::string& reason) {
    std::string answer;
    for (int tries = 0; tries < 1000; ++tries) {
      answer = ReasonOf(Join(node, "launch2", 2).status());
      if (answer == reason) return;
      RunFor(seconds(1));
    }
    FAIL() << node.name << " is answered with " << answer << ", not with " << reason;
  }
  // What rank 0 of a launch uploads, which joins on the node.
  static storage::v1::UploadRecord UploadsTo(const std::string& url) {
    storage::v1::UploadRecord policy;
    policy.set_url(url);
    return policy;
  }
  absl::StatusOr<int64_t> JoinWithUploads(Node& node, const std::string& launch, const std::string& url) {
    Ledger::JoinSpec spec = SpecOf(node, launch, kNodes);
    spec.rank = 0;
    spec.uploads = UploadsTo(url);
    return Ask<absl::StatusOr<int64_t>>([&](auto done) { node.run->ledger()->Join(spec, std::move(done)); });
  }
  // "attempt url": of the policy that all nodes have heard of.
  void RunUntilAllShow(const std::string& policy) {
    const auto shown = [](const Node& node) {
      const SharedUploads::Known known = node.run->Shown();
      return absl::StrCat(known.attempt, " ", known.policy.url());
    };
    RunUntil([&] {
      return std::all_of(all_.begin(), all_.end(), [&](const Node& node) { return shown(node) == policy; });
    });
    for (const Node& node : all_) EXPECT_EQ(shown(node), policy) << node.name;
  }
  absl::StatusOr<SharedUploads::Known> ReadUploads(Node& node) {
    return Ask<absl::StatusOr<SharedUploads::Known>>([&](auto done) { node.run->Read(std::move(done)); });
  }
  absl::Status WriteUploads(Node& node, int64_t counted_through, int64_t sequences_above = 0) {
    return Ask<absl::Status>([&](auto done) {
      node.run->Write(UploadsTo("s3://bucket/run"), counted_through, sequences_above, std::move(done));
    });
  }
  // What the node hears: "step_9 9", or an error.
  std::string Restore(Node& node) {
    const auto newest = Ask<absl::StatusOr<SharedUploads::Newest>>([&](auto done) {
      node.run->BringBack({1, "s3://bucket/run", "mine"}, std::move(done));
    });
    if (!newest.ok()) return std::string(newest.status().message());
    return absl::StrCat(newest->tag, " ", newest->sequence);
  }
  absl::Status Evict(const std::string& tag, int64_t sequence) {
    return Ask<absl::Status>([&](auto done) { Coordinator()->io->Evict(tag, sequence, std::move(done)); });
  }
  absl::StatusOr<std::shared_ptr<CheckpointReader>> Open(Node& node, const std::string& tag,
                                                         int64_t sequence) {
    return Ask<absl::StatusOr<std::shared_ptr<CheckpointReader>>>(
        [&](auto done) { node.io->OpenCheckpoint(tag, sequence, std::move(done)); });
  }

  // ---- what operators set

  std::string SetPinned(Node& node, const std::string& tag, int64_t sequence, bool pinned) {
    const auto set =
        Ask<absl::Status>([&](auto done) { node.run->SetPinned(tag, sequence, pinned, std::move(done)); });
    return set.ok() ? "OK" : ReasonOf(set);
  }
  std::string Delete(Node& node, const std::string& tag, int64_t sequence, bool force = false) {
    const auto deleted =
        Ask<absl::Status>([&](auto done) { node.run->Delete(tag, sequence, force, std::move(done)); });
    return deleted.ok() ? "OK" : ReasonOf(deleted);
  }
  void RunUntilAllHaveLearntOfPin(const std::string& what) {
    const auto knows = [&](const Node& node) { return !node.pins.empty() && node.pins.back() == what; };
    RunUntil([&] { return std::all_of(all_.begin(), all_.end(), knows); });
    for (const Node& node : all_) EXPECT_TRUE(knows(node)) << node.name;
  }
  bool ShowsPin(Node& node, int64_t sequence) {
    const auto scanned =
        Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { node.io->Rescan(std::move(done)); });
    EXPECT_TRUE(scanned.ok()) << scanned.status();
    return scanned.ok() && scanned->committed.at(sequence).pinned;
  }

  // ---- trials of the root

  void EndTrialOfFirstLaunch() {
    RunUntil([this] {
      return std::all_of(all_.begin(), all_.end(),
                         [](const Node& node) { return node.files->tried.size() == 1; });
    });
    RunFor(seconds(1));
    for (Node& node : all_) node.files->tried.clear();
  }

  // ---- damage

  static storage::v1::Damage DamageOf(int64_t sequence, const std::string& message) {
    storage::v1::Damage damage;
    damage.set_tag(absl::StrCat("step_", sequence));
    damage.set_sequence(sequence);
    damage.set_message(message);
    return damage;
  }
  // "OK", or the reason.
  std::string Mark(Node& node, int64_t sequence, const std::string& message = "chunk 3") {
    const absl::Status marked = Ask<absl::Status>(
        [&](auto done) { node.run->MarkDamaged(DamageOf(sequence, message), std::move(done)); });
    return marked.ok() ? "OK" : ReasonOf(marked);
  }
  std::string Clear(Node& node, int64_t sequence) {
    const absl::Status cleared =
        Ask<absl::Status>([&](auto done) { node.run->ClearDamage(sequence, std::move(done)); });
    return cleared.ok() ? "OK" : ReasonOf(cleared);
  }
  void RunUntilAllHaveHeardOfDamage(const std::string& what) {
    RunUntil([&] {
      return std::all_of(all_.begin(), all_.end(), [&](const Node& node) {
        return node.run == nullptr || (!node.damage.empty() && node.damage.back() == what);
      });
    });
    for (const Node& node : all_)
      EXPECT_TRUE(node.run == nullptr || (!node.damage.empty() && node.damage.back() == what)) << node.name;
  }
  // What a node's look at the root says of a checkpoint; empty: nothing.
  std::string Shown(Node& node, int64_t sequence) {
    const auto scanned =
        Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { node.io->Rescan(std::move(done)); });
    EXPECT_TRUE(scanned.ok() && scanned->committed.contains(sequence)) << scanned.status();
    if (!scanned.ok() || !scanned->committed.contains(sequence)) return "not there";
    const auto& damage = scanned->committed.at(sequence).damage;
    return damage ? damage->message() : "";
  }

  AnyEtcd etcd_{GetParam()};
  RegisteredNodes nodes_{&etcd_};
  FakeSharedRoot root_{
      [this](Duration delay, absl::AnyInvocable<void()> event) { etcd_.After(delay, std::move(event)); },
      GetParam().seed, milliseconds(50)};
  std::string run_id_ = "0123456789abcdef0123456789abcdef";
  const LedgerKeys keys_{absl::StrCat(nodes_.prefix(), "runs/", run_id_, "/")};
  std::function<void()> check_;  // At each tick.
  // What a node that starts finds of its root.
  uint64_t inode_ = 7;
  uint32_t uid_ = 1000;
  UseBound bound_;
  Duration ended_kept_for_ = std::chrono::hours(1);
  bool opens_without_etcd_ = false;
  std::array<Node, kNodes> all_;
};
std::string NameOf(const ::testing::TestParamInfo<EtcdKind>& kind) { return kind.param.name(); }
INSTANTIATE_TEST_SUITE_P(, NodesRunContract, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/10)), NameOf);

TEST_P(NodesRunContract, EachNodeHearsEveryStepOfASaveOnce) {
  SaveAll("step_1");
  for (const Node& node : all_) {
    EXPECT_THAT(node.heard.at("step_1"), Contains("ADMITTED").Times(1));
    EXPECT_THAT(node.heard.at("step_1"), Contains("SEALED").Times(1));
    EXPECT_EQ(node.heard.at("step_1").back(), "COMMITTED");
    EXPECT_THAT(node.heard.at("step_1"), ::testing::Not(Contains("RELEASED")));
  }
  EXPECT_THAT(root_.published, ElementsAre("step_1 1"));
  const auto loaded = Ask<absl::StatusOr<LoadedCheckpoint>>(
      [&](auto done) { all_[2].run->LoadCheckpoint("step_1", 1, std::move(done)); });
  EXPECT_TRUE(loaded.ok()) << loaded.status();
}

TEST_P(NodesRunContract, NodeTellsWhenItSawACheckpointLateOrNotAtAll) {
  SaveAll("step_1");
  Node& node = all_[2];
  using Loaded = absl::StatusOr<LoadedCheckpoint>;
  const auto load = [&](const std::string& tag) {
    return Ask<Loaded>([&](auto done) { node.run->LoadCheckpoint(tag, 1, std::move(done)); });
  };
  EXPECT_TRUE(load("step_1").ok());
  EXPECT_THAT(node.noticed, IsEmpty());

  node.files->Hang(etcd_.clock()->Now());
  etcd_.After(seconds(3), [&node] { node.files->EndHang(); });
  EXPECT_TRUE(load("step_1").ok());
  EXPECT_THAT(node.noticed, ElementsAre(AllOf(HasSubstr("step_1"), HasSubstr("was seen on this node after 3"),
                                              HasSubstr("visibility_seconds is 5"))));
  EXPECT_FALSE(load("step_9").ok());
  EXPECT_THAT(node.noticed.back(), AllOf(HasSubstr("step_9"), HasSubstr("could not be read")));
}

TEST_P(NodesRunContract, FailureOfOneNodeEndsTheSaveOnAll) {
  for (Node& node : all_) node.writes = false;
  BeginAll("step_1");
  RunUntilAllHeard("step_1", "SEALED");
  all_[1].run->Fail(Id("step_1"),
                    MakeError(absl::StatusCode::kResourceExhausted, "NO_SPACE", "the disk is full"));
  RunUntilAllHeard("step_1", "ENDED NO_SPACE");
  for (const Node& node : all_) EXPECT_THAT(node.heard.at("step_1"), Contains("RELEASED").Times(1));
  for (Node& node : all_) node.writes = true;
  SaveAll("step_2");
}

TEST_P(NodesRunContract, NodeMayEndWhatItHasMadeDurableUntilThatIsBeingPublished) {
  Node& node = Other();
  for (Node& each : all_) each.writes = &each == &node;
  BeginAll("step_1");
  RunUntilAllHeard("step_1", "SEALED");
  RunUntil([&] { return node.run->WaitsFor(Id("step_1")) == "the files of all nodes, or an older save"; });
  RunFor(seconds(1));
  node.run->Fail(Id("step_1"), MakeError(absl::StatusCode::kAborted, "SAVE_ABORTED", "rank 0 aborted it"));
  RunUntilAllHeard("step_1", "ENDED SAVE_ABORTED");
  EXPECT_THAT(root_.published, ElementsAre());
}

TEST_P(NodesRunContract, WhatIsBeingPublishedIsEndedByNoNode) {
  Node& coordinator = *Coordinator();
  Node& node = Other();
  for (Node& each : all_) each.writes = &each == &node;
  BeginAll("step_1", 1, seconds(10));
  RunUntilAllHeard("step_1", "SEALED");
  RunFor(seconds(30));  // Its admission deadline is long over.
  root_.before = [&coordinator](const std::string& what) {
    if (what == "Publish") coordinator.pause.Begin();
    return what != "Publish";
  };
  for (Node& each : all_) each.run->Durable(Id("step_1"), "of " + each.name);
  RunUntil([&] { return Heard(node, "step_1", "PUBLISHING"); });
  node.run->Fail(Id("step_1"), MakeError(absl::StatusCode::kAborted, "SAVE_ABORTED", "rank 0 aborted it"));
  RegisterAnew(node);
  node.run->OnTick();  // Etcd has not answered yet.
  RunFor(seconds(1));
  root_.before = nullptr;
  coordinator.pause.End();
  RunUntilAllHeard("step_1", "COMMITTED");
  EXPECT_THAT(node.heard.at("step_1"), Contains("PUBLISHING").Times(1));
  EXPECT_TRUE(node.failed.ok()) << node.failed;
  EXPECT_THAT(node.heard.at("step_1"), ::testing::Not(Contains("RELEASED")));
}

TEST_P(NodesRunContract, AnotherNodeGoesOnWhenTheCoordinatorDies) {
  for (Node& node : all_) node.writes = false;
  BeginAll("step_1");
  RunUntilAllHeard("step_1", "SEALED");
  Node& dead = *Coordinator();
  for (Node& node : all_) node.run->Durable(Id("step_1"), "of " + node.name);
  RunUntil([&] {
    return std::all_of(all_.begin(), all_.end(), [&](const Node& node) {
      return node.run->WaitsFor(Id("step_1")).find("etcd") == std::string::npos;
    });
  });
  Kill(dead);
  RunUntilAllHeard("step_1", "COMMITTED");
  RunUntil([this] { return Coordinator() != nullptr; });
  EXPECT_GE(Coordinator()->leadership_changes, 1);
}

// For the log; a new registration hears of the same coordinator again.
TEST_P(NodesRunContract, EachCoordinatorIsToldOnceOnEachNode) {
  Node& first = *Coordinator();
  Node& other = Other();
  RunUntil([&] { return !other.coordinators.empty(); });
  EXPECT_EQ(other.coordinators.back(), first.coordinators.back());
  const size_t told = other.coordinators.size();
  RegisterAnew(other);
  RunUntil([&] { return !other.run->coordinator().empty(); });
  EXPECT_EQ(other.coordinators.size(), told);
  Kill(first);
  RunUntil([&] { return Coordinator() != nullptr && other.coordinators.size() > told; });
  EXPECT_EQ(other.coordinators.size(), told + 1);
  EXPECT_THAT(other.coordinators.back(), StartsWith(Coordinator()->name + " "));
}

TEST_P(NodesRunContract, CoordinatorThatCannotPublishSaysWhy) {
  root_.no_term = ErrnoError(EROFS, "writing the coordinator's term");
  Kill(*Coordinator());
  RunUntil([&] { return Coordinator() != nullptr; });
  Node& coordinator = *Coordinator();
  ASSERT_EQ(LaunchAlone(coordinator), 2);
  coordinator.run->Begin(Id("step_1", 2), etcd_.clock()->Now() + minutes(8), {});
  RunUntil([&] { return Heard(coordinator, "step_1", "SEALED"); });
  const auto waits_for = [&] { return coordinator.run->WaitsFor(Id("step_1", 2)); };
  RunUntil([&] { return absl::StrContains(waits_for(), "this node, which coordinates"); });
  EXPECT_THAT(waits_for(), HasSubstr("waits for the root, in which this node cannot begin to coordinate"));
  EXPECT_THAT(waits_for(), HasSubstr("writing the coordinator's term: Read-only file system"));
  root_.no_term = absl::OkStatus();
  RunUntil([&] { return Heard(coordinator, "step_1", "COMMITTED"); });
}

TEST_P(NodesRunContract, NodeThatIsRegisteredAnewGoesOnWithWhatItHasSealed) {
  Node& node = Other();
  for (Node& other : all_) other.writes = false;
  BeginAll("step_1");
  RunUntilAllHeard("step_1", "SEALED");
  RegisterAnew(node);
  EXPECT_THAT(node.lost, ElementsAre("NODE_REPLACED"));
  for (Node& other : all_) other.run->Durable(Id("step_1"), "of " + other.name);
  RunUntilAllHeard("step_1", "COMMITTED");
  EXPECT_THAT(node.heard.at("step_1"), Contains("SEALED").Times(1)) << "not again";
}

TEST_P(NodesRunContract, NodeThatIsRegisteredAnewLosesWhatItHasNotSealed) {
  Node& node = Other();
  for (Node& other : all_) other.seals = false;
  BeginAll("step_1");
  RunUntilAllHeard("step_1", "ADMITTED");
  RegisterAnew(node);
  RunUntil([&] {
    return std::all_of(all_.begin(), all_.end(), [&](const Node& other) {
      return Heard(other, "step_1", "ENDED STAGED_LOST") || Heard(other, "step_1", "ENDED NODE_LOST") ||
             (&other == &node && Heard(other, "step_1", "RELEASED"));
    });
  });
  EXPECT_THAT(node.heard.at("step_1"), Contains("FAILED STAGED_LOST").Times(1));
  for (Node& other : all_) {
    EXPECT_THAT(other.heard.at("step_1"), Contains("RELEASED").Times(1)) << other.name;
    other.seals = true;
  }
  EXPECT_EQ(Activate(node, 1).code(), absl::StatusCode::kOk) << "its processes have joined again";
  SaveAll("step_2");
}

// It has no record of what the daemon before it was told.
TEST_P(NodesRunContract, NextDaemonOfANodeHearsHowTheSavesOfTheOneBeforeEnded) {
  Node& node = Other();
  SaveAll("step_1");
  for (Node& other : all_) other.writes = false;
  BeginAll("step_2");
  RunUntilAllHeard("step_2", "SEALED");
  node.run->Durable(Id("step_2"), "of " + node.name);
  RunFor(seconds(1));
  Kill(node);
  Start(node);
  EXPECT_EQ(EndOf(node, "step_1"), "COMMITTED");
  std::string end = "none yet";
  AskForEnd(node, "step_2", &end);
  RunFor(seconds(1));
  EXPECT_EQ(end, "none yet") << "the other nodes may commit it";
  for (Node& other : all_) {
    if (&other != &node) other.run->Durable(Id("step_2"), "of " + other.name);
  }
  RunUntil([&] { return end != "none yet"; });
  // With faults etcd may not have heard that its files were durable.
  EXPECT_THAT(end, ::testing::AnyOf("COMMITTED", "ENDED NODE_LOST"));
  RunUntil([&] { return Heard(*Coordinator(), "step_2", end); });
  EXPECT_TRUE(Heard(*Coordinator(), "step_2", end)) << end;
  EXPECT_EQ(EndOf(node, "never_begun"), "unknown");

  BeginAll("step_3");
  RunUntilAllHeard("step_3", "SEALED");
  Kill(node);
  Start(node);
  EXPECT_EQ(EndOf(node, "step_3"), "ENDED NODE_LOST") << "its files were not durable";
}

TEST_P(NodesRunContract, EndOfAnEarlierSaveIsHeardWhenTheNodeIsRegisteredAgain) {
  Node& node = Other();
  SaveAll("step_1");
  node.run->SetNode(nullptr);
  std::string end = "none yet";
  AskForEnd(node, "step_1", &end);
  RunFor(seconds(1));
  EXPECT_EQ(end, "none yet");
  RegisterAnew(node);
  RunUntil([&] { return end != "none yet"; });
  EXPECT_EQ(end, "COMMITTED");
}

// Else the coordinator could commit a save of this node, and remove what it failed to load, before it hears
// of that.
TEST_P(NodesRunContract, NodeThatCouldNotResumeSavesWhenEtcdKnowsThat) {
  Node& node = all_[0];  // It has activated the attempt.
  node.pause.Begin();
  node.run->ledger()->ResumeFailed(1, 1);
  absl::Status active = absl::UnknownError("no answer yet");
  node.run->ledger()->Activate(1, [&](const absl::Status& answer) { active = answer; });
  RunFor(seconds(1));
  EXPECT_EQ(active.code(), absl::StatusCode::kUnknown) << active;
  node.pause.End();
  RunUntil([&] { return active.code() != absl::StatusCode::kUnknown; });
  EXPECT_EQ(active, absl::OkStatus());

  CutOff(node, true);
  node.run->ledger()->ResumeFailed(1, 1);
  active = absl::UnknownError("no answer yet");
  node.run->ledger()->Activate(1, [&](const absl::Status& answer) { active = answer; });
  RunUntil([&] { return active.code() != absl::StatusCode::kUnknown; });
  EXPECT_EQ(ReasonOf(active), "LEDGER_UNAVAILABLE") << active;
  CutOff(node, false);
}

TEST_P(NodesRunContract, LaunchThatCouldNotResumeIsKnownAlsoIfEtcdDidNotAnswerWhenItHadSaved) {
  using Decided = absl::StatusOr<std::optional<Ledger::ResumeChoice>>;
  Node& node = all_[0];
  Ledger* const ledger = node.run->ledger();
  const auto choice = Ask<absl::StatusOr<Ledger::ResumeChoice>>([&](auto done) {
    ledger->DecideResume(1, {.tag = "step_5", .sequence = 5, .agreed = false}, std::move(done));
  });
  ASSERT_TRUE(choice.ok()) << choice.status();
  ledger->ResumeFailed(1, 5);
  const auto active = Ask<absl::Status>([&](auto done) { ledger->Activate(1, std::move(done)); });
  ASSERT_TRUE(active.ok()) << active;
  CutOff(node, true);
  ledger->Committed(1);
  const auto unknown = Ask<Decided>([&](auto done) { ledger->DecidedResume(1, std::move(done)); });
  EXPECT_FALSE(unknown.ok());
  CutOff(node, false);
  RegisterAnew(node);
  const auto known = Ask<Decided>([&](auto done) { ledger->DecidedResume(1, std::move(done)); });
  EXPECT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(ledger->record().retained_through(), 5);
}

// The coordinator follows nodes and votes by two watches.
TEST_P(NodesRunContract, VoteThatIsHeardAfterTheNextRegistrationOfItsNodeIsLookedAt) {
  SaveAll("step_1");  // The next one is made in advance, and the last vote admits it.
  Node &coordinator = *Coordinator(), &node = Other();
  node.seals = false;
  coordinator.etcd->HoldEvents(keys_.AllVotes());
  BeginAll("step_2");
  const Instant end = etcd_.clock()->Now() + seconds(1);
  RunUntil([&] { return Heard(node, "step_2", "ADMITTED") || etcd_.clock()->Now() >= end; });
  if (!Heard(node, "step_2", "ADMITTED")) {  // It could not be, with these faults.
    coordinator.etcd->ReleaseEvents();
    RunUntilAllHeard("step_2", "ADMITTED");
  }
  RegisterAnew(node);
  RunFor(seconds(1));
  coordinator.etcd->ReleaseEvents();
  RunUntil([&] { return Heard(coordinator, "step_2", "ENDED NODE_LOST"); });
  EXPECT_THAT(coordinator.heard.at("step_2"), Contains("ENDED NODE_LOST"));
}

TEST_P(NodesRunContract, LossOfARegistrationFailsWhatIsNotSealedAtOnce) {
  Node& node = Other();
  for (Node& other : all_) other.seals = false;
  BeginAll("step_1");
  RunUntilAllHeard("step_1", "ADMITTED");
  node.run->SetNode(nullptr);
  EXPECT_EQ(node.heard.at("step_1").back(), "FAILED STAGED_LOST");
  EXPECT_THAT(node.run->UnfinishedSaves(), ::testing::IsEmpty());
  node.run->Begin(Id("step_1"), etcd_.clock()->Now() + minutes(8), {});  // Another rank of the node.
  RunFor(seconds(1));
  EXPECT_THAT(node.heard.at("step_1"), Contains("FAILED STAGED_LOST").Times(2));
  RegisterAnew(node);
  RunUntil([&] {
    return std::all_of(all_.begin(), all_.end(), [&](const Node& other) {
      return Heard(other, "step_1", &other == &node ? "RELEASED" : "ENDED NODE_LOST");
    });
  });
  RunFor(seconds(10));
  for (Node& other : all_) {
    EXPECT_THAT(other.heard.at("step_1"), Contains("RELEASED").Times(1)) << other.name;
    other.seals = true;
  }
  EXPECT_THAT(node.heard.at("step_1"), ::testing::Not(Contains("ENDED NODE_LOST"))) << "it was told";
  SaveAll("step_2");
}

TEST_P(NodesRunContract, SaveThatBeginsWithoutARegistrationFailsAtItsDeadline) {
  Node& node = Other();
  node.run->SetNode(nullptr);
  const Instant begun = etcd_.clock()->Now();
  node.run->Begin(Id("step_1"), begun + seconds(20), {});
  EXPECT_THAT(node.run->WaitsFor(Id("step_1")), HasSubstr("registered"));
  RunUntil([&] { return Heard(node, "step_1", "FAILED LEDGER_UNAVAILABLE"); });
  EXPECT_LE(etcd_.clock()->Now() - begun, seconds(25));
  node.run->Begin(Id("step_1"), begun + minutes(8), {});  // Another rank of the node.
  RunFor(seconds(1));
  EXPECT_THAT(node.heard.at("step_1"), Contains("FAILED LEDGER_UNAVAILABLE").Times(2));
  node.run->SetNode(&node.registration->identity());
  RunUntil([&] { return Heard(node, "step_1", "RELEASED"); });
  SaveAll("step_2");
}

TEST_P(NodesRunContract, SkipDoesNotWaitForEtcd) {
  SaveAll("step_1");
  for (Node& node : all_) CutOff(node, true);
  BeginAllWithSkip("step_2");
  EXPECT_LE(TimeUntilAllSkip("step_2"), seconds(5));
  for (Node& node : all_) CutOff(node, false);
  RunUntilAllHeard("step_2", "RELEASED");

  Node& late = Other();
  late.accepts = false;
  BeginAllWithSkip("step_3");
  RunUntilAllHeard("step_3", "PROPOSED");
  for (Node& node : all_) CutOff(node, true);
  late.run->Accept(Id("step_3"), {});
  EXPECT_LE(TimeUntilAllSkip("step_3"), seconds(6)) << "also of nodes that have said yes";
  for (Node& node : all_) CutOff(node, false);
  late.accepts = true;
  RunUntilAllHeard("step_3", "RELEASED");
  SaveAll("step_4");
}

TEST_P(NodesRunContract, SkipWaitsForRanksThatAreLateWhileEtcdAnswers) {
  if (GetParam().way == EtcdKind::kFaulty) GTEST_SKIP() << "it does not answer each request";
  Node& late = Other();
  late.accepts = false;
  BeginAllWithSkip("step_1");
  RunUntilAllHeard("step_1", "PROPOSED");
  RunFor(seconds(20));
  late.run->Accept(Id("step_1"), {});
  RunUntilAllHeard("step_1", "COMMITTED");
}

TEST_P(NodesRunContract, SkipDoesNotWaitForARegistration) {
  Node& node = Other();
  node.run->SetNode(nullptr);
  const Instant begun = etcd_.clock()->Now();
  node.run->Begin(Id("step_1"), begun + minutes(8), {});
  node.run->SkipAfter(Id("step_1"), seconds(3));
  RunUntil([&] { return Heard(node, "step_1", "FAILED SKIPPED"); });
  EXPECT_LE(etcd_.clock()->Now() - begun, seconds(5));
  node.run->SetNode(&node.registration->identity());
  RunUntil([&] { return Heard(node, "step_1", "RELEASED"); });
  SaveAll("step_2");
}

// Etcd has its no, and the coordinator, which is to end the save for all, does not answer.
TEST_P(NodesRunContract, RankThatBeginsASaveWhichItsNodeHasSkippedHearsTheSame) {
  Node& node = Other();
  Coordinator()->pause.Begin();
  node.run->Begin(Id("step_1"), etcd_.clock()->Now() + minutes(8), {});
  node.run->SkipAfter(Id("step_1"), seconds(3));
  node.run->Fail(Id("step_1"), absl::ResourceExhaustedError("no room"));
  RunUntil([&] { return Heard(node, "step_1", "FAILED SKIPPED") && Heard(node, "step_1", "RELEASED"); });
  node.run->Begin(Id("step_1"), etcd_.clock()->Now() + minutes(8), {});
  RunFor(seconds(1));
  EXPECT_THAT(node.heard.at("step_1"), Contains("FAILED SKIPPED").Times(2));
  EXPECT_THAT(node.heard.at("step_1"), Contains("RELEASED").Times(2)) << "its memory";
}

TEST_P(NodesRunContract, SkipDoesNotWaitForTheFileSystemOfTheCoordinator) {
  Coordinator()->files->Hang(etcd_.clock()->Now());
  BeginAllWithSkip("step_1");
  const Duration time = TimeUntilAllSkip("step_1");
  EXPECT_GE(time, seconds(3));
  EXPECT_LE(time, seconds(10));
  Coordinator()->files->EndHang();
  SaveAll("step_2");
}

// In order: another one waits neither for its lease nor for its next daemon.
TEST_P(NodesRunContract, NodeThatEndsSaysWhichSavesAreLost) {
  for (Node* const node : {&Other(), Coordinator()}) {
    const std::string tag = "by " + node->name;
    for (Node& each : all_) each.seals = each.writes = &each == node || &each == Coordinator();
    node->writes = false;
    BeginAll(tag);
    RunUntilAllHeard(tag, "ADMITTED");
    RunFor(seconds(1));
    const Instant begun = etcd_.clock()->Now();
    bool ended = false;
    node->run->EndSaves(begun + seconds(20), [&] { ended = true; });
    RunUntil([&] { return ended; });
    EXPECT_TRUE(Heard(*node, tag, "ENDED NODE_LOST")) << "etcd knows it";
    EXPECT_LE(etcd_.clock()->Now() - begun, seconds(10));
    RunUntilAllHeard(tag, "ENDED NODE_LOST");
    EXPECT_LE(etcd_.clock()->Now() - begun, seconds(10));
  }
  for (Node& each : all_) each.seals = each.writes = true;
  SaveAll("step_1");
}

TEST_P(NodesRunContract, NodeThatEndsWaitsForEtcdNoLongerThanItsDeadline) {
  Node& node = Other();
  node.seals = false;
  BeginAll("step_1");
  RunUntilAllHeard("step_1", "ADMITTED");
  const Instant begun = etcd_.clock()->Now();
  bool ended = false;
  node.run->EndSaves(begun + seconds(2), [&] { ended = true; });
  node.run->SetNode(nullptr);  // Its lease has ended.
  RunFor(seconds(3));
  EXPECT_TRUE(ended);
  node.run->SetNode(&node.registration->identity());
  node.seals = true;
  SaveAll("step_2");
}

TEST_P(NodesRunContract, NodeThatEndsLeavesWhatIsDurableToTheOthers) {
  Node& node = Other();
  for (Node& each : all_) each.writes = &each == &node;
  BeginAll("step_1");
  RunUntilAllHeard("step_1", "SEALED");
  RunFor(seconds(1));
  bool ended = false;
  node.run->EndSaves(etcd_.clock()->Now() + seconds(20), [&] { ended = true; });
  RunUntil([&] { return ended; });
  Kill(node);
  for (Node& each : all_) {
    if (each.run != nullptr) each.run->Durable(Id("step_1"), "of " + each.name);
  }
  RunUntilAllHeard("step_1", "COMMITTED");
}

// Its vote has counted before it was registered anew: the others would wait for its parts for ever.
TEST_P(NodesRunContract, WhatANodeHasPromisedEndsWithItsRegistration) {
  Node& node = Other();
  for (Node& other : all_) other.accepts = &other == &node;
  const Instant begun = etcd_.clock()->Now();
  for (Node& other : all_) other.run->Begin(Id("step_1"), begun + seconds(60), {});
  RunUntil([&] { return node.run->WaitsFor(Id("step_1")) == "the other nodes to have room for the save"; });
  node.run->SetNode(nullptr);
  for (Node& other : all_) {
    other.seals = false;
    if (&other != &node) other.run->Accept(Id("step_1"), {});
  }
  RunUntil([&] { return Heard(node, "step_1", "FAILED LEDGER_UNAVAILABLE"); });
  for (const Node& other : all_) {
    if (&other != &node) {
      EXPECT_EQ(other.heard.at("step_1").back(), "ADMITTED") << other.name;
    }
  }
  RegisterAnew(node);
  RunUntil([&] {
    return std::all_of(all_.begin(), all_.end(), [&](const Node& other) {
      return Heard(other, "step_1", "RELEASED") &&
             (&other == &node || Heard(other, "step_1", "ENDED NODE_LOST"));
    });
  });
  for (Node& other : all_) other.seals = other.accepts = true;
  SaveAll("step_2");
}

TEST_P(NodesRunContract, MemoryOfASaveIsGivenBackOnceOverTwoRegistrations) {
  Node& coordinator = *Coordinator();
  Node& node = Other();
  node.accepts = false;
  BeginAll("step_1");
  RunUntil([&] { return Heard(node, "step_1", "PROPOSED"); });
  CutOff(coordinator, true);  // It ends no save for now.
  node.run->Fail(Id("step_1"), MakeError(absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED", "no room"));
  RunUntil([&] { return Heard(node, "step_1", "RELEASED"); });
  RegisterAnew(node);
  RunFor(seconds(10));
  CutOff(coordinator, false);
  RunUntil([&] { return Heard(node, "step_1", "ENDED POOL_EXHAUSTED"); });
  EXPECT_THAT(node.heard.at("step_1"), Contains("RELEASED").Times(1));
}

TEST_P(NodesRunContract, JoinThatIsUnderWayWhenTheNodeIsRegisteredAnewIsAnsweredOnce) {
  Node& node = all_[0];
  const Ledger::JoinSpec spec = SpecOf(node, "launch2", kNodes);
  std::vector<absl::StatusOr<int64_t>> answers;
  node.run->ledger()->Join(spec, [&](absl::StatusOr<int64_t> answer) { answers.push_back(answer); });
  RegisterAnew(node);
  RunUntil([&] { return !answers.empty(); });
  RunFor(seconds(10));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].value_or(-1), 2) << answers[0].status();
  EXPECT_EQ(Join(all_[1], "launch2").value_or(-1), 2);
}

TEST_P(NodesRunContract, NodeThatEtcdNoLongerKnowsAsksForANewRegistration) {
  Node& node = Other();
  etcdserverpb::LeaseRevokeRequest end;
  end.set_id(node.registration->identity().lease);
  etcd_.WithModel([&](EtcdModel& model) { EXPECT_TRUE(model.RevokeLease(end).ok()); });
  BeginAll("step_1");
  RunUntil([&] { return !node.asked_anew.empty(); });
  EXPECT_THAT(node.asked_anew, ElementsAre("NODE_REPLACED"));
  RegisterAnew(node);
  RunUntilAllHeard("step_1", "COMMITTED");
  EXPECT_THAT(node.asked_anew, ElementsAre("NODE_REPLACED"));
}

// It leads still, so no other node takes over.
TEST_P(NodesRunContract, CoordinatorWhoseDecisionsAreRefusedAsksForANewRegistration) {
  Node& first = *Coordinator();
  std::vector<int> ranks;
  for (Node& node : all_) {
    node.writes = false;
    if (&node != &first) ranks.push_back(node.rank);
  }
  const auto others = [&](const std::function<void(Node&)>& act) {
    for (Node& node : all_) {
      if (&node != &first) act(node);
    }
  };
  others([&](Node& node) { node.run->Begin(Id("step_1"), etcd_.clock()->Now() + minutes(8), ranks); });
  RunUntil([&] {
    return std::all_of(all_.begin(), all_.end(),
                       [&](const Node& node) { return &node == &first || Heard(node, "step_1", "SEALED"); });
  });
  first.etcd->RefuseTransactions(
      MakeError(absl::StatusCode::kPermissionDenied, "LEDGER_REFUSED", "the password was changed"));
  others([&](Node& node) { node.run->Durable(Id("step_1"), "of " + node.name); });
  RunUntil([&] { return !first.asked_anew.empty(); });
  EXPECT_THAT(first.asked_anew, ElementsAre("LEDGER_REFUSED"));
  first.etcd->RefuseTransactions(absl::OkStatus());
  RegisterAnew(first);
  RunUntil([&] { return Heard(all_[ranks[0]], "step_1", "COMMITTED"); });
  EXPECT_EQ(first.asked_anew.size(), 1u);
}

// So that the node's other runs are not held up by it.
TEST_P(NodesRunContract, RunThatCannotGoOnUnderAnyRegistrationAsksWithGrowingPauses) {
  Node& node = Other();
  std::vector<Instant> asked;
  for (int i = 1; i <= 6; ++i) {
    node.etcd->RefuseTransactions(
        MakeError(absl::StatusCode::kPermissionDenied, "LEDGER_REFUSED", "the role lacks a key"));
    node.run->Begin(Id(absl::StrCat("step_", i)), etcd_.clock()->Now() + minutes(8), {});
    RunUntil([&] { return static_cast<int>(node.asked_anew.size()) == i; });
    asked.push_back(etcd_.clock()->Now());
    node.etcd->RefuseTransactions(absl::OkStatus());
    RegisterAnew(node);
  }
  Duration pause = seconds(1);
  for (size_t i = 1; i < asked.size(); ++i, pause *= 2) EXPECT_GE(asked[i] - asked[i - 1], pause) << i;
}

// ---- etcd is full

TEST_P(NodesRunContract, FullEtcdWithoutACoordinatorEndsNoSave) {
  for (Node& node : all_) node.seals = false;
  BeginAll("step_1");
  RunUntilAllHeard("step_1", "ADMITTED");
  Node& first = *Coordinator();
  etcd_.simulation().SetFull(true);
  EXPECT_TRUE(Ask<absl::Status>([&](auto done) { first.run->Resign(std::move(done)); }).ok());
  RunFor(seconds(30));
  EXPECT_EQ(Coordinator(), nullptr);
  etcd_.simulation().SetFull(false);
  for (Node& node : all_) node.run->Sealed(Id("step_1"));
  RunUntilAllHeard("step_1", "COMMITTED");
  EXPECT_NE(Coordinator(), &first);
  for (const Node& node : all_) EXPECT_THAT(node.asked_anew, IsEmpty()) << node.name;
}

TEST_P(NodesRunContract, ProcessThatEndsWhileEtcdIsFullIsNotTakenForALivingOne) {
  int transactions = 0;
  etcd_.simulation().BeforeTransaction([&](const etcdserverpb::TxnRequest&) { ++transactions; });
  etcd_.simulation().SetFull(true);
  all_[1].run->ledger()->ProcessEnded(SpecOf(all_[1], "launch1", kNodes).instance);
  RunFor(seconds(30));
  EXPECT_LE(transactions, 100) << "one for each second, and again where an answer was lost";
  etcd_.simulation().SetFull(false);
  RunFor(seconds(30));
  EXPECT_EQ(JoinAnotherJob(all_[0]), "2");
}

TEST_P(NodesRunContract, ProcessThatLivesJoinsAgainWhenEtcdHasRoom) {
  Node& node = all_[0];
  RegisterAnewWithAFullEtcd(node);
  RunFor(seconds(30));
  etcd_.simulation().SetFull(false);
  RunFor(seconds(30));
  EXPECT_EQ(JoinAnotherJob(all_[1]), "RUN_IN_USE");
  node.run->ledger()->ProcessEnded(SpecOf(node, "launch1", kNodes).instance);
  RunFor(seconds(30));
  EXPECT_EQ(JoinAnotherJob(all_[1]), "2");
}

TEST_P(NodesRunContract, ProcessThatEndsBeforeItCouldJoinAgainDoesNot) {
  Node& node = all_[0];
  RegisterAnewWithAFullEtcd(node);
  RunFor(seconds(30));
  node.run->ledger()->ProcessEnded(SpecOf(node, "launch1", kNodes).instance);
  etcd_.simulation().SetFull(false);
  RunFor(seconds(30));
  EXPECT_EQ(JoinAnotherJob(all_[1]), "2");
}

TEST_P(NodesRunContract, LateCopyOfAJoinBringsNoProcessBackThatHasEnded) {
  Node& node = all_[0];
  EndRegistration(node);
  std::vector<etcdserverpb::TxnRequest> copies;
  etcd_.simulation().BeforeTransaction([&](const etcdserverpb::TxnRequest& request) {
    const auto is_join = [&](const etcdserverpb::RequestOp& operation) {
      return absl::EndsWith(operation.request_put().key(), "/living/" + node.name);
    };
    if (std::none_of(request.success().begin(), request.success().end(), is_join)) return;
    etcd_.simulation().SetFull(true);
    copies.push_back(request);
  });
  node.run->SetNode(&node.registration->identity());
  RunUntil([&] { return !copies.empty(); });
  node.run->ledger()->ProcessEnded(SpecOf(node, "launch1", kNodes).instance);
  RunFor(seconds(5));
  etcd_.simulation().BeforeTransaction(nullptr);
  etcd_.simulation().SetFull(false);
  RunFor(seconds(30));
  etcd_.WithModel([&](EtcdModel& model) {
    for (const etcdserverpb::TxnRequest& copy : copies) EXPECT_TRUE(model.Txn(copy).ok());
  });
  EXPECT_EQ(JoinAnotherJob(all_[1]), "2");
}

// ---- readers and removals

TEST_P(NodesRunContract, RunWhoseNodeMayHaveTheLeadershipDoesNotClose) {
  int seen = 0;
  check_ = [&] {
    ledger::v1::Coordinator coordinator;
    coordinator.ParseFromString(nodes_.Read(keys_.Coordinator()));
    for (const Node& node : all_) {
      if (node.run == nullptr || coordinator.registration() != node.registration->identity().value) continue;
      ++seen;
      EXPECT_FALSE(node.run->may_close()) << node.name;
    }
  };
  Kill(*Coordinator());
  RunUntil([&] { return Coordinator() != nullptr; });
  Node& second = *Coordinator();
  EXPECT_GT(seen, 0);
  check_ = nullptr;
  RunUntil([&] {
    return std::any_of(all_.begin(), all_.end(),
                       [](const Node& node) { return node.run != nullptr && node.run->may_close(); });
  });
  EXPECT_FALSE(second.run->may_close());
  second.run->SetNode(nullptr);
  EXPECT_TRUE(second.run->may_close()) << "the leadership goes with the registration";
}

TEST_P(NodesRunContract, RunOfWhichEtcdThinksThatItReadsDoesNotClose) {
  SaveAll("step_1");
  Node& node = Other();
  RunUntil([&] { return node.run->may_close(); });
  etcd_.simulation().BeforeTransaction([&](const etcdserverpb::TxnRequest& request) {
    const std::string key = request.success().empty() ? "" : request.success(0).request_put().key();
    EXPECT_FALSE(key == keys_.Readers(1) + node.name && node.run->may_close());
  });
  EXPECT_TRUE(Ask<absl::Status>([&](auto done) { node.run->AcquireReader(1, std::move(done)); }).ok());
  etcd_.simulation().BeforeTransaction(nullptr);
  node.run->ReleaserOf(1)();
  EXPECT_FALSE(node.run->may_close());
  RunUntil([&] { return node.run->may_close(); });
  EXPECT_EQ(nodes_.Read(keys_.Readers(1) + node.name), "") << "nobody reads";
}

TEST_P(NodesRunContract, CheckpointIsNotRemovedWhileANodeReadsIt) {
  SaveAll("step_1");
  Node& reads = Other();
  const auto open = [&](Node& node) {
    return Ask<absl::StatusOr<std::shared_ptr<CheckpointReader>>>(
        [&](auto done) { node.io->OpenCheckpoint("step_1", 1, std::move(done)); });
  };
  auto first = open(reads), second = open(reads);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ((*first)->manifest().summary.sequence(), 1);
  std::optional<absl::Status> evicted;
  Coordinator()->io->Evict("step_1", 1, [&](const absl::Status& status) { evicted = status; });
  RunFor(seconds(20));
  first->reset();
  RunFor(seconds(20));
  EXPECT_FALSE(evicted.has_value()) << *evicted;
  EXPECT_TRUE(root_.tags.contains("step_1"));
  second->reset();
  RunUntil([&] { return evicted.has_value(); });
  EXPECT_TRUE(evicted->ok()) << *evicted;
  EXPECT_FALSE(root_.tags.contains("step_1"));
  RunUntil([&] {
    return std::all_of(all_.begin(), all_.end(), [](const Node& node) { return !node.removed.empty(); });
  });
  for (const Node& node : all_) EXPECT_THAT(node.removed, ElementsAre(1)) << node.name;
  EXPECT_EQ(ReasonOf(open(reads).status()), "BEING_REMOVED");
}

TEST_P(NodesRunContract, NodeThatReadsSaysSoWithItsNextRegistration) {
  SaveAll("step_1");
  Node& reads = Other();
  const auto open = [&] {
    return Ask<absl::StatusOr<std::shared_ptr<CheckpointReader>>>(
        [&](auto done) { reads.io->OpenCheckpoint("step_1", 1, std::move(done)); });
  };
  auto reader = open();
  ASSERT_TRUE(reader.ok()) << reader.status();
  reads.run->SetNode(nullptr);
  EXPECT_EQ(ReasonOf(open().status()), "LEDGER_UNAVAILABLE") << "another rank, and nobody can say so in time";
  RegisterAnew(reads);
  RunFor(seconds(5));
  std::optional<absl::Status> evicted;
  Coordinator()->io->Evict("step_1", 1, [&](const absl::Status& status) { evicted = status; });
  RunFor(seconds(20));
  EXPECT_FALSE(evicted.has_value()) << *evicted;
  reader->reset();
  RunUntil([&] { return evicted.has_value(); });
  EXPECT_TRUE(evicted->ok()) << *evicted;
}

// A rank took the error for a checkpoint that is not there, and marked it damaged.
TEST_P(NodesRunContract, ReadThatFindsTheLeaseEndedWaitsForTheNextRegistration) {
  SaveAll("step_1");
  Node& node = Other();
  node.etcd->RefuseTransactions(MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kLeaseEnded,
                                          "a test's lease has ended"));
  std::optional<absl::Status> acquired;
  node.run->AcquireReader(1, [&](absl::Status answer) { acquired = std::move(answer); });
  RunFor(seconds(5));
  EXPECT_FALSE(acquired.has_value()) << *acquired;
  node.etcd->RefuseTransactions(absl::OkStatus());
  RunUntil([&] { return acquired.has_value(); });
  EXPECT_TRUE(acquired->ok()) << *acquired;
  node.run->ReleaserOf(1)();
}

// Etcd carries out late what it was asked first, and refuses what it is asked again.
TEST_P(NodesRunContract, ReadThatWasRefusedAndIsCarriedOutLateHoldsUpNoRemoval) {
  SaveAll("step_1");
  Node& node = Other();
  node.etcd->RefuseTransactions(
      MakeError(absl::StatusCode::kResourceExhausted, ledger_reason::kFull, "a test's etcd takes no writes"));
  std::optional<absl::Status> acquired;
  node.run->AcquireReader(1, [&](absl::Status answer) { acquired = std::move(answer); });
  RunUntil([&] { return acquired.has_value(); });
  EXPECT_FALSE(acquired->ok());
  CheckpointReaders late(nodes_.ClientOf(*node.registration),
                         {nodes_.prefix() + "run/", node.registration->identity(), "test"});
  EXPECT_TRUE(Ask<absl::Status>([&](auto done) { late.Begin(1, std::move(done)); }).ok());
  EXPECT_NE(nodes_.Read(keys_.Readers(1) + node.name), "");
  node.etcd->RefuseTransactions(absl::OkStatus());
  RunFor(seconds(5));
  EXPECT_EQ(nodes_.Read(keys_.Readers(1) + node.name), "");
}

TEST_P(NodesRunContract, NodeThatDoesNotCoordinateRemovesNothing) {
  SaveAll("step_1");
  const absl::Status evicted =
      Ask<absl::Status>([&](auto done) { Other().io->Evict("step_1", 1, std::move(done)); });
  EXPECT_EQ(ReasonOf(evicted), "NOT_COORDINATOR");
  EXPECT_TRUE(root_.tags.contains("step_1"));
}

TEST_P(NodesRunContract, RemovalThatACoordinatorHasNotEndedIsEndedByTheNext) {
  Node& first = PauseWhereStep1IsRemoved();
  Kill(first);
  root_.before = nullptr;
  const RootSnapshot scanned = ScanOfNextCoordinator();
  EXPECT_EQ(scanned.committed.size(), 1u) << "what is being removed is no checkpoint";
  RunUntil([&] { return !root_.tags.contains("step_1"); });
  EXPECT_FALSE(root_.tags.contains("step_1"));
}

TEST_P(NodesRunContract, RemovalThatIsAskedForWhileTheSameOneIsEndedIsAnswered) {
  Node& first = PauseWhereStep1IsRemoved();
  Kill(first);
  std::vector<std::string> answers;
  bool asked = false;
  root_.before = [&](const std::string& what) {
    if (what == "Remove" && !std::exchange(asked, true)) {
      Coordinator()->io->Evict("step_1", 1,
                               [&](const absl::Status& answer) { answers.push_back(ReasonOf(answer)); });
    }
    return true;
  };
  ScanOfNextCoordinator();
  RunUntil([&] { return !answers.empty(); });
  RunFor(seconds(20));
  EXPECT_THAT(answers, ElementsAre(reason::kNoCheckpoint));
  EXPECT_FALSE(root_.tags.contains("step_1"));
}

TEST_P(NodesRunContract, WhatACoordinatorHasHalfRemovedIsRemovedByTheNext) {
  Node& first = PauseWhereStep1IsRemoved();
  Kill(first);
  root_.before = nullptr;
  root_.tags.erase("step_1");
  root_.half_removed["step_1"] = 1;
  ScanOfNextCoordinator();
  RunUntil([&] { return root_.half_removed.empty(); });
  EXPECT_THAT(root_.half_removed, IsEmpty()) << "its files would stay for good";
  EXPECT_TRUE(root_.tags.contains("step_2"));
}

// The names that the next coordinator sees may be old: the removal had ended, and the checkpoint was put
// back.
TEST_P(NodesRunContract, WhatLooksHalfRemovedAndWasPutBackStays) {
  Node& first = PauseWhereStep1IsRemoved();
  root_.tags.erase("step_1");
  root_.half_removed["step_1"] = 1;
  for (Node& node : all_) {
    if (&node == &first) continue;
    const auto scanned =
        Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { node.io->Rescan(std::move(done)); });
    EXPECT_TRUE(scanned.ok()) << scanned.status();
  }
  Kill(first);
  bool put_back = false;
  root_.before = [&](const std::string& what) {
    if (what == "Remove" && !std::exchange(put_back, true)) {
      root_.half_removed.erase("step_1");
      root_.PutBack("step_1", 1);
    }
    return true;
  };
  RunUntil([&] { return put_back; });
  RunFor(seconds(2));
  EXPECT_EQ(root_.tags["step_1"], 1);
}

TEST_P(NodesRunContract, RemovalOfWhichTheNextCoordinatorHearsAfterItsScanIsEnded) {
  SaveAll("step_1");
  SaveAll("step_2");
  // As an earlier coordinator has written it.
  const std::string key = LedgerKeys(absl::StrCat(nodes_.prefix(), "runs/", run_id_, "/")).Evicting(1);
  etcdserverpb::TxnRequest decided;
  *decided.add_compare() = Absent(key);
  *decided.add_success() = Put(key, ledger::v1::Evicting().SerializeAsString());
  ASSERT_TRUE(etcd_.caller().Txn(decided).ok());
  RunUntil([&] { return !root_.tags.contains("step_1"); });
  EXPECT_FALSE(root_.tags.contains("step_1"));
  EXPECT_TRUE(root_.tags.contains("step_2"));
}

TEST_P(NodesRunContract, WhatAPointerFileNamesIsNotRemoved) {
  SaveAll("step_1");
  SaveAll("step_2");
  root_.pointed = {1};
  EXPECT_EQ(ReasonOf(Evict("step_1", 1)), "POINTED");
  EXPECT_EQ(nodes_.Read(keys_.Evicting(1)), "(none)") << "nobody can take a decision back";
  root_.pointed.clear();
  EXPECT_EQ(Evict("step_1", 1), absl::OkStatus());
}

TEST_P(NodesRunContract, NothingIsRemovedBeforeTheTermHasBegunInTheRoot) {
  SaveAll("step_1");
  SaveAll("step_2");
  Kill(*Coordinator());
  root_.no_term = absl::UnavailableError("a test");
  RunUntil([this] { return Coordinator() != nullptr; });
  Node& next = *Coordinator();
  std::optional<absl::Status> evicted;
  next.io->Evict("step_1", 1, [&](const absl::Status& status) { evicted = status; });
  RunFor(seconds(5));
  EXPECT_FALSE(evicted.has_value());
  EXPECT_EQ(nodes_.Read(keys_.Evicting(1)), "(none)");
  root_.no_term = absl::OkStatus();
  RunUntil([&] { return evicted.has_value(); });
  EXPECT_TRUE(evicted.has_value() && evicted->ok());
}

// From a copy that was made before, perhaps months later.
TEST_P(NodesRunContract, CheckpointThatIsPutBackAfterItsRemovalIsACheckpointAgain) {
  SaveAll("step_1");
  SaveAll("step_2");
  ASSERT_EQ(Evict("step_1", 1), absl::OkStatus());
  root_.PutBack("step_1", 1);
  RunFor(seconds(20));
  for (Node& node : all_) EXPECT_EQ(Shown(node, 1), "") << node.name;
  EXPECT_THAT(Coordinator()->noticed, Contains(HasSubstr("step_1, sequence 1, is listed again")));
  EXPECT_EQ(Mark(Other(), 1), "OK") << "it is not being removed";
  EXPECT_EQ(Clear(Other(), 1), "OK");

  Kill(*Coordinator());
  ScanOfNextCoordinator();
  RunFor(seconds(20));
  EXPECT_TRUE(root_.tags.contains("step_1")) << "nobody has decided on this one";
  EXPECT_EQ(Shown(*Coordinator(), 1), "");
  auto reader = Open(LivingOther(), "step_1", 1);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::optional<absl::Status> evicted;
  Coordinator()->io->Evict("step_1", 1, [&](const absl::Status& status) { evicted = status; });
  RunFor(seconds(5));
  EXPECT_FALSE(evicted.has_value()) << "a node reads it";
  *reader = nullptr;
  RunUntil([&] { return evicted.has_value(); });
  EXPECT_FALSE(root_.tags.contains("step_1"));
}

TEST_P(NodesRunContract, RemovalThatAnEarlierCoordinatorHasDecidedIsOfTheDirectoryThatItHasSeen) {
  Node& first = PauseWhereStep1IsRemoved();
  Kill(first);
  root_.before = nullptr;
  root_.PutBack("step_1", 1);  // It was removed in the last moment.
  ScanOfNextCoordinator();
  EXPECT_THAT(Coordinator()->noticed, Contains(HasSubstr("step_1, sequence 1, is removed, as an earlier")));
  RunFor(seconds(20));
  EXPECT_TRUE(root_.tags.contains("step_1"));
  EXPECT_EQ(Shown(*Coordinator(), 1), "");
}

TEST_P(NodesRunContract, WhatASaveReplacesStaysIfNobodyKnowsWhetherItWasPublished) {
  Node& first = PauseWhereASaveReplacesStep1();
  Kill(first);
  root_.before = nullptr;
  root_.Lose(root_.inflight.begin()->second);
  ScanOfNextCoordinator();
  RunUntilAllHeard("step_1", "UNKNOWN");
  RunFor(seconds(20));
  EXPECT_EQ(root_.tags["step_1"], 1) << "it may be all that there is";
  for (Node& node : all_) node.root_changes = 0;
  const auto settled = Ask<absl::StatusOr<Authority::Settled>>(
      [&](auto done) { Coordinator()->run->SettleSave("step_1", false, std::move(done)); });
  ASSERT_TRUE(settled.ok()) << settled.status();
  RunFor(seconds(20));
  EXPECT_GT(Coordinator()->root_changes, 0);
  EXPECT_EQ(root_.tags["step_1"], 1);
  EXPECT_EQ(Shown(*Coordinator(), 1), "");
  EXPECT_EQ(Shown(LivingOther(), 1), "");
}

TEST_P(NodesRunContract, WhatASaveReplacesStaysIfThatHasFailed) {
  Node& first = PauseWhereASaveReplacesStep1();
  Kill(first);
  root_.before = nullptr;
  root_.trash = std::exchange(root_.inflight, {});
  ScanOfNextCoordinator();
  RunUntilAllHeard("step_1", "ENDED TAG_FOREIGN");
  RunFor(seconds(20));
  EXPECT_EQ(root_.tags["step_1"], 1);
  EXPECT_EQ(Shown(*Coordinator(), 1), "");
}

// Etcd removes what it has of the save that failed. What that save was to replace is still a checkpoint.
TEST_P(NodesRunContract, WhatASaveDidNotReplaceIsListedWhenEtcdHasForgottenTheSave) {
  StartWithAnEtcdThatForgetsAfter(seconds(30));
  SaveAll("step_1", 2);
  const int64_t kept = root_.tags.at("step_1");
  // Another program moves the directory of the save away. Others that were made in advance, also one for the same
  // sequence, stay.
  root_.before = [this](const std::string& what) {
    ledger::v1::SaveIndex save;
    save.ParseFromString(nodes_.Read(keys_.SaveIndex(2, "step_1", 2)));
    ledger::v1::SaveState state;
    state.ParseFromString(nodes_.Read(keys_.SaveState(save.sequence())));
    if (what == "Publish") root_.trash.insert(root_.inflight.extract(state.inflight()));
    return true;
  };
  for (Node& node : all_) node.run->Begin({2, "step_1", 2}, etcd_.clock()->Now() + minutes(8), {});
  RunUntilAllHeard("step_1", "ENDED TAG_FOREIGN");
  root_.before = nullptr;
  ledger::v1::Evicting decision;
  ASSERT_TRUE(decision.ParseFromString(nodes_.Read(keys_.Evicting(kept))));
  const int64_t failed = decision.replaced_by();
  ASSERT_GT(failed, kept);
  SaveAll("step_2", 2);
  RunFor(seconds(10));
  for (Node& node : all_) node.removed.clear();
  RunUntil([&] { return nodes_.Read(keys_.SaveState(failed)) == "(none)"; });
  RunFor(seconds(2));
  for (Node& node : all_) {
    EXPECT_THAT(node.removed, IsEmpty()) << node.name << " takes it out of its list once more";
    EXPECT_EQ(Shown(node, kept), "") << node.name;
  }

  Node& node = Other();
  Kill(node);
  Start(node);
  RunFor(seconds(20));
  EXPECT_EQ(Shown(node, kept), "");
  EXPECT_EQ(Mark(node, kept), "OK") << "it is not being removed";
}

TEST_P(NodesRunContract, ScanDoesNotTakeOverTheAnswerOfARemovalThatIsUnderWay) {
  SaveAll("step_1");
  SaveAll("step_2");
  Node& coordinator = *Coordinator();
  std::optional<absl::Status> evicted;
  root_.before = [&](const std::string& what) {
    if (what == "Remove" && root_.tags.erase("step_1") > 0) {
      root_.half_removed["step_1"] = 1;
      root_.failures = 1;
    }
    return true;
  };
  coordinator.io->Evict("step_1", 1, [&](const absl::Status& status) { evicted = status; });
  RunUntil([&] { return !root_.half_removed.empty(); });
  coordinator.io->Rescan([](const absl::StatusOr<RootSnapshot>&) {});
  RunUntil([&] { return evicted.has_value(); });
  EXPECT_TRUE(evicted.has_value() && evicted->ok());
}

TEST_P(NodesRunContract, NextCoordinatorRemovesWhatASaveReplacesOnlyWhenItCanTakeItsPlace) {
  Node& first = PauseWhereASaveReplacesStep1();
  Kill(first);
  root_.before = nullptr;
  const int64_t sequence = root_.inflight.begin()->second;
  root_.hidden = {sequence};
  ScanOfNextCoordinator();
  RunFor(seconds(4));
  EXPECT_TRUE(root_.tags.contains("step_1")) << "the root would have none for that long";
  root_.hidden.clear();
  const std::string again_published = absl::StrCat("step_1 ", sequence);
  RunUntil([&] { return root_.published.back() == again_published; });
  EXPECT_THAT(root_.published, ElementsAre("step_1 1", again_published));
}

TEST_P(NodesRunContract, NobodyHearsOfARemovalOnceTheRunIsClosed) {
  SaveAll("step_1");
  Node& closed = *Coordinator();
  root_.before = [&closed](const std::string& what) {
    if (what == "Remove") closed.pause.Begin();
    return what != "Remove";
  };
  bool heard = false;
  closed.io->Evict("step_1", 1, [&heard](const absl::Status&) { heard = true; });
  RunUntil([&] { return !Other().removed.empty(); });
  Kill(closed);
  EXPECT_FALSE(heard) << "who had asked may be gone";
  root_.before = nullptr;
}

TEST_P(NodesRunContract, NobodyHearsOfAResumeOnceTheRunIsClosed) {
  SaveAll("step_1");
  bool heard = false;
  all_[1].run->FinishResume(1, 1, absl::OkStatus(), etcd_.clock()->Now(),
                            [&heard](const absl::Status&) { heard = true; });
  Kill(all_[1]);
  EXPECT_FALSE(heard);
}

// ---- names that are old

TEST_P(NodesRunContract, ScanShowsWhatEtcdCallsCommitted) {
  SaveAll("step_1");
  SaveAll("step_2");
  const int64_t newest = root_.tags.at("step_2");
  root_.hidden = {newest};
  std::optional<absl::StatusOr<RootSnapshot>> scanned;
  Other().io->Rescan([&](auto root) { scanned = std::move(root); });
  RunFor(seconds(3));
  EXPECT_FALSE(scanned.has_value()) << "a job would resume from an older checkpoint";
  EXPECT_TRUE(Other().io->has_pending());
  root_.hidden.clear();
  RunUntil([&] { return scanned.has_value(); });
  ASSERT_TRUE((*scanned).ok());
  EXPECT_TRUE((*scanned)->committed.contains(newest));
}

TEST_P(NodesRunContract, ScanAfterTheWaitForEarlierSavesShowsTheNewestOne) {
  SaveAll("step_1");
  // A node that has heard nothing yet but what it asks for.
  Node& late = Other();
  Kill(late);
  Start(late);
  root_.hidden = {1};
  EXPECT_TRUE(Ask<absl::StatusOr<bool>>([&](auto done) { late.run->WhenSettled(2, std::move(done)); }).ok());
  std::optional<absl::StatusOr<RootSnapshot>> scanned;
  late.io->Rescan([&](auto root) { scanned = std::move(root); });
  RunFor(seconds(3));
  EXPECT_FALSE(scanned.has_value());
  root_.hidden.clear();
  RunUntil([&] { return scanned.has_value(); });
  EXPECT_TRUE((*scanned)->committed.contains(1));
}

// The node that asks hears of it by no event, nor does it see it in the root.
TEST_P(NodesRunContract, ScanAfterTheWaitShowsASaveThatWasCommittedAMomentBefore) {
  SaveAll("step_1");
  etcd_.simulation().DelayEvents(minutes(1));
  ledger::v1::SaveState committed;
  committed.set_phase(ledger::v1::SaveState::COMMITTED);
  committed.set_attempt(1);
  committed.set_tag("step_2");
  committed.set_ordinal(1);
  etcdserverpb::TxnRequest commit;
  *commit.add_compare() = Absent(keys_.SaveState(7));
  *commit.add_success() = Put(keys_.SaveState(7), committed.SerializeAsString());
  etcd_.WithModel([&](EtcdModel& model) { ASSERT_TRUE(model.Txn(commit).ok()); });
  root_.tags["step_2"] = 7;
  root_.hidden = {7};
  Node& node = Other();
  EXPECT_TRUE(Ask<absl::StatusOr<bool>>([&](auto done) { node.run->WhenSettled(2, std::move(done)); }).ok());
  std::optional<absl::StatusOr<RootSnapshot>> scanned;
  node.io->Rescan([&](auto root) { scanned = std::move(root); });
  RunFor(seconds(3));
  EXPECT_FALSE(scanned.has_value()) << "a job would resume from an older checkpoint";
  root_.hidden.clear();
  RunUntil([&] { return scanned.has_value(); });
  ASSERT_TRUE(scanned->ok()) << scanned->status();
  EXPECT_TRUE((*scanned)->committed.contains(7));
}

TEST_P(NodesRunContract, ScanShowsWhatTheOneBeforeHasShown) {
  SaveAll("step_1");
  root_.tags["published"] = 40;  // Etcd does not call it committed yet.
  const auto scan = [&] {
    return Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { Other().io->Rescan(std::move(done)); });
  };
  ASSERT_TRUE(scan()->committed.contains(40));
  root_.hidden = {40};
  etcd_.After(seconds(3), [this] { root_.hidden.clear(); });
  EXPECT_TRUE(scan()->committed.contains(40)) << "latest would go back";
}

TEST_P(NodesRunContract, ScanWaitsForWhatReplacesTheLatestWhereNewerOnesAreSuspect) {
  SaveAll("step_1");
  SaveAll("step_2");
  root_.suspect = {root_.tags.at("step_2")};
  const auto scan = [&] {
    return Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { Other().io->Rescan(std::move(done)); });
  };
  ASSERT_TRUE(scan()->committed.contains(1));
  root_.tags.erase("step_1");  // A save moves it away. This node has not heard of that yet.
  etcd_.After(seconds(3), [this] { root_.tags["step_1"] = 3; });
  EXPECT_TRUE(scan()->committed.contains(3)) << "latest would go back";
  root_.tags.erase("step_1");
  EXPECT_FALSE(scan()->committed.contains(3)) << "nobody replaces it: somebody has taken it away";
}

TEST_P(NodesRunContract, NodeThatStartsLooksAgainForWhatWasPutBackBefore) {
  SaveAll("step_1");
  SaveAll("step_2");
  ASSERT_EQ(Evict("step_1", 1), absl::OkStatus());
  RunFor(seconds(20));
  Node& node = Other();
  Kill(node);
  root_.PutBack("step_1", 1);
  Start(node);
  RunFor(seconds(1));
  const int before = node.root_changes;
  RunFor(seconds(20));
  EXPECT_GT(node.root_changes, before) << "nobody else asks for a scan";
  EXPECT_EQ(Shown(node, 1), "");
}

TEST_P(NodesRunContract, ScanDoesNotWaitForEverForWhatSomebodyHasTakenAway) {
  SaveAll("step_1");
  root_.tags.clear();
  const auto scanned =
      Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { Other().io->Rescan(std::move(done)); });
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_THAT(scanned->committed, IsEmpty());
}

// Its name was stale when the publication was decided.
TEST_P(NodesRunContract, CheckpointThatIsInTheWayOfASaveIsReplacedByIt) {
  SaveAll("step_1");
  ASSERT_TRUE(LaunchAlone(all_[0]) == 2);
  bool stale = true;
  root_.hidden = {1};
  root_.before = [&](const std::string& what) {
    if (what == "Publish" && std::exchange(stale, false)) root_.hidden.clear();
    return true;
  };
  all_[0].run->Begin(Id("step_1", 2), etcd_.clock()->Now() + minutes(8), {});
  RunUntil([&] { return root_.published.size() == 2; });
  EXPECT_FALSE(stale);
  const int64_t sequence = root_.tags.at("step_1");
  ASSERT_THAT(root_.manifests[sequence], Not(IsEmpty()));
  EXPECT_THAT(root_.manifests[sequence].back(), HasSubstr(" latest ")) << "it takes the pointers over";
  ledger::v1::Evicting evicting;
  ASSERT_TRUE(evicting.ParseFromString(nodes_.Read(keys_.Evicting(1))));
  EXPECT_EQ(evicting.replaced_by(), sequence);
}

TEST_P(NodesRunContract, CheckpointIsLeavingUntilTheSaveThatReplacesItHasEnded) {
  Node& coordinator = PauseWhereASaveReplacesStep1();
  const auto scan = [&] {
    return *Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { Other().io->Rescan(std::move(done)); });
  };
  const RootSnapshot meanwhile = scan();
  EXPECT_FALSE(meanwhile.committed.contains(1));
  EXPECT_THAT(meanwhile.leaving, ElementsAre(1));
  root_.before = nullptr;
  coordinator.pause.End();
  RunUntil([&] {
    return std::count(Other().heard["step_1"].begin(), Other().heard["step_1"].end(), "COMMITTED") == 2;
  });
  EXPECT_THAT(scan().leaving, IsEmpty());
  EXPECT_TRUE(scan().committed.contains(root_.tags.at("step_1")));
}

// Without a registration, or right after one, it does not know what others replace.
TEST_P(NodesRunContract, WhatANodeHasShownIsLeavingWhileItDoesNotKnowWhatIsRemoved) {
  SaveAll("step_1");
  SaveAll("step_2");
  Node& other = Other();
  ASSERT_EQ(Shown(other, root_.tags.at("step_2")), "");
  const int64_t newest = root_.tags.extract("step_2").mapped();
  EndRegistration(other);
  const auto scan = [&] {
    return *Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { other.io->Rescan(std::move(done)); });
  };
  EXPECT_THAT(scan().leaving, ElementsAre(newest)) << "latest would go back";
  other.root_changes = 0;
  other.run->SetNode(&other.registration->identity());
  RunFor(seconds(10));
  EXPECT_GT(other.root_changes, 0) << "it looks again when it has heard of the saves";
  EXPECT_THAT(scan().leaving, IsEmpty()) << "nobody replaces it: somebody has taken it away";
}

TEST_P(NodesRunContract, WhatIsReplacedIsLeavingAlsoAfterTheRegistrationHasEnded) {
  PauseWhereASaveReplacesStep1();
  Node& other = Other();
  EndRegistration(other);
  const auto scanned =
      Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { other.io->Rescan(std::move(done)); });
  EXPECT_THAT(scanned->leaving, ElementsAre(1)) << "latest would go back";
}

TEST_P(NodesRunContract, SequencesComeAfterWhatTheRootHas) {
  root_.tags["of_another_time"] = 41;
  for (Node& node : all_) Kill(node);
  run_id_ = "fedcba9876543210fedcba9876543210";  // As if this etcd had never heard of the run.
  for (Node& node : all_) Start(node);
  for (Node& node : all_) EXPECT_TRUE(Join(node, "launch2").ok());
  EXPECT_TRUE(Activate(all_[0], 1).ok());
  SaveAll("step_1");
  EXPECT_EQ(root_.tags.at("step_1"), 42);
}

TEST_P(NodesRunContract, SavesComeAfterACheckpointThatWasMovedIn) {
  SaveAll("step_1");
  for (Node& node : all_) node.root_changes = 0;
  root_.tags["moved"] = 100;
  root_.moved_in = 100;  // The next publication finds it.
  SaveAll("step_2");
  for (const Node& node : all_) EXPECT_EQ(node.root_changes, 1) << node.name << " lists it";
  SaveAll("step_3");
  EXPECT_GT(root_.tags.at("step_3"), 100);

  root_.tags["moved later"] = 200;  // A scan finds it.
  const auto scanned =
      Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { Other().io->Rescan(std::move(done)); });
  EXPECT_TRUE(scanned.ok() && scanned->committed.contains(200));
  RunFor(seconds(20));
  SaveAll("step_4");
  EXPECT_GT(root_.tags.at("step_4"), 200);
}

TEST_P(NodesRunContract, NodeThatHadNoPartOfASaveLooksAtTheRoot) {
  // An attempt of one node.
  Node& alone = all_[0];
  const int64_t attempt = LaunchAlone(alone);
  ASSERT_GT(attempt, 0);
  alone.run->Begin(Id("step_1", attempt), etcd_.clock()->Now() + minutes(8), {});
  RunUntil([&] {
    return Heard(alone, "step_1", "COMMITTED") && all_[1].root_changes > 0 && all_[2].root_changes > 0;
  });
  EXPECT_EQ(alone.root_changes, 0);
}

TEST_P(NodesRunContract, SaveOfSomeRanksIsBetweenTheirNodes) {
  for (const int i : {0, 2}) all_[i].run->Begin(Id("step_1"), etcd_.clock()->Now() + minutes(8), {0, 2});
  RunUntil([&] {
    return Heard(all_[0], "step_1", "COMMITTED") && Heard(all_[2], "step_1", "COMMITTED") &&
           all_[1].root_changes > 0;
  });
  EXPECT_THAT(root_.published, ElementsAre("step_1 1"));
  EXPECT_EQ(all_[1].heard.count("step_1"), 0U);
}

TEST_P(NodesRunContract, LossOfANodeEndsNoSaveOfOtherNodesRanks) {
  for (const int i : {0, 2}) all_[i].writes = false;
  for (const int i : {0, 2}) all_[i].run->Begin(Id("step_1"), etcd_.clock()->Now() + minutes(8), {0, 2});
  RunUntil([&] { return Heard(all_[0], "step_1", "SEALED") && Heard(all_[2], "step_1", "SEALED"); });
  Kill(all_[1]);
  RunFor(minutes(3));
  for (const int i : {0, 2}) all_[i].run->Durable(Id("step_1"), "of " + all_[i].name);
  RunUntil([&] { return Heard(all_[0], "step_1", "COMMITTED") && Heard(all_[2], "step_1", "COMMITTED"); });
}

TEST_P(NodesRunContract, NodeThatWasAwayForTooLongDoesNotBeginItsSealedSaveAnew) {
  StartWithAnEtcdThatForgetsAfter(seconds(30));
  Node& away = Other();
  PublishWhatEtcdForgets(away, [&away] { away.run->SetNode(nullptr); });
  RegisterAnew(away);
  RunUntil([&] { return Heard(away, "step_1", "UNKNOWN"); });
  EXPECT_TRUE(Heard(away, "step_1", "UNKNOWN"));
  EXPECT_EQ(nodes_.Read(keys_.SaveIndex(2, "step_1", 1)), "(none)") << "it was begun anew";
  SaveAll("step_3", 2);
  EXPECT_EQ(root_.published.size(), 3U);
}

// It has sealed its part, and could not write it.
TEST_P(NodesRunContract, NodeThatWasAwayForTooLongDoesNotBeginItsFailedSaveAnew) {
  StartWithAnEtcdThatForgetsAfter(seconds(30));
  Node& away = Other();
  away.writes = false;
  BeginAll("step_1", 2);
  RunUntilAllHeard("step_1", "SEALED");
  away.run->SetNode(nullptr);
  EndRegistration(away);
  away.run->Fail(Id("step_1", 2), MakeError(absl::StatusCode::kInternal, "EIO", "a test's failure"));
  for (const Node& node : all_) {
    if (&node != &away) RunUntil([&] { return Heard(node, "step_1", "ENDED NODE_LOST"); });
  }
  std::vector<int> others;
  for (const Node& node : all_) {
    if (&node != &away) others.push_back(node.rank);
  }
  for (const int i : others) all_[i].run->Begin(Id("step_2", 2), etcd_.clock()->Now() + minutes(8), others);
  RunUntil([this] { return nodes_.Read(keys_.SaveIndex(2, "step_1", 1)) == "(none)"; });
  away.run->SetNode(&away.registration->identity());
  RunUntil([&] { return Heard(away, "step_1", "ENDED STAGED_LOST"); });
  EXPECT_TRUE(Heard(away, "step_1", "ENDED STAGED_LOST"));
  EXPECT_EQ(nodes_.Read(keys_.SaveIndex(2, "step_1", 1)), "(none)") << "it was begun anew";
}

// Its registration lasts, and the events of the watch that it has missed are gone: it lists the saves anew.
TEST_P(NodesRunContract, NodeThatHearsLateOfItsSaveWhichEtcdHasForgottenDoesNotWaitForIt) {
  StartWithAnEtcdThatForgetsAfter(milliseconds(1));
  Node& away = Other();
  PublishWhatEtcdForgets(away, [&] { CutOff(away, true); });
  etcd_.WithModel([](EtcdModel& model) { model.Compact(model.revision()); });
  CutOff(away, false);
  RunUntil([&] { return Heard(away, "step_1", "UNKNOWN"); });
  EXPECT_TRUE(Heard(away, "step_1", "UNKNOWN"));
  EXPECT_THAT(away.run->UnfinishedSaves(), IsEmpty());
}

TEST_P(NodesRunContract, SaveThatTwoNodesBeginForOtherRanksEnds) {
  all_[0].run->Begin(Id("step_1"), etcd_.clock()->Now() + minutes(8), {0, 2});
  RunUntil([&] { return Heard(all_[0], "step_1", "PROPOSED"); });
  all_[2].run->Begin(Id("step_1"), etcd_.clock()->Now() + minutes(8), {1, 2});
  RunUntil([&] { return Heard(all_[0], "step_1", "ENDED SAVE_CONFLICT"); });
  EXPECT_TRUE(Heard(all_[0], "step_1", "ENDED SAVE_CONFLICT"));
}

TEST_P(NodesRunContract, CoordinatorLearnsOnAnyNodeWhatHasBecomeOfASave) {
  const auto settle = [this](Node& node) {
    return ReasonOf(Ask<absl::StatusOr<Authority::Settled>>([&](auto done) {
                      node.run->SettleSave("step_1", false, std::move(done));
                    }).status());
  };
  EXPECT_EQ(settle(Other()), "UNKNOWN_SAVE") << "the coordinator says so";
  RunUntil([this] { return Coordinator() != nullptr; });
  EXPECT_EQ(settle(*Coordinator()), "UNKNOWN_SAVE");
}

// ---- which checkpoints are kept

storage::v1::RetentionPolicy Last(int number) {
  storage::v1::RetentionPolicy policy;
  policy.set_last(number);
  return policy;
}

// The last word that each node has heard.
TEST_P(NodesRunContract, PolicyThatOneNodeNamesIsHeardOnAllAlsoWhereNoRankSaves) {
  all_[2].keeps = Last(3);
  const auto all_have_heard = [this](const std::string& what) {
    RunUntil([&] {
      return std::all_of(all_.begin(), all_.end(), [&](const Node& node) {
        return node.run == nullptr || (!node.newest.empty() && node.newest.back() == what);
      });
    });
    for (const Node& node : all_)
      EXPECT_TRUE(node.run == nullptr || node.newest.back() == what) << node.name << " of " << what;
  };
  SaveAll("step_1");
  all_have_heard("1 last 3");
  // Of ranks 0 and 2; and in advance, where the coordinator has made the save before.
  for (const int i : {0, 2}) all_[i].run->Begin(Id("step_2"), etcd_.clock()->Now() + minutes(8), {0, 2});
  RunUntil([&] { return Heard(all_[0], "step_2", "COMMITTED") && Heard(all_[2], "step_2", "COMMITTED"); });
  RunUntil([&] { return all_[1].newest.back() != "1 last 3"; });
  EXPECT_THAT(all_[1].newest.back(), ::testing::MatchesRegex("[2-9] last 3"));
  // It is that of the newest, and not the last that was named.
  all_[2].keeps.reset();
  SaveAll("step_3");
  RunUntil([&] { return absl::EndsWith(all_[1].newest.back(), "unset"); });
  EXPECT_TRUE(absl::EndsWith(all_[1].newest.back(), "unset")) << all_[1].newest.back();
}

TEST_P(NodesRunContract, NodeThatStartsHearsThePolicyOfTheNewestSaveAloneAndOnce) {
  all_[0].keeps = Last(1);
  SaveAll("step_1");
  all_[0].keeps = Last(2);
  SaveAll("step_2");
  Node& again = Other();
  Kill(again);
  again.newest.clear();
  RunFor(seconds(1));
  Start(again);
  RunUntil([&] { return !again.newest.empty(); });
  RunFor(seconds(5));
  ASSERT_EQ(again.newest.size(), 1U);
  EXPECT_TRUE(absl::EndsWith(again.newest[0], "last 2")) << again.newest[0];
}

TEST_P(NodesRunContract, NodeThatIsRegisteredAnewNamesItsPolicyAgain) {
  for (Node& node : all_) node.accepts = false;
  Node& anew = Other();
  BeginAll("step_1");
  RunUntilAllHeard("step_1", "PROPOSED");
  anew.run->Accept(Id("step_1"), Last(4));
  RunFor(seconds(1));
  RegisterAnew(anew);
  EXPECT_TRUE(Join(anew, "launch1").ok());
  RunFor(seconds(1));
  for (Node& node : all_) {
    if (&node != &anew) node.run->Accept(Id("step_1"), std::nullopt);
  }
  RunUntilAllHeard("step_1", "COMMITTED");
  RunUntil([&] { return !anew.newest.empty(); });
  EXPECT_THAT(anew.newest, ElementsAre("1 last 4"));
}

TEST_P(NodesRunContract, SaveForWhichTwoNodesNameOtherPoliciesEnds) {
  all_[0].keeps = Last(3);
  all_[2].keeps = Last(4);
  for (const std::string tag : {"step_1", "step_2"}) {
    BeginAll(tag);
    RunUntilAllHeard(tag, "ENDED SAVE_CONFLICT");
  }
  all_[2].keeps = Last(3);
  SaveAll("step_3");
}

// ---- resume

TEST_P(NodesRunContract, ResumeEndsWhenTheRanksOfAllNodesHaveRead) {
  SaveAll("step_1");
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch2").value_or(-1), 2);
  ASSERT_TRUE(Activate(all_[0], 2).ok());
  const auto chosen = Ask<absl::StatusOr<Ledger::ResumeChoice>>([&](auto done) {
    all_[0].run->ledger()->DecideResume(2, {"step_1", 1}, std::move(done));
  });
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->sequence, 1);
  std::map<std::string, absl::Status> finished;
  const auto finish = [&](Node& node, const absl::Status& mine) {
    node.run->FinishResume(
        2, 1, mine, etcd_.clock()->Now() + minutes(2),
        [&finished, name = node.name](const absl::Status& status) { finished[name] = status; });
  };
  finish(all_[0], absl::OkStatus());
  finish(all_[1], absl::OkStatus());
  RunFor(seconds(30));
  EXPECT_THAT(finished, IsEmpty());
  finish(all_[2], absl::OkStatus());
  RunUntil([&] { return finished.size() == 3; });
  for (const auto& [name, status] : finished) EXPECT_TRUE(status.ok()) << name << status;
  const auto decided = Ask<absl::StatusOr<std::optional<Ledger::ResumeChoice>>>(
      [&](auto done) { all_[1].run->ledger()->DecidedResume(2, std::move(done)); });
  ASSERT_TRUE(decided.ok() && decided->has_value()) << decided.status();
  EXPECT_TRUE((*decided)->agreed);
}

// The ranks have gone on to an older checkpoint while etcd was asked about the newer one.
TEST_P(NodesRunContract, LateAnswerAboutOneCheckpointEndsNoResumeFromAnother) {
  SaveAll("step_1");
  Node& alone = all_[0];
  const int64_t attempt = LaunchAlone(alone);
  ASSERT_GT(attempt, 0);
  const auto chosen = Ask<absl::StatusOr<Ledger::ResumeChoice>>([&](auto done) {
    alone.run->ledger()->DecideResume(attempt, {"step_1", 1}, std::move(done));
  });
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  std::optional<absl::Status> newer, older;
  const auto finish = [&](int64_t sequence, std::optional<absl::Status>* finished) {
    alone.run->FinishResume(attempt, sequence, absl::OkStatus(), etcd_.clock()->Now() + minutes(2),
                            [finished](const absl::Status& status) { *finished = status; });
  };
  const auto asks_whether_all_agree = [&](const etcdserverpb::TxnRequest& request) {
    const std::string key = "/" + LedgerKeys("").Resume(attempt);
    return std::any_of(request.success().begin(), request.success().end(),
                       [&](const etcdserverpb::RequestOp& operation) {
                         return operation.request_range().key().ends_with(key);
                       });
  };
  etcd_.simulation().BeforeTransaction([&, over = false](const etcdserverpb::TxnRequest& request) mutable {
    if (over || !asks_whether_all_agree(request)) return;
    over = true;
    finish(1, &older);
  });
  finish(7, &newer);
  RunUntil([&] { return older.has_value(); });
  etcd_.simulation().BeforeTransaction(nullptr);
  EXPECT_TRUE(newer.has_value() && newer->code() == absl::StatusCode::kAborted) << "it has another answer";
  EXPECT_TRUE(older->ok()) << *older;
}

TEST_P(NodesRunContract, RanksThatCouldNotResumeAndThenCanAreNotAnsweredByTheirFailure) {
  SaveAll("step_1");
  Node& alone = all_[0];
  const int64_t attempt = LaunchAlone(alone);
  ASSERT_TRUE(Ask<absl::StatusOr<Ledger::ResumeChoice>>([&](auto done) {
                alone.run->ledger()->DecideResume(attempt, {"step_1", 1}, std::move(done));
              }).ok());
  const auto finish = [&](const absl::Status& mine) {
    const absl::Status finished = Ask<absl::Status>([&](auto done) {
      alone.run->FinishResume(attempt, 1, mine, etcd_.clock()->Now() + minutes(2), std::move(done));
    });
    return finished.ok() ? "OK" : ReasonOf(finished);
  };
  EXPECT_EQ(finish(absl::AbortedError("the trainer of rank 0 has ended")), "RESUME_FAILED");
  EXPECT_EQ(finish(absl::OkStatus()), "OK");
}

TEST_P(NodesRunContract, RanksThatWaitAreToldWhyAnotherRankOfTheirNodeCannotGoOn) {
  SaveAll("step_1");
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch2").value_or(-1), 2);
  ASSERT_TRUE(Activate(all_[0], 2).ok());
  absl::Status waits;
  const auto finish = [&](const absl::Status& mine, Callback<absl::Status> finished) {
    all_[0].run->FinishResume(2, 1, mine, etcd_.clock()->Now() + minutes(10), std::move(finished));
  };
  finish(absl::OkStatus(), [&waits](const absl::Status& status) { waits = status; });
  finish(MakeError(absl::StatusCode::kAborted, "RESUME_FAILED", "the trainer of rank 0 has ended"),
         [](const absl::Status&) {});
  RunUntil([&] { return !waits.ok(); });
  EXPECT_EQ(ReasonOf(waits), "RESUME_FAILED") << waits;
}

// What it has said before is in etcd; what it says now is not, for it has lost its registration meanwhile.
TEST_P(NodesRunContract, NodeWhoseRanksCannotResumeDoesNotAgreeThatAllHave) {
  SaveAll("step_1");
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch2").value_or(-1), 2);
  ASSERT_TRUE(Activate(all_[0], 2).ok());
  Node& node = all_[0];
  ASSERT_TRUE(Ask<absl::StatusOr<Ledger::ResumeChoice>>([&](auto done) {
                node.run->ledger()->DecideResume(2, {"step_1", 1}, std::move(done));
              }).ok());
  std::map<std::string, std::string> finished;
  const auto finish = [&](Node& of, const absl::Status& mine) {
    of.run->FinishResume(2, 1, mine, etcd_.clock()->Now() + minutes(10),
                         [&finished, name = of.name](const absl::Status& status) {
                           finished[name] = status.ok() ? "OK" : ReasonOf(status);
                         });
  };
  for (Node& other : all_) {
    if (&other == &node) continue;
    finish(other, absl::OkStatus());
    RunUntil([&] { return nodes_.Read(keys_.ResumeReports(2) + other.name) != "(none)"; });
    Kill(other);
  }
  etcd_.simulation().BeforeTransaction([&](const etcdserverpb::TxnRequest& request) {
    const bool reports =
        std::any_of(request.success().begin(), request.success().end(), [&](const auto& operation) {
          return operation.request_put().key() == keys_.ResumeReports(2) + node.name;
        });
    if (reports) node.pause.Begin();
  });
  finish(node, absl::OkStatus());
  RunUntil([&] { return nodes_.Read(keys_.ResumeReports(2) + node.name) != "(none)"; });
  etcd_.simulation().BeforeTransaction(nullptr);
  node.run->SetNode(nullptr);
  finish(node, absl::AbortedError("the trainer of rank 0 has ended"));
  node.pause.End();
  RunFor(seconds(5));
  RegisterAnew(node);
  RunUntil([&] { return finished[node.name] == "RESUME_FAILED"; });
  const auto decided = Ask<absl::StatusOr<std::optional<Ledger::ResumeChoice>>>(
      [&](auto done) { node.run->ledger()->DecidedResume(2, std::move(done)); });
  ASSERT_TRUE(decided.ok() && decided->has_value()) << decided.status();
  EXPECT_FALSE((*decided)->agreed);
}

TEST_P(NodesRunContract, RankThatCannotResumeIsHeardOnAllNodesAtOnce) {
  SaveAll("step_1");
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch2").value_or(-1), 2);
  ASSERT_TRUE(Activate(all_[0], 2).ok());
  std::map<std::string, absl::Status> finished;
  const Instant begun = etcd_.clock()->Now();
  for (int i : {0, 2}) {
    const absl::Status mine =
        i == 2 ? absl::DataLossError("rank 2 has read a wrong checksum") : absl::OkStatus();
    all_[i].run->FinishResume(
        2, 1, mine, begun + minutes(10),
        [&finished, name = all_[i].name](const absl::Status& status) { finished[name] = status; });
  }
  RunUntil([&] { return finished.size() == 2; });
  EXPECT_LT(etcd_.clock()->Now() - begun, minutes(5));
  for (const auto& [name, status] : finished) {
    EXPECT_EQ(ReasonOf(status), "RESUME_FAILED") << name << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("node3"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("wrong checksum"));
  }
}

// Their ranks go on with an older checkpoint, as those that have found the damage.
TEST_P(NodesRunContract, RanksOfOtherNodesHearThatItWasDamage) {
  SaveAll("step_1");
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch2").value_or(-1), 2);
  ASSERT_TRUE(Activate(all_[0], 2).ok());
  std::optional<absl::Status> heard;
  all_[0].run->FinishResume(2, 1, absl::OkStatus(), etcd_.clock()->Now() + minutes(10),
                            [&](const absl::Status& status) { heard = status; });
  all_[2].run->FinishResume(
      2, 1, MakeError(absl::StatusCode::kDataLoss, "CHECKPOINT_DAMAGED", "rank 2 has read a wrong checksum"),
      etcd_.clock()->Now() + minutes(10), [](const absl::Status&) {});
  RunUntil([&] { return heard.has_value(); });
  EXPECT_EQ(ReasonOf(*heard), "CHECKPOINT_DAMAGED") << *heard;
  EXPECT_THAT(std::string(heard->message()), HasSubstr("node3"));
}

TEST_P(NodesRunContract, NodeThatSaysNothingIsNamedAtTheDeadline) {
  SaveAll("step_1");
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch2").value_or(-1), 2);
  ASSERT_TRUE(Activate(all_[0], 2).ok());
  const auto finished = [&](Node& node) {
    return Ask<absl::Status>([&](auto done) {
      node.run->FinishResume(2, 1, absl::OkStatus(), etcd_.clock()->Now() + minutes(3), std::move(done));
    });
  };
  const absl::Status status = finished(all_[0]);
  EXPECT_EQ(ReasonOf(status), "RESUME_INCOMPLETE") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("node2, node3"));
}

TEST_P(NodesRunContract, WhenSettledWaitsForWhatAnEarlierAttemptHasSealed) {
  for (Node& node : all_) node.writes = false;
  BeginAll("step_1");
  RunUntilAllHeard("step_1", "SEALED");
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch2").value_or(-1), 2);
  ASSERT_TRUE(Activate(all_[0], 2).ok());
  std::optional<absl::Status> settled;
  all_[1].run->WhenSettled(2, [&](const absl::StatusOr<bool>& answer) { settled = answer.status(); });
  RunFor(minutes(1));
  EXPECT_FALSE(settled.has_value()) << *settled;
  for (Node& node : all_) node.run->Durable(Id("step_1"), "of " + node.name);
  RunUntil([&] { return settled.has_value(); });
  EXPECT_TRUE(settled->ok()) << *settled;
  EXPECT_TRUE(root_.tags.contains("step_1"));
}

// ---- damage

TEST_P(NodesRunContract, WhatOneNodeFindsDamagedNoNodeResumesFrom) {
  SaveAll("step_1");
  root_.tags["step_2"] = 2;
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch2").value_or(-1), 2);
  ASSERT_TRUE(Activate(all_[0], 2).ok());
  ASSERT_EQ(Mark(all_[0], 2), "OK");
  EXPECT_THAT(all_[0].damage, ElementsAre("2 chunk 3")) << "before the answer, and once";
  const auto decide = [this](Node& node, const Ledger::ResumeChoice& newest) {
    const auto choice = Ask<absl::StatusOr<Ledger::ResumeChoice>>(
        [&](auto done) { node.run->ledger()->DecideResume(2, newest, std::move(done)); });
    return choice.ok() ? choice->tag : ReasonOf(choice.status());
  };
  EXPECT_EQ(decide(all_[1], {"step_2", 2}), "CHECKPOINT_DAMAGED");
  EXPECT_EQ(decide(all_[2], {"step_1", 1}), "step_1");
  RunUntilAllHaveHeardOfDamage("2 chunk 3");
  for (Node& node : all_) {
    EXPECT_THAT(node.damage, ElementsAre("2 chunk 3")) << node.name;
    EXPECT_EQ(Shown(node, 2), "chunk 3") << node.name;
    EXPECT_EQ(Shown(node, 1), "") << node.name;
    const auto loaded = Ask<absl::StatusOr<LoadedCheckpoint>>(
        [&](auto done) { node.run->LoadCheckpoint("step_2", 2, std::move(done)); });
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_TRUE(loaded->checkpoint.damage.has_value()) << node.name;
  }
}

TEST_P(NodesRunContract, NodeThatStartsLaterHearsOfTheDamage) {
  SaveAll("step_1");
  ASSERT_EQ(Mark(all_[0], 1), "OK");
  Node& again = Other();
  Kill(again);
  again.damage.clear();
  Start(again);
  RunUntil([&] { return !again.damage.empty(); });
  EXPECT_THAT(again.damage, ElementsAre("1 chunk 3"));
  EXPECT_EQ(Shown(again, 1), "chunk 3");
  RegisterAnew(again);
  RunFor(seconds(10));
  EXPECT_THAT(again.damage, ElementsAre("1 chunk 3")) << "once";
}

TEST_P(NodesRunContract, FirstDescriptionOfTheDamageIsThatOfAllNodesUntilItIsRepaired) {
  SaveAll("step_1");
  ASSERT_EQ(Mark(all_[0], 1, "first"), "OK");
  ASSERT_EQ(Mark(all_[1], 1, "second"), "OK");
  RunUntilAllHaveHeardOfDamage("1 first");
  ASSERT_EQ(Clear(all_[2], 1), "OK");
  EXPECT_EQ(all_[2].damage.back(), "1 repaired") << "before the answer";
  RunUntilAllHaveHeardOfDamage("1 repaired");
  for (Node& node : all_) EXPECT_EQ(Shown(node, 1), "") << node.name;
}

TEST_P(NodesRunContract, DamageIsMarkedByTheNextRegistrationOrNotAtAll) {
  SaveAll("step_1");
  Node& node = Other();
  node.run->SetNode(nullptr);
  const Instant begun = etcd_.clock()->Now();
  EXPECT_EQ(Mark(node, 1), "LEDGER_UNAVAILABLE");
  EXPECT_LE(etcd_.clock()->Now() - begun, seconds(35));
  EXPECT_THAT(node.damage, IsEmpty());
  EXPECT_EQ(Shown(all_[2], 1), "");
  etcd_.After(seconds(10), [&] { node.run->SetNode(&node.registration->identity()); });
  EXPECT_EQ(Mark(node, 1), "OK");
  RunUntilAllHaveHeardOfDamage("1 chunk 3");
}

TEST_P(NodesRunContract, RemovalOfACheckpointIsNoDamage) {
  SaveAll("step_1");
  SaveAll("step_2");
  ASSERT_TRUE(
      Ask<absl::Status>([&](auto done) { Coordinator()->io->Evict("step_1", 1, std::move(done)); }).ok());
  EXPECT_EQ(Mark(Other(), 1), "BEING_REMOVED");
  RunFor(seconds(10));
  for (const Node& node : all_) EXPECT_THAT(node.damage, IsEmpty()) << node.name;
}

// A node reads it, so the decision waits, and meanwhile what it was made from changes.
TEST_P(NodesRunContract, CheckpointStaysIfDamageIsFoundInOneThatIsKeptInItsPlace) {
  SaveAll("step_1");
  SaveAll("step_2");
  Node& reads = Other();
  auto reader = Ask<absl::StatusOr<std::shared_ptr<CheckpointReader>>>(
      [&](auto done) { reads.io->OpenCheckpoint("step_1", 1, std::move(done)); });
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::optional<absl::Status> evicted;
  Coordinator()->io->Evict("step_1", 1, [&](const absl::Status& status) { evicted = status; });
  RunFor(seconds(5));
  ASSERT_FALSE(evicted.has_value()) << *evicted;
  ASSERT_EQ(Mark(reads, root_.tags.at("step_2")), "OK");
  reader->reset();
  RunUntil([&] { return evicted.has_value(); });
  EXPECT_EQ(ReasonOf(*evicted), "DAMAGE_FOUND") << *evicted;
  EXPECT_TRUE(root_.tags.contains("step_1"));
  // It is decided anew, although, once the coordinator has heard of the damage.
  absl::Status again = *evicted;
  for (int tries = 0; tries < 100 && ReasonOf(again) == "DAMAGE_FOUND"; ++tries) {
    RunFor(seconds(1));
    again = Evict("step_1", 1);
  }
  EXPECT_TRUE(again.ok()) << again;
  EXPECT_FALSE(root_.tags.contains("step_1"));
}

// An earlier coordinator has decided that, and this one has not heard of it.
TEST_P(NodesRunContract, CheckpointStaysIfOneThatMayHaveCountedGoesAlready) {
  for (const char* tag : {"step_1", "step_2", "step_3"}) SaveAll(tag);
  etcd_.simulation().BeforeTransaction([&, over = false](const etcdserverpb::TxnRequest& request) mutable {
    if (over || request.success().empty() || request.success(0).request_put().key() != keys_.Evicting(1))
      return;
    over = true;
    etcd_.WithModel([&](EtcdModel& model) {
      etcdserverpb::TxnRequest earlier;
      *earlier.add_compare() = Absent(keys_.Evicting(2));
      *earlier.add_success() = Put(keys_.Evicting(2), "");
      EXPECT_TRUE(model.Txn(earlier).ok());
    });
  });
  const absl::Status removed =
      Ask<absl::Status>([&](auto done) { Coordinator()->run->Evict("step_1", 1, std::move(done)); });
  etcd_.simulation().BeforeTransaction(nullptr);
  EXPECT_EQ(ReasonOf(removed), ledger_reason::kRemovalFound) << removed;
  EXPECT_THAT(std::string(removed.message()), HasSubstr("sequence 2 was being removed already"));
  EXPECT_TRUE(root_.tags.contains("step_1"));
}

// A node reads it, so the decision waits, and meanwhile a scan finds that one which counted is half removed.
TEST_P(NodesRunContract, CheckpointStaysIfOneThatMayHaveCountedIsFoundHalfRemoved) {
  for (const char* tag : {"step_1", "step_2", "step_3"}) SaveAll(tag);
  Node& reads = Other();
  auto reader = Ask<absl::StatusOr<std::shared_ptr<CheckpointReader>>>(
      [&](auto done) { reads.io->OpenCheckpoint("step_1", 1, std::move(done)); });
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::optional<absl::Status> evicted;
  Coordinator()->run->Evict("step_1", 1, [&](const absl::Status& status) { evicted = status; });
  RunFor(seconds(5));
  ASSERT_FALSE(evicted.has_value()) << *evicted;
  root_.tags.erase("step_2");
  root_.half_removed["step_2"] = 2;
  const auto scanned =
      Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { Coordinator()->io->Rescan(std::move(done)); });
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  RunUntil([&] { return root_.half_removed.empty(); });
  reader->reset();
  RunUntil([&] { return evicted.has_value(); });
  EXPECT_EQ(ReasonOf(*evicted), ledger_reason::kRemovalFound) << *evicted;
  EXPECT_TRUE(root_.tags.contains("step_1"));
}

TEST_P(NodesRunContract, CheckpointsThatGoAtOnceDoNotCountForEachOther) {
  for (const char* tag : {"step_1", "step_2", "step_3", "step_4"}) SaveAll(tag);
  std::vector<std::string> removed;
  for (const int64_t sequence : {1, 2, 3}) {
    Coordinator()->run->Evict(absl::StrCat("step_", sequence), sequence,
                              [&](const absl::Status& done) { removed.push_back(ReasonOf(done)); });
  }
  RunUntil([&] { return removed.size() == 3; });
  EXPECT_THAT(removed, ElementsAre("", "", ""));
  EXPECT_EQ(root_.tags.size(), 1u);
}

TEST_P(NodesRunContract, DamageThatTheRootAloneRemembersIsToldToAllNodes) {
  SaveAll("step_1");
  root_.damaged[1] = "long ago";
  EXPECT_EQ(Shown(all_[1], 1), "long ago");
  RunUntilAllHaveHeardOfDamage("1 long ago");
  ASSERT_EQ(Clear(all_[0], 1), "OK");
  RunUntilAllHaveHeardOfDamage("1 repaired");
  for (Node& node : all_) EXPECT_EQ(Shown(node, 1), "") << "what etcd says is newer: " << node.name;
}

// ---- what operators set

TEST_P(NodesRunContract, PinOfAnyNodeIsKnownToAllAndKeepsTheCheckpoint) {
  SaveAll("step_1");
  SaveAll("step_2");
  ASSERT_EQ(SetPinned(Other(), "step_1", 1, true), "OK");
  EXPECT_THAT(Other().pins, ElementsAre("step_1 1 pinned")) << "before the answer, and once";
  EXPECT_EQ(ReasonOf(Evict("step_1", 1)), reason::kPinned)
      << "whether the coordinator knows of the pin or not";
  RunUntilAllHaveLearntOfPin("step_1 1 pinned");
  for (Node& node : all_) {
    EXPECT_THAT(node.pins, ElementsAre("step_1 1 pinned")) << node.name;
    EXPECT_TRUE(ShowsPin(node, 1)) << node.name;
    EXPECT_FALSE(ShowsPin(node, 2)) << node.name;
  }
  ASSERT_EQ(SetPinned(*Coordinator(), "step_1", 1, false), "OK");
  EXPECT_TRUE(Evict("step_1", 1).ok());
  RunUntilAllHaveLearntOfPin("step_1 1 unpinned");
  EXPECT_FALSE(root_.tags.contains("step_1"));
}

TEST_P(NodesRunContract, NodeThatStartsLaterLearnsOfThePin) {
  SaveAll("step_1");
  ASSERT_EQ(SetPinned(all_[0], "step_1", 1, true), "OK");
  Node& again = Other();
  Kill(again);
  again.pins.clear();
  Start(again);
  RunUntil([&] { return !again.pins.empty(); });
  EXPECT_TRUE(ShowsPin(again, 1));
  RegisterAnew(again);
  RunFor(seconds(10));
  EXPECT_THAT(again.pins, ElementsAre("step_1 1 pinned")) << "once";
}

TEST_P(NodesRunContract, CheckpointThatIsBeingRemovedIsNotPinned) {
  SaveAll("step_1");
  SaveAll("step_2");
  ASSERT_TRUE(Evict("step_1", 1).ok());
  EXPECT_EQ(SetPinned(Other(), "step_1", 1, true), "BEING_REMOVED");
  for (const Node& node : all_) EXPECT_THAT(node.pins, IsEmpty()) << node.name;
}

TEST_P(NodesRunContract, PinIsSetByTheNextRegistrationOrNotAtAll) {
  SaveAll("step_1");
  Node& node = Other();
  node.run->SetNode(nullptr);
  const Instant begun = etcd_.clock()->Now();
  EXPECT_EQ(SetPinned(node, "step_1", 1, true), "LEDGER_UNAVAILABLE");
  EXPECT_LE(etcd_.clock()->Now() - begun, seconds(35));
  EXPECT_THAT(node.pins, IsEmpty());
  etcd_.After(seconds(10), [&] { node.run->SetNode(&node.registration->identity()); });
  EXPECT_EQ(SetPinned(node, "step_1", 1, true), "OK");
  RunUntilAllHaveLearntOfPin("step_1 1 pinned");
}

TEST_P(NodesRunContract, PinThatTheRootAloneRemembersIsToldToAllNodes) {
  SaveAll("step_1");
  root_.pinned.insert(1);
  EXPECT_TRUE(ShowsPin(all_[1], 1));
  RunUntilAllHaveLearntOfPin("step_1 1 pinned");
  ASSERT_EQ(SetPinned(all_[0], "step_1", 1, false), "OK");
  RunUntilAllHaveLearntOfPin("step_1 1 unpinned");
  for (Node& node : all_) EXPECT_FALSE(ShowsPin(node, 1)) << "what etcd says is newer: " << node.name;
}

TEST_P(NodesRunContract, PinHoldsAlsoIfTheRootCannotRecordIt) {
  SaveAll("step_1");
  for (Node& node : all_) node.files->pin_error = ErrnoError(ENOSPC, "writing the record");
  ASSERT_EQ(SetPinned(Other(), "step_1", 1, true), "OK");
  RunUntilAllHaveLearntOfPin("step_1 1 pinned");
  EXPECT_TRUE(ShowsPin(*Coordinator(), 1));
  RunFor(seconds(1));
  EXPECT_THAT(Coordinator()->noticed, Contains(HasSubstr("could not be recorded that step_1 is pinned")));
}

TEST_P(NodesRunContract, RetentionPolicyThatIsSetOnAnyNodeIsThatOfAllAndSurvivesThem) {
  SaveAll("step_1");
  storage::v1::RetentionPolicy policy;
  policy.set_last(5);
  const auto set = [&](Node& node, const std::optional<storage::v1::RetentionPolicy>& wanted) {
    return Ask<absl::Status>(
        [&](auto done) { node.run->ledger()->SetRetentionOverride(wanted, std::move(done)); });
  };
  const auto shown = [](Node& node) {
    const storage::v1::RunRecord& record = node.run->ledger()->record();
    return record.has_retention_override() ? DescribePolicy(record.retention_override()) : "none";
  };
  const auto all_show = [&](const std::string& what) {
    RunUntil([&] {
      return std::all_of(all_.begin(), all_.end(), [&](Node& node) { return shown(node) == what; });
    });
    for (Node& node : all_) EXPECT_EQ(shown(node), what) << node.name;
  };
  ASSERT_TRUE(set(Other(), policy).ok());
  EXPECT_EQ(shown(Other()), "last 5") << "before the answer";
  all_show("last 5");
  Node& again = Other();
  Kill(again);
  again.newest.clear();
  Start(again);
  RunUntil([&] { return !again.newest.empty(); });
  EXPECT_EQ(shown(again), "last 5") << "known before the newest checkpoint, whose policy would count else";
  ASSERT_TRUE(set(again, std::nullopt).ok());
  all_show("none");
}

TEST_P(NodesRunContract, RequestOnAnyNodeIsCarriedOutByTheCoordinator) {
  for (const char* tag : {"step_1", "step_2", "step_3"}) SaveAll(tag);
  Node& asked = Other();
  EXPECT_EQ(Delete(asked, "step_1", 1, /*force=*/true), "OK");
  EXPECT_THAT(Coordinator()->deletions, ElementsAre("step_1 1 by force"));
  EXPECT_FALSE(root_.tags.contains("step_1"));
  EXPECT_EQ(Delete(*Coordinator(), "step_2", 2), "OK");
  EXPECT_THAT(Coordinator()->deletions, ElementsAre("step_1 1 by force", "step_2 2"));
  root_.pointed.insert(3);
  EXPECT_EQ(Delete(asked, "step_3", 3), reason::kPointed);
  for (const Node& node : all_) {
    EXPECT_EQ(node.deletions.empty(), &node != Coordinator()) << node.name;
  }
}

TEST_P(NodesRunContract, RequestsOfANodeUseTheKeysOfAnsweredOnes) {
  for (const char* tag : {"step_1", "step_2"}) SaveAll(tag);
  Node& asked = Other();
  root_.pointed.insert(1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Delete(asked, "step_1", 1), reason::kPointed);
  root_.pointed.clear();
  EXPECT_EQ(Delete(asked, "step_1", 1), "OK");
  EXPECT_EQ(Coordinator()->deletions.size(), 6u);
  EXPECT_NE(nodes_.Read(keys_.Request(asked.name, 1)), "(none)");
  EXPECT_EQ(nodes_.Read(keys_.Request(asked.name, 2)), "(none)") << "one user cannot fill etcd";
}

TEST_P(NodesRunContract, RequestThatACoordinatorHasNotAnsweredIsCarriedOutByTheNext) {
  for (const char* tag : {"step_1", "step_2"}) SaveAll(tag);
  Node& first = *Coordinator();
  first.holds_deletions = true;
  Node& asked = Other();
  std::optional<absl::Status> deleted;
  asked.run->Delete("step_1", 1, false, [&](const absl::Status& answer) { deleted = answer; });
  RunUntil([&] { return !first.deletions.empty(); });
  RunFor(seconds(5));
  EXPECT_FALSE(deleted.has_value()) << *deleted;
  Kill(first);
  RunUntil([&] { return deleted.has_value(); });
  ASSERT_TRUE(deleted.has_value());
  EXPECT_TRUE(deleted->ok()) << *deleted;
  EXPECT_FALSE(root_.tags.contains("step_1"));
}

TEST_P(NodesRunContract, RequestThatWasCarriedOutBeforeTheCoordinatorEndedIsAnsweredByTheNext) {
  for (const char* tag : {"step_1", "step_2"}) SaveAll(tag);
  Node& first = *Coordinator();
  first.holds_deletions = true;
  Node& asked = Other();
  std::optional<absl::Status> deleted;
  asked.run->Delete("step_1", 1, false, [&](const absl::Status& answer) { deleted = answer; });
  RunUntil([&] { return !first.deletions.empty(); });
  ASSERT_TRUE(Evict("step_1", 1).ok());
  Kill(first);
  RunUntil([&] { return deleted.has_value(); });
  ASSERT_TRUE(deleted.has_value());
  EXPECT_TRUE(deleted->ok()) << "it is gone: " << *deleted;
}

TEST_P(NodesRunContract, RequestEndsWithTheRegistrationOfItsNode) {
  for (const char* tag : {"step_1", "step_2"}) SaveAll(tag);
  Node& asked = Other();
  Coordinator()->holds_deletions = true;
  std::optional<absl::Status> deleted;
  asked.run->Delete("step_1", 1, false, [&](const absl::Status& answer) { deleted = answer; });
  RunUntil([&] { return !Coordinator()->deletions.empty(); });
  asked.run->SetNode(nullptr);
  // If this node does not know whether etcd has the request, it asks again with the next registration.
  const bool has_ended = deleted.has_value();
  if (has_ended) {
    EXPECT_EQ(ReasonOf(*deleted), "LEDGER_UNAVAILABLE");
    EXPECT_THAT(std::string(deleted->message()), HasSubstr("look whether it was done"));
  }
  Coordinator()->holds_deletions = false;
  for (auto& held : Coordinator()->held_deletions) held(absl::OkStatus());
  asked.run->SetNode(&asked.registration->identity());
  RunUntil([&] { return deleted.has_value(); });
  ASSERT_TRUE(deleted.has_value());
  EXPECT_EQ(deleted->ok(), !has_ended) << *deleted;
  EXPECT_EQ(Delete(asked, "step_2", 2), "OK");
}

TEST_P(NodesRunContract, RequestIsRefusedIfNoNodeCoordinatesForLong) {
  for (const char* tag : {"step_1", "step_2"}) SaveAll(tag);
  for (Node& node : all_) node.files->Hang(etcd_.clock()->Now());
  RunFor(seconds(90));  // They have stepped down.
  ASSERT_EQ(Coordinator(), nullptr);
  for (Node& node : all_) EXPECT_EQ(node.run->coordinator(), "") << node.name;
  const Instant begun = etcd_.clock()->Now();
  std::optional<absl::Status> deleted;
  all_[0].run->Delete("step_1", 1, false, [&](const absl::Status& answer) { deleted = answer; });
  RunUntil([&] { return deleted.has_value(); });
  ASSERT_TRUE(deleted.has_value());
  EXPECT_EQ(ReasonOf(*deleted), "LEDGER_UNAVAILABLE");
  EXPECT_THAT(std::string(deleted->message()), HasSubstr("no node coordinates /shared/run"));
  EXPECT_LE(etcd_.clock()->Now() - begun, seconds(65));
  for (Node& node : all_) EXPECT_THAT(node.deletions, IsEmpty()) << "before";
  for (Node& node : all_) node.files->EndHang();
  RunUntil([this] { return Coordinator() != nullptr; });
  RunFor(minutes(2));
  for (Node& node : all_) EXPECT_THAT(node.deletions, IsEmpty()) << "it was withdrawn";
}

// ---- etcd is away, or knows other things

TEST_P(NodesRunContract, DecisionsWaitForEtcdAndNameItWhenTheirTimeIsOver) {
  Node& node = all_[1];  // It has not asked yet.
  CutOff(node, true);
  const Instant begun = etcd_.clock()->Now();
  const absl::Status active = Activate(node, 1);
  EXPECT_EQ(ReasonOf(active), "LEDGER_UNAVAILABLE") << active;
  EXPECT_THAT(std::string(active.message()), HasSubstr("to let attempt 1 act in run /shared/run"));
  EXPECT_LE(etcd_.clock()->Now() - begun, seconds(45));
  etcd_.After(seconds(10), [&] { CutOff(node, false); });
  const absl::Status later = Activate(node, 1);
  EXPECT_TRUE(later.ok()) << later << ": it is asked again";
}

// A Begin that waited for etcd before its deadline is known would be answered later than that.
TEST_P(NodesRunContract, AttemptThatThisNodeHasLetActNeedsNoEtcdForThat) {
  Node& node = all_[0];
  CutOff(node, true);
  const Instant begun = etcd_.clock()->Now();
  EXPECT_TRUE(Activate(node, 1).ok());
  EXPECT_LE(etcd_.clock()->Now() - begun, seconds(1));
  node.run->Begin(Id("step_1"), begun + seconds(20), {});
  RunUntil([&] { return Heard(node, "step_1", "FAILED LEDGER_UNAVAILABLE"); });
  EXPECT_LE(etcd_.clock()->Now() - begun, seconds(35));
  CutOff(node, false);
}

TEST_P(NodesRunContract, AttemptThatThisNodeHasLetActIsOverWhenALaterOneActs) {
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch2").value_or(-1), 2);
  ASSERT_TRUE(Activate(all_[1], 2).ok());
  int64_t acts = 0;
  all_[0].run->ledger()->WatchActiveAttempt([&acts](int64_t attempt) { acts = attempt; });
  RunUntil([&] { return acts == 2; });
  EXPECT_EQ(ReasonOf(Activate(all_[0], 1)), "FENCED");
}

// ---- an etcd that was restored from a backup, and does not know what has happened since

TEST_P(NodesRunContract, SaveOfWhichEtcdHasForgottenThatItWasPublishedDoesNotReplaceItself) {
  SaveAll("step_1");
  ledger::v1::SaveState state;
  ASSERT_TRUE(state.ParseFromString(nodes_.Read(keys_.SaveState(1))));
  for (Node& node : all_) Kill(node);
  state.set_phase(ledger::v1::SaveState::SEALED);
  state.clear_time_us();
  PutKey(keys_.SaveState(1), state.SerializeAsString());
  for (Node& node : all_) Start(node);
  RunUntil([&] {
    return state.ParseFromString(nodes_.Read(keys_.SaveState(1))) &&
           state.phase() == ledger::v1::SaveState::COMMITTED;
  });
  EXPECT_EQ(state.phase(), ledger::v1::SaveState::COMMITTED);
  RunFor(seconds(20));
  EXPECT_EQ(root_.tags["step_1"], 1);
  EXPECT_EQ(nodes_.Read(keys_.Evicting(1)), "(none)");
  EXPECT_EQ(Shown(*Coordinator(), 1), "");
}

TEST_P(NodesRunContract, SequenceOfACheckpointThatEtcdHasForgottenIsNotGivenAgain) {
  SaveAll("step_1");
  RunUntil([this] { return nodes_.Read(keys_.SaveState(2)) != "(none)"; });  // Made in advance.
  for (Node& node : all_) Kill(node);
  root_.tags["step_2"] = 2;
  for (Node& node : all_) Start(node);
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch2").value_or(-1), 2);
  ASSERT_TRUE(Activate(all_[0], 2).ok());
  SaveAll("step_3", 2);
  EXPECT_EQ(root_.tags["step_2"], 2);
  EXPECT_GT(root_.tags["step_3"], 2);
}

TEST_P(NodesRunContract, AttemptOfACheckpointThatEtcdHasForgottenIsNotGivenAgain) {
  SaveAll("step_1");
  for (Node& node : all_) Kill(node);
  root_.tags["step_2"] = 2;
  root_.attempts[2] = 7;
  for (Node& node : all_) Start(node);
  for (Node& node : all_) EXPECT_EQ(Join(node, "launch2").value_or(-1), 8);
}

TEST_P(NodesRunContract, AttemptOfACheckpointThatWasMovedInIsNotGivenAgain) {
  SaveAll("step_1");
  const auto scan = [this](int64_t expected) {
    const auto scanned =
        Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { Other().io->Rescan(std::move(done)); });
    EXPECT_TRUE(scanned.ok() && scanned->committed.contains(expected)) << scanned.status();
    RunFor(seconds(20));
  };
  root_.tags["moved"] = 100;
  scan(100);
  root_.tags["moved, but not the newest"] = 50;
  root_.attempts[50] = 7;
  scan(50);
  for (Node& node : all_) EXPECT_EQ(Join(node, "launch2").value_or(-1), 8);
}

TEST_P(NodesRunContract, LaunchJoinsAgainAlsoAfterAnAttemptThatEtcdHasForgotten) {
  for (Node& node : all_) Kill(node);
  root_.tags["step_2"] = 2;
  root_.attempts[2] = 7;
  for (Node& node : all_) Start(node);
  for (Node& node : all_) {
    Ledger::JoinSpec spec = SpecOf(node, "launch1", kNodes);
    spec.instance += " again";
    const auto attempt =
        Ask<absl::StatusOr<int64_t>>([&](auto done) { node.run->ledger()->Join(spec, std::move(done)); });
    EXPECT_EQ(attempt.value_or(-1), 8) << attempt.status();
  }
}

// Ranks of this launch may have saved what is in the root: an attempt, a tag and an ordinal name a save.
TEST_P(NodesRunContract, RankThatARestoredEtcdHasForgottenDoesNotJoinAnAttemptThatHasSaved) {
  EXPECT_EQ(Join(all_[0], "launch2").value_or(-1), 2);
  for (Node& node : all_) Kill(node);
  root_.tags["step_1"] = 1;
  root_.attempts[1] = 2;
  for (Node& node : all_) Start(node);
  EXPECT_EQ(Join(all_[1], "launch2").value_or(-1), 3);
  Ledger::JoinSpec again = SpecOf(all_[0], "launch2", kNodes);
  again.instance += " again";
  const auto attempt =
      Ask<absl::StatusOr<int64_t>>([&](auto done) { all_[0].run->ledger()->Join(again, std::move(done)); });
  EXPECT_EQ(attempt.value_or(-1), 3) << attempt.status();
  EXPECT_EQ(Join(all_[2], "launch2").value_or(-1), 3);
}

TEST_P(NodesRunContract, TermsComeAfterThoseThatTheRootHas) {
  for (Node& node : all_) Kill(node);
  root_.highest_term = 41;  // A record of a lower term would not count.
  for (Node& node : all_) Start(node);
  RunUntil([this] { return Coordinator() != nullptr; });
  ledger::v1::LastTerm last;
  ASSERT_TRUE(last.ParseFromString(nodes_.Read(keys_.Term())));
  EXPECT_GT(last.term(), 41);
}

// A copy holds the same id, but it is another directory.
TEST_P(NodesRunContract, CopyOfARootIsNotTheRootOfItsRun) {
  SaveAll("step_1");
  Node& node = all_[2];
  Kill(node);
  inode_ = 8;
  absl::Status opened = TryStart(node);
  EXPECT_EQ(ReasonOf(opened), "ROOT_COPIED");
  EXPECT_TRUE(absl::IsFailedPrecondition(opened)) << opened;
  EXPECT_THAT(std::string(opened.message()), HasSubstr("ckptctl new-run /shared/run"));
  Kill(node);
  uid_ = 1001;
  opened = TryStart(node);
  EXPECT_EQ(ReasonOf(opened), "ROOT_COPIED");
  EXPECT_TRUE(absl::IsPermissionDenied(opened)) << opened;
  Kill(node);
  inode_ = 7;
  EXPECT_EQ(TryStart(node), absl::OkStatus()) << "its owner is another one now";
  EXPECT_EQ(Join(node, "launch1").value_or(-1), 1);
}

TEST_P(NodesRunContract, CopyThatIsOpenedWithoutEtcdDoesNothingWhenEtcdAnswers) {
  SaveAll("step_1");
  SaveAll("step_2");
  Node& copy = all_[2];
  Kill(copy);
  inode_ = 8;
  opens_without_etcd_ = true;
  ASSERT_EQ(TryStart(copy), absl::OkStatus());
  copy.noticed.clear();
  RegisterAnew(copy);  // The first lease may have ended meanwhile.
  RunUntil([&] { return !copy.noticed.empty(); });
  EXPECT_THAT(copy.noticed, ElementsAre(HasSubstr("whose root is another directory")));
  EXPECT_EQ(ReasonOf(Join(copy, "another").status()), "ROOT_COPIED") << "etcd answers";
  for (Node& node : {std::ref(all_[0]), std::ref(all_[1])}) Kill(node);
  RunFor(minutes(2));
  EXPECT_FALSE(copy.run->coordinates());
  EXPECT_EQ(ReasonOf(Ask<absl::Status>([&](auto done) { copy.io->Evict("step_1", 1, std::move(done)); })),
            "NOT_COORDINATOR");
  EXPECT_TRUE(root_.tags.contains("step_1"));
}

// ---- what one user may have in etcd

TEST_P(NodesRunContract, CoordinatorCountsWhatItsRunHasInEtcd) {
  const std::string use_key = absl::StrCat(nodes_.prefix(), "users/1000/", run_id_);
  const auto counted = [&] {
    ledger::v1::RunUse use;
    use.ParseFromString(nodes_.Read(use_key));
    return use;
  };
  RunUntil([&] { return counted().keys() > 0; });
  const ledger::v1::RunUse before = counted();
  EXPECT_EQ(before.path(), "/shared/run");
  SaveAll("step_1");
  RunUntil([&] { return counted().keys() > before.keys(); });
  // Its state, its name, and the votes of three nodes.
  EXPECT_GE(counted().keys(), before.keys() + 5);
  EXPECT_GT(counted().bytes(), before.bytes() + 5 * 100);
}

TEST_P(NodesRunContract, UserWhoHasTooMuchInEtcdBeginsNothingAndAnotherOneGoesOn) {
  for (Node& node : all_) Kill(node);
  bound_ = {.keys = 1000, .bytes = 1 << 20};
  for (Node* node : {&all_[0], &all_[1]}) {
    Start(*node);
    ASSERT_EQ(Join(*node, "launch2", 2).value_or(-1), 2);
  }
  ASSERT_TRUE(Activate(all_[0], 2).ok());
  SaveAll("step_1", 2);
  PutUse(1000, 1000);
  for (Node* node : {&all_[0], &all_[1]}) {
    WaitUntilJoin(*node, "LIMIT_EXCEEDED");
    node->run->Begin(Id("step_2", 2), etcd_.clock()->Now() + minutes(8), {});
    RunUntil([&] { return Heard(*node, "step_2", "RELEASED"); });
    EXPECT_TRUE(Heard(*node, "step_2", "FAILED LIMIT_EXCEEDED"));
    EXPECT_THAT(
        std::string(node->failed.message()),
        AllOf(HasSubstr("runs of uid 1000 have "), HasSubstr("limits.etcd_keys_per_uid"),
              HasSubstr("the largest is that of /shared/other, run other"), HasSubstr("Delete the keys")));
  }
  EXPECT_EQ(nodes_.Read(keys_.SaveIndex(2, "step_2", 1)), "(none)") << "nothing is written";

  uid_ = 2000;
  run_id_ = "fedcba9876543210fedcba9876543210";
  Start(all_[2]);
  ASSERT_EQ(LaunchAlone(all_[2], "of the other user"), 1);
  all_[2].run->Begin(Id("step_9"), etcd_.clock()->Now() + minutes(8), {});
  RunUntil([&] { return Heard(all_[2], "step_9", "COMMITTED"); });
  EXPECT_TRUE(Heard(all_[2], "step_9", "COMMITTED"));
  Kill(all_[2]);

  PutUse(1000, 10);
  for (Node* node : {&all_[0], &all_[1]}) WaitUntilJoin(*node, "");
  SaveAll("step_3", 2);
}

TEST_P(NodesRunContract, NewRunOfAUserWhoHasTooMuchInEtcdWaitsUntilThatIsLess) {
  bound_ = {.keys = 1000, .bytes = 1 << 20};
  PutUse(1000, 1000);
  Node& node = all_[2];
  Kill(node);
  run_id_ = "fedcba9876543210fedcba9876543210";
  Start(node);
  RunUntil([&] { return !node.noticed.empty(); });
  EXPECT_THAT(node.noticed, ElementsAre(HasSubstr("limits.etcd_keys_per_uid")));
  WaitUntilJoin(node, "LIMIT_EXCEEDED");
  EXPECT_EQ(nodes_.Read(LedgerKeys(absl::StrCat(nodes_.prefix(), "runs/", run_id_, "/")).Root()), "(none)");
  PutUse(1000, 10);
  WaitUntilJoin(node, "");
  EXPECT_THAT(node.noticed, SizeIs(1)) << "it is said once";
}

TEST_P(NodesRunContract, NodesThatDoNotShareTheRootAreRefused) {
  Node& stranger = all_[2];
  Kill(stranger);
  run_id_ = "another folder under the same path";
  Start(stranger);
  ASSERT_EQ(Join(all_[0], "launch2").value_or(-1), 2);
  const auto joined = Join(stranger, "launch2");
  EXPECT_EQ(ReasonOf(joined.status()), "ROOT_NOT_SHARED") << joined.status();
}

TEST_P(NodesRunContract, NodeWithAnotherLaunchIdThanTheOthersIsRefusedAtTheEndOfItsWait) {
  ASSERT_EQ(Join(all_[0], "launch2").value_or(-1), 2);
  const Instant begin = etcd_.clock()->Now();
  const auto joined = Join(all_[1], "launch3");
  EXPECT_EQ(ReasonOf(joined.status()), "LAUNCH_IDS_DIFFER") << joined.status();
  EXPECT_GE(etcd_.clock()->Now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(Join(all_[1], "launch2").value_or(-1), 2);
}

TEST_P(NodesRunContract, NodeJoinsALaunchThatFollowsOneOfOtherNodesWhenARankOfThatHasJoined) {
  ASSERT_EQ(Join(all_[0], "launch2").value_or(-1), 2);
  std::optional<absl::StatusOr<int64_t>> joined;
  all_[1].run->ledger()->Join(SpecOf(all_[1], "launch3", kNodes),
                              [&](absl::StatusOr<int64_t> attempt) { joined = std::move(attempt); });
  RunFor(std::chrono::seconds(5));
  EXPECT_FALSE(joined.has_value());
  all_[0].run->ledger()->ProcessEnded("launch2.0");
  EXPECT_EQ(Join(all_[0], "launch3").value_or(-1), 3);
  RunUntil([&] { return joined.has_value(); });
  EXPECT_EQ((*joined).value_or(-1), 3);
}

// ---- a file system that hangs

TEST_P(NodesRunContract, AnotherNodeGoesOnWhenTheFileSystemOfTheCoordinatorHangs) {
  Node& first = *Coordinator();
  first.files->Hang(etcd_.clock()->Now());
  std::vector<int> others;
  for (const Node& node : all_) {
    if (&node != &first) others.push_back(node.rank);
  }
  for (Node& node : all_) {
    if (&node != &first) node.run->Begin(Id("step_1"), etcd_.clock()->Now() + minutes(8), others);
  }
  RunFor(seconds(55));
  EXPECT_EQ(Coordinator(), &first) << "it may only be slow";
  RunUntil([&] {
    return std::all_of(all_.begin(), all_.end(), [&](const Node& node) {
      return &node == &first || Heard(node, "step_1", "COMMITTED");
    });
  });
  EXPECT_THAT(first.silences, ElementsAre(60));
  EXPECT_FALSE(first.run->coordinates());
  Node& second = *Coordinator();
  EXPECT_EQ(first.run->coordinator(), second.name);
  EXPECT_THAT(second.silences, IsEmpty());
  first.files->EndHang();  // What it has asked for is carried out now.
  SaveAll("step_2");
  EXPECT_EQ(Coordinator(), &second);
  EXPECT_THAT(root_.published, ElementsAre(HasSubstr("step_1"), HasSubstr("step_2")));
}

TEST_P(NodesRunContract, NodeWhoseFileSystemHangsTakesTheLeadershipWhenItAnswers) {
  Node& hanging = Other();
  hanging.files->Hang(etcd_.clock()->Now());
  RunFor(seconds(70));
  for (int i = 1; i < kNodes; ++i) {
    RunUntil([&] { return Coordinator() != nullptr; });
    ASSERT_NE(Coordinator(), &hanging);
    Kill(*Coordinator());
  }
  RunFor(minutes(3));
  EXPECT_EQ(Coordinator(), nullptr);
  RegisterAnew(hanging);
  RunFor(minutes(1));
  EXPECT_EQ(Coordinator(), nullptr);
  EXPECT_THAT(hanging.silences, IsEmpty()) << "it had no leadership";
  hanging.files->EndHang();
  RunUntil([&] { return Coordinator() == &hanging; });
}

TEST_P(NodesRunContract, FileSystemThatIsOnlySlowHasACoordinatorInTheEnd) {
  Node& only = *Coordinator();
  for (Node& node : all_) {
    if (&node != &only) Kill(node);
  }
  const auto hang = [&] {
    only.files->Hang(etcd_.clock()->Now());
    RunFor(seconds(90));
    only.files->EndHang();
    RunUntil([&] { return Coordinator() == &only; });
  };
  for (int i = 0; i < 3; ++i) hang();
  EXPECT_THAT(only.silences, ElementsAre(60)) << "the second time it waits for two minutes";
  for (int i = 0; i < 13; ++i) RunFor(minutes(5));
  hang();
  EXPECT_THAT(only.silences, ElementsAre(60, 60)) << "the first is long ago";
}

TEST_P(NodesRunContract, LeadershipIsGivenUpWhenEtcdAnswersAgain) {
  Node& first = *Coordinator();
  first.files->Hang(etcd_.clock()->Now());
  first.etcd->RefuseTransactions(
      MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable, "a test"));
  RunUntil([&] { return !first.silences.empty(); });
  RunFor(seconds(20));
  EXPECT_EQ(Coordinator(), nullptr);
  EXPECT_FALSE(first.run->may_close()) << "in etcd it has the leadership";
  first.etcd->RefuseTransactions(absl::OkStatus());
  RunUntil([&] { return Coordinator() != nullptr; });
  EXPECT_NE(Coordinator(), &first);
  EXPECT_THAT(first.asked_anew, IsEmpty());
}

// ---- nodes that have no use for the run

TEST_P(NodesRunContract, IdleCoordinatorHandsOnToANodeThatUsesTheRun) {
  SaveAll("step_1");
  Node& first = *Coordinator();
  EXPECT_FALSE(first.run->may_close());
  first.run->SetIdle(true);
  RunUntil([&] { return Coordinator() != nullptr && Coordinator() != &first; });
  RunUntil([&] { return first.run->may_close(); });
  first.run->SetIdle(false);
  SaveAll("step_2");
}

TEST_P(NodesRunContract, RunThatNoNodeUsesClosesEverywhereAndIsCoordinatedAgainWhenOneDoes) {
  SaveAll("step_1");
  for (Node& node : all_) node.run->SetIdle(true);
  RunUntil([this] {
    return std::all_of(all_.begin(), all_.end(), [](const Node& node) { return node.run->may_close(); });
  });
  EXPECT_EQ(Coordinator(), nullptr);
  EXPECT_EQ(nodes_.Read(keys_.Coordinator()), "(none)");
  all_[1].run->SetIdle(false);
  RunUntil([this] { return Coordinator() == &all_[1]; });
  EXPECT_FALSE(all_[1].run->may_close());
}

TEST_P(NodesRunContract, IdleNodeThatIsAskedSomethingCoordinatesUntilItHasAnswered) {
  SaveAll("step_1");
  for (Node& node : all_) node.run->SetIdle(true);
  RunUntil([this] {
    return std::all_of(all_.begin(), all_.end(), [](const Node& node) { return node.run->may_close(); });
  });
  const absl::StatusOr<Authority::Settled> settled = Ask<absl::StatusOr<Authority::Settled>>(
      [this](auto done) { all_[1].run->SettleSave("step_1", false, std::move(done)); });
  // Both are answers of a coordinator; with the second one it has not read etcd yet.
  EXPECT_THAT(ReasonOf(settled.status()), ::testing::AnyOf("UNKNOWN_SAVE", "OUTCOME_PENDING"))
      << settled.status();
  RunUntil([this] { return all_[1].run->may_close(); });
}

TEST_P(NodesRunContract, IdleCoordinatorFirstEndsWhatIsUnderWay) {
  SaveAll("step_1");
  Node& first = *Coordinator();
  Node& late = Other();
  for (Node& node : all_) {
    if (&node != &late) node.run->Begin(Id("step_2"), etcd_.clock()->Now() + minutes(8), {});
  }
  RunFor(seconds(5));
  first.run->SetIdle(true);
  RunFor(seconds(20));
  EXPECT_EQ(Coordinator(), &first);
  late.run->Begin(Id("step_2"), etcd_.clock()->Now() + minutes(8), {});
  RunUntilAllHeard("step_2", "COMMITTED");
  RunUntil([&] { return Coordinator() != nullptr && Coordinator() != &first; });
}

TEST_P(NodesRunContract, NodeThatResignsHandsTheLeadershipOn) {
  Node& first = *Coordinator();
  const absl::Status resigned = Ask<absl::Status>([&](auto done) { first.run->Resign(std::move(done)); });
  EXPECT_TRUE(resigned.ok()) << resigned;
  EXPECT_FALSE(first.run->coordinates());
  RunUntil([&] { return Coordinator() != nullptr; });
  EXPECT_NE(Coordinator(), &first);
  SaveAll("step_1");
}

// ---- uploads

TEST_P(NodesRunContract, WhatTheNewestLaunchUploadsIsKnownBeforeItsRank0HasJoined) {
  EXPECT_EQ(JoinWithUploads(Other(), "launch2", "s3://bucket/two").value_or(-1), 2);
  const auto known = ReadUploads(*Coordinator());
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->policy.url(), "s3://bucket/two");
  EXPECT_EQ(known->attempt, 2);
  RunUntilAllShow("2 s3://bucket/two");
  EXPECT_EQ(JoinWithUploads(*Coordinator(), "launch3", "").value_or(-1), 3);
  RunUntilAllShow("3 ");
  // A rank of an earlier launch joins once more, as after a restart of its daemon.
  const auto late = JoinWithUploads(Other(), "launch2", "s3://bucket/two");
  EXPECT_EQ(ReadUploads(*Coordinator())->policy.url(), "") << late.status();
}

TEST_P(NodesRunContract, ALaunchThatUploadsNothingWritesNothingWhereNoneHas) {
  EXPECT_EQ(JoinWithUploads(Other(), "launch2", "").value_or(-1), 2);
  EXPECT_EQ(nodes_.Read(keys_.UploadPolicy()), "(none)");
}

TEST_P(NodesRunContract, TheCoordinatorAloneWritesWhatWasUploadedAndTheNextOneReadsIt) {
  Node& first = *Coordinator();
  const std::function<bool()> still = first.run->StillCoordinates();
  EXPECT_TRUE(still());
  EXPECT_FALSE(Other().run->StillCoordinates()());
  EXPECT_EQ(ReasonOf(WriteUploads(Other(), 7)), ledger_reason::kNotCoordinator);
  EXPECT_EQ(WriteUploads(first, 3), absl::OkStatus());
  EXPECT_EQ(WriteUploads(first, 4), absl::OkStatus());
  RunUntil([this] { return Other().run->Shown().counted_through == 4; });
  EXPECT_EQ(Other().run->Shown().counted_through, 4);
  Kill(first);
  EXPECT_FALSE(still()) << "its uploads end";
  RunUntil([this] { return Coordinator() != nullptr; });
  const auto known = ReadUploads(*Coordinator());
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->counted_through, 4);
  EXPECT_EQ(WriteUploads(*Coordinator(), 5), absl::OkStatus());
  nodes_.DeliverLateCopies();
  EXPECT_EQ(ReadUploads(*Coordinator())->counted_through, 5);
}

TEST_P(NodesRunContract, ANodeThatHasResignedNoLongerUploads) {
  Node& first = *Coordinator();
  const std::function<bool()> still = first.run->StillCoordinates();
  absl::Status written = absl::UnknownError("no answer yet");
  first.run->Write(UploadsTo("s3://bucket/run"), 1, 0, [&](const absl::Status& status) { written = status; });
  const absl::Status resigned = Ask<absl::Status>([&](auto done) { first.run->Resign(std::move(done)); });
  EXPECT_TRUE(resigned.ok()) << resigned;
  EXPECT_FALSE(still());
  RunUntil([&] { return Coordinator() != nullptr && !absl::IsUnknown(written); });
  EXPECT_TRUE(written.ok() || ReasonOf(written) == ledger_reason::kNotCoordinator) << written;
  EXPECT_FALSE(first.run->StillCoordinates()());
  EXPECT_TRUE(Coordinator()->run->StillCoordinates()());
}

TEST_P(NodesRunContract, AnUploadRecordThatCannotBeReadIsAnErrorAndNoEmptyRecord) {
  EXPECT_EQ(WriteUploads(*Coordinator(), 4), absl::OkStatus());
  RunUntil([this] { return Other().run->Shown().counted_through == 4; });
  const int64_t version = Other().run->version();
  PutKey(keys_.UploadRecord(), "\xff");
  const absl::Status read = ReadUploads(*Coordinator()).status();
  EXPECT_EQ(ReasonOf(read), "CORRUPT_KEY");
  EXPECT_THAT(std::string(read.message()), HasSubstr(keys_.UploadRecord()));
  RunUntil([&] { return Other().run->version() > version; });
  EXPECT_EQ(Other().run->Shown().counted_through, 4);
}

TEST_P(NodesRunContract, SavesThatBeginAfterAFetchWasRecordedComeAfterTheBucketsCheckpoints) {
  SaveAll("step_1");
  EXPECT_EQ(ReasonOf(WriteUploads(Other(), 0, 1000)), ledger_reason::kNotCoordinator);
  EXPECT_EQ(WriteUploads(*Coordinator(), 0, 1000), absl::OkStatus());
  EXPECT_EQ(WriteUploads(*Coordinator(), 0, 500), absl::OkStatus()) << "sequences never go back";
  EXPECT_EQ(WriteUploads(*Coordinator(), 1), absl::OkStatus());
  SaveAll("step_2");
  EXPECT_GT(root_.tags.at("step_2"), 1000);
}

TEST_P(NodesRunContract, TheCoordinatorFetchesForEachNodeWhoseNextScanShowsThat) {
  EXPECT_EQ(Restore(*Coordinator()), "step_9 9");
  EXPECT_THAT(Coordinator()->restores, ElementsAre("1 s3://bucket/run mine"));
  Node& other = Other();
  EXPECT_EQ(Restore(other), "step_9 9");
  EXPECT_THAT(Coordinator()->restores, SizeIs(2));
  EXPECT_THAT(other.restores, IsEmpty());
  std::optional<absl::StatusOr<RootSnapshot>> scanned;
  other.io->Rescan([&](absl::StatusOr<RootSnapshot> root) { scanned = std::move(root); });
  RunFor(seconds(1));
  EXPECT_FALSE(scanned.has_value()) << "it does not see it yet";
  root_.PutBack("step_9", 9);
  RunUntil([&] { return scanned.has_value(); });
  EXPECT_TRUE((*scanned)->committed.contains(9));
}

TEST_P(NodesRunContract, AFetchThatFailsNamesTheCoordinator) {
  Coordinator()->restored = MakeError(absl::StatusCode::kFailedPrecondition, "RESTORE_FAILED", "no answer");
  for (Node& node : all_) {
    EXPECT_THAT(Restore(node), AllOf(HasSubstr(Coordinator()->name), HasSubstr("no answer"))) << node.name;
  }
}

TEST_P(NodesRunContract, AFetchThatADeadOrFormerCoordinatorHasNotEndedIsMadeByTheNext) {
  Node& first = *Coordinator();
  first.holds_restores = true;
  std::string heard;
  LivingOther().run->BringBack({1, "s3://bucket/run", ""},
                               [&](const absl::StatusOr<SharedUploads::Newest>& newest) {
                                 heard = newest.ok() ? newest->tag : newest.status().ToString();
                               });
  RunUntil([&] { return !first.restores.empty(); });
  EXPECT_EQ(heard, "");
  Kill(first);
  RunUntil([&] { return !heard.empty(); });
  EXPECT_EQ(heard, "step_9");
  EXPECT_THAT(Coordinator()->restores, SizeIs(1));
  RunUntil([this] { return Coordinator()->run->Term() != 0; });
  EXPECT_GT(Coordinator()->run->Term(), 1);
}

TEST_P(NodesRunContract, TheAttemptOfAFetchedCheckpointDoesNotSplitTheLaunchThatResumesFromIt) {
  storage::v1::UploadRecord record = UploadsTo("s3://bucket/run");
  record.set_fetched_sequence(9);
  EXPECT_EQ(
      Ask<absl::Status>([&](auto done) { Coordinator()->run->Write(record, 0, 1000, std::move(done)); }),
      absl::OkStatus());
  EXPECT_EQ(LaunchAlone(Other()), 2);
  root_.PutBack("step_9", 9);
  root_.attempts[9] = 7;  // Of the run that was lost.
  for (Node& node : all_) {
    const auto scanned =
        Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { node.io->Rescan(std::move(done)); });
    ASSERT_TRUE(scanned.ok() && scanned->committed.contains(9)) << node.name;
  }
  RunFor(seconds(5));
  EXPECT_EQ(nodes_.Read(keys_.AttemptInRoot()), "(none)");
  EXPECT_EQ(Join(LivingOther(), "launch3").value_or(-1), 3);
}

TEST_P(NodesRunContract, AJoinWaitsForEtcdToKnowWhatIsUploaded) {
  Node& node = Other();
  CutOff(node, true);
  Ledger::JoinSpec spec = SpecOf(node, "launch2", kNodes);
  spec.uploads = UploadsTo("s3://bucket/run");
  std::optional<absl::StatusOr<int64_t>> joined;
  node.run->ledger()->Join(spec, [&](absl::StatusOr<int64_t> attempt) { joined = std::move(attempt); });
  RunFor(seconds(1));
  EXPECT_FALSE(joined.has_value());
  CutOff(node, false);
  RunUntil([&] { return joined.has_value(); });
  ASSERT_TRUE(joined.has_value() && joined->ok());
  EXPECT_EQ(ReadUploads(node)->attempt, **joined);
}

// ---- whether the root suits several nodes

TEST_P(NodesRunContract, AllNodesOfALaunchTryTheRootTogetherWhenTheLastRankHasJoined) {
  EndTrialOfFirstLaunch();
  ASSERT_EQ(Join(all_[0], "launch2").value_or(-1), 2);
  ASSERT_EQ(Join(all_[1], "launch2").value_or(-1), 2);
  RunFor(seconds(2));
  EXPECT_THAT(all_[0].files->tried, IsEmpty());
  ASSERT_EQ(Join(all_[2], "launch2").value_or(-1), 2);
  RunFor(seconds(15));
  for (const Node& node : all_) {
    ASSERT_THAT(node.files->tried, SizeIs(1)) << node.name;
    EXPECT_THAT(node.files->tried[0].nodes, ElementsAre("node1", "node2", "node3"));
    EXPECT_EQ(node.files->tried[0].self, node.name);
    EXPECT_EQ(node.files->tried[0].attempt, 2);
    EXPECT_THAT(node.noticed, IsEmpty());
  }
}

TEST_P(NodesRunContract, ALaunchOnOneNodeTriesNothing) {
  EndTrialOfFirstLaunch();
  EXPECT_EQ(LaunchAlone(all_[0]), 2);
  RunFor(seconds(10));
  EXPECT_THAT(all_[0].files->tried, IsEmpty());
}

TEST_P(NodesRunContract, SavesAreRefusedWhereTheNodesFindTheRootUnsuitableUntilALaunchFindsItSuitable) {
  EndTrialOfFirstLaunch();
  for (Node& node : all_) {
    node.seals = false;
    node.files->trial_takes = seconds(5);
    node.files->verdict->unsuitable = {{Verdict::kFailure, "renames of one name",
                                        "that of each of node1, node3 has succeeded",
                                        "choose another file system"}};
  }
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch2").value_or(-1), 2);
  ASSERT_TRUE(Activate(all_[0], 2).ok());
  BeginAll("step_1", 2);
  RunUntilAllHeard("step_1", "ENDED ROOT_UNSUITABLE");  // It was under way.
  RunFor(seconds(15));
  BeginAll("step_2", 2);
  RunUntilAllHeard("step_2", "FAILED ROOT_UNSUITABLE");
  const auto warnings = [this](Node& node) {
    return Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { node.io->Rescan(std::move(done)); })
        ->probe.warnings;
  };
  for (Node& node : all_) {
    const std::string why(node.failed.message());
    EXPECT_THAT(why, HasSubstr("the nodes node1, node2, node3 have found"));
    EXPECT_THAT(
        why, HasSubstr("renames of one name: that of each of node1, node3 has succeeded -> choose another"));
    EXPECT_THAT(why, HasSubstr("ckptctl doctor /shared/run --nodes=3"));
    EXPECT_THAT(node.errors, ElementsAre(why));
    EXPECT_THAT(warnings(node), ElementsAre(why));
    node.files->verdict = NodesTried();
    node.seals = true;
  }
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch3").value_or(-1), 3);
  ASSERT_TRUE(Activate(all_[0], 3).ok());
  RunFor(seconds(15));
  SaveAll("step_3", 3);
  EXPECT_THAT(warnings(all_[0]), IsEmpty());
}

TEST_P(NodesRunContract, WhatCouldNotBeTriedRefusesNothingAndIsTriedAtTheNextLaunch) {
  EndTrialOfFirstLaunch();
  for (Node& node : all_)
    node.files->verdict = absl::DeadlineExceededError("node node3 has not said \"met\"");
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch2").value_or(-1), 2);
  ASSERT_TRUE(Activate(all_[0], 2).ok());
  RunFor(seconds(15));
  for (const Node& node : all_) {
    EXPECT_THAT(node.noticed,
                ElementsAre(AllOf(HasSubstr("could not try together"), HasSubstr("node3 has not said"))));
    EXPECT_THAT(node.errors, IsEmpty());
  }
  SaveAll("step_1", 2);
  for (Node& node : all_) node.files->tried.clear();
  for (Node& node : all_) ASSERT_EQ(Join(node, "launch3").value_or(-1), 3);
  RunFor(seconds(15));
  for (const Node& node : all_) EXPECT_THAT(node.files->tried, SizeIs(1)) << node.name;
}

}  // namespace
}  // namespace ckptd
