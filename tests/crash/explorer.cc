#include "tests/crash/explorer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/testing/crash_io_queue.h"

namespace ckptd {
namespace {

constexpr Loss kPlainLosses[] = {Loss::kNothing, Loss::kEverything, Loss::kData, Loss::kBytes,
                                 Loss::kEntries};
// Far above the sequences of the histories.
constexpr int64_t kLaterSequence = 1000;

void EmptyTrash(RootStore& store, Broken& broken) {
  for (int step = 0; step < 1000; ++step) {
    const absl::StatusOr<bool> more = store.EmptyTrashStep({});
    if (!more.ok()) broken.push_back(absl::StrCat("emptying trash: ", more.status().ToString()));
    if (!more.ok() || !*more) return;
  }
  broken.push_back("trash was not emptied");
}

}  // namespace

absl::StatusOr<std::unique_ptr<RootStore>> OpenStore(CrashDisk& disk, Clock& clock) {
  RootStoreOptions options;
  options.queues.uring = options.queues.threads = [&disk](int) { return CrashQueueFactory(&disk)(); };
  return RootStore::Open(&disk, disk.root(), &clock, options);
}

std::string Explorer::Summary() const {
  return absl::StrCat(points_, " crash points (", in_recovery_, " in recovery), ", crashes_, " crashes, ",
                      recoveries_, " different states recovered");
}

void Explorer::Report(const std::string& trace, const Broken& broken) {
  failed_ = true;
  ADD_FAILURE() << trace << "\n  " << absl::StrJoin(broken, "\n  ");
}

void Explorer::Visit(const CrashDisk& disk, const Oracle& oracle, const std::string& what) {
  VisitAt(disk, oracle, absl::StrCat("after ", what), options_.recovery_depth);
}

void Explorer::VisitAt(const CrashDisk& disk, const Oracle& oracle, const std::string& trace, int depth) {
  if (failed_) return;
  ++points_;
  const bool inside = depth < options_.recovery_depth;
  if (inside) ++in_recovery_;
  const auto crash = [&](std::unique_ptr<CrashDisk> left, const std::string& how) {
    ++crashes_;
    if (failed_ ||
        !seen_.emplace(left->Fingerprint(), oracle.Fingerprint(), depth, left->late_writes()).second)
      return;
    Recover(std::move(left), oracle, absl::StrCat(trace, ", ", how), depth);
  };
  crash(disk.Kill(), "killed");
  const auto cut = [&](Loss loss) {
    const uint64_t seed = ++seed_;
    crash(disk.CutPower(loss, seed), absl::StrCat("power cut, losing ", NameOf(loss), " (seed ", seed, ")"));
  };
  if (inside) {
    cut(Loss::kEverything);
    for (int i = 0; i < options_.seeds_in_recovery; ++i) cut(Loss::kRandom);
    return;
  }
  for (const Loss loss : kPlainLosses) cut(loss);
  for (int i = 0; i < options_.seeds; ++i) cut(Loss::kRandom);
}

void Explorer::Recover(std::unique_ptr<CrashDisk> disk, Oracle oracle, const std::string& trace, int depth) {
  ++recoveries_;
  if (const Broken broken = oracle.CheckPointers(*disk); !broken.empty()) return Report(trace, broken);
  if (depth > 0) {
    disk->OnChange([&](const std::string& what) {
      // Nobody depends on the files of the probe.
      if (what.find("/scratch/") != std::string::npos) return;
      VisitAt(*disk, oracle, absl::StrCat(trace, ", in its recovery after ", what), depth - 1);
    });
  }
  const absl::StatusOr<std::unique_ptr<RootStore>> store = OpenStore(*disk, clock_);
  disk->OnChange(nullptr);
  if (failed_) return;
  if (!store.ok())
    return Report(trace, {absl::StrCat("the root cannot be opened: ", store.status().ToString())});
  Broken broken = oracle.Check(*disk, **store);
  if (broken.empty()) {
    oracle.Shown(**store);
    CheckGoesOn(*disk, **store, oracle, broken);
  }
  if (broken.empty()) {
    // What recovery reported was durable, even if its own process changed nothing.
    const std::unique_ptr<CrashDisk> left = disk->CutPower(Loss::kEverything, ++seed_);
    const absl::StatusOr<std::unique_ptr<RootStore>> again = OpenStore(*left, clock_);
    if (!again.ok()) {
      broken.push_back(absl::StrCat("the recovered root cannot be opened: ", again.status().ToString()));
    } else {
      broken = oracle.Check(*left, **again);
      if (!(*again)->recovered().empty()) broken.push_back("recovery left something to recover");
    }
    for (std::string& line : broken) line = "after recovery and a second power cut: " + line;
  }
  if (!broken.empty()) Report(trace, broken);
}

void Explorer::CheckGoesOn(CrashDisk& disk, RootStore& store, Oracle& oracle, Broken& broken) {
  {
    // Before anything else is synced: what recovery reported is durable.
    const std::unique_ptr<CrashDisk> left = disk.CutPower(Loss::kEverything, ++seed_);
    const absl::StatusOr<std::unique_ptr<RootStore>> again = OpenStore(*left, clock_);
    if (!again.ok()) {
      broken.push_back(absl::StrCat("the recovered root cannot be opened: ", again.status().ToString()));
      return;
    }
    broken = oracle.Check(*left, **again);
    for (std::string& line : broken) line = "shown by recovery, but lost by another power cut: " + line;
    if (!broken.empty()) return;
  }
  EmptyTrash(store, broken);
  if (broken.empty()) broken = oracle.CheckNothingLeaked(disk, store.committed());
  if (!broken.empty()) return;
  const SaveSpec later{"later", kLaterSequence, 1};
  oracle.Began(later);
  if (Save(disk, store, later) != SaveVerdict::kCommitted) {
    broken.push_back("a save after recovery did not succeed");
    return;
  }
  oracle.Committed(later.sequence);
  storage::v1::RunRecord record = store.run_record();
  record.set_run_id("later");
  const absl::Status saved = store.SaveRunRecord(record);
  if (saved.ok()) oracle.RunRecordSaved("later");
  if (!saved.ok()) broken.push_back(absl::StrCat("saving the run record: ", saved.ToString()));
  disk.LandLateWrites();
  if (broken.empty()) broken = oracle.Check(disk, store);
}

}  // namespace ckptd
