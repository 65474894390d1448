#include "tests/crash/engine_history.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "storage/format/names.h"
#include "tests/crash/explorer.h"

namespace ckptd {
namespace {

constexpr Loss kLosses[] = {Loss::kNothing, Loss::kEverything, Loss::kData,   Loss::kBytes,
                            Loss::kEntries, Loss::kRandom,     Loss::kRandom, Loss::kRandom};
constexpr char kInflight[] = ".ckptd/nodes/local/inflight";
constexpr char kTrash[] = ".ckptd/nodes/local/trash";

bool HasTrash(const CrashDisk& disk) { return !disk.NamesIn(kTrash).empty(); }

}  // namespace

EngineHistory::EngineHistory(CrashDiskOptions options) : disk_(std::make_unique<CrashDisk>(options)) {
  Explore(false);
}

EngineHistory::~EngineHistory() {
  disk_->OnChange(nullptr);
  daemon_.reset();
}

// ---- Crash points

void EngineHistory::Explore(bool on) {
  {
    MutexLock lock(mutex_);
    exploring_ = on;
  }
  disk_->OnChange([this](const std::string& what) {
    // Nobody depends on the files of the probe.
    if (what.find("/scratch/") == std::string::npos) Visit(absl::StrCat("after ", what));
  });
  Visit("after nothing");
}

void EngineHistory::KeepAfter(const std::string& operation, const std::string& path) {
  MutexLock lock(mutex_);
  keep_after_ = [operation, path](const std::string& what) {
    return what.starts_with("after " + operation) && what.ends_with(path);
  };
  kept_.reset();
}

void EngineHistory::Visit(const std::string& what) {
  MutexLock lock(mutex_);
  if (keep_after_ && !kept_ && keep_after_(what)) kept_ = {what, disk_->CutPower(Loss::kNothing, 1), oracle_};
  if (!exploring_) return;
  ++points_;
  Copy(disk_->Kill(), absl::StrCat(what, ", killed"));
  for (const Loss loss : kLosses) {
    const uint64_t seed = ++seed_;
    Copy(disk_->CutPower(loss, seed),
         absl::StrCat(what, ", power cut, losing ", NameOf(loss), " (seed ", seed, ")"));
  }
}

void EngineHistory::Copy(std::unique_ptr<CrashDisk> left, std::string trace) {
  ++crashes_;
  if (seen_.emplace(left->Fingerprint(), oracle_.Fingerprint(), left->late_writes()).second)
    crashed_.push_back({std::move(trace), std::move(left), oracle_});
}

void EngineHistory::Tell(const std::function<void(Oracle&)>& change, const std::string& said) {
  {
    MutexLock lock(mutex_);
    change(oracle_);
  }
  if (!said.empty()) Visit(absl::StrCat("after the message: ", said));
}

// ---- What trainers do

void EngineHistory::Start() {
  daemon_ = std::make_unique<DiskDaemon>(disk_.get(), trash_grace_);
  const absl::Status recovered = daemon_->Recover();
  ASSERT_TRUE(recovered.ok()) << recovered;
}

void EngineHistory::Restart() {
  std::optional<Crash> kept;
  bool exploring = false;
  {
    MutexLock lock(mutex_);
    kept.swap(kept_);
    keep_after_ = nullptr;
    exploring = exploring_;
  }
  ASSERT_TRUE(kept.has_value()) << "no such operation happened";
  disk_->OnChange(nullptr);
  daemon_.reset();
  disk_ = std::move(kept->left);
  Tell([&](Oracle& oracle) { oracle = kept->oracle; });
  Explore(exploring);
  Start();
  Settle();
}

std::vector<SessionId> EngineHistory::Launch(const std::string& launch, int world_size) {
  const auto trainers = daemon_->Launch(launch, world_size);
  EXPECT_TRUE(trainers.ok()) << trainers.status();
  if (!trainers.ok()) return {};
  launches_[*trainers] = launch;
  return *trainers;
}

DiskDaemon::Begun EngineHistory::Begin(const std::vector<SessionId>& trainers, const std::string& tag,
                                       const DiskDaemon::SaveOptions& options) {
  const absl::StatusOr<DiskDaemon::Begun> begun = daemon_->Begin(trainers, tag, options);
  EXPECT_TRUE(begun.ok()) << begun.status();
  if (!begun.ok()) return {};
  asked_[begun->spec.sequence] = {launches_.at(trainers), begun->spec.world_size, options};
  Tell([&](Oracle& oracle) { oracle.Began(begun->spec); });
  return *begun;
}

void EngineHistory::Seal(const DiskDaemon::Begun& begun, int rank) {
  MayEvict(begun);
  const absl::Status sealed = daemon_->WriteAndSeal(begun, rank);
  EXPECT_TRUE(sealed.ok()) << sealed;
}

void EngineHistory::ExpectDurable(const DiskDaemon::Begun& begun, int rank) {
  const auto is_there = [&] {
    for (const std::string& name : disk_->NamesIn(kInflight)) {
      if (name.starts_with(absl::StrCat(begun.spec.tag, ".", begun.spec.sequence, ".")))
        return disk_->Exists(absl::StrCat(kInflight, "/", name, "/.ckptd/", PartRecordName(rank)));
    }
    return false;
  };
  daemon_->PassSecond();
  EXPECT_TRUE(daemon_->RunUntil(is_there)) << "the part of rank " << rank << " was not written";
}

// The model of retention: what stays of the checkpoints of these sequences, of which `newest` is being saved.
std::set<int64_t> EngineHistory::Staying(const std::set<int64_t>& sequences, int64_t newest) const {
  const DiskDaemon::SaveOptions& options = asked_.at(newest).options;
  std::set<int64_t> staying = {newest};
  std::set<std::pair<double, int64_t>> rated;  // The best come last.
  size_t good = 0;
  for (auto sequence = sequences.rbegin(); sequence != sequences.rend(); ++sequence) {
    const DiskDaemon::SaveOptions& saved = asked_.at(*sequence).options;
    if (!saved.suspect.empty()) continue;
    if (++good <= options.KeptLast()) staying.insert(*sequence);
    const auto metric = saved.metrics.find(options.retention ? options.retention->metric() : "");
    if (metric != saved.metrics.end()) rated.insert({-metric->second, *sequence});
  }
  int64_t best = options.retention ? options.retention->best() : 0;
  for (auto each = rated.rbegin(); each != rated.rend() && best > 0; ++each, --best)
    staying.insert(each->second);
  return staying;
}

// Retention evicts surplus checkpoints as soon as the save is published, before anybody is told.
void EngineHistory::MayEvict(const DiskDaemon::Begun& begun) {
  const int64_t newest = begun.spec.sequence;
  const size_t keep = asked_[newest].options.KeptLast();
  if (keep == 0) return;
  const absl::StatusOr<ShownCheckpoints> listed = daemon_->List();
  ASSERT_TRUE(listed.ok()) << listed.status();
  std::set<int64_t> sequences = {newest};
  for (const auto& old : *listed) sequences.insert(old.first);
  const std::set<int64_t> staying = Staying(sequences, newest);
  for (const auto& [sequence, old] : *listed) {
    if (!staying.contains(sequence) && !old.pinned) going_.insert(sequence);
  }
  Tell([&](Oracle& oracle) {
    oracle.Keeps(std::min(keep, listed->size()));
    for (const int64_t sequence : going_) oracle.Going(sequence);
  });
}

void EngineHistory::Heard(const DiskDaemon::Begun& begun, v1::Level level) {
  const int64_t sequence = begun.spec.sequence;
  const std::string said = absl::StrCat(begun.spec.tag, " is ", v1::Level_Name(level));
  if (level == v1::COMMITTED) Tell([&](Oracle& oracle) { oracle.Committed(sequence); }, said);
  if (level == v1::FAILED) Tell([&](Oracle& oracle) { oracle.Gone(sequence); }, said);
}

void EngineHistory::ExpectEnd(const DiskDaemon::Begun& begun, v1::Level level) {
  auto ended = std::make_shared<std::vector<v1::Level>>();
  daemon_->WhenEnded(begun, [this, begun, ended](v1::Level how) {
    if (ended->empty()) Heard(begun, how);
    ended->push_back(how);
  });
  EXPECT_TRUE(daemon_->RunUntil([&] { return ended->size() == begun.sessions.size(); }))
      << "the save did not end";
  for (const v1::Level how : *ended) EXPECT_EQ(v1::Level_Name(how), v1::Level_Name(level));
}

void EngineHistory::Save(const std::vector<SessionId>& trainers, const std::string& tag,
                         const DiskDaemon::SaveOptions& options) {
  const DiskDaemon::Begun begun = Begin(trainers, tag, options);
  for (size_t rank = 0; rank < trainers.size(); ++rank) Seal(begun, static_cast<int>(rank));
  ExpectEnd(begun, v1::COMMITTED);
  Settle();
}

bool EngineHistory::IsTidy() const {
  return disk_->NamesIn(kInflight).empty() && (trash_grace_.count() > 0 || !HasTrash(*disk_));
}

void EngineHistory::Settle() {
  absl::StatusOr<ShownCheckpoints> listed;
  const auto is_gone = [&](int64_t sequence) { return !listed->contains(sequence); };
  const bool settled = daemon_->RunUntil([&] {
    listed = daemon_->List();
    return listed.ok() && std::ranges::all_of(going_, is_gone) && IsTidy();
  });
  ASSERT_TRUE(settled) << "retention did not end, or trash was not emptied";
  going_.clear();
  Tell([&](Oracle& oracle) { oracle.Shown(*listed); }, "what is there");
}

void EngineHistory::Abort(const DiskDaemon::Begun& begun, int rank) {
  v1::AbortRequest abort;
  *abort.mutable_key() = begun.keys[static_cast<size_t>(rank)];
  const auto aborted = daemon_->Ask<v1::AbortResponse>([&](Reply<v1::AbortResponse> reply) {
    daemon_->engine().Abort(DiskDaemon::As(begun.sessions[static_cast<size_t>(rank)]), abort,
                            std::move(reply));
  });
  EXPECT_TRUE(aborted.ok()) << aborted.status();
}

void EngineHistory::Pin(const std::string& tag, int64_t sequence, bool pinned) {
  Tell([&](Oracle& oracle) {
    oracle.PinBegan(sequence, pinned);
    if (!pinned) oracle.Going(sequence);  // Here the pin alone protects it from retention.
  });
  const auto answer = daemon_->Ask<v1::Checkpoint>([&](Reply<v1::Checkpoint> reply) {
    daemon_->engine().SetPinned(
        Caller{0, 0, true}, daemon_->NameOf(tag), pinned,
        [this, sequence, pinned, reply = std::move(reply)](absl::StatusOr<v1::Checkpoint> set) mutable {
          if (set.ok()) Tell([&](Oracle& oracle) { oracle.Pinned(sequence, pinned); }, "a pin");
          reply(std::move(set));
        });
  });
  EXPECT_TRUE(answer.ok()) << answer.status();
}

void EngineHistory::Undelete(const std::string& tag, int64_t sequence) {
  Tell([&](Oracle& oracle) {
    oracle.ComingBack(sequence);
    oracle.PinBegan(sequence, true);
  });
  v1::UndeleteCheckpointRequest request;
  request.set_name(daemon_->NameOf(tag));
  const auto answer = daemon_->Ask<v1::Checkpoint>([&](Reply<v1::Checkpoint> reply) {
    daemon_->engine().UndeleteCheckpoint(
        Caller{0, 0, true}, request,
        [this, sequence, reply = std::move(reply)](absl::StatusOr<v1::Checkpoint> back) mutable {
          if (back.ok()) {
            Tell(
                [&](Oracle& oracle) {
                  oracle.Committed(sequence);
                  oracle.Pinned(sequence, true);
                },
                "it is back");
          }
          reply(std::move(back));
        });
  });
  EXPECT_TRUE(answer.ok()) << answer.status();
}

void EngineHistory::ExpectResume(const std::vector<SessionId>& trainers, int64_t sequence) {
  const absl::StatusOr<int64_t> resumed = daemon_->Resume(trainers);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(*resumed, sequence);
}

void EngineHistory::ExpectListed(const std::vector<std::string>& tags) {
  std::vector<std::string> found;
  const bool listed = daemon_->RunUntil([&] {
    found.clear();
    const absl::StatusOr<ShownCheckpoints> all = daemon_->List();
    if (!all.ok()) return false;
    for (const auto& [sequence, checkpoint] : *all) found.push_back(checkpoint.summary.tag());
    return found == tags;
  });
  EXPECT_TRUE(listed) << absl::StrJoin(found, ", ");
  Settle();
}

void EngineHistory::ExpectInTrash(const std::set<int64_t>& sequences) {
  absl::StatusOr<std::set<int64_t>> found;
  const bool are_there = daemon_->RunUntil([&] {
    found = daemon_->ListTrash();
    return found.ok() && *found == sequences;
  });
  EXPECT_TRUE(are_there) << (found.ok() ? absl::StrJoin(*found, ", ") : found.status().ToString());
}

// ---- The next daemon

std::string EngineHistory::Summary() const {
  return absl::StrCat(points_, " crash points, ", crashes_, " crashes, ", judged_,
                      " different states taken over by another daemon");
}

void EngineHistory::Judge() {
  Explore(false);
  disk_->OnChange(nullptr);
  daemon_.reset();
  std::vector<Crash> crashed;
  {
    MutexLock lock(mutex_);
    crashed.swap(crashed_);
  }
  for (Crash& crash : crashed) {
    ++judged_;
    if (const Broken broken = JudgeOne(crash); !broken.empty()) {
      ADD_FAILURE() << crash.trace << "\n  " << absl::StrJoin(broken, "\n  ");
      return;
    }
    crash.left.reset();
  }
}

namespace {

// Returns what is wrong after one more power cut that loses everything unsynced.
Broken CheckAfterAnotherCut(const CrashDisk& disk, const Oracle& oracle) {
  FakeClock clock;
  const std::unique_ptr<CrashDisk> left = disk.CutPower(Loss::kEverything, 1);
  const absl::StatusOr<std::unique_ptr<RootStore>> store = OpenStore(*left, clock);
  if (!store.ok()) return {absl::StrCat("the root cannot be opened: ", store.status().ToString())};
  return oracle.Check(*left, **store);
}

// Does one more save with trainers that have resumed.
Broken SaveOnceMore(CrashDisk& disk, DiskDaemon& daemon, const std::vector<SessionId>& trainers,
                    Oracle& oracle) {
  const absl::StatusOr<DiskDaemon::Begun> begun = daemon.Begin(trainers, "later", {});
  if (!begun.ok()) return {absl::StrCat("the next save did not begin: ", begun.status().ToString())};
  oracle.Began(begun->spec);
  for (int rank = 0; rank < begun->spec.world_size; ++rank) {
    const absl::Status sealed = daemon.WriteAndSeal(*begun, rank);
    if (!sealed.ok()) return {absl::StrCat("the next save was not sealed: ", sealed.ToString())};
  }
  std::vector<v1::Level> ended;
  daemon.WhenEnded(*begun, [&](v1::Level level) { ended.push_back(level); });
  if (!daemon.RunUntil([&] { return ended.size() == trainers.size(); })) return {"the next save did not end"};
  if (ended[0] != v1::COMMITTED) return {absl::StrCat("the next save ended as ", v1::Level_Name(ended[0]))};
  oracle.Committed(begun->spec.sequence);
  disk.LandLateWrites();
  Broken broken;
  const ShownCheckpoints shown = daemon.ReadAll(trainers[0], oracle.saves(), broken);
  for (std::string& line : oracle.Check(disk, shown)) broken.push_back(std::move(line));
  return broken;
}

void Append(Broken more, const std::string& when, Broken& broken) {
  for (const std::string& line : more) broken.push_back(when + line);
}

}  // namespace

void EngineHistory::CheckEnds(DiskDaemon& daemon, const ShownCheckpoints& shown, Broken& broken) const {
  std::map<std::string, absl::StatusOr<std::vector<SessionId>>> back;  // By launch.
  for (const auto& [sequence, checkpoint] : shown) {
    const auto asked = asked_.find(sequence);
    if (asked == asked_.end()) continue;
    const auto& [launch, world_size, options] = asked->second;
    if (!back.contains(launch)) back.emplace(launch, daemon.Launch(launch, world_size));
    const absl::StatusOr<std::vector<SessionId>>& trainers = back.at(launch);
    if (!trainers.ok()) continue;  // A later launch has replaced it.
    for (int rank = 0; rank < world_size; ++rank) {
      const absl::StatusOr<v1::Level> end =
          daemon.AskEnd((*trainers)[static_cast<size_t>(rank)],
                        daemon.KeyOf(rank, checkpoint.summary.tag(), options.ordinal), sequence);
      if (end.ok() && *end == v1::COMMITTED) continue;
      broken.push_back(absl::StrCat(checkpoint.summary.tag(), " (sequence ", sequence,
                                    ") is committed, but rank ", rank, " is told that it is ",
                                    end.ok() ? v1::Level_Name(*end) : end.status().ToString()));
    }
  }
}

Broken EngineHistory::JudgeTrash(Crash& crash) const {
  DiskDaemon daemon(crash.left.get(), trash_grace_);
  if (const absl::Status recovered = daemon.Recover(); !recovered.ok())
    return {absl::StrCat("the root cannot be recovered: ", recovered.ToString())};
  const absl::StatusOr<std::set<int64_t>> offered = daemon.ListTrash();
  if (!offered.ok()) return {absl::StrCat("the trash cannot be listed: ", offered.status().ToString())};
  const absl::StatusOr<ShownCheckpoints> shown = daemon.List();
  if (!shown.ok()) return {absl::StrCat("listing: ", shown.status().ToString())};
  return crash.oracle.CheckTrash(*offered, *shown);
}

Broken EngineHistory::JudgeOne(Crash& crash) const {
  CrashDisk& disk = *crash.left;
  Oracle& oracle = crash.oracle;
  Broken broken = oracle.CheckPointers(disk);
  if (trash_grace_.count() > 0) Append(JudgeTrash(crash), "", broken);
  DiskDaemon daemon(&disk);
  if (const absl::Status recovered = daemon.Recover(); !recovered.ok())
    return {absl::StrCat("the root cannot be recovered: ", recovered.ToString())};
  if (const auto found = daemon.List(); found.ok()) CheckEnds(daemon, *found, broken);
  const absl::StatusOr<std::vector<SessionId>> trainers = daemon.Launch("the next one", 2);
  if (!trainers.ok()) return {absl::StrCat("joining failed: ", trainers.status().ToString())};
  // A list leaves out what retention is about to remove, which a power cut may bring back until it has.
  if (!daemon.AwaitEvictions()) return {"retention did not remove what it does not list"};
  const ShownCheckpoints shown = daemon.ReadAll((*trainers)[0], oracle.saves(), broken);
  Append(oracle.Check(disk, shown), "", broken);
  for (const std::string& warning : daemon.warnings())
    broken.push_back("the daemon logged a warning: " + warning);
  if (!broken.empty()) return broken;
  oracle.Shown(shown);
  Append(CheckAfterAnotherCut(disk, oracle), "shown by recovery, but lost by another power cut: ", broken);

  // Retention continues where the crash interrupted it, now that no reader is left.
  int64_t newest = 0;  // Of those that are not suspect.
  for (const auto& [sequence, checkpoint] : shown) {
    const auto asked = asked_.find(sequence);
    if (asked == asked_.end() || asked->second.options.suspect.empty()) newest = sequence;
  }
  for (const auto& [sequence, checkpoint] : shown) {
    if (sequence != newest && !checkpoint.pinned) oracle.Going(sequence);
  }
  const absl::Status closed = daemon.CloseAll((*trainers)[0]);
  if (!closed.ok()) broken.push_back(absl::StrCat("closing: ", closed.ToString()));
  // Answered after the scan that precedes retention.
  const absl::StatusOr<int64_t> resumed = daemon.Resume(*trainers);
  if (!resumed.ok()) {
    broken.push_back(absl::StrCat("resuming failed: ", resumed.status().ToString()));
  } else if (*resumed != newest) {
    broken.push_back(
        absl::StrCat("sequence ", *resumed, " was resumed from, but ", newest, " is the newest"));
  }
  if (!daemon.RunUntil([&] { return disk.NamesIn(kInflight).empty() && !HasTrash(disk); }))
    broken.push_back("inflight and trash were not emptied");
  const absl::StatusOr<ShownCheckpoints> kept = daemon.List();
  if (!kept.ok()) broken.push_back(absl::StrCat("listing: ", kept.status().ToString()));
  if (!broken.empty()) return broken;
  Append(oracle.CheckNothingLeaked(disk, *kept), "", broken);
  Append(oracle.Check(disk, *kept), "after retention: ", broken);
  oracle.Shown(*kept);
  if (!broken.empty()) return broken;
  Append(SaveOnceMore(disk, daemon, *trainers, oracle), "after one more save: ", broken);
  if (broken.empty())
    Append(CheckAfterAnotherCut(disk, oracle), "after one more save and power cut: ", broken);
  return broken;
}

}  // namespace ckptd
