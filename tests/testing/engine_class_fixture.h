// For tests of one class of the engine: runs on disks in memory, saves, a clock that the test moves, and a
// pool.
#ifndef CKPTD_TESTS_TESTING_ENGINE_CLASS_FIXTURE_H_
#define CKPTD_TESTS_TESTING_ENGINE_CLASS_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/run/local_authority.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/save_id.h"
#include "daemon/memory/segment_pool.h"
#include "storage/base/clock.h"
#include "storage/ledger/local_ledger.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_root_io.h"
#include "tests/testing/inbox.h"

namespace ckptd {

class ClassTest : public ::testing::Test, protected EngineObserver {
 protected:
  using Run = ckptd::Run;  // And not ::testing::Test::Run.
  static constexpr int64_t kSegment = 2 << 20;

  ClassTest() { StartPool(10); }

  // An open root with checkpoints of these sequences, each of 100 bytes, called "s1", "s2" and so on.
  Run* AddRun(uid_t uid, const std::vector<int64_t>& sequences = {}, uint64_t device = 1) {
    auto run = std::make_unique<Run>();
    run->name = "runs/" + std::to_string(runs_.size());
    run->path = "/root" + std::to_string(runs_.size());
    run->device = device;
    run->uid = uid;
    run->open = true;
    auto disk = std::make_shared<FakeDisk>();
    auto io = std::make_unique<FakeRootIo>(disk, &queue_);
    disks_[run.get()] = disk;
    ios_[run.get()] = io.get();
    run->SetLedger(std::make_unique<LocalLedger>(
        storage::v1::RunRecord(), 0,
        [raw = io.get()](const storage::v1::RunRecord& record, absl::AnyInvocable<void(absl::Status)> done) {
          raw->SaveRunRecord(record, std::move(done));
        }));
    run->coordinator_io = run->local_io = io.get();
    run->io = std::move(io);
    run->authority = std::make_unique<LocalAuthority>(
        run.get(), [this, run = run.get()](const SaveId& save, LocalAuthority::Decided decided) {
          publish_(run, save, std::move(decided));
        });
    Authority::Hooks hooks;
    hooks.pin_changed = [run = run.get()](const std::string&, int64_t sequence, bool pinned) {
      run->catalog.SetPinned(sequence, pinned);
    };
    run->authority->Start(std::move(hooks));
    for (int64_t sequence : sequences) Commit(run.get(), sequence);
    Run* added = run.get();
    runs_.emplace(run->name, std::move(run));
    return added;
  }
  void Commit(Run* run, int64_t sequence, int64_t attempt = 0) {
    CommittedCheckpoint checkpoint;
    checkpoint.summary.set_tag("s" + std::to_string(sequence));
    checkpoint.summary.set_sequence(sequence);
    checkpoint.summary.set_size_bytes(100);
    checkpoint.summary.set_attempt(attempt);
    run->catalog.Add(checkpoint);
    disks_.at(run)->committed[sequence] = checkpoint;
  }

  // A save whose ranks have begun with parts of this size.
  Save* AddSave(Run* run, int world_size, int64_t part_bytes, SavePhase phase = SavePhase::kQueued) {
    auto save = std::make_unique<Save>();
    save->run = run;
    save->sequence = ++last_sequence_;
    save->key = {1, "t" + std::to_string(last_sequence_), 1};
    save->world_size = world_size;
    save->life = SaveLifecycle(phase, v1::OPEN);
    save->begun_at = clock_.Now();
    for (int rank = 0; rank < world_size; ++rank) {
      Part& part = save->PartOf(rank);
      part.begun = true;
      part.session = 1 + rank;
      part.end = part_bytes;
    }
    return saves_.Add(std::move(save));
  }

  void StartPool(int segments) {  // Memory for so many segments.
    SegmentPoolOptions options;
    options.bytes = segments * kSegment;
    options.segment_bytes = kSegment;
    options.pages = PagePolicy::kPlain;
    pool_ = SegmentPool::Start(
        options, [this](absl::AnyInvocable<void()> work) { inbox_.Post(std::move(work)); },
        [](const std::string&) {});
  }

  // Runs all callbacks of the roots' disks.
  void RunCallbacks() {
    while (!queue_.empty()) {
      auto work = std::move(queue_.front());
      queue_.pop_front();
      work();
    }
  }

  void OnSaveEnded(const SaveSummary& summary) override { ended_.push_back(summary); }
  void OnWarning(const std::string& message) override { warnings_.push_back(message); }
  void OnInfo(const std::string& message) override { infos_.push_back(message); }
  void OnRootOpened(const std::string&, const std::string&, const ProbeResult&) override {}

  // A save is durable.
  std::function<void(Run*, const SaveId&, LocalAuthority::Decided)> publish_ =
      [](Run*, const SaveId&, const LocalAuthority::Decided&) {};
  FakeClock clock_;
  Inbox inbox_;
  FakeRootIo::Queue queue_;
  std::map<const Run*, std::shared_ptr<FakeDisk>> disks_;
  std::map<const Run*, FakeRootIo*> ios_;
  std::map<std::string, std::unique_ptr<Run>> runs_;
  SaveTable saves_;
  std::unique_ptr<SegmentPool> pool_;
  std::vector<SaveSummary> ended_;
  std::vector<std::string> warnings_, infos_;
  int64_t last_sequence_ = 100;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_ENGINE_CLASS_FIXTURE_H_
