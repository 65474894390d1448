#include "tests/sim_nodes/world.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/ledger/keys/keys.h"
#include "google/protobuf/util/message_differencer.h"
#include "storage/commit/shared/shared_scan.h"
#include "tests/sim_nodes/node.h"
#include "tests/sim_nodes/rank.h"

namespace ckptd::sim_nodes {
namespace {

using ledger::v1::SaveState;
using std::chrono::milliseconds;
using std::chrono::seconds;

// After the last fault nothing takes longer than this: the longest call of etcd (60 s), the time for the
// admission of a save (20 s) and for its seals (60 s), a lost node's grace period, and the time of old names
// may follow one another, for three saves of a rank in turn.
constexpr Duration kSettleTimeout = seconds(600);
// An upload that has failed may be tried again minutes later.
constexpr Duration kSettleUploadsTimeout = seconds(3600);
constexpr int64_t kMaxSteps = 3'000'000;
constexpr Duration kOperatorLooks = seconds(20);
constexpr Duration kLongestStop = seconds(25);  // Drain takes no longer than its timeout.

bool IsEnd(SaveState::Phase phase) { return phase == SaveState::COMMITTED || phase == SaveState::ENDED; }

// Whether `next` only adds the outcome of a save that had ended with an unknown one.
bool IsFoundOut(const SaveState& ended, const SaveState& next) {
  SaveState known = ended;
  known.set_found(next.found());
  return ended.end().reason() == "INDETERMINATE" && ended.found() == SaveState::NOT_KNOWN &&
         next.found() != SaveState::NOT_KNOWN &&
         google::protobuf::util::MessageDifferencer::Equals(known, next);
}

}  // namespace

std::set<int> Launch::AllRanks() const {
  std::set<int> ranks;
  for (int rank = 0; rank < world_size(); ++rank) ranks.insert(rank);
  return ranks;
}

World::World(const Plan& plan, bool trace)
    : plan_(plan),
      tracing_(trace),
      random_(sim::Mix(plan.seed, 1)),
      etcd_(std::make_unique<SimulatedEtcd>(
          [this](Duration delay, absl::AnyInvocable<void()> event) {
            schedule_.After(delay, std::move(event));
          },
          &schedule_.clock(), sim::Mix(plan.seed, 2), plan.etcd)),
      disk_(std::make_unique<SharedDisk>(plan.disk, sim::Mix(plan.seed, 3), &schedule_, &oracle_)) {
  oracle_.SetKept(plan_.kept);
  oracle_.SetHolds([this](int node) { return nodes_[static_cast<size_t>(node)]->holds_registration(); });
  if (plan_.uploads.every > 0) {
    bucket_ = std::make_unique<SharedBucket>(disk_.get(), plan_.uploads, sim::Mix(plan.seed, 4), &schedule_,
                                             &oracle_, [this](const std::string& what) { Trace(what); });
    disk_->SetBucket(bucket_.get());
  }
  for (int i = 0; i < plan_.nodes; ++i) nodes_.push_back(std::make_unique<Node>(this, i));
}

World::~World() {
  for (const auto& node : nodes_) node->Kill();
  schedule_.Clear();  // The remaining events refer to nodes.
}

// ---- the job

std::vector<std::shared_ptr<Rank>> World::Living() const {
  std::vector<std::shared_ptr<Rank>> living;
  for (const auto& rank : ranks_) {
    if (!rank->dead()) living.push_back(rank);
  }
  return living;
}

void World::KillLiving() {
  for (const auto& rank : Living()) rank->Kill();
}

// A launch on some nodes, with one or two ranks on each.
std::shared_ptr<Launch> World::NewLaunch(uint64_t how) {
  sim::Random random(sim::Mix(plan_.seed, sim::Mix(how, 7)));
  auto launch = std::make_shared<Launch>();
  launch->id = absl::StrCat("L", launches_++);
  launch->seed = sim::Mix(plan_.seed, how);
  launch->resumes = !random.Percent(15);
  for (int node = 0; node < plan_.nodes; ++node) {
    if (random.Percent(25)) continue;
    for (int64_t ranks = random.Between(1, 2); ranks > 0; --ranks) launch->nodes.push_back(node);
  }
  if (launch->nodes.empty()) launch->nodes = {0, plan_.nodes - 1};
  return launch;
}

void World::LaunchJob(const std::shared_ptr<Launch>& launch) {
  newest_launch_ = launch;
  for (int rank = 0; rank < launch->world_size(); ++rank) {
    ranks_.push_back(std::make_shared<Rank>(this, launch, rank, absl::StrCat("p", ranks_.size())));
    ranks_.back()->Start();
  }
}

void World::DaemonGone(int node) {
  for (const auto& rank : Living()) {
    if (rank->node().index() == node) rank->DaemonGone();
  }
}

// ---- operations

Node& World::Coordinator(uint64_t otherwise) {
  for (const auto& node : nodes_) {
    if (node->up() && !node->paused() && node->coordinates()) return *node;
  }
  return *nodes_[otherwise % nodes_.size()];
}

void World::KillDaemon(Node& node, Duration pause) {
  if (!node.up()) return;
  oracle_.Fault();
  Count("daemon killed");
  node.Kill();
  schedule_.After(pause, [this, &node] { StartDaemon(node); });
}

void World::StartDaemon(Node& node) {
  if (!restoring_) node.Start();
}

void World::PauseDaemon(Node& node, Duration pause) {
  if (!node.up() || node.paused()) return;
  oracle_.Fault();
  Count("daemon paused");
  node.BeginPause();
  schedule_.After(pause, [&node, daemon = node.daemon()] {
    if (node.daemon() == daemon) node.EndPause();
  });
}

// Follows docs/operations.md. The nodes see old names of the root for a while.
void World::BeginRestore(bool in_good_order, uint64_t which) {
  if (restoring_) return;
  restoring_ = true;
  oracle_.Fault();
  KillLiving();
  for (const auto& node : nodes_) {
    if (in_good_order) {
      node->Stop();
    } else {
      node->Kill();
    }
  }
  schedule_.After(in_good_order ? kLongestStop : seconds(0), [this, which] { RestoreEtcd(which); });
}

void World::RestoreEtcd(uint64_t which) {
  KillLiving();  // Also ranks that were launched while the daemons ended.
  for (const auto& node : nodes_) node->Kill();
  int64_t revision = 0;
  etcd_->WithModel([&](EtcdModel& model) { revision = ChooseBackup(model, which); });
  RestoreEtcdAt(revision);
  schedule_.After(kStaleness + seconds(1), [this] {
    restoring_ = false;
    for (const auto& node : nodes_) node->Start();
  });
  schedule_.After(kOperatorLooks, [this] { ResolveUnknown(); });
}

void World::RestoreEtcdAt(int64_t revision) {
  int64_t newest = 0, last = 0;
  etcd_->WithModel([&](EtcdModel& model) {
    const LedgerKeys keys(absl::StrCat("/ckptd/runs/", SimSharedFiles::kRunId, "/"));
    for (const auto& event : model.Events("/ckptd/runs/", "/ckptd/runs0", 1)) {
      const int64_t attempt = keys.AttemptOf(event.kv().key());
      newest = std::max(newest, attempt);
      if (event.kv().mod_revision() <= revision) last = std::max(last, attempt);
    }
  });
  etcd_->Restore(revision);
  Trace("etcd is restored from a backup of revision ", revision, ", which knows ", last, " of ", newest,
        " attempts");
  Count("etcd restored");
  changes_.erase(changes_.upper_bound(revision), changes_.end());
  RootChange& change = changes_[revision];
  change.etcd_restored = restored_ = true;
  change.there = disk_->Sequences();
  for (const int64_t sequence : oracle_.published()) {
    if (!change.there.contains(sequence)) change.gone.insert(sequence);
  }
  disk_->EndTerms();
  oracle_.EtcdRestored(newest, last, disk_->RecordedDamage());
  if (bucket_ != nullptr) bucket_->EtcdRestored(disk_->newest());
}

// Settles saves with an unknown outcome, as an operator does. One cause is a save of the backup that had
// failed since and whose directory is gone: the daemons cannot tell how it ended.
void World::ResolveUnknown() {
  schedule_.After(kOperatorLooks, [this] { ResolveUnknown(); });
  std::map<std::string, int64_t> unknown;
  etcd_->WithModel([&unknown](EtcdModel& model) {
    for (const auto& event : model.Events("/ckptd/runs/", "/ckptd/runs0", 1)) {
      const std::string& key = event.kv().key();
      SaveState state;
      int64_t sequence = 0;
      if (key.find("/states/") == std::string::npos || !state.ParseFromString(event.kv().value()) ||
          !absl::SimpleAtoi(key.substr(key.rfind('/') + 1), &sequence))
        continue;
      if (state.end().reason() == "INDETERMINATE" && state.found() == SaveState::NOT_KNOWN) {
        unknown[state.tag()] = sequence;
      } else if (unknown.contains(state.tag()) && unknown.at(state.tag()) == sequence) {
        unknown.erase(state.tag());
      }
    }
  });
  const std::set<int64_t> there = disk_->Sequences();
  for (const auto& [tag, sequence] : unknown) Coordinator(0).Resolve(tag, there.contains(sequence));
}

// The revision of a backup: often one at which a save was under way that is a checkpoint by now, seldom that
// of an empty etcd.
int64_t World::ChooseBackup(EtcdModel& model, uint64_t which) const {
  sim::Random random(which);
  if (random.Percent(10)) return 1;
  const int64_t any = random.Between(1, model.revision());
  if (random.Percent(40)) return any;
  std::vector<int64_t> revisions;
  for (const auto& event : model.Events("/ckptd/runs/", "/ckptd/runs0", 1)) {
    const std::string& key = event.kv().key();
    int64_t sequence = 0;
    SaveState state;
    if (key.find("/states/") == std::string::npos ||
        !absl::SimpleAtoi(key.substr(key.rfind('/') + 1), &sequence) ||
        !state.ParseFromString(event.kv().value()))
      continue;
    if (oracle_.IsPublished(sequence) && !IsEnd(state.phase()))
      revisions.push_back(event.kv().mod_revision());
  }
  return revisions.empty()
             ? any
             : revisions[static_cast<size_t>(random.Below(static_cast<int64_t>(revisions.size())))];
}

void World::Apply(const Operation& operation) {
  if (ending_) return;
  Trace(operation.ToString());
  Node& node = *nodes_[operation.a % nodes_.size()];
  const auto living = Living();
  Rank* const rank = living.empty() ? nullptr : living[operation.a % living.size()].get();
  // Mostly shorter than a lease, sometimes much longer.
  const Duration some_time =
      milliseconds(operation.b % 4 == 0 ? operation.b / 4 % 60'000 : operation.b / 4 % 8'000);
  switch (operation.kind) {
    case OperationKind::kLaunch:
      if (operation.b % 3 != 0) KillLiving();
      return LaunchJob(NewLaunch(operation.a));
    case OperationKind::kRespawn:
      if (newest_launch_ == nullptr) return;
      KillLiving();
      return LaunchJob(newest_launch_);
    case OperationKind::kKillRank:
      if (rank != nullptr) rank->Kill();
      return;
    case OperationKind::kKillLaunch:
      return KillLiving();
    case OperationKind::kLoseSession:
      if (rank != nullptr) rank->LoseSession();
      return;
    case OperationKind::kKillDaemon:
      return KillDaemon(node, some_time);
    case OperationKind::kKillCoordinator:
      return KillDaemon(Coordinator(operation.a), some_time);
    case OperationKind::kStopDaemon:
      if (!node.up()) return;
      oracle_.Fault();
      node.Stop();
      schedule_.After(kLongestStop + some_time, [this, &node] { StartDaemon(node); });
      return;
    case OperationKind::kPause:
      return PauseDaemon(node, some_time);
    case OperationKind::kPauseCoordinator:
      return PauseDaemon(Coordinator(operation.a), some_time);
    case OperationKind::kCutOff:
      if (!node.up()) return;
      oracle_.Fault();
      node.CutOff(true);
      schedule_.After(some_time, [&node, daemon = node.daemon()] {
        if (node.daemon() == daemon) node.CutOff(false);
      });
      return;
    case OperationKind::kChangeLeader:
      return etcd_->ChangeLeader();
    case OperationKind::kCompact:
      return etcd_->WithModel([](EtcdModel& model) { model.Compact(model.revision()); });
    case OperationKind::kHang:
      oracle_.Fault();
      return disk_->HangUntil(schedule_.clock().Now() + some_time);
    case OperationKind::kOpen:
      if (rank != nullptr) rank->Open("latest");
      return;
    case OperationKind::kRead: {
      // Mostly the oldest, which retention removes next.
      const std::vector<std::string> tags = disk_->Tags();
      if (rank == nullptr || tags.empty()) return;
      return rank->Open(tags[operation.b % 2 == 0 ? 0 : operation.b / 2 % tags.size()]);
    }
    case OperationKind::kForeign:
      oracle_.Fault();
      return disk_->AddForeign(operation.b % 2 == 0 || newest_launch_ == nullptr
                                   ? absl::StrCat("again", operation.b / 2 % 3)
                                   : absl::StrCat(newest_launch_->id, "-", operation.b / 2 % 20));
    case OperationKind::kDamage:
      return disk_->Damage(operation.a);
    case OperationKind::kFull:
      oracle_.Fault();
      Count("etcd full");
      etcd_->SetFull(true);
      schedule_.After(some_time, [this] { etcd_->SetFull(false); });
      return;
    case OperationKind::kRegisterAnew:
      oracle_.Fault();
      return node.RegisterAnew();
    case OperationKind::kHangNode:
      oracle_.Fault();
      return disk_->HangUntil(
          (operation.b % 4 == 0 ? node : Coordinator(operation.a)).name(),
          schedule_.clock().Now() + seconds(20) + milliseconds(operation.b / 4 % 130'000));
    case OperationKind::kPutBack: {
      const int64_t sequence = disk_->PutBack(operation.a);
      if (sequence == 0) return;
      Trace("sequence ", sequence, " is put back");
      Count("put back");
      etcd_->WithModel([&](EtcdModel& model) { changes_[model.revision()].there.insert(sequence); });
      return;
    }
    case OperationKind::kAbort:
      if (rank != nullptr) rank->Abort(operation.b);
      return;
    case OperationKind::kPin: {
      const std::vector<std::string> tags = disk_->Tags();
      if (!node.up() || tags.empty()) return;
      return node.SetPinned(tags[operation.b / 2 % tags.size()], operation.b % 2 == 0);
    }
    case OperationKind::kRestoreEtcd:
      return BeginRestore(operation.b % 2 == 0, operation.a);
  }
}

bool World::HasAgreed(int64_t attempt, int64_t sequence) {
  etcdserverpb::RangeRequest read;
  read.set_key(LedgerKeys(absl::StrCat("/ckptd/runs/", SimSharedFiles::kRunId, "/")).Resume(attempt));
  ledger::v1::ResumeDecision decision;
  etcd_->WithModel([&](EtcdModel& model) {
    const absl::StatusOr<etcdserverpb::RangeResponse> found = model.Range(read);
    if (found.ok() && found->kvs_size() == 1) decision.ParseFromString(found->kvs(0).value());
  });
  return decision.agreed() && decision.sequence() == sequence;
}

// ---- the run

bool World::RanksAreIdle() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->idle(); });
}

std::string World::Activity() const {
  std::string words;
  for (const auto& rank : ranks_) {
    if (!rank->idle()) absl::StrAppend(&words, "; ", rank->ToString());
  }
  for (const auto& node : nodes_) absl::StrAppend(&words, node->Activity());
  return words;
}

// Returns whether `done` became true before that time; checks about ten times a second.
bool World::RunUntil(Duration until, const std::function<bool()>& done) {
  Duration next_look = schedule_.elapsed();
  while (oracle_.violation().empty() && schedule_.elapsed() < until) {
    if (schedule_.elapsed() >= next_look) {
      if (done != nullptr && done()) return true;
      next_look = schedule_.elapsed() + milliseconds(100);
    }
    schedule_.RunNext();
    if (++result_.steps > kMaxSteps) oracle_.Violated("the case does not end");
  }
  return false;
}

bool World::Settle(const char* what, const std::function<bool()>& done) {
  const Duration timeout = bucket_ == nullptr ? kSettleTimeout : kSettleUploadsTimeout;
  if (!RunUntil(schedule_.elapsed() + timeout, done) && oracle_.violation().empty())
    oracle_.Violated(absl::StrCat(what, " did not end", Activity()));
  return oracle_.violation().empty();
}

// Ends all faults, and checks that everything ends, that all memory is returned, that the last launch resumes
// from the newest checkpoint, and that it can save.
void World::End() {
  ending_ = true;
  if (!Settle("the restore of etcd", [this] { return !restoring_; })) return;
  disk_->EndFaults();
  etcd_->EndFaults();
  if (bucket_ != nullptr) bucket_->model().EndFaults();
  etcd_->SetFull(false);
  disk_->HangUntil(schedule_.clock().Now());
  for (const auto& node : nodes_) {
    node->EndPause();
    node->CutOff(false);
    node->Start();
  }
  // Daemons that are ending in good order start again at once.
  const auto all_stay = [this] {
    const bool stay =
        std::none_of(nodes_.begin(), nodes_.end(), [](const auto& node) { return node->stopping(); });
    for (const auto& node : nodes_) node->Start();
    return stay;
  };
  if (!Settle("the daemons that end", all_stay)) return;
  if (!Settle("the work in progress", [this] { return RanksAreIdle(); })) return;
  KillLiving();
  const auto nothing_is_left = [this] {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [](const auto& node) { return node->Activity().empty(); });
  };
  if (!Settle("the end of all ranks", nothing_is_left)) return;
  // The last faults: a registration that was not kept alive for nearly its lease may still end, and a request
  // that hangs is carried out.
  const Duration hang = disk_->last_hang_ends() - schedule_.clock().Now();
  RunUntil(schedule_.elapsed() + std::max<Duration>(hang, seconds(kLeaseSeconds)), nullptr);
  if (!CheckPutBack()) return;
  auto last = std::make_shared<Launch>();
  last->id = "last";
  last->seed = plan_.seed;
  for (int node = 0; node < plan_.nodes; ++node) last->nodes.push_back(node);
  const int64_t newest = disk_->newest();
  LaunchJob(last);
  if (!Settle("the last launch", [this] { return RanksAreIdle(); })) return;
  if (Living().size() != last->nodes.size()) return oracle_.Violated("ranks of the last launch have ended");
  for (const auto& rank : Living()) rank->LastSave(/*ordinal=*/1);
  if (!Settle("the last save", [this] { return RanksAreIdle(); })) return;
  // The restored etcd may give a save a directory name that another save has had since.
  const auto living = Living();
  if (restored_ && std::any_of(living.begin(), living.end(),
                               [](const auto& rank) { return rank->last_save_had_no_directory(); })) {
    Count("no directory after a restore");
    for (const auto& rank : living) rank->LastSave(/*ordinal=*/2);
    if (!Settle("the save after that", [this] { return RanksAreIdle(); })) return;
  }
  for (const auto& rank : Living()) {
    if (!rank->last_save_committed())
      return oracle_.Violated(
          absl::StrCat("a run without faults did not commit the save of ", rank->ToString()));
  }
  if (disk_->newest() <= newest) return oracle_.Violated("the last save is not the newest checkpoint");
  if (!CheckRetention()) return;
  KillLiving();
  if (!Settle("the end of the last ranks", nothing_is_left)) return;
  if (!Settle("the end of all removals", [this] { return disk_->removals_ended(); })) return;
  if (const std::string wrong = disk_->CheckPointers(); !wrong.empty()) return oracle_.Violated(wrong);
  if (!CheckBucket()) return;
  CheckHistory();
  LoseDiskAndEtcd();
}

// Checks that the bucket has, in the end, what it is to have, and nothing else.
bool World::CheckBucket() {
  if (bucket_ == nullptr || bucket_->MayStandStill()) return true;
  const auto left = [this] {
    std::string words = bucket_->Leftovers();
    for (const auto& node : nodes_) words += node->Waiting();
    return words;
  };
  if (Settle("the uploads", [&left] { return left().empty(); })) return true;
  Trace("in the bucket:", left());
  return false;
}

// The next launch must go on from the newest checkpoint of the bucket.
void World::LoseDiskAndEtcd() {
  if (!plan_.uploads.restore || bucket_->model().Newest() == 0 || !oracle_.violation().empty()) return;
  for (const auto& node : nodes_) node->Kill();
  disk_->Lose();
  RestoreEtcdAt(1);
  oracle_.RootLost(bucket_->model().Newest());
  Trace("disk and etcd are lost; the bucket has sequence ", bucket_->model().Newest());
  for (const auto& node : nodes_) node->Start();
  auto next = std::make_shared<Launch>();
  next->id = "after the loss";
  next->seed = sim::Mix(plan_.seed, 8);
  for (int node = 0; node < plan_.nodes; ++node) next->nodes.push_back(node);
  LaunchJob(next);
  if (!Settle("the launch after the loss", [this] { return RanksAreIdle(); })) return;
  if (Living().size() != next->nodes.size())
    return oracle_.Violated("ranks of the launch after the loss have ended");
  Count("resumed from a bucket");
}

// Checks that a daemon that starts lists the checkpoints that were put back, unless retention removes them by
// the job's policy.
bool World::CheckPutBack() {
  const auto knows =
      std::find_if(nodes_.begin(), nodes_.end(), [](const auto& node) { return node->knows_root(); });
  if (disk_->put_back().empty() || knows == nodes_.end()) return true;
  Node& node = **knows;
  node.Kill();
  node.Start();
  return Settle("the listing of what was put back", [this, &node] {
    const auto there = disk_->put_back();
    return node.Activity().empty() &&
           std::all_of(there.begin(), there.end(), [&node](const auto& checkpoint) {
             return node.Lists(checkpoint.second, checkpoint.first);
           });
  });
}

// Checks that retention, without faults, removes all checkpoints that nothing keeps.
bool World::CheckRetention() {
  auto unkept = std::make_shared<std::optional<std::string>>();
  auto asking = std::make_shared<bool>(false);
  const auto is_over = [this, unkept, asking] {
    if (*asking) return false;
    if (*unkept && (*unkept)->empty()) return true;
    *asking = true;
    Coordinator(0).FindUnkept([unkept, asking](std::string tags) {
      *unkept = std::move(tags);
      *asking = false;
    });
    return false;
  };
  if (Settle("retention", is_over)) return true;
  Trace("what retention has not removed: ", unkept->value_or("not known"));
  return false;
}

// Checks the history of etcd: the end of a save never changes, except that an unknown outcome is found out
// once; no whole checkpoint was ever marked as damaged; and CheckRemoval holds for each decision.
void World::CheckHistory() {
  std::map<std::string, SaveState> states;
  std::set<std::string> forgotten;
  Kept kept;
  etcd_->WithModel([&](EtcdModel& model) {
    auto change = changes_.begin();
    for (const auto& event : model.Events("/ckptd/runs/", "/ckptd/runs0", 1)) {
      for (; change != changes_.end() && change->first < event.kv().mod_revision(); ++change)
        KeepExisting(change->second, &kept);
      const std::string& key = event.kv().key();
      CheckRemoval(key, event.kv().value(), &kept);
      if (key.find("/states/") == std::string::npos) continue;
      if (forgotten.contains(key)) oracle_.Violated(absl::StrCat(key, " is there again"));
      if (event.type() == etcdserverpb::Event::DELETE) {
        forgotten.insert(key);
        if (!IsEnd(states[key].phase())) oracle_.Violated(absl::StrCat(key, " is forgotten before its end"));
        continue;
      }
      SaveState state;
      state.ParseFromString(event.kv().value());
      const auto [known, is_new] = states.try_emplace(key, state);
      if (!is_new && IsEnd(known->second.phase()) && !IsFoundOut(known->second, state)) {
        oracle_.Violated(absl::StrCat(key, " is ", SaveState::Phase_Name(state.phase()), " after ",
                                      SaveState::Phase_Name(known->second.phase())));
      }
      known->second = state;
    }
  });
  for (size_t i = 0; i < forgotten.size(); ++i) Count("save forgotten");
  for (const auto& [key, state] : states)
    Count(absl::StrCat("state ", SaveState::Phase_Name(state.phase()), " ", state.end().reason()));
}

// Corrects `kept` by a change of the root or a restore: etcd may have lost commits and removals.
void World::KeepExisting(const RootChange& change, Kept* kept) {
  for (const int64_t sequence : change.gone) kept->whole.erase(sequence);
  kept->whole.insert(change.there.begin(), change.there.end());
  kept->there.insert(change.there.begin(), change.there.end());
  if (change.etcd_restored) kept->replacing.clear();
}

// When retention decides to remove a checkpoint, the root must have as many others as are to be kept, without
// those that etcd knows to be damaged. Checkpoints that may exist count, and so do those that replace another
// one.
void World::CheckRemoval(const std::string& key, const std::string& value, Kept* kept) {
  int64_t sequence = 0;
  if (!absl::SimpleAtoi(key.substr(key.rfind('/') + 1), &sequence)) return;
  if (key.find("/states/") != std::string::npos) {
    SaveState state;
    state.ParseFromString(value);
    const bool may_be_there = state.phase() == SaveState::PUBLISHING ||
                              state.phase() == SaveState::COMMITTED ||
                              state.end().reason() == "INDETERMINATE";
    if (may_be_there) kept->whole.insert(sequence);
    if (may_be_there || state.phase() != SaveState::ENDED || kept->there.contains(sequence)) return;
    kept->whole.erase(sequence);
    // Another program may have taken the tag when it was free.
    if (kept->replacing.contains(sequence) && state.end().reason() != "TAG_FOREIGN")
      oracle_.Violated(absl::StrCat(key, " ended ", state.end().reason(), ", after another had gone for it"));
  } else if (key.find("/settings/pinned/") != std::string::npos) {
    ledger::v1::CheckpointPin pin;
    pin.ParseFromString(value);
    if (pin.pinned()) kept->pinned.insert(sequence);
    if (!pin.pinned()) kept->pinned.erase(sequence);
  } else if (key.find("/damaged/") != std::string::npos) {
    oracle_.CalledDamaged(key, sequence);
    kept->damaged.insert(sequence);
  } else if (key.find("/evicting/") != std::string::npos) {
    ledger::v1::Evicting evicting;
    evicting.ParseFromString(value);
    if (evicting.ended()) return;  // The end of an earlier decision.
    if (kept->pinned.contains(sequence))
      oracle_.Violated(absl::StrCat(key, " was decided, and the checkpoint is pinned"));
    const bool was_there = kept->whole.erase(sequence) > 0;
    if (evicting.replaced_by() != 0) {
      kept->replacing.insert(evicting.replaced_by());
      return;
    }
    if (!was_there) return;  // A new coordinator has seen it half removed, and it is gone since.
    const auto whole = std::count_if(kept->whole.begin(), kept->whole.end(), [this, kept](int64_t other) {
      return !kept->damaged.contains(other) && !oracle_.IsSuspect(other);
    });
    if (plan_.kept && whole < *plan_.kept && !oracle_.IsSuspect(sequence))
      oracle_.Violated(absl::StrCat(key, " was decided, and leaves ", whole, " whole checkpoints"));
  }
}

sim::Result World::Run() {
  for (const auto& node : nodes_) node->Start();
  for (const Operation& operation : plan_.operations)
    schedule_.After(operation.at, [this, &operation] { Apply(operation); });
  RunUntil(plan_.length, nullptr);
  if (oracle_.violation().empty()) End();
  result_.violation = oracle_.violation();
  result_.counts["COMMITTED heard"] += oracle_.commits();
  return std::move(result_);
}

}  // namespace ckptd::sim_nodes
