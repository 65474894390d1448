// Tests of ThreadedRootIo on real directories. One file of more than 500 lines, because all tests use the
// same fixture.
#include "daemon/root_io/threaded_root_io.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/base/event_loop.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/foreign.h"
#include "storage/commit/checkpoint/verify.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/file_images.h"
#include "tests/testing/seccomp.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

constexpr std::chrono::seconds kTimeout{60};

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class ThreadedRootIoTest : public testing::TestWithParam<IoBackend> {
 protected:
  void SetUp() override { StartDaemon(); }
  void TearDown() override { StopDaemon(); }

  void StartDaemon() {
    loop_ = std::make_unique<EventLoop>("engine");
    ThreadedRootIoOptions options;
    options.backend = GetParam();
    options.writer.chunk_bytes = 64 << 10;
    factory_ = std::make_unique<ThreadedRootIoFactory>(
        options, &SystemClock(), [this](absl::AnyInvocable<void()> work) { loop_->Post(std::move(work)); });
    io_ = factory_->Make(UniqueFd(open(dir_.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)), std::nullopt)
              .value();
  }
  void StopDaemon() {
    if (factory_ == nullptr) return;
    io_.reset();
    EXPECT_THAT(factory_->Close(kTimeout), testing::IsEmpty());
    factory_.reset();
    loop_.reset();
  }

  // Calls `ask` with a callback on the engine's thread. Returns what the callback gets.
  template <typename T, typename Ask>
  T Wait(Ask ask) {
    auto promise = std::make_shared<std::promise<T>>();
    std::future<T> answer = promise->get_future();
    loop_->Post([promise, ask] {
      auto inside = std::make_shared<bool>(true);
      ask([promise, inside](T result) {
        EXPECT_FALSE(*inside) << "called back inside the call";
        promise->set_value(std::move(result));
      });
      *inside = false;
    });
    if (answer.wait_for(kTimeout) != std::future_status::ready) {
      ADD_FAILURE() << "no answer";
      std::abort();
    }
    return answer.get();
  }

  absl::StatusOr<RootSnapshot> Open(LocalRootIo& io) {
    return Wait<absl::StatusOr<RootSnapshot>>([&](auto done) { io.Open(std::move(done)); });
  }
  absl::Status Create(LocalRootIo& io, InflightId64 id, const std::string& tag, int64_t sequence) {
    return Wait<absl::Status>(
        [&](auto done) { io.CreateInflight(id, tag, sequence, 64 << 10, std::move(done)); });
  }
  absl::StatusOr<storage::v1::PartRecord> Write(LocalRootIo& io, InflightId64 id, const std::string& tag,
                                                int64_t sequence, const Images& images) {
    storage::v1::PartRecord record;
    record.set_format_version(1);
    record.set_rank(0);
    record.set_sequence(sequence);
    *record.mutable_checkpoint() = Summary(tag, sequence);
    written_ = std::make_shared<std::atomic<int64_t>>(0);
    return Wait<absl::StatusOr<storage::v1::PartRecord>>(
        [&](auto done) { io.WritePart(id, record, images.files(), base_, written_, std::move(done)); });
  }
  PublishResult Publish(LocalRootIo& io, InflightId64 id, const std::string& tag, int64_t sequence,
                        const storage::v1::PartRecord& part) {
    return Wait<PublishResult>(
        [&](auto done) { io.Publish(id, Summary(tag, sequence), {part}, std::move(done)); });
  }
  // Runs all steps of a save.
  void Save(LocalRootIo& io, const std::string& tag, int64_t sequence, const Images& images) {
    ASSERT_TRUE(Create(io, sequence, tag, sequence).ok());
    const auto part = Write(io, sequence, tag, sequence, images);
    ASSERT_TRUE(part.ok()) << part.status();
    const PublishResult published = Publish(io, sequence, tag, sequence, *part);
    ASSERT_EQ(published.outcome, PublishOutcome::kCommitted) << published.status;
  }
  absl::StatusOr<std::shared_ptr<CheckpointReader>> OpenCheckpoint(const std::string& tag, int64_t sequence) {
    return Wait<absl::StatusOr<std::shared_ptr<CheckpointReader>>>(
        [&](auto done) { io_->OpenCheckpoint(tag, sequence, std::move(done)); });
  }

  static storage::v1::ManifestSummary Summary(const std::string& tag, int64_t sequence) {
    storage::v1::ManifestSummary summary;
    summary.set_format_version(1);
    summary.set_run_id("run");
    summary.set_tag(tag);
    summary.set_sequence(sequence);
    summary.set_attempt(1);
    summary.set_ordinal(1);
    summary.set_world_size(1);
    summary.set_chunk_bytes(64 << 10);
    return summary;
  }

  TempDir dir_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<ThreadedRootIoFactory> factory_;
  std::unique_ptr<LocalRootIo> io_;
  std::shared_ptr<std::atomic<int64_t>> written_;
  std::shared_ptr<CheckpointReader> base_;  // Of the next parts.
};

TEST_P(ThreadedRootIoTest, ListsReadsAndAdoptsAForeignCheckpoint) {
  for (const char* below : {"/theirs/model", "/unfinished"})
    std::filesystem::create_directories(dir_.path() + below);
  const std::string content(200'000, 'm');  // Four chunks.
  std::ofstream(dir_.path() + "/theirs/model/tp_rank_00.pt", std::ios::binary) << content;
  std::ofstream(dir_.path() + "/theirs/done", std::ios::binary) << "1";
  const auto list = [this] {
    return Wait<absl::StatusOr<std::vector<ForeignCheckpoint>>>(
        [&](auto done) { io_->ListForeign(std::move(done)); });
  };
  EXPECT_FALSE(list().ok()) << "the root is not open";
  const auto snapshot = Open(*io_);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ASSERT_EQ(snapshot->foreign.size(), 1u);
  EXPECT_EQ(snapshot->foreign[0].tag, "theirs");
  EXPECT_EQ(list()->at(0).size_bytes, 200'001);
  const auto survey = [this](const std::shared_ptr<SurveyProgress>& progress) {
    return Wait<absl::StatusOr<ForeignSurvey>>(
        [&](auto done) { io_->SurveyForeign("theirs", geteuid(), 64 << 10, progress, std::move(done)); });
  };
  const auto stopped = std::make_shared<SurveyProgress>();
  stopped->stop.store(true);
  EXPECT_TRUE(absl::IsCancelled(survey(stopped).status()));
  const auto progress = std::make_shared<SurveyProgress>();
  const absl::StatusOr<ForeignSurvey> found = survey(progress);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(progress->read_bytes.load(), 200'001);
  storage::v1::ManifestSummary summary = SummaryOfForeign(*found);
  summary.set_sequence(3);
  const auto adopted = Wait<PublishResult>([&](auto done) { io_->Adopt(*found, summary, std::move(done)); });
  EXPECT_EQ(adopted.outcome, PublishOutcome::kCommitted) << adopted.status;
  const auto reader = Wait<absl::StatusOr<std::shared_ptr<CheckpointReader>>>(
      [&](auto done) { io_->OpenCheckpoint("theirs", 3, std::move(done)); });
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->manifest().body.files_size(), 2);
  EXPECT_TRUE(list()->empty());
}

// Where the bytes of a file begin on the disk: equal for a hard link, and for a file that shares blocks.
uint64_t PlaceOnDisk(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(static_cast<bool>(file)) << path;
  alignas(fiemap) std::array<char, sizeof(fiemap) + sizeof(fiemap_extent)> space{};
  auto* const map = reinterpret_cast<fiemap*>(space.data());
  map->fm_length = FIEMAP_MAX_OFFSET;
  map->fm_flags = FIEMAP_FLAG_SYNC;
  map->fm_extent_count = 1;
  EXPECT_EQ(ioctl(file.get(), FS_IOC_FIEMAP, map), 0) << path;
  return map->fm_mapped_extents == 0 ? 0 : map->fm_extents[0].fe_physical;
}

class UnchangedFilesTest : public ThreadedRootIoTest {
 protected:
  // Saves "one"; then what is saved next has it as its base.
  void SaveBase() {
    ASSERT_TRUE(Open(*io_).ok());
    Images images;
    images.Add("frozen/base.pt", 300'001, 'a');
    images.Add("adapter.pt", 70'000, 'b');
    images.Add("small.pt", 100, 's');
    Save(*io_, "one", 1, images);
    const auto base = OpenCheckpoint("one", 1);
    ASSERT_TRUE(base.ok()) << base.status();
    base_ = *base;
  }
  // Saves "two", of which only the adapter is another one.
  void SaveNext() {
    next_.Add("adapter.pt", 70'000, 'c');
    next_.Add("frozen/base.pt", 300'001, 'a');
    next_.Add("small.pt", 100, 's');
    Save(*io_, "two", 2, next_);
    EXPECT_EQ(written_->load(), 370'101);
  }
  void ExpectNextIsWhole() {
    const auto reader = OpenCheckpoint("two", 2);
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (const FileImage& file : next_.files()) {
      std::vector<std::byte> bytes(static_cast<size_t>(file.size));
      const absl::Status read = (*reader)->Read(file.path, 0, bytes);
      ASSERT_TRUE(read.ok()) << read;
      EXPECT_EQ(std::memcmp(bytes.data(), file.runs[0].data(), bytes.size()), 0) << file.path;
    }
  }
  bool AreShared(const std::string& path) {
    return PlaceOnDisk(dir_.path() + "/one/" + path) == PlaceOnDisk(dir_.path() + "/two/" + path);
  }

  Images next_;
};

TEST_P(UnchangedFilesTest, SharesWhatTheBaseHasAndWritesTheRest) {
  SaveBase();
  SaveNext();
  EXPECT_TRUE(AreShared("frozen/base.pt"));
  EXPECT_FALSE(AreShared("adapter.pt"));
  EXPECT_FALSE(AreShared("small.pt")) << "is smaller than UnchangedFiles::kLeastBytes";
  ExpectNextIsWhole();
}

TEST_P(UnchangedFilesTest, WritesAFileThatIsDamagedInTheBase) {
  SaveBase();
  std::fstream(dir_.path() + "/one/frozen/base.pt", std::ios::binary | std::ios::in | std::ios::out)
          .seekp(123)
      << '!';
  SaveNext();
  EXPECT_FALSE(AreShared("frozen/base.pt"));
  ExpectNextIsWhole();
}

TEST_P(UnchangedFilesTest, SharedFilesStayWhenTheBaseIsRemoved) {
  SaveBase();
  SaveNext();
  base_.reset();
  std::filesystem::remove_all(dir_.path() + "/one");
  ExpectNextIsWhole();
}

INSTANTIATE_TEST_SUITE_P(Backends, UnchangedFilesTest,
                         testing::Values(IoBackend::kUring, IoBackend::kThreads), [](const auto& backend) {
                           return backend.param == IoBackend::kUring ? "Uring" : "Threads";
                         });

INSTANTIATE_TEST_SUITE_P(Backends, ThreadedRootIoTest,
                         testing::Values(IoBackend::kUring, IoBackend::kThreads), [](const auto& backend) {
                           return backend.param == IoBackend::kUring ? "Uring" : "Threads";
                         });

TEST_P(ThreadedRootIoTest, SavesPublishesReadsEvictsAndEmptiesTheTrash) {
  const auto snapshot = Open(*io_);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(snapshot->probe.io_backend, GetParam() == IoBackend::kUring ? "io_uring" : "threads");
  EXPECT_TRUE(snapshot->committed.empty());

  Images images;
  images.Add("model.pt", 300'001, 'a');
  images.Add("deep/er/optim.pt", 64 << 10, 'b');
  images.Add("empty", 0, 'c');
  Save(*io_, "step_1", 1, images);
  EXPECT_EQ(written_->load(), 300'001 + (64 << 10));
  for (const FileImage& file : images.files()) {
    EXPECT_TRUE(ReadWhole(dir_.path() + "/step_1/" + file.path) == images.Bytes(file.path)) << file.path;
  }

  auto reader = OpenCheckpoint("step_1", 1);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->manifest().summary.file_count(), 3);
  EXPECT_EQ((*reader)->manifest().summary.size_bytes(), 300'001 + (64 << 10));
  std::string piece(100'000, '\0');
  const absl::Status read = (*reader)->Read("model.pt", 150'000, std::as_writable_bytes(std::span(piece)));
  ASSERT_TRUE(read.ok()) << read;
  EXPECT_TRUE(piece == images.Bytes("model.pt").substr(150000, 100000));
  EXPECT_EQ(ReasonOf((*reader)->Read("other", 0, {})), "UNKNOWN_FILE");
  EXPECT_EQ(ReasonOf((*reader)->Read("model.pt", 300'000, std::as_writable_bytes(std::span(piece)))),
            "INVALID_ARGUMENT");

  const auto evicted = Wait<absl::Status>([&](auto done) { io_->Evict("step_1", 1, std::move(done)); });
  ASSERT_TRUE(evicted.ok()) << evicted;
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/step_1"));
  EXPECT_TRUE((*reader)
                  ->Read("model.pt", 0, std::as_writable_bytes(std::span(piece)))
                  .ok());  // The reader is still open.
  auto left = Wait<absl::StatusOr<TrashLeft>>([&](auto done) { io_->EmptyTrash({}, std::move(done)); });
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_GT(left->bytes, 300'000);
  EXPECT_TRUE((*reader)->Read("model.pt", 0, std::as_writable_bytes(std::span(piece))).ok());
  reader->reset();
  left = Wait<absl::StatusOr<TrashLeft>>([&](auto done) { io_->EmptyTrash({}, std::move(done)); });
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(left->bytes, 0);
  EXPECT_EQ(OpenCheckpoint("step_1", 1).status().code(), absl::StatusCode::kNotFound);
}

// All ranks of a job open the same checkpoint.
TEST_P(ThreadedRootIoTest, SharesTheManifestAmongReadersUntilItChanges) {
  ASSERT_TRUE(Open(*io_).ok());
  Images images;
  images.Add("model.pt", 300'001, 'a');
  Save(*io_, "step_1", 1, images);
  Save(*io_, "step_2", 2, images);
  const auto one = OpenCheckpoint("step_1", 1), other = OpenCheckpoint("step_2", 2);
  ASSERT_TRUE(one.ok() && other.ok());
  auto again = OpenCheckpoint("step_1", 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(&(*one)->manifest(), &(*again)->manifest());
  EXPECT_NE(&(*one)->manifest(), &(*other)->manifest());
  EXPECT_EQ((*again)->manifest().summary.tag(), "step_1");

  // Every open reads the manifest, so damage is still found.
  const std::string path = dir_.path() + "/step_1/.ckptd/manifest";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096 + 3);
  file.put('\xff');
  file.close();
  EXPECT_EQ(ReasonOf(OpenCheckpoint("step_1", 1).status()), "CORRUPT_MANIFEST");
}

// A checkpoint is opened and replaced while the trash is being emptied.
TEST_P(ThreadedRootIoTest, KeepsOpenCheckpointsWhileEmptyingTheTrash) {
  ASSERT_TRUE(Open(*io_).ok());
  Images images;
  images.Add("f", 200'000, 'a');
  Save(*io_, "t", 1, images);
  Save(*io_, "t", 2, images);  // The first checkpoint is in trash now.
  absl::StatusOr<std::shared_ptr<CheckpointReader>> reader;
  const auto left = Wait<absl::StatusOr<TrashLeft>>([&](auto done) {
    io_->OpenCheckpoint("t", 2, [&](auto opened) { reader = std::move(opened); });
    io_->EmptyTrash(
        {}, std::move(done));  // Starts before the other checkpoint is open, and ends after it is in trash.
    io_->Evict("t", 2, [](const absl::Status& evicted) { EXPECT_TRUE(evicted.ok()) << evicted; });
  });
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_GT(left->bytes, 200'000 - 1);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::string bytes(1000, '\0');
  EXPECT_TRUE((*reader)->Read("f", 0, std::as_writable_bytes(std::span(bytes))).ok());
}

// A disk mounted with discard may take a second to remove a GiB.
TEST_P(ThreadedRootIoTest, OpensSavesAndScansDuringASlowRemoval) {
  absl::StatusOr<std::unique_ptr<FileSystem>> posix = MakePosixFileSystem();
  ASSERT_TRUE(posix.ok());
  auto faulty = std::make_shared<FaultyFileSystem>(posix->get());
  std::promise<void> removing, go_on;
  std::shared_future<void> released = go_on.get_future().share();
  auto first = std::make_shared<std::atomic<bool>>(true);
  faulty->SetHook([&, released, first](const FsCall& call) {
    if (call.op != FsOp::kRemove || call.path.find("/trash/") == std::string::npos) return;
    if (!first->exchange(false)) return;
    removing.set_value();
    released.wait_for(kTimeout);
  });
  io_ = factory_
            ->Make("slow",
                   [&, faulty]() -> absl::StatusOr<ThreadedRootIoFactory::RootDirectory> {
                     ThreadedRootIoFactory::RootDirectory opened;
                     opened.fs = faulty;
                     const UniqueFd directory(open(dir_.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
                     CKPTD_ASSIGN_OR_RETURN(opened.handle,
                                            OpenScoped(*faulty, directory.get(), ".", OpenMode::kDirectory));
                     return opened;
                   })
            .value();
  ASSERT_TRUE(Open(*io_).ok());
  Images images;
  images.Add("f", 20'000, 'a');
  Save(*io_, "t", 1, images);
  Save(*io_, "t", 2, images);  // The first checkpoint is in trash now.
  std::promise<absl::StatusOr<TrashLeft>> emptied;
  loop_->Post([&] { io_->EmptyTrash({}, [&](auto left) { emptied.set_value(std::move(left)); }); });
  ASSERT_EQ(removing.get_future().wait_for(kTimeout), std::future_status::ready);
  EXPECT_TRUE(OpenCheckpoint("t", 2).ok());
  Save(*io_, "u", 3, images);
  EXPECT_TRUE(Wait<absl::StatusOr<RootSnapshot>>([&](auto done) { io_->Rescan(std::move(done)); }).ok());
  go_on.set_value();
  auto left = emptied.get_future();
  ASSERT_EQ(left.wait_for(kTimeout), std::future_status::ready);
  const absl::StatusOr<TrashLeft> bytes = left.get();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(bytes->bytes, 0);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path() + "/.ckptd/nodes/local/trash"));
  StopDaemon();  // Before the file system is destroyed.
}

TEST_P(ThreadedRootIoTest, MakesTheRoomThatIsAskedForAndBringsBackWhatIsLeftInTrash) {
  ASSERT_TRUE(Open(*io_).ok());
  Images images;
  images.Add("f", 200'000, 'a');
  for (int64_t sequence : {1, 2, 3}) Save(*io_, "t", sequence, images);  // Two are replaced.
  const TrashTerms terms{
      .now_us = SystemClock().UnixMicros(), .grace_us = int64_t{3600} * 1'000'000, .room_bytes = 1};
  const auto left =
      Wait<absl::StatusOr<TrashLeft>>([&](auto done) { io_->EmptyTrash(terms, std::move(done)); });
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_GT(left->in_grace_bytes, 200'000 - 1);
  EXPECT_LT(left->in_grace_bytes, 400'000);
  EXPECT_GT(left->due_in_us, 0);
  const auto list = Wait<absl::StatusOr<std::vector<TrashedCheckpoint>>>(
      [&](auto done) { io_->ListTrash(std::move(done)); });
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->size(), 1u);
  const int64_t sequence = list->front().checkpoint.summary.sequence();
  ASSERT_TRUE(Wait<absl::Status>([&](auto done) { io_->Evict("t", 3, std::move(done)); }).ok());
  const auto back =
      Wait<absl::StatusOr<Undeleted>>([&](auto done) { io_->Undelete("t", sequence, std::move(done)); });
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(OpenCheckpoint("t", sequence).ok());
}

TEST_P(ThreadedRootIoTest, OpenDetectsAMissingOrTruncatedFile) {
  ASSERT_TRUE(Open(*io_).ok());
  Images images;
  images.Add("f", 200'000, 'a');
  Save(*io_, "t", 1, images);
  const std::string path = dir_.path() + "/t/f";
  ASSERT_EQ(truncate(path.c_str(), 1000), 0);
  const absl::Status cut = OpenCheckpoint("t", 1).status();
  EXPECT_EQ(ReasonOf(cut), "SHORT_FILE");
  EXPECT_EQ(DetailsOf(cut).at("path"), "f");
  EXPECT_EQ(DetailsOf(cut).at("expected"), "200000 bytes");
  EXPECT_EQ(DetailsOf(cut).at("found"), "1000 bytes");
  std::filesystem::remove(path);
  EXPECT_EQ(ReasonOf(OpenCheckpoint("t", 1).status()), "SHORT_FILE");
  const auto set = Wait<absl::StatusOr<PointerFiles>>(
      [&](auto done) { io_->SetDamage("t", 1, storage::v1::Damage(), std::move(done)); });
  EXPECT_TRUE(set.ok()) << set.status();
  EXPECT_TRUE(std::filesystem::exists(dir_.path() + "/.ckptd/damaged"));
}

TEST_P(ThreadedRootIoTest, ReaderDetectsACorruptByte) {
  ASSERT_TRUE(Open(*io_).ok());
  Images images;
  images.Add("f", 200'000, 'a');
  Save(*io_, "t", 1, images);
  const std::string path = dir_.path() + "/t/f";
  UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(pwrite(file.get(), "!", 1, 100'000), 1);
  auto reader = OpenCheckpoint("t", 1);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::string bytes(1000, '\0');
  EXPECT_TRUE((*reader)->Read("f", 0, std::as_writable_bytes(std::span(bytes))).ok());
  const absl::Status corrupt = (*reader)->Read("f", 99'000, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(corrupt.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(corrupt), "CORRUPT_FILE");
}

TEST_P(ThreadedRootIoTest, ReadsBackFilesAndChecksImagesAgainstThem) {
  ASSERT_TRUE(Open(*io_).ok());
  Images images;
  images.Add("f", 200'000, 'a');
  Save(*io_, "t", 1, images);
  auto reader = OpenCheckpoint("t", 1);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto read_back = [&] {
    return Wait<absl::Status>(
        [&](auto done) { io_->ReadBack(*reader, "f", 64 << 10, 64 << 10, std::move(done)); });
  };
  const auto check = [&] {
    const auto& files = (*reader)->manifest().body.files();
    return Wait<absl::Status>([&](auto done) {
      io_->CheckImages(images.files(), {files.begin(), files.end()}, 64 << 10, std::move(done));
    });
  };
  EXPECT_TRUE(read_back().ok());
  EXPECT_TRUE(check().ok());
  const int fd = open((dir_.path() + "/t/f").c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(pwrite(fd, "!", 1, 100'000), 1);
  close(fd);
  EXPECT_EQ(ReasonOf(read_back()), "CORRUPT_FILE");
  EXPECT_EQ(DetailsOf(read_back())["chunk"], "1");
  EXPECT_TRUE(check().ok()) << "what is in memory is well";
}

TEST_P(ThreadedRootIoTest, NextDaemonFindsCommittedCheckpoints) {
  ASSERT_TRUE(Open(*io_).ok());
  Images images;
  images.Add("f", 10'000, 'a');
  Save(*io_, "t1", 1, images);
  Save(*io_, "t2", 2, images);
  ASSERT_TRUE(Create(*io_, 3, "t3", 3).ok());  // This save is never finished.
  storage::v1::RunRecord record;
  record.set_format_version(1);
  record.set_run_id("the run");
  record.set_last_sequence(3);
  const auto saved = Wait<absl::Status>([&](auto done) { io_->SaveRunRecord(record, std::move(done)); });
  ASSERT_TRUE(saved.ok()) << saved;
  const auto pinned = Wait<absl::Status>([&](auto done) { io_->SetPinned("t1", 1, true, std::move(done)); });
  ASSERT_TRUE(pinned.ok()) << pinned;
  EXPECT_EQ(ReasonOf(Wait<absl::Status>([&](auto done) { io_->Evict("t1", 1, std::move(done)); })), "PINNED");

  StopDaemon();
  StartDaemon();
  const auto snapshot = Open(*io_);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ASSERT_EQ(snapshot->committed.size(), 2u);
  EXPECT_EQ(snapshot->committed.at(1).summary.tag(), "t1");
  EXPECT_TRUE(snapshot->committed.at(1).pinned);
  EXPECT_EQ(snapshot->committed.at(2).summary.tag(), "t2");
  ASSERT_EQ(snapshot->recovered.size(), 1u);
  EXPECT_EQ(snapshot->recovered[0].tag, "t3");
  EXPECT_FALSE(snapshot->recovered[0].published);
  EXPECT_EQ(snapshot->highest_sequence, 3);
  EXPECT_EQ(snapshot->run_record.run_id(), "the run");
}

TEST_P(ThreadedRootIoTest, LocksTheRootAgainstAnotherDaemon) {
  ASSERT_TRUE(Open(*io_).ok());
  auto second =
      factory_->Make(UniqueFd(open(dir_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), std::nullopt)
          .value();
  EXPECT_EQ(ReasonOf(Open(*second).status()), "ROOT_LOCKED");
  io_.reset();
  // The metadata worker releases the lock when it closes the root, before it runs the next Open.
  EXPECT_TRUE(Open(*second).ok());
  loop_->Post([gone = std::move(second)] {});
}

TEST_P(ThreadedRootIoTest, WritesTwoRootsOfOneFileSystemConcurrently) {
  TempDir other_dir(dir_.path());
  auto other =
      factory_
          ->Make(UniqueFd(open(other_dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), std::nullopt)
          .value();
  ASSERT_TRUE(Open(*io_).ok());
  ASSERT_TRUE(Open(*other).ok());
  Images images;
  images.Add("f", 3 << 20, 'x');
  ASSERT_TRUE(Create(*io_, 1, "t", 1).ok());
  ASSERT_TRUE(Create(*other, 1, "t", 1).ok());
  std::promise<absl::StatusOr<storage::v1::PartRecord>> promises[2];
  storage::v1::PartRecord record;
  record.set_format_version(1);
  record.set_sequence(1);
  *record.mutable_checkpoint() = Summary("t", 1);
  loop_->Post([&] {
    LocalRootIo* const ios[2] = {io_.get(), other.get()};
    for (int i = 0; i < 2; ++i) {
      ios[i]->WritePart(1, record, images.files(), nullptr, std::make_shared<std::atomic<int64_t>>(0),
                        [&promises, i](auto part) { promises[i].set_value(std::move(part)); });
    }
  });
  const auto first = promises[0].get_future().get();
  const auto second = promises[1].get_future().get();
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  ASSERT_EQ(first->files(0).chunk_crc32c_size(), 48);
  EXPECT_TRUE(std::ranges::equal(first->files(0).chunk_crc32c(), second->files(0).chunk_crc32c()));
  EXPECT_EQ(Publish(*io_, 1, "t", 1, *first).outcome, PublishOutcome::kCommitted);
  EXPECT_EQ(Publish(*other, 1, "t", 1, *second).outcome, PublishOutcome::kCommitted);
  EXPECT_TRUE(ReadWhole(other_dir.path() + "/t/f") == images.Bytes("f"));
  std::promise<void> gone;
  loop_->Post([&] {
    other.reset();
    gone.set_value();
  });
  gone.get_future().wait();
}

TEST_P(ThreadedRootIoTest, FailedPartWriteReturnsAnErrorAndCanBeDiscarded) {
  ASSERT_TRUE(Open(*io_).ok());
  ASSERT_TRUE(Create(*io_, 1, "t", 1).ok());
  Images good, clash;
  good.Add("a", 5000, 'a');
  clash.Add("a/b", 5000, 'b');  // `a` is a file.
  ASSERT_TRUE(Write(*io_, 1, "t", 1, good).ok());
  const auto failed = Write(*io_, 1, "t", 1, clash);
  EXPECT_FALSE(failed.ok());
  EXPECT_FALSE(Write(*io_, 1, "t", 1, good).ok());  // The file exists already.
  const auto discarded = Wait<absl::Status>([&](auto done) { io_->Discard(1, std::move(done)); });
  EXPECT_TRUE(discarded.ok()) << discarded;
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/t"));
  EXPECT_FALSE(Wait<absl::Status>([&](auto done) { io_->Discard(1, std::move(done)); }).ok());
  // The worker becomes idle soon after its last answer.
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  while (io_->pending_since() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(io_->pending_since(), std::nullopt);
}

TEST_P(ThreadedRootIoTest, RefusesOperationsBeforeTheRootIsOpen) {
  Images images;
  images.Add("a", 10, 'a');
  EXPECT_FALSE(Wait<absl::Status>([&](auto done) { io_->CheckTarget("t", {}, std::move(done)); }).ok());
  EXPECT_FALSE(Wait<absl::StatusOr<int64_t>>([&](auto done) { io_->FreeBytes(std::move(done)); }).ok());
  EXPECT_FALSE(Create(*io_, 1, "t", 1).ok());
  EXPECT_FALSE(Write(*io_, 1, "t", 1, images).ok());
  EXPECT_EQ(Publish(*io_, 1, "t", 1, storage::v1::PartRecord()).outcome, PublishOutcome::kFailed);
  EXPECT_FALSE(OpenCheckpoint("t", 1).ok());
  EXPECT_FALSE(
      Wait<absl::StatusOr<TrashLeft>>([&](auto done) { io_->EmptyTrash({}, std::move(done)); }).ok());
  EXPECT_FALSE(Wait<absl::StatusOr<RootSnapshot>>([&](auto done) { io_->Rescan(std::move(done)); }).ok());
}

TEST_P(ThreadedRootIoTest, AnswersQueriesWhileTheMetadataWorkerIsBusy) {
  ASSERT_TRUE(Open(*io_).ok());
  Images images;
  images.Add("f", 10, 'a');
  Save(*io_, "ours", 1, images);
  std::filesystem::create_directory(dir_.path() + "/empty");
  std::filesystem::create_directories(dir_.path() + "/foreign/x");
  const auto check = [&](const std::string& tag) {
    return Wait<absl::Status>([&](auto done) { io_->CheckTarget(tag, {}, std::move(done)); });
  };
  EXPECT_TRUE(check("new").ok());
  EXPECT_TRUE(check("ours").ok());
  EXPECT_TRUE(check("empty").ok());
  EXPECT_EQ(ReasonOf(check("foreign")), "TAG_FOREIGN");
  EXPECT_EQ(ReasonOf(check("../x")), "INVALID_TAG");
  const auto free = Wait<absl::StatusOr<int64_t>>([&](auto done) { io_->FreeBytes(std::move(done)); });
  ASSERT_TRUE(free.ok());
  EXPECT_GT(*free, 0);
}

TEST_P(ThreadedRootIoTest, FailedOpenReturnsAnErrorAndMayBeRetried) {
  const std::string ours = dir_.path() + "/.ckptd";
  std::ofstream(ours) << "not a directory";
  EXPECT_FALSE(Open(*io_).ok());
  EXPECT_FALSE(Open(*io_).ok());
  std::filesystem::remove(ours);
  const auto snapshot = Open(*io_);
  EXPECT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_FALSE(Open(*factory_->Make(UniqueFd(), std::nullopt).value()).ok());
}

TEST_P(ThreadedRootIoTest, RescanFindsCommittedCheckpoints) {
  ASSERT_TRUE(Open(*io_).ok());
  Images images;
  images.Add("f", 10'000, 'a');
  Save(*io_, "t1", 1, images);
  std::filesystem::remove_all(dir_.path() + "/t1");
  const auto snapshot = Wait<absl::StatusOr<RootSnapshot>>([&](auto done) { io_->Rescan(std::move(done)); });
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_TRUE(snapshot->committed.empty());
}

TEST_P(ThreadedRootIoTest, RunsNoCallbackAfterTheRootIoIsDestroyed) {
  std::promise<void> gone;
  std::atomic<bool> called{false};
  loop_->Post([&] {
    io_->Open([&](auto) { called = true; });
    io_->EmptyTrash({}, [&](auto) { called = true; });
    io_.reset();
    gone.set_value();
  });
  gone.get_future().wait();
  StopDaemon();  // All operations have ended, and their callbacks are posted.
  EXPECT_FALSE(called);
}

TEST_P(ThreadedRootIoTest, FilesBelongToTheSavingUser) {
  constexpr uid_t kUser = 12345;
  TempDir theirs("/tmp");
  if (chown(theirs.path().c_str(), kUser, kUser) != 0) {
    GTEST_SKIP() << "needs root outside of user namespaces: chown says " << std::strerror(errno);
  }
  auto io = factory_
                ->Make(UniqueFd(open(theirs.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)),
                       FileUser{kUser, kUser, {}})
                .value();
  const auto snapshot = Open(*io);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  Images images;
  images.Add("f", 10'000, 'a');
  Save(*io, "t", 1, images);
  struct stat info {};
  ASSERT_EQ(stat((theirs.path() + "/t/f").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kUser);
  EXPECT_EQ(info.st_gid, kUser);

  // A descriptor does not give access to what its user may not read.
  ASSERT_EQ(chmod(dir_.path().c_str(), 0700), 0);
  auto foreign = factory_
                     ->Make(UniqueFd(open(dir_.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)),
                            FileUser{kUser, kUser, {}})
                     .value();
  EXPECT_EQ(Open(*foreign).status().code(), absl::StatusCode::kPermissionDenied);
  std::promise<void> gone;
  loop_->Post([&] {
    io.reset();
    foreign.reset();
    gone.set_value();
  });
  gone.get_future().wait();
}

absl::StatusOr<ThreadedRootIoFactory::RootDirectory> NotOpened() {
  return absl::UnavailableError("not opened in this test");
}

std::set<std::string> Threads() {
  std::set<std::string> threads;
  size_t expected = 0;
  do {  // A thread that ends meanwhile may end the list early.
    threads.clear();
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
      threads.insert(thread.path().filename());
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("Threads:")) expected = std::stoul(line.substr(8));
  } while (threads.size() != expected);
  return threads;
}

// How many threads there are now that were not there `before`. Threads of an earlier test may still be ending.
size_t NewThreads(const std::set<std::string>& before) {
  return std::ranges::count_if(Threads(), [&](const std::string& thread) { return !before.contains(thread); });
}

TEST_P(ThreadedRootIoTest, EndsTheThreadsOfAFileSystemWithItsLastRoot) {
  const std::set<std::string> before = Threads();
  auto first = factory_->Make("9:1", NotOpened).value(), second = factory_->Make("9:1", NotOpened).value();
  EXPECT_EQ(NewThreads(before), 3u);
  first.reset();
  auto other = factory_->Make("9:2", NotOpened).value();
  EXPECT_EQ(NewThreads(before), 6u) << "the second root is on 9:1 still";
  second.reset();
  auto again = factory_->Make("9:2", NotOpened).value();
  const Instant deadline = SystemClock().Now() + kTimeout;
  while (NewThreads(before) > 3 && SystemClock().Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(NewThreads(before), 3u);
}

TEST_P(ThreadedRootIoTest, FailsTheRootWhenAThreadCannotBeStarted) {
  absl::Status made = absl::OkStatus();
  const bool filtered =
      WithoutSystemCall(SYS_clone3, EAGAIN, [&] { made = factory_->Make("9:1", NotOpened).status(); });
  if (!filtered) GTEST_SKIP() << "no filter of system calls here";
  EXPECT_EQ(ErrnoOf(made), EAGAIN) << made;
  EXPECT_TRUE(Open(*io_).ok()) << "another file system";
}

}  // namespace
}  // namespace ckptd
