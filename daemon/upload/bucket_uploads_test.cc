#include "daemon/upload/bucket_uploads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "storage/base/errors.h"
#include "storage/bucket/index.h"
#include "storage/bucket/transfer.h"
#include "storage/format/manifest.h"
#include "tests/testing/inbox.h"
#include "tests/testing/killing_object_store.h"
#include "tests/testing/memory_object_store.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

constexpr auto kTimeout = std::chrono::seconds(30);

class BucketUploadsTest : public ::testing::Test {
 protected:
  BucketUploadsTest() {
    BucketUploads::Options options;
    options.rights.prefixes = {"s3://bucket/run"};
    options.post = [this](absl::AnyInvocable<void()> work) { inbox_.Post(std::move(work)); };
    options.open_store = [this](const std::string&, Duration, const std::function<bool()>&) {
      return std::make_unique<KillingObjectStore>(&store_);
    };
    uploads_ = std::make_unique<BucketUploads>(std::move(options));
    root_ = uploads_->ForRoot(UniqueFd(::dup(directory_.fd())), {::getuid(), ::getgid(), {}});
  }

  absl::StatusOr<int64_t> Upload(const std::string& url) {
    storage::v1::UploadedCheckpoint checkpoint;
    checkpoint.set_tag("step_1");
    checkpoint.set_sequence(1);
    return Answer<absl::StatusOr<int64_t>>([&](auto done) {
      root_->Upload(url, checkpoint, may_go_on_, std::make_shared<std::atomic<int64_t>>(0), std::move(done));
    });
  }
  absl::StatusOr<UploadIo::Contents> List(const std::string& url) {
    return Answer<absl::StatusOr<UploadIo::Contents>>([&](auto done) { root_->List(url, std::move(done)); });
  }
  absl::Status Fetch(const std::string& url) {
    return Answer<absl::Status>([&](auto done) {
      root_->Fetch(url, "step_1", {}, std::make_shared<std::atomic<int64_t>>(0), std::move(done));
    });
  }

  template <typename T>
  T Answer(const std::function<void(absl::AnyInvocable<void(T)>)>& ask) {
    std::optional<T> answer;
    ask([&answer](T given) { answer = std::move(given); });
    while (!answer.has_value()) {
      auto work = inbox_.Take(kTimeout);
      if (!work) return absl::DeadlineExceededError("no answer");
      work();
    }
    return *std::move(answer);
  }

  MemoryObjectStore store_;
  TempDir directory_;
  Inbox inbox_;
  UploadIo::MayGoOn may_go_on_;
  std::unique_ptr<BucketUploads> uploads_;
  std::unique_ptr<UploadIo> root_;
};

TEST_F(BucketUploadsTest, AnswersWhyACheckpointCannotBeRead) {
  EXPECT_EQ(ReasonOf(Upload("s3://bucket/run").status()), "NO_CHECKPOINT");
}

TEST_F(BucketUploadsTest, ChecksTheRightsAtEachUpload) {
  EXPECT_EQ(ReasonOf(Upload("s3://bucket/of_others").status()), "UPLOAD_NOT_ALLOWED");
}

TEST_F(BucketUploadsTest, SendsNothingOnceAnotherNodeMayGoOn) {
  may_go_on_ = [] { return false; };
  EXPECT_TRUE(absl::IsCancelled(Upload("s3://bucket/run").status()));
  const absl::Status removed = Answer<absl::Status>([&](auto done) {
    root_->Remove("s3://bucket/run", storage::v1::UploadedCheckpoint(), may_go_on_, std::move(done));
  });
  EXPECT_TRUE(absl::IsCancelled(removed)) << removed;
}

TEST_F(BucketUploadsTest, AnswersWhatLiesInTheBucketAndWhyNothingIsFetched) {
  const absl::StatusOr<UploadIo::Contents> contents = List("s3://bucket/run");
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_TRUE(contents->checkpoints.empty());
  EXPECT_EQ(ReasonOf(Fetch("s3://bucket/run")), "NO_CHECKPOINT");
}

// Of an earlier version of ckptd: the next list is to cost no request for each checkpoint.
TEST_F(BucketUploadsTest, ListNamesWhatHasNoNameInTheIndex) {
  Manifest manifest;
  manifest.summary.set_format_version(1);
  manifest.summary.set_tag("step_1");
  manifest.summary.set_sequence(1);
  manifest.summary.set_attempt(1);
  manifest.summary.set_ordinal(1);
  manifest.summary.set_world_size(1);
  manifest.summary.set_chunk_bytes(1 << 20);
  const std::string bytes = EncodeManifest(manifest).value();
  ASSERT_EQ(PutText(store_, "run/step_1/.ckptd/manifest", bytes, PutMode::kReplace), absl::OkStatus());
  const std::string stale = "run/.ckptd/index/step_9!stale";
  ASSERT_EQ(PutText(store_, stale, "", PutMode::kReplace), absl::OkStatus());
  std::promise<std::string> put;
  store_.SetHook([&](const std::string& request, const std::string& key) {
    if (request == "Put") put.set_value(key);
    return absl::OkStatus();
  });
  const absl::StatusOr<UploadIo::Contents> contents = List("s3://bucket/run");
  ASSERT_TRUE(contents.ok()) << contents.status();
  ASSERT_EQ(contents->checkpoints.size(), 1u);
  std::future<std::string> named = put.get_future();
  ASSERT_EQ(named.wait_for(kTimeout), std::future_status::ready);
  EXPECT_EQ(named.get(), IndexKey("run", {manifest.summary}));
  EXPECT_FALSE(store_.objects().contains(stale));
}

TEST_F(BucketUploadsTest, ChecksTheRightsBeforeAListAndAFetch) {
  EXPECT_EQ(ReasonOf(List("s3://bucket/of_others").status()), "UPLOAD_NOT_ALLOWED");
  EXPECT_EQ(ReasonOf(Fetch("s3://bucket/of_others")), "UPLOAD_NOT_ALLOWED");
}

TEST(UploadRateTest, AdmitsAsManyBytesASecondAsItMay) {
  UploadRate rate(10 << 20);
  const Instant begun = SystemClock().Now();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(rate.Admit(1 << 20), absl::OkStatus());
  EXPECT_GE(SystemClock().Now() - begun, std::chrono::milliseconds(300)) << "the first MiB waits for nothing";
}

TEST(UploadRateTest, StopEndsAWait) {
  UploadRate rate(1);
  EXPECT_EQ(rate.Admit(1 << 20), absl::OkStatus());
  std::thread stopper([&] { rate.Stop(); });
  EXPECT_TRUE(absl::IsCancelled(rate.Admit(1)));
  stopper.join();
}

}  // namespace
}  // namespace ckptd
