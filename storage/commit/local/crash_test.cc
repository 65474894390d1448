// Fault injection. Every changing call of every operation in turn fails once, or happens and is reported as
// failed, or is the moment at which the daemon dies. Then the root is opened again, twice, and must hold what
// was promised. Also every reading call (open, list, stat, read) of recovery, of a scan and of a publish
// fails once: an error that says nothing about what was to be read must not change anything.
//
// Longer than 500 lines because all operations share one fault injector and one verdict.
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/commit/checkpoint/verify.h"
#include "storage/commit/local/root_store.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/root_store_fixture.h"

namespace ckptd {
namespace {

using storage::v1::RunRecord;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

enum class Fault {
  kIoError,          // The call fails once with EIO.
  kNoSpace,          // The call fails once with ENOSPC.
  kDoneButReported,  // The call takes effect, and EIO is reported.
  kDeath,            // The call and all later ones fail: the daemon is dead.
  // Of the calls that read, one fails once:
  kUnreadable,    // with EIO,
  kNoDevice,      // with ENODEV,
  kStale,         // with ESTALE,
  kNoDescriptor,  // with EMFILE.
};

constexpr Fault kReadFaults[] = {Fault::kUnreadable, Fault::kNoDevice, Fault::kStale, Fault::kNoDescriptor};

int ErrnoOfFault(Fault fault) {
  switch (fault) {
    case Fault::kNoSpace:
      return ENOSPC;
    case Fault::kNoDevice:
      return ENODEV;
    case Fault::kStale:
      return ESTALE;
    case Fault::kNoDescriptor:
      return EMFILE;
    case Fault::kIoError:
    case Fault::kDoneButReported:
    case Fault::kDeath:
    case Fault::kUnreadable:
      return EIO;
  }
  return EIO;
}

std::string NameOf(Fault fault) {
  switch (fault) {
    case Fault::kIoError:
      return "EIO";
    case Fault::kNoSpace:
      return "ENOSPC";
    case Fault::kDoneButReported:
      return "done but EIO";
    case Fault::kDeath:
      return "death";
    case Fault::kUnreadable:
      return "EIO of a read";
    case Fault::kNoDevice:
      return "ENODEV of a read";
    case Fault::kStale:
      return "ESTALE of a read";
    case Fault::kNoDescriptor:
      return "EMFILE of a read";
  }
  return "";
}

// Injects a fault into one of the calls that change something (or open a file, which may create it), counted
// over all kinds of calls; or, if the fault is one of kReadFaults, into one of those that read.
class FaultPoints {
 public:
  FaultPoints(TemporaryRoot& root, bool can_exchange) : can_exchange_(can_exchange), fs_(&root.fs()) {}

  FaultyFileSystem& fs() { return fs_; }

  // Injects the fault into the `at`-th call from now on; 1 is the next one, 0 none.
  void Arm(Fault fault, int at) {
    fs_.ClearFaults();
    hit_.clear();
    log_start_ = fs_.calls().size();
    calls_ = 0;
    fs_.SetHook([this, fault, at](const FsCall& call) {
      if (fault == Fault::kDeath && calls_ == at - 1 && hit_.empty() && call.op != FsOp::kClose)
        hit_ = call.ToString();
      if (!IsCounted(fault, call.op)) return;
      ++calls_;
      if (calls_ == at && fault != Fault::kDeath) {
        hit_ = call.ToString();
        fs_.ClearFaults();
      }
      if (calls_ == at - 1) Inject(fault);
    });
    if (at == 1) Inject(fault);
  }
  // Injects no more faults.
  void Disarm() {
    fs_.SetHook(nullptr);
    fs_.ClearFaults();
  }
  // Opens a store, on a file system that can exchange names or, as the probe will find, cannot.
  absl::StatusOr<std::unique_ptr<RootStore>> Open(TemporaryRoot& root) {
    if (!can_exchange_)
      fs_.Fail({.op = FsOp::kRename, .path = ".ckptd/nodes/local/scratch/a", .error = EINVAL});
    return root.TryOpen(fs_);
  }
  std::unique_ptr<RootStore> MustOpen(TemporaryRoot& root) {
    absl::StatusOr<std::unique_ptr<RootStore>> store = Open(root);
    EXPECT_TRUE(store.ok()) << store.status();
    EXPECT_EQ((*store)->probe().rename_exchange, can_exchange_);
    return *std::move(store);
  }

  // The call with the fault. Empty if there were fewer calls.
  const std::string& hit() const { return hit_; }
  // The calls since Arm.
  std::vector<std::string> log() const {
    std::vector<std::string> lines;
    const std::vector<FsCall> calls = fs_.calls();
    for (size_t i = log_start_; i < calls.size(); ++i) lines.push_back(calls[i].ToString());
    return lines;
  }

 private:
  static bool IsCounted(Fault fault, FsOp op) {
    if (std::find(std::begin(kReadFaults), std::end(kReadFaults), fault) != std::end(kReadFaults)) {
      return op == FsOp::kOpen || op == FsOp::kList || op == FsOp::kStat || op == FsOp::kReadAt;
    }
    return op != FsOp::kClose && op != FsOp::kList && op != FsOp::kStat && op != FsOp::kReadAt &&
           op != FsOp::kSpace;
  }
  // The next counted call fails, or, after death, every call.
  void Inject(Fault fault) {
    for (int op = 0; op <= static_cast<int>(FsOp::kSpace); ++op) {
      if (static_cast<FsOp>(op) == FsOp::kClose) continue;
      if (fault != Fault::kDeath && !IsCounted(fault, static_cast<FsOp>(op))) continue;
      fs_.Fail({.op = static_cast<FsOp>(op),
                .nth = fault == Fault::kDeath ? FsFault::kEvery : 1,
                .error = ErrnoOfFault(fault),
                .after = fault == Fault::kDoneButReported});
    }
  }

  const bool can_exchange_;
  FaultyFileSystem fs_;
  size_t log_start_ = 0;
  int calls_ = 0;  // Counted calls since Arm.
  std::string hit_;
};

std::vector<std::string> Committed(const RootStore& store) {
  std::vector<std::string> tags;
  for (const auto& [sequence, checkpoint] : store.committed()) {
    tags.push_back(absl::StrCat(checkpoint.summary.tag(), ":", sequence));
  }
  return tags;
}

// Checks that every committed checkpoint has the bytes of its save, and that nothing else in the root looks
// like one.
void ExpectAllWhole(TemporaryRoot& root, const RootStore& store) {
  std::vector<std::string> names = {".ckptd"};
  for (const auto& [sequence, checkpoint] : store.committed()) {
    const SaveSpec spec{checkpoint.summary.tag(), sequence};
    names.push_back(spec.tag);
    for (const auto& pointer : checkpoint.summary.pointers()) names.push_back(pointer.first);
    const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(root.fs(), root.handle(), spec.tag);
    ASSERT_TRUE(report.ok()) << report.status();
    for (const VerifyProblem& problem : report->problems)
      ADD_FAILURE() << problem.path << ": " << problem.message;
    EXPECT_EQ(report->manifest.body.files_size(), 6);
    for (const auto& file : report->manifest.body.files()) {
      EXPECT_EQ(root.Read(spec.tag + "/" + file.path()), ContentOf(spec, file.path()));
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::vector<std::string> found = root.Names("");
  std::erase_if(found, [&](const std::string& name) { return std::filesystem::is_empty(root.path(name)); });
  EXPECT_EQ(found, names);
  EXPECT_THAT(store.damaged(), IsEmpty());
}

void ExpectNothingLeft(const TemporaryRoot& root) {
  EXPECT_THAT(root.Names(".ckptd/nodes/local/inflight"), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(root.node("swap")));
  EXPECT_FALSE(std::filesystem::exists(root.node("scratch")));
}

// One operation under test. `run` returns what its caller could report.
struct Operation {
  bool can_exchange = true;
  bool over_empty_directory = false;
  std::function<void(FileSystem&, RootStore&)> prepare = nullptr;
  std::function<SaveVerdict(FileSystem&, RootStore&)> run = nullptr;
  std::vector<std::string> before = {};  // Committed before the operation, and if it fails.
  std::vector<std::string> after = {};   // Committed if it succeeds. If unknown, either of the two.
};

void ExpectVerdictHolds(const Operation& operation, SaveVerdict verdict, const RootStore& store) {
  switch (verdict) {
    case SaveVerdict::kCommitted:
      EXPECT_EQ(Committed(store), operation.after);
      break;
    case SaveVerdict::kFailed:
      EXPECT_EQ(Committed(store), operation.before);
      break;
    case SaveVerdict::kUnknown:
      EXPECT_THAT(Committed(store), AnyOf(operation.before, operation.after));
      break;
  }
}

// Uses the same store after a fault: it must agree with what the next store finds, and it must be able to
// save.
void ExpectStoreGoesOn(const Operation& operation, SaveVerdict verdict, Fault fault, TemporaryRoot& root,
                       RootStore& store, std::vector<std::string>& committed) {
  if (verdict == SaveVerdict::kUnknown) {
    const absl::Status refused = store.CreateInflight("next", 100, 4096).status();
    if (!refused.ok()) {
      EXPECT_EQ(ReasonOf(refused), "ROOT_READ_ONLY") << refused;
    }
    ASSERT_TRUE(store.Rescan().ok());
  }
  ExpectVerdictHolds(operation, verdict, store);
  if (verdict == SaveVerdict::kFailed && fault != Fault::kDoneButReported) {
    EXPECT_THAT(root.Names(".ckptd/nodes/local/inflight"), IsEmpty());
  }
  EXPECT_EQ(Save(root.fs(), store, {"later", 50}), SaveVerdict::kCommitted);
  committed = Committed(store);
  ExpectAllWhole(root, store);
}

// Tries one point. False if the operation ended before it.
bool TryPoint(const Operation& operation, Fault fault, int at) {
  TemporaryRoot root(TemporaryRoot::On::kMemory);
  FaultPoints points(root, operation.can_exchange);
  std::unique_ptr<RootStore> store = points.MustOpen(root);
  if (operation.over_empty_directory) std::filesystem::create_directory(root.path("step"));
  if (operation.prepare) operation.prepare(points.fs(), *store);
  EXPECT_EQ(Committed(*store), operation.before);
  points.Arm(fault, at);
  const SaveVerdict verdict = operation.run(points.fs(), *store);
  const std::string hit = points.hit();
  points.Disarm();
  SCOPED_TRACE(
      absl::StrCat(NameOf(fault), " at call ", at, ": ", hit, "; verdict ", static_cast<int>(verdict)));
  std::vector<std::string> committed;
  if (hit.empty()) {
    EXPECT_EQ(verdict, SaveVerdict::kCommitted);
  }
  if (fault != Fault::kDeath) ExpectStoreGoesOn(operation, verdict, fault, root, *store, committed);
  store.reset();
  store = points.MustOpen(root);
  if (fault == Fault::kDeath) {
    ExpectVerdictHolds(operation, verdict, *store);
    committed = Committed(*store);
  }
  EXPECT_EQ(Committed(*store), committed);
  ExpectAllWhole(root, *store);
  ExpectNothingLeft(root);
  store.reset();
  store = points.MustOpen(root);  // A second recovery changes nothing.
  EXPECT_THAT(store->recovered(), IsEmpty());
  EXPECT_EQ(Committed(*store), committed);
  return !hit.empty() && !::testing::Test::HasFailure();
}

void TryAllPoints(const Operation& operation, int at_least) {
  for (const Fault fault : {Fault::kIoError, Fault::kNoSpace, Fault::kDoneButReported, Fault::kDeath}) {
    int points = 0;
    while (TryPoint(operation, fault, points + 1)) ++points;
    if (::testing::Test::HasFailure()) return;
    EXPECT_GE(points, at_least) << "the operation made fewer calls than it must";
  }
}

SaveVerdict VerdictOf(const absl::Status& status) {
  return status.ok() ? SaveVerdict::kCommitted : SaveVerdict::kUnknown;
}

Operation FirstSave() {
  return {.run =
              [](FileSystem& fs, RootStore& store) {
                return Save(fs, store, {"step", 2});
              },
          .before = {},
          .after = {"step:2"}};
}

Operation Resave(bool can_exchange) {
  return {.can_exchange = can_exchange,
          .prepare =
              [](FileSystem& fs, RootStore& store) {
                Save(fs, store, {"step", 1});
              },
          .run =
              [](FileSystem& fs, RootStore& store) {
                return Save(fs, store, {"step", 2});
              },
          .before = {"step:1"},
          .after = {"step:2"}};
}

TEST(CrashTest, FirstSaveIsWholeOrInvisible) { TryAllPoints(FirstSave(), 40); }

TEST(CrashTest, SaveOverAnEmptyDirectoryIsWholeOrInvisible) {
  Operation operation = FirstSave();
  operation.over_empty_directory = true;
  TryAllPoints(operation, 40);
}

TEST(CrashTest, ResaveByExchangeLeavesTheOldOrTheNewWhole) { TryAllPoints(Resave(true), 40); }

TEST(CrashTest, ResaveByTwoRenamesLeavesTheOldOrTheNewWhole) { TryAllPoints(Resave(false), 45); }

TEST(CrashTest, DiscardedSaveStaysAwayOnceItWasReportedFailed) {
  for (const int ranks : {1, 2}) {
    // "Committed" stands for a discard that succeeded. The checkpoint may be visible only if it failed.
    std::unique_ptr<Staged> staged;
    Operation operation;
    operation.prepare = [&](FileSystem& fs, RootStore& store) {
      staged = std::make_unique<Staged>(*Stage(fs, store, {"step", 2}, ranks));
    };
    operation.run = [&](FileSystem&, RootStore& store) {
      const SaveVerdict verdict =
          store.Discard(staged->inflight).ok() ? SaveVerdict::kFailed : SaveVerdict::kUnknown;
      staged.reset();
      return verdict;
    };
    operation.before = {};
    operation.after = ranks == 2 ? std::vector<std::string>{"step:2"} : std::vector<std::string>{};
    for (const Fault fault : {Fault::kIoError, Fault::kDoneButReported, Fault::kDeath}) {
      for (int at = 1; at <= 6; ++at) EXPECT_TRUE(TryPoint(operation, fault, at)) << at;
    }
  }
}

TEST(CrashTest, EvictedCheckpointIsWholeOrGone) {
  TryAllPoints({.prepare =
                    [](FileSystem& fs, RootStore& store) {
                      Save(fs, store, {"old", 1});
                      Save(fs, store, {"new", 2});
                    },
                .run = [](FileSystem&, RootStore& store) { return VerdictOf(store.Evict("old", 1)); },
                .before = {"old:1", "new:2"},
                .after = {"new:2"}},
               3);
}

TEST(CrashTest, UndeletedCheckpointIsAtItsTagOrInTheTrash) {
  for (const Fault fault : {Fault::kIoError, Fault::kNoSpace, Fault::kDoneButReported, Fault::kDeath}) {
    bool reached = true;
    for (int at = 1; reached && !::testing::Test::HasFailure(); ++at) {
      TemporaryRoot root(TemporaryRoot::On::kMemory);
      FaultPoints points(root, true);
      std::unique_ptr<RootStore> store = points.MustOpen(root);
      Save(points.fs(), *store, {"old", 1});
      Save(points.fs(), *store, {"new", 2});
      ASSERT_TRUE(store->Evict("old", 1).ok());
      points.Arm(fault, at);
      const bool back = store->Undelete("old", 1).ok();
      reached = !points.hit().empty();
      SCOPED_TRACE(absl::StrCat(NameOf(fault), " at ", at, ": ", points.hit()));
      EXPECT_TRUE(reached || back);
      points.Disarm();
      if (!back && fault != Fault::kDeath) {
        ASSERT_TRUE(store->Rescan().ok());
        EXPECT_TRUE(store->committed().contains(1) || store->Undelete("old", 1).ok()) << "the second try";
      }
      store.reset();
      store = points.MustOpen(root);
      const bool there = store->committed().contains(1);
      EXPECT_NE(there, store->ListTrash().size() == 1);
      EXPECT_TRUE(there || (!back && fault == Fault::kDeath));
      EXPECT_TRUE(!there || store->committed().at(1).pinned);
      ExpectAllWhole(root, *store);
    }
  }
}

// Besides the verdict: with COMMITTED the pointer is the new one, otherwise the old or the new one, and never
// anything else. A pointer that could not be written is a warning, and the next daemon or save repairs it.
class PointerCrashTest : public ::testing::TestWithParam<Fault> {
 protected:
  static SaveSpec Naming(const std::string& tag, int64_t sequence) {
    return {tag, sequence, 1, {{"latest", tag}}};
  }
};

TEST_P(PointerCrashTest, PointerIsOldOrNewAndNeverUndoesTheCommit) {
  bool reached = true, warned = false;
  for (int at = 1; reached && !HasFailure(); ++at) {
    TemporaryRoot root(TemporaryRoot::On::kMemory);
    FaultPoints points(root, true);
    std::unique_ptr<RootStore> store = points.MustOpen(root);
    ASSERT_EQ(Save(points.fs(), *store, Naming("old", 1)), SaveVerdict::kCommitted);
    absl::StatusOr<Staged> staged = Stage(points.fs(), *store, Naming("new", 2));
    ASSERT_TRUE(staged.ok());
    points.Arm(GetParam(), at);
    const PublishResult result = store->Publish(staged->inflight, SummaryOf(Naming("new", 2)), staged->parts);
    reached = !points.hit().empty();
    SCOPED_TRACE(absl::StrCat(NameOf(GetParam()), " at ", at, ": ", points.hit()));
    const bool committed = result.outcome == PublishOutcome::kCommitted;
    const std::string pointer = root.Read("latest");
    EXPECT_THAT(pointer, AnyOf("old", "new"));
    if (!committed || result.pointers.warnings.empty()) {
      EXPECT_EQ(pointer, committed ? "new" : "old");
    }
    if (pointer == "old") {
      points.Disarm();
      EXPECT_FALSE(store->Evict("old", 1).ok()) << "the pointer's checkpoint stays";
    }
    warned |= committed && !result.pointers.warnings.empty();
    points.Disarm();
    if (committed && GetParam() != Fault::kDeath) {  // The next save repairs it.
      ASSERT_EQ(Save(points.fs(), *store, {"later", 3}), SaveVerdict::kCommitted);
      EXPECT_EQ(root.Read("latest"), "new");
      EXPECT_THAT(store->pointers().warnings, IsEmpty());
      EXPECT_TRUE(store->Evict("old", 1).ok()) << "the pointer has moved";
    }
    staged = absl::UnknownError("ended");
    store.reset();
    store = points.MustOpen(root);
    const bool there = store->committed().contains(2);
    EXPECT_TRUE(there || !committed);
    EXPECT_EQ(root.Read("latest"), there ? "new" : "old");
    EXPECT_THAT(store->pointers().warnings, IsEmpty());
    EXPECT_THAT(root.Names(".ckptd/nodes/local"), testing::Not(Contains("pointer.new")));
  }
  EXPECT_TRUE(warned) << "no fault met the pointer";
}

INSTANTIATE_TEST_SUITE_P(, PointerCrashTest,
                         ::testing::Values(Fault::kIoError, Fault::kNoSpace, Fault::kDoneButReported,
                                           Fault::kDeath));

TEST(CrashTest, EmptyingTrashChangesNothingElse) {
  TryAllPoints({.prepare =
                    [](FileSystem& fs, RootStore& store) {
                      Save(fs, store, {"old", 1});
                      Save(fs, store, {"new", 2});
                      EXPECT_TRUE(store.Evict("old", 1).ok());
                    },
                .run =
                    [](FileSystem&, RootStore& store) {
                      while (true) {
                        const absl::StatusOr<bool> more = store.EmptyTrashStep({});
                        if (!more.ok()) return SaveVerdict::kUnknown;
                        if (!*more) return SaveVerdict::kCommitted;
                      }
                    },
                .before = {"new:2"},
                .after = {"new:2"}},
               10);
}

// Runs `change` with a fault at every point of it, opens the root again, and passes that store to `check`
// together with the result of `change`.
void TryRecord(const std::function<absl::Status(RootStore&)>& prepare,
               const std::function<absl::Status(RootStore&)>& change,
               const std::function<void(const RootStore&, bool changed)>& check) {
  for (const Fault fault : {Fault::kIoError, Fault::kNoSpace, Fault::kDoneButReported, Fault::kDeath}) {
    bool reached = true;
    for (int at = 1; reached; ++at) {
      ASSERT_LT(at, 50);
      TemporaryRoot root(TemporaryRoot::On::kMemory);
      FaultPoints points(root, true);
      std::unique_ptr<RootStore> store = points.MustOpen(root);
      ASSERT_EQ(Save(root.fs(), *store, {"step", 1}), SaveVerdict::kCommitted);
      ASSERT_TRUE(prepare(*store).ok());
      points.Arm(fault, at);
      const bool changed = change(*store).ok();
      reached = !points.hit().empty();
      SCOPED_TRACE(absl::StrCat(NameOf(fault), " at ", at, ": ", points.hit()));
      EXPECT_NE(changed, reached);
      store.reset();
      points.Disarm();
      store = points.MustOpen(root);
      check(*store, changed);
      ExpectAllWhole(root, *store);
    }
  }
}

TEST(CrashTest, RunRecordIsOldOrNew) {
  RunRecord old_record, new_record;
  old_record.set_run_id("old");
  new_record.set_run_id("new");
  TryRecord([&](RootStore& store) { return store.SaveRunRecord(old_record); },
            [&](RootStore& store) { return store.SaveRunRecord(new_record); },
            [](const RootStore& store, bool changed) {
              EXPECT_THAT(store.run_record().run_id(), changed ? AnyOf("new", "new") : AnyOf("old", "new"));
            });
}

TEST(CrashTest, PinExistsOnceItWasReported) {
  TryRecord([](RootStore&) { return absl::OkStatus(); },
            [](RootStore& store) {
              const absl::Status pinned = store.SetPinned("step", 1, true);
              EXPECT_EQ(store.committed().at(1).pinned, pinned.ok());
              return pinned;
            },
            [](const RootStore& store, bool changed) {
              if (changed) {
                EXPECT_TRUE(store.committed().at(1).pinned);
              }
            });
}

TEST(CrashTest, DamageMarkExistsOnceItWasReported) {
  TryRecord([](RootStore&) { return absl::OkStatus(); },
            [](RootStore& store) {
              const absl::Status set = store.SetDamage("step", 1, storage::v1::Damage()).status();
              EXPECT_EQ(store.committed().at(1).damage.has_value(), set.ok());
              return set;
            },
            [](const RootStore& store, bool changed) {
              if (changed) {
                EXPECT_TRUE(store.committed().at(1).damage.has_value());
              }
            });
}

// `left` makes the state that a daemon leaves when it dies in a re-save. Its successor dies at a call of its
// recovery, and the next one dies there, too; the third lives. Tries every third call from `start` on.
// Returns the number of calls.
int TryDeathsInRecovery(const Operation& operation, TemporaryRoot& left, SaveVerdict verdict, int start) {
  int tried = 0;
  for (int second = start;; second += 3) {
    ++tried;
    TemporaryRoot root(TemporaryRoot::On::kMemory);
    std::filesystem::copy(left.path(), root.path(), std::filesystem::copy_options::recursive);
    FaultPoints points(root, operation.can_exchange);
    bool died = false;
    for (int life = 0; life < 2; ++life) {
      points.Arm(Fault::kDeath, second);
      died = !points.Open(root).ok() || died;
      points.Disarm();
    }
    SCOPED_TRACE(absl::StrCat("at call ", second, " of recovery"));
    const std::unique_ptr<RootStore> store = points.MustOpen(root);
    EXPECT_THAT(Committed(*store),
                AnyOf(ElementsAre("step:1", "staged:3"), ElementsAre("step:2", "staged:3")));
    if (verdict == SaveVerdict::kCommitted) {
      EXPECT_THAT(Committed(*store), Contains("step:2"));
    }
    ExpectAllWhole(root, *store);
    ExpectNothingLeft(root);
    if (!died || ::testing::Test::HasFailure()) return tried;
  }
}

class RecoveryCrashTest : public ::testing::TestWithParam<bool> {};

TEST_P(RecoveryCrashTest, RecoversFromADeathDuringRecovery) {
  const Operation operation = Resave(GetParam());
  int recoveries = 0;
  for (int first = 1;; ++first) {
    TemporaryRoot left(TemporaryRoot::On::kMemory);
    FaultPoints points(left, operation.can_exchange);
    std::unique_ptr<RootStore> store = points.MustOpen(left);
    operation.prepare(points.fs(), *store);
    ASSERT_TRUE(Stage(points.fs(), *store, {"staged", 3}).ok());
    points.Arm(Fault::kDeath, first);
    const SaveVerdict verdict = operation.run(points.fs(), *store);
    store.reset();
    if (points.hit().empty()) break;
    SCOPED_TRACE(absl::StrCat("first at ", points.hit()));
    recoveries += TryDeathsInRecovery(operation, left, verdict, first % 3 + 1);
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  EXPECT_GT(recoveries, 500);
}

INSTANTIATE_TEST_SUITE_P(, RecoveryCrashTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "WithExchange" : "WithTwoRenames"; });

// The state that a killed daemon leaves: two checkpoints, which a pointer names; saves of a new and of an
// existing tag, both complete on disk; an incomplete save; and another program's checkpoint.
class ReadFaultTest : public ::testing::TestWithParam<std::tuple<Fault, bool>> {
 protected:
  static SaveSpec Naming(const std::string& tag, int64_t sequence) {
    return {tag, sequence, 2, {{"latest", absl::StrCat(tag, sequence)}}};
  }
  static Fault fault() { return std::get<0>(GetParam()); }
  static bool can_exchange() { return std::get<1>(GetParam()); }
  static const std::vector<std::string>& complete() {
    static const std::vector<std::string> all = {"old:1", "step:3", "fresh:4"};
    return all;
  }

  static void Commit(FileSystem& fs, RootStore& store) {
    ASSERT_EQ(Save(fs, store, Naming("old", 1)), SaveVerdict::kCommitted);
    ASSERT_EQ(Save(fs, store, Naming("step", 2)), SaveVerdict::kCommitted);
  }
  // Kills the daemon in the middle of three saves.
  static void Leave(FileSystem& fs, std::unique_ptr<RootStore> store) {
    ASSERT_TRUE(Stage(fs, *store, Naming("step", 3)).ok());
    ASSERT_TRUE(Stage(fs, *store, Naming("fresh", 4)).ok());
    ASSERT_TRUE(Stage(fs, *store, Naming("half", 5), 1).ok());
  }

  // Everything that must exist does: nothing was lost, moved back, delisted or discarded.
  static void ExpectNothingLost(TemporaryRoot& root, const RootStore& store) {
    EXPECT_EQ(Committed(store), complete());
    EXPECT_THAT(store.damaged(), IsEmpty());
    ASSERT_EQ(store.foreign().size(), 1u);
    EXPECT_EQ(store.foreign()[0].tag, "theirs");
    // A pointer that could not be written is written at the next start.
    EXPECT_EQ(root.Read("latest"), store.pointers().warnings.empty() ? "fresh4" : "step2");
    for (const std::string& name : root.Names(".ckptd/nodes/local/trash")) {
      EXPECT_TRUE(name.starts_with("step.2.") || name.starts_with("half.5.")) << name << " is in trash";
    }
    for (const auto& [sequence, checkpoint] : store.committed()) {
      const std::string& tag = checkpoint.summary.tag();
      const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(root.fs(), root.handle(), tag);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_THAT(report->problems, IsEmpty()) << tag;
    }
  }
};

TEST_P(ReadFaultTest, RecoveryRefusesAnUnreadableRootAndLosesNothing) {
  TemporaryRoot left(TemporaryRoot::On::kMemory);
  left.Write("theirs/done", "");
  {
    FaultPoints points(left, can_exchange());
    std::unique_ptr<RootStore> store = points.MustOpen(left);
    Commit(points.fs(), *store);
    Leave(points.fs(), std::move(store));
  }
  int refused = 0;
  for (int at = 1; !HasFailure(); ++at) {
    TemporaryRoot root(TemporaryRoot::On::kMemory);
    std::filesystem::copy(left.path(), root.path(), std::filesystem::copy_options::recursive);
    FaultPoints points(root, can_exchange());
    points.Arm(fault(), at);
    absl::StatusOr<std::unique_ptr<RootStore>> store = points.Open(root);
    const std::string hit = points.hit();
    points.Disarm();
    SCOPED_TRACE(absl::StrCat(NameOf(fault()), " at call ", at, ": ", hit, "; ", store.status().ToString()));
    if (store.ok()) ExpectNothingLost(root, **store);
    refused += !store.ok();
    store = absl::UnknownError("ended");
    store = points.MustOpen(root);
    ExpectNothingLost(root, **store);
    ExpectNothingLeft(root);
    EXPECT_THAT((*store)->pointers().warnings, IsEmpty());
    if (hit.empty()) break;
  }
  EXPECT_GT(refused, 50);
}

TEST_P(ReadFaultTest, RescanFailsOnAReadErrorAndLosesNothing) {
  int failed = 0;
  for (int at = 1; !HasFailure(); ++at) {
    TemporaryRoot root(TemporaryRoot::On::kMemory);
    root.Write("theirs/done", "");
    FaultPoints points(root, can_exchange());
    std::unique_ptr<RootStore> store = points.MustOpen(root);
    Commit(points.fs(), *store);
    Leave(points.fs(), std::move(store));
    store = points.MustOpen(root);
    points.Arm(fault(), at);
    const absl::Status scanned = store->Rescan();
    const std::string hit = points.hit();
    points.Disarm();
    SCOPED_TRACE(absl::StrCat(NameOf(fault()), " at call ", at, ": ", hit, "; ", scanned.ToString()));
    failed += !scanned.ok();
    ASSERT_TRUE(store->Rescan().ok());
    ExpectNothingLost(root, *store);
    ExpectNothingLeft(root);
    if (hit.empty()) break;
  }
  EXPECT_GT(failed, 15);
}

// A publish that could not read something necessary changes nothing, and says that it may be called again.
TEST_P(ReadFaultTest, PublishMayBeCalledAgainAfterAReadError) {
  int held = 0;
  for (int at = 1; !HasFailure(); ++at) {
    TemporaryRoot root(TemporaryRoot::On::kMemory);
    root.Write("theirs/done", "");
    FaultPoints points(root, can_exchange());
    std::unique_ptr<RootStore> store = points.MustOpen(root);
    Commit(points.fs(), *store);
    ASSERT_EQ(Save(points.fs(), *store, Naming("fresh", 4)), SaveVerdict::kCommitted);
    const absl::StatusOr<Staged> staged = Stage(points.fs(), *store, {"step", 3});
    ASSERT_TRUE(staged.ok());
    points.Arm(fault(), at);
    PublishResult result = store->Publish(staged->inflight, SummaryOf({"step", 3}), staged->parts);
    const std::string hit = points.hit();
    points.Disarm();
    SCOPED_TRACE(absl::StrCat(NameOf(fault()), " at call ", at, ": ", hit, "; ", result.status.ToString()));
    if (result.outcome == PublishOutcome::kIndeterminate) {
      ASSERT_TRUE(store->Rescan().ok());
    } else if (result.outcome == PublishOutcome::kFailed) {
      // Except where a file was to be made, which is a change that failed.
      EXPECT_TRUE(result.retryable || hit.ends_with("/.swap.tmp"));
      ++held;
      result = store->Publish(staged->inflight, SummaryOf({"step", 3}), staged->parts);
      EXPECT_EQ(result.outcome, PublishOutcome::kCommitted) << result.status;
    }
    ASSERT_TRUE(store->Rescan().ok());
    ExpectNothingLost(root, *store);
    ExpectNothingLeft(root);
    store.reset();
    ExpectNothingLost(root, *points.MustOpen(root));
    if (hit.empty()) break;
  }
  EXPECT_GT(held, 10);
}

INSTANTIATE_TEST_SUITE_P(, ReadFaultTest,
                         ::testing::Combine(::testing::ValuesIn(kReadFaults), ::testing::Bool()));

TEST(EvictReadFaultTest, EvictionLeavesTheCheckpointListedAfterAReadError) {
  for (const Fault fault : kReadFaults) {
    for (int at = 1; !::testing::Test::HasFailure(); ++at) {
      TemporaryRoot root(TemporaryRoot::On::kMemory);
      FaultPoints points(root, true);
      std::unique_ptr<RootStore> store = points.MustOpen(root);
      ASSERT_EQ(Save(points.fs(), *store, {"old", 1}), SaveVerdict::kCommitted);
      points.Arm(fault, at);
      const absl::Status evicted = store->Evict("old", 1);
      const std::string hit = points.hit();
      points.Disarm();
      SCOPED_TRACE(absl::StrCat(NameOf(fault), " at call ", at, ": ", hit, "; ", evicted.ToString()));
      EXPECT_EQ(Committed(*store).empty(), evicted.ok());
      if (hit.empty()) break;
    }
  }
}

// Checks the order of calls: what must be on disk before what, and what happens if it is not.
class OrderTest : public ::testing::Test {
 protected:
  FaultyFileSystem& fs() { return points_.fs(); }
  // The first call since Arm, from `from` on, that is `op` on a path ending in `end`. A missing one is a test
  // failure.
  size_t Find(const std::string& op, const std::string& end, size_t from = 0) const {
    const std::vector<std::string> log = points_.log();
    for (size_t i = from; i < log.size(); ++i) {
      if (log[i].starts_with(op) && log[i].ends_with(end)) return i;
    }
    ADD_FAILURE() << "no " << op << "..." << end << " from " << from << " on in\n"
                  << absl::StrJoin(log, "\n");
    return log.size();
  }

  TemporaryRoot root_;
  FaultPoints points_{root_, true};
  std::unique_ptr<RootStore> store_ = points_.MustOpen(root_);
};

TEST_F(OrderTest, SyncsEverythingBeforeTheRenameAndBothParentsAfter) {
  points_.Arm(Fault::kIoError, 0);
  ASSERT_EQ(Save(fs(), *store_, {"step", 1}), SaveVerdict::kCommitted);
  const size_t made = Find("MakeDir .ckptd/nodes/local/inflight/step.1.", "");
  const size_t first_file = Find("Open", "/model_0.pt");
  EXPECT_LT(Find("Sync", "/inflight", made), first_file) << "the in-flight name, before it holds anything";
  EXPECT_LT(Find("Allocate", "/manifest"), first_file);
  const std::string name = points_.log()[made].substr(std::string("MakeDir ").size());
  EXPECT_LT(Find("Sync " + name, "", made), first_file) << "what is in it: the directory for its records";

  const size_t record = Find("Rename", "/part-00000");
  for (const char* file : {"/model_0.pt", "/deep/er/0", "/empty_0"})
    EXPECT_LT(Find("Sync", file), record) << file;

  const size_t publish = Find("Rename", " step");
  const size_t written = Find("WriteAt", "/manifest", record);
  const size_t cut = Find("Truncate", "/manifest", written);
  const size_t synced = Find("Sync", "/manifest", cut);
  const std::string rename = points_.log()[publish];
  const std::string inflight = rename.substr(7, rename.rfind(' ') - 7);
  for (const char* below : {"/.ckptd", "/deep/er", "/deep", ""}) {
    EXPECT_LT(Find("Sync", inflight + below, synced), publish) << below;
  }
  const size_t root = Find("Sync", "", publish);
  EXPECT_EQ(points_.log()[root], "Sync") << "the root, whose path is empty here";
  Find("Sync", "/inflight", root);
}

TEST_F(OrderTest, WritesThePointerAfterTheCommitAndSyncsBeforeAndAfterItsRename) {
  points_.Arm(Fault::kIoError, 0);
  ASSERT_EQ(Save(fs(), *store_, {"step", 1, 1, {{"latest", "step"}}}), SaveVerdict::kCommitted);
  const size_t publish = Find("Rename", " step");
  const size_t parents = Find("Sync", "/inflight", Find("Sync", "", publish));
  const size_t written = Find("WriteAt", "/pointer.new", parents);
  const size_t synced = Find("Sync", "/pointer.new", written);
  const size_t renamed = Find("Rename", " latest", synced);
  const size_t root = Find("Sync", "", renamed);
  EXPECT_EQ(points_.log()[root], "Sync") << "the root, whose path is empty here";
  Find("Sync", ".ckptd/nodes/local", root);
}

TEST_F(OrderTest, DoesNotWriteACorrectPointerAgain) {
  ASSERT_EQ(Save(fs(), *store_, {"step", 1, 1, {{"latest", "step"}}}), SaveVerdict::kCommitted);
  points_.Arm(Fault::kIoError, 0);
  ASSERT_EQ(Save(fs(), *store_, {"next", 2}), SaveVerdict::kCommitted);
  ASSERT_TRUE(store_->Rescan().ok());
  for (const std::string& call : points_.log()) EXPECT_FALSE(call.ends_with("/pointer.new")) << call;
}

// A failed sync may have dropped the content, so it is written again, whatever a read of the file says.
TEST_F(OrderTest, ScanWritesAPointerAgainWhoseSyncFailed) {
  ASSERT_EQ(Save(fs(), *store_, {"old", 1, 1, {{"latest", "old"}}}), SaveVerdict::kCommitted);
  const SaveSpec spec{"new", 2, 1, {{"latest", "new"}}};
  const absl::StatusOr<Staged> staged = Stage(fs(), *store_, spec);
  ASSERT_TRUE(staged.ok());
  // Syncs of the manifest, four directories, the root and inflight/, the pointer; and the root again.
  fs().Fail({.op = FsOp::kSync, .nth = 9, .error = EIO});
  const PublishResult result = store_->Publish(staged->inflight, SummaryOf(spec), staged->parts);
  EXPECT_EQ(result.outcome, PublishOutcome::kCommitted);
  EXPECT_EQ(result.pointers.warnings.size(), 1u);
  EXPECT_THAT(result.pointers.holders, ElementsAre(1, 2)) << "a crash may leave either of them";
  EXPECT_EQ(root_.Read("latest"), "new");
  points_.Arm(Fault::kIoError, 0);
  ASSERT_TRUE(store_->Rescan().ok());
  Find("Rename", " latest");
  EXPECT_THAT(store_->pointers().holders, ElementsAre(2));
}

TEST_F(OrderTest, StartSyncsWhatItFindsBeforeItTrustsIt) {
  ASSERT_EQ(Save(fs(), *store_, {"step", 1}), SaveVerdict::kCommitted);
  store_.reset();
  points_.Arm(Fault::kIoError, 0);
  store_ = points_.MustOpen(root_);
  const std::vector<std::string> log = points_.log();
  const size_t read = Find("ReadAt", "step/.ckptd/manifest");
  for (const char* name : {"Sync", "Sync .ckptd", "Sync .ckptd/nodes", "Sync .ckptd/nodes/local",
                           "Sync .ckptd/nodes/local/inflight", "Sync .ckptd/nodes/local/trash"}) {
    EXPECT_LT(std::find(log.begin(), log.end(), name) - log.begin(), static_cast<ptrdiff_t>(read)) << name;
  }
}

TEST_F(OrderTest, RemovesNothingFromTrashBeforeItIsDurablyThere) {
  ASSERT_EQ(Save(fs(), *store_, {"step", 1}), SaveVerdict::kCommitted);
  fs().Fail({.op = FsOp::kRename, .error = EIO});
  ASSERT_FALSE(store_->Evict("step", 1).ok());
  EXPECT_THAT(Committed(*store_), ElementsAre("step:1")) << "nothing has changed";
  fs().Fail({.op = FsOp::kSync, .error = EIO});
  ASSERT_FALSE(store_->Evict("step", 1).ok());
  EXPECT_EQ(ReasonOf(store_->EmptyTrashStep({}).status()), "ROOT_READ_ONLY");
  ASSERT_TRUE(store_->Rescan().ok());
  EXPECT_THAT(Committed(*store_), IsEmpty());
  EXPECT_TRUE(store_->EmptyTrashStep({}).ok());
}

TEST_F(OrderTest, TriesFailedRemovalsAgainAfterAllOthers) {
  for (const int64_t sequence : {1, 2}) {
    const std::string tag = absl::StrCat("step", sequence);
    ASSERT_EQ(Save(fs(), *store_, {tag, sequence}), SaveVerdict::kCommitted);
    ASSERT_TRUE(store_->Evict(tag, sequence).ok());
  }
  fs().Fail({.op = FsOp::kRemove, .error = EIO});
  EXPECT_EQ(ErrnoOf(store_->EmptyTrashStep({}).status()), EIO);
  int steps = 0;
  while (*store_->EmptyTrashStep({})) ASSERT_LT(++steps, 10);
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/trash"), IsEmpty());
}

TEST_F(OrderTest, FreesDeletedSpaceAtOnceAndNotInTheNextSave) {
  ASSERT_EQ(Save(fs(), *store_, {"step", 1}), SaveVerdict::kCommitted);
  ASSERT_TRUE(store_->Evict("step", 1).ok());
  points_.Arm(Fault::kIoError, 0);
  ASSERT_EQ(store_->EmptyTrashStep({}).value(), true);
  Find("Sync", "/trash", Find("Remove", "/model_0.pt"));
}

TEST_F(OrderTest, DiscardThatIsNotDurableIsNotReportedAsFailed) {
  const absl::StatusOr<Staged> staged = Stage(fs(), *store_, {"step", 1});
  ASSERT_TRUE(staged.ok());
  // The first sync makes the removal of the manifest durable.
  fs().Fail({.op = FsOp::kSync, .nth = 2, .error = EIO});
  EXPECT_FALSE(store_->Discard(staged->inflight).ok());
  EXPECT_EQ(ReasonOf(store_->EmptyTrashStep({}).status()), "ROOT_READ_ONLY");
  ASSERT_TRUE(store_->Rescan().ok());
  EXPECT_THAT(Committed(*store_), IsEmpty());
}

TEST_F(OrderTest, ChangesNothingAfterAnUnknownOutcomeUntilTheScan) {
  ASSERT_EQ(Save(fs(), *store_, {"step", 1}), SaveVerdict::kCommitted);
  const absl::StatusOr<Staged> other = Stage(fs(), *store_, {"other", 2});
  const absl::StatusOr<Staged> staged = Stage(fs(), *store_, {"step", 3});
  ASSERT_TRUE(other.ok() && staged.ok());
  // Syncs of the manifest, four directories, and then the root.
  fs().Fail({.op = FsOp::kSync, .nth = 6, .error = EIO});
  const PublishResult result = store_->Publish(staged->inflight, SummaryOf({"step", 3}), staged->parts);
  EXPECT_EQ(result.outcome, PublishOutcome::kIndeterminate);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(ReasonOf(result.status), "INDETERMINATE");
  EXPECT_EQ(store_->Publish(other->inflight, SummaryOf({"other", 2}), other->parts).outcome,
            PublishOutcome::kFailed);
  for (const absl::Status& status :
       {store_->CreateInflight("x", 9, 1).status(), store_->Discard(other->inflight),
        store_->Evict("step", 1), store_->EmptyTrashStep({}).status(), store_->SetPinned("step", 1, true),
        store_->Undelete("step", 1).status(), store_->SetDamage("step", 1, storage::v1::Damage()).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(status), "ROOT_READ_ONLY") << status;
  }
  ASSERT_TRUE(store_->Rescan().ok());
  EXPECT_THAT(Committed(*store_), ElementsAre("step:3"));
  // A save that was under way at that time still belongs to its owner.
  EXPECT_EQ(store_->Publish(other->inflight, SummaryOf({"other", 2}), other->parts).outcome,
            PublishOutcome::kCommitted);
  ExpectAllWhole(root_, *store_);
}

TEST_F(OrderTest, FailedRescanLeavesTheRootReadOnly) {
  ASSERT_EQ(Save(fs(), *store_, {"step", 1}), SaveVerdict::kCommitted);
  fs().Fail({.op = FsOp::kSync, .error = EIO});
  ASSERT_FALSE(store_->Evict("step", 1).ok());
  fs().ClearFaults();
  fs().Fail({.op = FsOp::kSync, .error = EIO});
  EXPECT_FALSE(store_->Rescan().ok());
  EXPECT_EQ(ReasonOf(store_->CreateInflight("x", 9, 1).status()), "ROOT_READ_ONLY");
  EXPECT_TRUE(store_->Rescan().ok());
  EXPECT_TRUE(store_->CreateInflight("x", 9, 1).ok());
}

// A file system whose free space the test sets.
class FillingFileSystem : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  absl::StatusOr<SpaceInfo> Space(Handle dir) override {
    absl::StatusOr<SpaceInfo> space = FaultyFileSystem::Space(dir);
    if (space.ok() && free_bytes >= 0) space->free_bytes = free_bytes;
    if (space.ok() && total_bytes >= 0) space->total_bytes = total_bytes;
    return space;
  }
  int64_t free_bytes = -1;
  int64_t total_bytes = -1;
};

TEST(RescanTest, UpdatesTheFreeAndTheTotalBytes) {
  TemporaryRoot root(TemporaryRoot::On::kMemory);
  FillingFileSystem fs(&root.fs());
  fs.free_bytes = 1 << 30;
  const std::unique_ptr<RootStore> store = root.OpenWith(fs);
  EXPECT_EQ(store->probe().free_bytes, 1 << 30);
  fs.free_bytes = 1 << 20;
  fs.total_bytes = int64_t{1} << 40;  // An administrator has made it larger.
  ASSERT_TRUE(store->Rescan().ok());
  EXPECT_EQ(store->probe().free_bytes, 1 << 20);
  EXPECT_EQ(store->probe().total_bytes, int64_t{1} << 40);
  fs.Fail({.op = FsOp::kSpace, .error = EIO});
  EXPECT_FALSE(store->Rescan().ok()) << "unknown space must not be promised to a save";
}

TEST_F(OrderTest, ListsAnUnreadableCheckpointAsDamagedAndOpensTheRoot) {
  ASSERT_EQ(Save(fs(), *store_, {"step", 1}), SaveVerdict::kCommitted);
  store_.reset();
  fs().Fail({.op = FsOp::kOpen, .path = "step/", .error = EACCES});
  store_ = points_.MustOpen(root_);
  EXPECT_THAT(Committed(*store_), IsEmpty());
  ASSERT_EQ(store_->damaged().size(), 1u);
  EXPECT_EQ(store_->damaged()[0].tag, "step");
}

TEST_F(OrderTest, CheckpointDoesNotVanishWhenDescriptorsRunOut) {
  ASSERT_EQ(Save(fs(), *store_, {"step", 1}), SaveVerdict::kCommitted);
  store_.reset();
  fs().Fail({.op = FsOp::kOpen, .path = "step/", .error = EMFILE});
  EXPECT_EQ(ErrnoOf(points_.Open(root_).status()), EMFILE);
}

TEST_F(OrderTest, DoesNotTakeAnUnreadableRecordForAMissingOne) {
  storage::v1::RunRecord record;
  record.set_run_id("r");
  ASSERT_TRUE(store_->SaveRunRecord(record).ok());
  store_.reset();
  fs().Fail({.op = FsOp::kReadAt, .path = ".ckptd/nodes/local/run", .error = EIO});
  EXPECT_EQ(ReasonOf(points_.Open(root_).status()), "ROOT_UNREADABLE");
}

TEST_F(OrderTest, FailedRenameInRecoveryDiscardsNothingComplete) {
  ASSERT_TRUE(Stage(fs(), *store_, {"step", 1}).ok());
  store_.reset();
  fs().Fail({.op = FsOp::kRename, .path = ".ckptd/nodes/local/inflight/step.1.", .error = EIO});
  EXPECT_EQ(ErrnoOf(points_.Open(root_).status()), EIO);
  store_ = points_.MustOpen(root_);
  EXPECT_THAT(Committed(*store_), ElementsAre("step:1"));
}

TEST_F(OrderTest, RecoveryFailsWhenItCannotMoveSomethingToTrash) {
  ASSERT_TRUE(Stage(fs(), *store_, {"step", 1}, 1).ok());
  store_.reset();
  fs().Fail({.op = FsOp::kRename, .path = ".ckptd/nodes/local/inflight/step.1.", .error = EIO});
  EXPECT_EQ(ErrnoOf(points_.Open(root_).status()), EIO) << "the incomplete save could come back later";
}

// At the last moment before the rename to the tag, a user moves the checkpoint away and puts something else
// there.
TEST(ReplacedTagTest, PutsBackWhatTookTheTagsPlace) {
  for (const bool can_exchange : {true, false}) {
    TemporaryRoot root(TemporaryRoot::On::kMemory);
    FaultPoints points(root, can_exchange);
    std::unique_ptr<RootStore> store = points.MustOpen(root);
    ASSERT_EQ(Save(points.fs(), *store, {"step", 1}), SaveVerdict::kCommitted);
    const absl::StatusOr<Staged> staged = Stage(points.fs(), *store, {"step", 2});
    ASSERT_TRUE(staged.ok());
    points.fs().SetHook([&](const FsCall& call) {
      const bool takes = call.op == FsOp::kRename && (call.path == "step" || call.new_path == "step");
      if (!takes || std::filesystem::exists(root.path("moved"))) return;
      std::filesystem::rename(root.path("step"), root.path("moved"));
      root.Write("step/theirs", "precious");
    });
    const PublishResult result = store->Publish(staged->inflight, SummaryOf({"step", 2}), staged->parts);
    points.Disarm();
    EXPECT_EQ(result.outcome, PublishOutcome::kFailed);
    EXPECT_EQ(ReasonOf(result.status), "TAG_FOREIGN") << result.status;
    EXPECT_FALSE(result.retryable);
    EXPECT_EQ(root.Read("step/theirs"), "precious");
    EXPECT_THAT(root.Names(".ckptd/nodes/local/trash"), IsEmpty());
    EXPECT_TRUE(store->Discard(staged->inflight).ok());
    while (*store->EmptyTrashStep({})) continue;
    store.reset();
    store = points.MustOpen(root);
    EXPECT_THAT(Committed(*store), IsEmpty());
    EXPECT_EQ(root.Read("step/theirs"), "precious");
    EXPECT_FALSE(std::filesystem::exists(root.node("swap")));
  }
}

TEST_F(OrderTest, PublishMayNotBeCalledAgainAfterAFailedSync) {
  for (int nth = 1; nth <= 5; ++nth) {  // Syncs of the manifest and four directories.
    const SaveSpec spec{absl::StrCat("step", nth), nth};
    const absl::StatusOr<Staged> staged = Stage(fs(), *store_, spec);
    ASSERT_TRUE(staged.ok());
    fs().ClearFaults();
    fs().Fail({.op = FsOp::kSync, .nth = nth, .error = EIO});
    const PublishResult result = store_->Publish(staged->inflight, SummaryOf(spec), staged->parts);
    EXPECT_EQ(result.outcome, PublishOutcome::kFailed);
    EXPECT_FALSE(result.retryable) << nth;
    EXPECT_TRUE(store_->Discard(staged->inflight).ok());
  }
}

TEST_F(OrderTest, KeepsWhatAnUnreadablePointerMayName) {
  ASSERT_EQ(Save(fs(), *store_, {"old", 1, 1, {{"latest", "old"}}}), SaveVerdict::kCommitted);
  store_.reset();
  store_ = points_.MustOpen(root_);
  ASSERT_TRUE(store_->Rescan().ok());
  const SaveSpec spec{"new", 2, 1, {{"latest", "new"}}};
  const absl::StatusOr<Staged> staged = Stage(fs(), *store_, spec);
  ASSERT_TRUE(staged.ok());
  ASSERT_EQ(store_->Publish(staged->inflight, SummaryOf(spec), staged->parts).outcome,
            PublishOutcome::kCommitted);
  root_.Write("latest", "old");  // As a crash may leave it.
  fs().Fail({.op = FsOp::kOpen, .path = "latest", .error = EIO});
  fs().Fail({.op = FsOp::kRename, .path = "latest", .error = EIO});
  ASSERT_TRUE(store_->Rescan().ok());
  EXPECT_EQ(root_.Read("latest"), "old");
  EXPECT_THAT(store_->pointers().holders, ElementsAre(1, 2));
  EXPECT_EQ(ReasonOf(store_->Evict("old", 1)), "POINTED");
  fs().ClearFaults();
  ASSERT_TRUE(store_->Rescan().ok());
  EXPECT_EQ(root_.Read("latest"), "new");
  EXPECT_TRUE(store_->Evict("old", 1).ok());
}

// A sync has no effect on a process that dies, so only this test notices an ignored result.
TEST(SyncResultTest, CommitsNoSaveWithAFailedSync) {
  for (const Operation& operation : {FirstSave(), Resave(true), Resave(false)}) {
    for (int nth = 1;; ++nth) {
      TemporaryRoot root(TemporaryRoot::On::kMemory);
      FaultPoints points(root, operation.can_exchange);
      const std::unique_ptr<RootStore> store = points.MustOpen(root);
      if (operation.prepare) operation.prepare(points.fs(), *store);
      points.Arm(Fault::kIoError, 0);
      points.fs().Fail({.op = FsOp::kSync, .nth = nth, .error = EIO});
      const SaveVerdict verdict = operation.run(points.fs(), *store);
      const std::vector<std::string> log = points.log();
      int syncs = 0;
      std::string failed;
      for (const std::string& call : log) {
        if (call.starts_with("Sync") && ++syncs == nth) failed = call;
      }
      if (failed.empty()) {
        EXPECT_EQ(verdict, SaveVerdict::kCommitted);
        EXPECT_GT(nth, 15);
        break;
      }
      // After an exchange, the old one is moved to trash after the commit; recovery would move it there, too.
      const bool swept = operation.can_exchange && verdict == SaveVerdict::kCommitted &&
                         (failed.ends_with("/trash") || failed.ends_with("/inflight"));
      EXPECT_TRUE(verdict != SaveVerdict::kCommitted || swept) << nth << ": " << failed;
    }
  }
}

TEST_F(OrderTest, RefusesASaveWithoutSpaceForItsManifestBeforeItsDataIsWritten) {
  fs().Fail({.op = FsOp::kAllocate, .error = ENOSPC});
  EXPECT_EQ(ReasonOf(store_->CreateInflight("step", 1, 4096).status()), "NO_SPACE");
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/inflight"), IsEmpty());
}

TEST_F(OrderTest, RemovesWithTheNextSaveADirectoryThatADaemonOutOfDescriptorsHasMade) {
  fs().Fail({.op = FsOp::kOpen, .path = "", .nth = FsFault::kEvery, .error = EMFILE});
  EXPECT_EQ(ErrnoOf(store_->CreateInflight("step", 1, 4096).status()), EMFILE);
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/inflight"), ::testing::SizeIs(1));
  fs().ClearFaults();
  EXPECT_EQ(Save(fs(), *store_, {"step", 2}), SaveVerdict::kCommitted);
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/inflight"), IsEmpty());
}

TEST_F(OrderTest, DoesNotWriteAManifestOfAnotherSave) {
  const absl::StatusOr<Staged> staged = Stage(fs(), *store_, {"step", 1});
  ASSERT_TRUE(staged.ok());
  const PublishResult result = store_->Publish(staged->inflight, SummaryOf({"other", 1}), staged->parts);
  EXPECT_EQ(result.outcome, PublishOutcome::kFailed);
  EXPECT_EQ(ReasonOf(result.status), "INVALID_ARGUMENT");
}

TEST_F(OrderTest, StopsAfterAnExchangeThatFailedOrMayNotBeDurable) {
  ASSERT_EQ(Save(fs(), *store_, {"step", 1}), SaveVerdict::kCommitted);
  for (const bool synced : {true, false}) {
    const SaveSpec spec{"step", synced ? 2 : 3};
    const absl::StatusOr<Staged> staged = Stage(fs(), *store_, spec);
    ASSERT_TRUE(staged.ok());
    points_.Arm(Fault::kIoError, 0);
    if (synced) {
      fs().Fail({.op = FsOp::kRename, .error = EIO});
    } else {
      fs().Fail({.op = FsOp::kSync, .nth = 6, .error = EIO});  // The root's sync, after the exchange.
    }
    EXPECT_EQ(store_->Publish(staged->inflight, SummaryOf(spec), staged->parts).outcome,
              synced ? PublishOutcome::kFailed : PublishOutcome::kIndeterminate);
    const std::vector<std::string> log = points_.log();
    const auto renames = std::count_if(log.begin(), log.end(),
                                       [](const std::string& call) { return call.starts_with("Rename"); });
    EXPECT_EQ(renames, 1) << absl::StrJoin(log, "\n");
    if (synced) {
      EXPECT_TRUE(store_->Discard(staged->inflight).ok());
    }
  }
}

// A re-save without rename-exchange: intent, old one to trash, new one to the tag, intent removed.
class SwapTest : public ::testing::Test {
 protected:
  static constexpr const char* kIntent = ".ckptd/nodes/local/swap";

  void SetUp() override {
    ASSERT_EQ(Save(fs(), *store_, {"step", 1}), SaveVerdict::kCommitted);
    staged_ = std::make_unique<Staged>(*Stage(fs(), *store_, {"step", 2}));
    points_.Arm(Fault::kIoError, 0);
  }
  FaultyFileSystem& fs() { return points_.fs(); }
  PublishResult Publish() {
    return store_->Publish(staged_->inflight, SummaryOf({"step", 2}), staged_->parts);
  }
  // Indexes of the calls since Arm with this begin and end.
  std::vector<size_t> All(const std::string& begin, const std::string& end = "") const {
    const std::vector<std::string> log = points_.log();
    std::vector<size_t> found;
    for (size_t i = 0; i < log.size(); ++i) {
      if (log[i].starts_with(begin) && log[i].ends_with(end)) found.push_back(i);
    }
    return found;
  }
  // True if one of `calls` is after `from` and before `to`.
  static bool Between(const std::vector<size_t>& calls, size_t from, size_t to) {
    return std::any_of(calls.begin(), calls.end(), [&](size_t at) { return from < at && at < to; });
  }
  bool IntentIsThere() const { return std::filesystem::exists(root_.path(kIntent)); }

  TemporaryRoot root_;
  FaultPoints points_{root_, false};
  std::unique_ptr<RootStore> store_ = points_.MustOpen(root_);
  std::unique_ptr<Staged> staged_;
};

TEST_F(SwapTest, MovesNothingWithoutTheIntent) {
  fs().Fail({.op = FsOp::kRename, .path = kIntent, .error = ENOSPC});
  const PublishResult result = Publish();
  EXPECT_EQ(result.outcome, PublishOutcome::kFailed);
  EXPECT_EQ(ReasonOf(result.status), "NO_SPACE");
  EXPECT_THAT(All("Rename step"), IsEmpty());
  EXPECT_THAT(Committed(*store_), ElementsAre("step:1"));
}

TEST_F(SwapTest, FailedFirstRenameIsFailedAndLeavesNoIntent) {
  fs().Fail({.op = FsOp::kRename, .path = "step", .error = EIO});
  const PublishResult result = Publish();
  EXPECT_EQ(result.outcome, PublishOutcome::kFailed);
  EXPECT_EQ(ReasonOf(result.status), "IO_ERROR");
  EXPECT_FALSE(IntentIsThere());
  EXPECT_TRUE(store_->Discard(staged_->inflight).ok());
}

TEST_F(SwapTest, FirstRenameThatFailedButWasDoneIsIndeterminate) {
  fs().Fail({.op = FsOp::kRename, .path = "step", .error = EIO, .after = true});
  EXPECT_EQ(Publish().outcome, PublishOutcome::kIndeterminate);
  EXPECT_TRUE(IntentIsThere());
  ASSERT_TRUE(store_->Rescan().ok());
  EXPECT_THAT(Committed(*store_), ElementsAre("step:2"));
}

TEST_F(SwapTest, PutsTheOldOneBackDurablyWhenTheSecondRenameFails) {
  fs().Fail({.op = FsOp::kRename, .path = "step", .nth = 2, .error = EIO});
  EXPECT_EQ(Publish().outcome, PublishOutcome::kFailed);
  const std::vector<size_t> renames = All("Rename", " step"), removed = All(std::string("Remove ") + kIntent);
  ASSERT_EQ(renames.size(), 2u) << "the one that failed, and the one that undoes";
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_TRUE(Between(All("Sync", "Sync"), renames[1], removed[0])) << "the root's sync";
  EXPECT_TRUE(Between(All("Sync", "/trash"), renames[1], removed[0]));
  EXPECT_FALSE(IntentIsThere());
  EXPECT_TRUE(store_->Discard(staged_->inflight).ok());
  store_.reset();
  store_ = points_.MustOpen(root_);
  EXPECT_THAT(Committed(*store_), ElementsAre("step:1"));
}

TEST_F(SwapTest, KeepsTheIntentForTheScanWhenTheOldOneCannotBePutBack) {
  fs().Fail({.op = FsOp::kRename, .path = "step", .nth = 2, .error = EIO});
  fs().Fail({.op = FsOp::kRename, .path = "step", .nth = 3, .error = EIO});
  fs().Fail({.op = FsOp::kRename, .path = ".ckptd/nodes/local/trash", .nth = 2, .error = EIO});
  EXPECT_EQ(Publish().outcome, PublishOutcome::kIndeterminate);
  EXPECT_TRUE(IntentIsThere());
  fs().ClearFaults();
  fs().Fail({.op = FsOp::kRename, .path = "step", .error = EIO});
  fs().Fail({.op = FsOp::kRename, .path = ".ckptd/nodes/local/inflight", .error = EIO});
  EXPECT_EQ(ReasonOf(store_->Rescan()), "IO_ERROR");
  EXPECT_TRUE(IntentIsThere()) << "the tag is still missing";
  points_.Arm(Fault::kIoError, 0);
  ASSERT_TRUE(store_->Rescan().ok());
  const std::vector<size_t> renames = All("Rename", " step"), removed = All(std::string("Remove ") + kIntent);
  ASSERT_EQ(renames.size(), 1u);
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_TRUE(Between(All("Sync", "Sync"), renames[0], removed[0])) << "the root's sync";
  EXPECT_TRUE(Between(All("Sync", "/inflight"), renames[0], removed[0]));
  EXPECT_THAT(Committed(*store_), ElementsAre("step:2"));
}

TEST_F(SwapTest, DoesNotUndoASecondRenameThatMayNotBeDurable) {
  // Syncs of the manifest, four directories, the intent and its directory, trash and the root; and the root
  // again.
  fs().Fail({.op = FsOp::kSync, .nth = 10, .error = EIO});
  EXPECT_EQ(Publish().outcome, PublishOutcome::kIndeterminate);
  EXPECT_EQ(All("Rename", " step").size(), 1u);
  EXPECT_TRUE(IntentIsThere());
}

TEST_F(SwapTest, RootTakesNoChangesWhileTheIntentCannotBeRemoved) {
  fs().Fail({.op = FsOp::kRemove, .path = kIntent, .error = EIO});
  EXPECT_EQ(Publish().outcome, PublishOutcome::kIndeterminate);
  EXPECT_EQ(ReasonOf(store_->CreateInflight("x", 9, 1).status()), "ROOT_READ_ONLY");
  ASSERT_TRUE(store_->Rescan().ok());
  EXPECT_FALSE(IntentIsThere());
  EXPECT_THAT(Committed(*store_), ElementsAre("step:2"));
}

}  // namespace
}  // namespace ckptd
