// ResidentCache and Prefetcher, without the rest of the engine.
#include "daemon/engine/reading/resident_cache.h"

#include "daemon/engine/reading/prefetcher.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

class ResidentCacheTest : public ClassTest {
 protected:
  void SetUp() override {
    EngineObserver* const observer = this;
    SegmentPoolOptions options;
    options.bytes = 8 * kSegment;
    options.segment_bytes = kSegment;
    options.resident_bytes = 8 * kSegment;
    options.pages = PagePolicy::kPlain;
    pool_ = SegmentPool::Start(
        options, [this](absl::AnyInvocable<void()> work) { inbox_.Post(std::move(work)); },
        [](const std::string&) {});
    cache_.emplace(ResidentCache::Options{8 << 20, 50}, pool_.get(), observer, &sessions_, &leases_);
    prefetcher_.emplace(&clock_, pool_.get(), observer, &*cache_,
                        Prefetcher::Hooks{.describe =
                                              [](const Run& run, const CommittedCheckpoint& committed) {
                                                return ToWire(run, committed, {});
                                              },
                                          .mark_damaged = [](Run*, int64_t, storage::v1::Damage,
                                                             DamageMarked done) { done(absl::OkStatus()); }});
    SessionInfo session;
    session.id = 1;
    session.uid = 1000;
    sessions_.Add(session);
  }
  // A run with checkpoint 1, whose only file fills so many segments.
  Run* AddFilledRun(int segments) {
    Run* run = AddRun(1000, {1});
    const int64_t bytes = segments * kSegment;
    Manifest& manifest = disks_.at(run)->manifests[1];
    manifest.summary = run->catalog.Find(1)->summary;
    storage::v1::FileRecord& file = *manifest.body.add_files();
    file.set_path("model.pt");
    file.set_size_bytes(bytes);
    disks_.at(run)->bytes["1/model.pt"] = std::string(static_cast<size_t>(bytes), 'x');
    return run;
  }
  void Turn() {
    for (int idle = 0; idle < 20;) {
      RunCallbacks();
      auto work = inbox_.Take(std::chrono::milliseconds(5));
      if (work) work();
      idle = work ? 0 : idle + 1;
    }
  }
  absl::Status Prefetch(Run* run) {
    absl::Status answer = absl::UnknownError("no answer");
    prefetcher_->Prefetch(run, "latest",
                          [&](absl::StatusOr<v1::Checkpoint> read) { answer = read.status(); });
    Turn();
    return answer;
  }
  v1::LocateFilesResponse Locate(const Lease& lease) {
    v1::LocateFilesRequest request;
    request.set_lease(lease.id);
    v1::LocateFilesResponse located;
    cache_->Locate(lease, request,
                   [&](absl::StatusOr<v1::LocateFilesResponse> answer) { located = *answer; });
    Turn();
    return located;
  }

  SessionTable sessions_;
  LeaseTable leases_{{10, 1 << 20}, &sessions_, {}};
  std::optional<ResidentCache> cache_;
  std::optional<Prefetcher> prefetcher_;
};

TEST_F(ResidentCacheTest, APrefetchedCheckpointIsACopyUntilItIsEvicted) {
  Run* run = AddFilledRun(2);
  EXPECT_TRUE(Prefetch(run).ok());
  EXPECT_TRUE(cache_->IsResident(*run, 1));
  EXPECT_TRUE(Prefetch(run).ok()) << "it is in memory already";
  EXPECT_EQ(ios_.at(run)->calls["ReadFiles"], 1);
  run->catalog.Remove(1);
  cache_->Prune(run);
  EXPECT_FALSE(cache_->IsResident(*run, 1));
}

TEST_F(ResidentCacheTest, PrefetchesNothingThatTakesMemoryOfTheNextSave) {
  Run* run = AddFilledRun(5);
  EXPECT_EQ(ReasonOf(Prefetch(run)), reason::kPoolExhausted) << "readers may hold half of the pool";
  EXPECT_FALSE(prefetcher_->IsActive(*run));
  EXPECT_TRUE(cache_->HeldByReaders().empty());
}

TEST_F(ResidentCacheTest, AReaderHoldsTheCopyUntilItsLeaseIsReleased) {
  Run* run = AddFilledRun(2);
  ASSERT_TRUE(Prefetch(run).ok());
  const Lease lease{"leases/1", 1, run, 1, /*resumes=*/false, nullptr};
  EXPECT_EQ(Locate(lease).parts(0).segments_size(), 2);
  EXPECT_EQ(cache_->HeldByReaders().at(1000), 2);
  cache_->OnLeaseReleased(lease);
  EXPECT_TRUE(cache_->HeldByReaders().empty());
}

TEST_F(ResidentCacheTest, ADroppedCopyIsReadFromTheDisk) {
  Run* run = AddFilledRun(2);
  ASSERT_TRUE(Prefetch(run).ok());
  cache_->Drop(run, 1);
  EXPECT_EQ(Locate({"leases/1", 1, run, 1, /*resumes=*/false, nullptr}).parts_size(), 0);
}

}  // namespace
}  // namespace ckptd
