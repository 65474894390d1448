// LocalRootIo on a bucket, with the threads of the daemon and a store in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/event_loop.h"
#include "daemon/root_io/threaded_root_io.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "tests/testing/file_images.h"
#include "tests/testing/memory_object_store.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::chrono::seconds kTimeout{60};
constexpr int32_t kChunkBytes = 64 << 10;

// Hands one store to several roots.
class Handle : public ObjectStore {
 public:
  Handle(ObjectStore* store, std::function<bool()> is_cancelled)
      : store_(store), is_cancelled_(std::move(is_cancelled)) {}
  absl::Status Put(const std::string& key, std::span<const std::byte> bytes, uint32_t crc32c,
                   PutMode mode) override {
    return Begin([&] { return store_->Put(key, bytes, crc32c, mode); });
  }
  absl::Status Get(const std::string& key, int64_t offset, std::span<std::byte> into) override {
    return Begin([&] { return store_->Get(key, offset, into); });
  }
  absl::StatusOr<ObjectInfo> Head(const std::string& key) override { return store_->Head(key); }
  absl::StatusOr<ObjectPage> List(const std::string& prefix, const std::string& delimiter,
                                  const std::string& page) override {
    return store_->List(prefix, delimiter, page);
  }
  absl::Status Delete(const std::string& key) override { return store_->Delete(key); }
  absl::Status Copy(const std::string& from, const std::string& to) override {
    return store_->Copy(from, to);
  }
  absl::StatusOr<MultipartUpload> BeginUpload(const std::string& key) override {
    return store_->BeginUpload(key);
  }
  absl::StatusOr<UploadedPart> PutPart(const MultipartUpload& upload, int number,
                                       std::span<const std::byte> bytes, uint32_t crc32c) override {
    return store_->PutPart(upload, number, bytes, crc32c);
  }
  absl::Status CompleteUpload(const MultipartUpload& upload,
                              const std::vector<UploadedPart>& parts) override {
    return store_->CompleteUpload(upload, parts);
  }
  absl::Status AbortUpload(const MultipartUpload& upload) override { return store_->AbortUpload(upload); }
  absl::StatusOr<std::vector<UploadedPart>> ListParts(const MultipartUpload& upload) override {
    return store_->ListParts(upload);
  }
  absl::StatusOr<std::vector<MultipartUpload>> ListUploads(const std::string& prefix) override {
    return store_->ListUploads(prefix);
  }

 private:
  absl::Status Begin(const std::function<absl::Status()>& request) {
    return is_cancelled_() ? absl::CancelledError("cancelled") : request();
  }
  ObjectStore* const store_;
  const std::function<bool()> is_cancelled_;
};

class BucketRootIoTest : public ::testing::Test {
 protected:
  BucketRootIoTest() {
    images_.Add("folder/model.pt", 3 * kChunkBytes + 5, 'a');
    images_.Add("empty", 0, 'b');
    ThreadedRootIoOptions options;
    options.writer.chunk_bytes = kChunkBytes;
    factory_ = std::make_unique<ThreadedRootIoFactory>(
        options, &SystemClock(), [this](absl::AnyInvocable<void()> work) { loop_->Post(std::move(work)); });
    io_ = Make();
  }
  ~BucketRootIoTest() override {
    io_.reset();
    EXPECT_THAT(factory_->Close(kTimeout), IsEmpty());
    factory_.reset();
    loop_.reset();
  }

  std::unique_ptr<LocalRootIo> Make(const std::string& url = "s3://bucket/run") {
    BucketRoot root;
    root.url = url;
    root.uid = 4711;
    root.owner = "on node-a (process 1)";
    root.open = [this](const std::string& bucket, Duration, std::function<bool()> is_cancelled) {
      EXPECT_EQ(bucket, "bucket");
      return std::make_unique<Handle>(&store_, std::move(is_cancelled));
    };
    return factory_->MakeBucket(std::move(root)).value();
  }

  template <typename T>
  T Wait(const std::function<void(absl::AnyInvocable<void(T)>)>& ask) {
    auto promise = std::make_shared<std::promise<T>>();
    std::future<T> answer = promise->get_future();
    loop_->Post([promise, ask] { ask([promise](T result) { promise->set_value(std::move(result)); }); });
    if (answer.wait_for(kTimeout) != std::future_status::ready) {
      ADD_FAILURE() << "no answer";
      std::abort();
    }
    return answer.get();
  }
  absl::StatusOr<RootSnapshot> Open(LocalRootIo& io) {
    return Wait<absl::StatusOr<RootSnapshot>>([&](auto done) { io.Open(std::move(done)); });
  }
  absl::Status Check(const std::string& tag, const std::vector<std::string>& pointers = {}) {
    return Wait<absl::Status>([&](auto done) { io_->CheckTarget(tag, pointers, std::move(done)); });
  }
  absl::Status Evict(const std::string& tag, int64_t sequence) {
    return Wait<absl::Status>([&](auto done) { io_->Evict(tag, sequence, std::move(done)); });
  }
  absl::StatusOr<std::shared_ptr<CheckpointReader>> OpenCheckpoint(const std::string& tag, int64_t sequence) {
    return Wait<absl::StatusOr<std::shared_ptr<CheckpointReader>>>(
        [&](auto done) { io_->OpenCheckpoint(tag, sequence, std::move(done)); });
  }

  static storage::v1::ManifestSummary Summary(const std::string& tag, int64_t sequence) {
    storage::v1::ManifestSummary summary;
    summary.set_format_version(1);
    summary.set_tag(tag);
    summary.set_sequence(sequence);
    summary.set_attempt(1);
    summary.set_ordinal(1);
    summary.set_world_size(1);
    summary.set_chunk_bytes(kChunkBytes);
    summary.set_commit_time_us(1);
    return summary;
  }
  absl::Status Save(const std::string& tag, int64_t sequence) {
    const absl::Status begun = Wait<absl::Status>(
        [&](auto done) { io_->CreateInflight(sequence, tag, sequence, 0, std::move(done)); });
    if (!begun.ok()) return begun;
    storage::v1::PartRecord record;
    record.set_format_version(1);
    record.set_sequence(sequence);
    *record.mutable_checkpoint() = Summary(tag, sequence);
    auto written = std::make_shared<std::atomic<int64_t>>(0);
    const auto part = Wait<absl::StatusOr<storage::v1::PartRecord>>([&](auto done) {
      io_->WritePart(sequence, record, images_.files(), nullptr, written, std::move(done));
    });
    if (!part.ok()) {
      EXPECT_EQ(Wait<absl::Status>([&](auto done) { io_->Discard(sequence, std::move(done)); }),
                absl::OkStatus());
      return part.status();
    }
    EXPECT_EQ(*written, 3 * kChunkBytes + 5);
    return Wait<PublishResult>(
               [&](auto done) { io_->Publish(sequence, Summary(tag, sequence), {*part}, std::move(done)); })
        .status;
  }

  MemoryObjectStore store_;
  Images images_;
  std::unique_ptr<EventLoop> loop_ = std::make_unique<EventLoop>("engine");
  std::unique_ptr<ThreadedRootIoFactory> factory_;
  std::unique_ptr<LocalRootIo> io_;
};

TEST_F(BucketRootIoTest, SavedCheckpointIsInTheNextSnapshotAndCanBeRead) {
  ASSERT_TRUE(Open(*io_).ok());
  ASSERT_EQ(Save("step_1", 1), absl::OkStatus());
  const std::unique_ptr<LocalRootIo> next = Make();
  const absl::StatusOr<RootSnapshot> snapshot = Open(*next);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ASSERT_TRUE(snapshot->committed.contains(1));
  EXPECT_EQ(snapshot->committed.at(1).summary.tag(), "step_1");
  EXPECT_EQ(snapshot->run_record.uid(), 4711);

  const auto reader = OpenCheckpoint("step_1", 1);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const std::string expected = images_.Bytes("folder/model.pt");
  std::string piece(100, '\0');
  ASSERT_EQ((*reader)->Read("folder/model.pt", kChunkBytes - 50, std::as_writable_bytes(std::span(piece))),
            absl::OkStatus());
  EXPECT_EQ(piece, expected.substr(kChunkBytes - 50, 100));
  std::string whole(expected.size(), '\0');
  const auto bytes = std::as_writable_bytes(std::span(whole));
  const FileTarget target{"folder/model.pt",
                          {bytes.first(10), bytes.subspan(10, kChunkBytes), bytes.subspan(10 + kChunkBytes)}};
  ASSERT_EQ(Wait<absl::Status>([&](auto done) { io_->ReadFiles(*reader, {target}, std::move(done)); }),
            absl::OkStatus());
  EXPECT_EQ(whole, expected);
}

TEST_F(BucketRootIoTest, DamageIsToldApartFromARemoval) {
  ASSERT_TRUE(Open(*io_).ok());
  ASSERT_EQ(Save("step_1", 1), absl::OkStatus());
  const auto reader = OpenCheckpoint("step_1", 1);
  ASSERT_TRUE(reader.ok());
  std::string whole(images_.Bytes("folder/model.pt").size(), '\0');
  const auto into = std::as_writable_bytes(std::span(whole));
  store_.Damage("run/step_1/folder/model.pt", kChunkBytes + 1);
  const absl::Status damaged = (*reader)->Read("folder/model.pt", 0, into);
  EXPECT_TRUE(ProvesDamage(damaged)) << damaged;
  EXPECT_EQ(DetailsOf(damaged)["chunk"], "1");
  ASSERT_EQ(store_.Delete("run/step_1/folder/model.pt"), absl::OkStatus());
  EXPECT_TRUE(ProvesDamage((*reader)->Read("folder/model.pt", 0, into))) << "its manifest is there";
  ASSERT_EQ(store_.Delete("run/step_1/.ckptd/manifest"), absl::OkStatus());
  EXPECT_EQ(ReasonOf((*reader)->Read("folder/model.pt", 0, into)), "NO_CHECKPOINT");
}

TEST_F(BucketRootIoTest, EvictedCheckpointGoesWhenNobodyReadsIt) {
  ASSERT_TRUE(Open(*io_).ok());
  ASSERT_EQ(Save("step_1", 1), absl::OkStatus());
  auto reader = OpenCheckpoint("step_1", 1);
  ASSERT_TRUE(reader.ok());
  ASSERT_EQ(Evict("step_1", 1), absl::OkStatus());
  const auto empty = [&] {
    return Wait<absl::StatusOr<TrashLeft>>([&](auto done) { io_->EmptyTrash({}, std::move(done)); });
  };
  EXPECT_GT(empty()->bytes, 0);
  reader->reset();
  EXPECT_EQ(empty()->bytes, 0);
  for (const auto& [key, bytes] : store_.objects()) EXPECT_THAT(key, testing::Not(HasSubstr("step_1")));
}

TEST_F(BucketRootIoTest, WhatABucketHasNotIsRefused) {
  ASSERT_TRUE(Open(*io_).ok());
  EXPECT_EQ(Check("step_1"), absl::OkStatus());
  EXPECT_EQ(ReasonOf(Check("step_1", {"latest"})), "ROOT_UNSUITABLE");
  EXPECT_THAT(io_->why_one_node(), HasSubstr("s3://bucket/run"));
  const auto undeleted =
      Wait<absl::StatusOr<Undeleted>>([&](auto done) { io_->Undelete("step_1", 1, std::move(done)); });
  EXPECT_EQ(ReasonOf(undeleted.status()), "NO_CHECKPOINT");
  EXPECT_GT(*Wait<absl::StatusOr<int64_t>>([&](auto done) { io_->FreeBytes(std::move(done)); }),
            int64_t{1} << 50);
}

TEST_F(BucketRootIoTest, TakenOverRootSaysSo) {
  ASSERT_TRUE(Open(*io_).ok());
  EXPECT_FALSE(io_->is_taken_over());
  const std::unique_ptr<LocalRootIo> other = Make();
  ASSERT_TRUE(Open(*other).ok());
  EXPECT_EQ(ReasonOf(Save("step_1", 1)), "ROOT_TAKEN_OVER");
  EXPECT_TRUE(io_->is_taken_over());
  EXPECT_FALSE(other->is_taken_over());
}

TEST_F(BucketRootIoTest, FailedPartIsDiscardedAndTheTagIsFree) {
  ASSERT_TRUE(Open(*io_).ok());
  store_.SetHook([](const std::string& request, const std::string& key) {
    return request == "Put" && key == "run/step_1/folder/model.pt"
               ? MakeError(absl::StatusCode::kPermissionDenied, "STORE_DENIED", "PUT s3://bucket/run: denied")
               : absl::OkStatus();
  });
  EXPECT_EQ(ReasonOf(Save("step_1", 1)), "STORE_DENIED");
  store_.SetHook(nullptr);
  EXPECT_EQ(Save("step_1", 2), absl::OkStatus());
}

TEST_F(BucketRootIoTest, RootThatCannotBeOpenedIsOpenedByTheNextTry) {
  store_.SetHook([](const std::string&, const std::string&) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, "STORE_TIMEOUT", "PUT s3://bucket/run: away");
  });
  EXPECT_EQ(ReasonOf(Open(*io_).status()), "STORE_TIMEOUT");
  EXPECT_EQ(ReasonOf(Check("step_1")), "ROOT_UNREADABLE");
  store_.SetHook(nullptr);
  EXPECT_TRUE(Open(*io_).ok());
  EXPECT_EQ(Save("step_1", 1), absl::OkStatus());
}

}  // namespace
}  // namespace ckptd
