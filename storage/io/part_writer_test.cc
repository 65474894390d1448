#include "storage/io/part_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/fs/file_system.h"
#include "storage/fs/posix_file_system.h"
#include "storage/io/io_queue.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/faulty_io_queue.h"
#include "tests/testing/small_tmpfs.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;

using Result = absl::StatusOr<std::vector<WrittenFile>>;

constexpr int64_t kBlock = 4096;
constexpr int64_t kChunk = 4 * kBlock;
constexpr int kDepth = 4;
constexpr int kMaxOpenFiles = 64;

// A file's bytes in aligned memory, cut into runs. The bytes between its end and the end of the block are not
// zero.
class Image {
 public:
  Image(std::string path, int64_t size, std::vector<int64_t> run_sizes = {})
      : path_(std::move(path)), size_(size) {
    if (run_sizes.empty() && size > 0) run_sizes = {size};
    int64_t begin = 0;
    for (const int64_t run_size : run_sizes) {
      const int64_t padded = (run_size + kBlock - 1) / kBlock * kBlock;
      auto* memory = static_cast<std::byte*>(std::aligned_alloc(kBlock, static_cast<size_t>(padded)));
      for (int64_t i = 0; i < padded; ++i) {
        memory[i] = static_cast<std::byte>((begin + i) * 7 + (begin + i) / 256 + path_.size());
      }
      runs_.emplace_back(memory, &std::free);
      spans_.emplace_back(memory, static_cast<size_t>(run_size));
      content_.append(reinterpret_cast<const char*>(memory), static_cast<size_t>(run_size));
      begin += run_size;
    }
  }

  FileImage image() const { return {.path = path_, .size = size_, .runs = spans_}; }
  const std::string& path() const { return path_; }
  const std::string& content() const { return content_; }
  std::vector<uint32_t> chunk_crcs() const {
    std::vector<uint32_t> crcs;
    for (size_t at = 0; at < content_.size(); at += kChunk) {
      crcs.push_back(Crc32c(
          std::as_bytes(std::span(content_).subspan(at, std::min<size_t>(kChunk, content_.size() - at)))));
    }
    return crcs;
  }

 private:
  std::string path_;
  int64_t size_;
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> runs_;
  std::vector<std::span<const std::byte>> spans_;
  std::string content_;
};

struct BackEnd {
  const char* name;
  absl::StatusOr<std::unique_ptr<IoQueue>> (*make)(int depth);
};

class PartWriterTest : public ::testing::TestWithParam<BackEnd> {
 protected:
  void SetUp() override {
    auto thread = IoThread::Start("io", FaultyQueueFactory([] { return GetParam().make(kDepth); }, &faults_));
    if (ReasonOf(thread.status()) == "IO_URING_UNAVAILABLE") GTEST_SKIP() << thread.status().message();
    ASSERT_TRUE(thread.ok()) << thread.status();
    io_ = *std::move(thread);
    UseWriter(/*direct=*/true);
  }

  void UseWriter(bool direct) {
    writer_ = std::make_unique<PartWriter>(
        io_.get(), &checksums_, PartWriterOptions{.chunk_bytes = kChunk, .depth = kDepth, .direct = direct});
  }

  std::future<Result> Start(const std::vector<const Image*>& images) { return StartIn(dir_.fd(), images); }
  std::future<Result> StartIn(Handle dir, const std::vector<const Image*>& images) {
    std::vector<FileImage> files;
    for (const Image* image : images) files.push_back(image->image());
    auto promise = std::make_shared<std::promise<Result>>();
    std::future<Result> future = promise->get_future();
    writer_->Write(&fs_, dir, std::move(files), &written_bytes_, [this, promise](Result result) {
      in_flight_when_done_ = faults_.writes_in_flight();
      promise->set_value(std::move(result));
    });
    return future;
  }
  static Result Await(std::future<Result>& future) {
    if (future.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
      return absl::DeadlineExceededError("the part was not done within 60 s");
    }
    return future.get();
  }
  Result Write(const std::vector<const Image*>& images) {
    std::future<Result> future = Start(images);
    return Await(future);
  }

  std::string Get(const std::string& path) {
    std::ifstream file(dir_.path() + "/" + path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void ExpectWritten(const Result& result, const std::vector<const Image*>& images) {
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->size(), images.size());
    for (size_t i = 0; i < images.size(); ++i) {
      const WrittenFile& file = (*result)[i];
      EXPECT_EQ(file.path, images[i]->path());
      EXPECT_EQ(file.size, static_cast<int64_t>(images[i]->content().size())) << file.path;
      EXPECT_EQ(file.chunk_crc32c, images[i]->chunk_crcs()) << file.path;
      EXPECT_TRUE(Get(file.path) == images[i]->content()) << file.path << " has other bytes";
    }
    EXPECT_EQ(fs_.open_handles(), 0);
  }
  // Expects that it failed, with this reason and naming the file; that nothing is open, and no write in
  // flight.
  void ExpectFailed(const Result& result, const std::string& reason, const std::string& path) {
    EXPECT_EQ(ReasonOf(result.status()), reason) << result.status();
    EXPECT_EQ(DetailsOf(result.status())["path"], path) << result.status();
    EXPECT_EQ(fs_.open_handles(), 0);
    EXPECT_EQ(in_flight_when_done_, 0);
  }

  TempDir dir_;
  std::unique_ptr<FileSystem> posix_ = MakePosixFileSystem().value();
  FaultyFileSystem fs_{posix_.get()};
  IoFaults faults_;
  ChecksumPool checksums_{2};
  std::atomic<int64_t> written_bytes_ = 0;
  std::atomic<int> in_flight_when_done_ = -1;
  std::unique_ptr<IoThread> io_;
  std::unique_ptr<PartWriter> writer_;  // Destroyed first.
};

std::vector<std::unique_ptr<Image>> ImagesOfOddSizes() {
  std::vector<std::unique_ptr<Image>> images;
  for (const int64_t size : {int64_t{0}, int64_t{1}, kBlock - 1, kBlock, kBlock + 1, kChunk - 1, kChunk,
                             kChunk + 1, 10 * kChunk, 10 * kChunk + 5}) {
    images.push_back(std::make_unique<Image>("size_" + std::to_string(size), size));
  }
  return images;
}

std::vector<const Image*> Pointers(const std::vector<std::unique_ptr<Image>>& images) {
  std::vector<const Image*> pointers;
  for (const auto& image : images) pointers.push_back(image.get());
  return pointers;
}

TEST_P(PartWriterTest, WritesFilesOfEverySizeWithChecksums) {
  const auto images = ImagesOfOddSizes();
  const Result result = Write(Pointers(images));
  ExpectWritten(result, Pointers(images));
  int64_t total = 0;
  for (const auto& image : images) total += static_cast<int64_t>(image->content().size());
  EXPECT_EQ(written_bytes_, total);
  EXPECT_EQ(faults_.syncs(), static_cast<int>(images.size())) << "each file is synced once, empty ones too";
}

TEST_P(PartWriterTest, WritesTheSameFilesWithoutDirectIo) {
  UseWriter(/*direct=*/false);
  const auto images = ImagesOfOddSizes();
  ExpectWritten(Write(Pointers(images)), Pointers(images));
}

TEST_P(PartWriterTest, WritesBufferedOneAtATimePerFile) {
  UseWriter(/*direct=*/false);
  const Image image("a", 20 * kChunk);
  ExpectWritten(Write({&image}), {&image});
  EXPECT_EQ(faults_.most_in_flight(), 1);
}

TEST_P(PartWriterTest, WritesChunksThatCrossRuns) {
  const Image thirds("thirds", 7 * kBlock + 100, {3 * kBlock, 3 * kBlock, kBlock + 100});
  const Image blocks("blocks", 5 * kBlock, std::vector<int64_t>(5, kBlock));
  const Image large("large", 6 * kChunk, {kChunk, 3 * kChunk + kBlock, 2 * kChunk - kBlock});
  const std::vector<const Image*> images = {&thirds, &blocks, &large};
  ExpectWritten(Write(images), images);
}

TEST_P(PartWriterTest, FinishesAPartWithoutFiles) {
  const Result result = Write({});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(*result, IsEmpty());
}

TEST_P(PartWriterTest, SharesTheDepthAmongAllParts) {
  const Image a("a", 20 * kChunk);
  const Image b("b", 20 * kChunk);
  std::future<Result> first = Start({&a});
  std::future<Result> second = Start({&b});
  const Result first_result = Await(first);
  const Result second_result = Await(second);
  ExpectWritten(first_result, {&a});
  ExpectWritten(second_result, {&b});
  EXPECT_EQ(faults_.most_in_flight(), kDepth);
}

TEST_P(PartWriterTest, LimitsTheNumberOfOpenFiles) {
  std::vector<std::unique_ptr<Image>> images;
  for (int i = 0; i < 5 * kMaxOpenFiles; ++i) {
    images.push_back(std::make_unique<Image>("f" + std::to_string(i), i));
  }
  std::atomic<int> most = 0;
  fs_.SetHook([&](const FsCall& call) {
    if (call.op == FsOp::kOpen) most = std::max(most.load(), fs_.open_handles() + 1);
  });
  ExpectWritten(Write(Pointers(images)), Pointers(images));
  EXPECT_THAT(most.load(), Le(kMaxOpenFiles));
}

TEST_P(PartWriterTest, AllocatesFilesWholeAndCutsThemToSize) {
  const Image image("a", kChunk + 1);
  ExpectWritten(Write({&image}), {&image});
  std::vector<std::pair<std::string, int64_t>> sizes;
  for (const FsCall& call : fs_.calls()) {
    if (call.op == FsOp::kAllocate || call.op == FsOp::kTruncate) {
      sizes.emplace_back(call.ToString(), call.size);
    }
  }
  EXPECT_THAT(sizes, ::testing::ElementsAre(std::pair("Allocate a", kChunk + kBlock),
                                            std::pair("Truncate a", kChunk + 1)));
}

TEST_P(PartWriterTest, WorksWithoutFallocate) {
  fs_.Fail({.op = FsOp::kAllocate, .nth = FsFault::kEvery, .error = EOPNOTSUPP});
  const Image image("a", 3 * kChunk + 1);
  ExpectWritten(Write({&image}), {&image});
}

TEST_P(PartWriterTest, FailsBeforeWritingWhenSpaceCannotBeAllocated) {
  fs_.Fail({.op = FsOp::kAllocate, .error = ENOSPC});
  const Image image("a", 3 * kChunk);
  ExpectFailed(Write({&image}), "NO_SPACE", "a");
  EXPECT_EQ(faults_.writes(), 0);
}

TEST_P(PartWriterTest, FailsOnAFullDisk) {
  const SmallTmpfs disk(4 * kChunk);
  if (!disk.ok()) GTEST_SKIP() << "needs the right to mount";
  const Image small("small", kChunk);
  const Image large("large", 4 * kChunk);
  std::future<Result> future = StartIn(disk.fd(), {&small, &large});
  ExpectFailed(Await(future), "NO_SPACE", "large");
}

TEST_P(PartWriterTest, FailsWhenSpaceRunsOutInTheMiddle) {
  faults_.FailWrite(5, ENOSPC);
  const Image image("a", 20 * kChunk);
  ExpectFailed(Write({&image}), "NO_SPACE", "a");
  EXPECT_EQ(faults_.syncs(), 0);
}

TEST_P(PartWriterTest, FailsOnAnIoErrorAndSubmitsNothingMore) {
  constexpr int kChunks = 12;
  int before = 0;
  for (int k = 1; k <= kChunks; ++k) {
    faults_.FailWrite(before + k, EIO);
    const Image image("k" + std::to_string(k), kChunks * kChunk);
    ExpectFailed(Write({&image}), "IO_ERROR", image.path());
    EXPECT_THAT(faults_.writes(), Le(before + k + kDepth - 1));
    before = faults_.writes();
  }
}

TEST_P(PartWriterTest, ErrorOfOnePartDoesNotAffectAnother) {
  const Image bad("bad", 20 * kChunk);
  const Image good("good", 20 * kChunk);
  fs_.Fail({.op = FsOp::kAllocate, .path = "bad", .error = EIO});
  std::future<Result> first = Start({&bad});
  std::future<Result> second = Start({&good});
  EXPECT_EQ(ReasonOf(Await(first).status()), "IO_ERROR");
  ExpectWritten(Await(second), {&good});
}

TEST_P(PartWriterTest, ContinuesAShortWrite) {
  faults_.ShortenWrites(kBlock);
  const auto images = ImagesOfOddSizes();
  ExpectWritten(Write(Pointers(images)), Pointers(images));
}

TEST_P(PartWriterTest, ContinuesAShortBufferedWrite) {
  UseWriter(/*direct=*/false);
  faults_.ShortenWrites(1000);
  const auto images = ImagesOfOddSizes();
  ExpectWritten(Write(Pointers(images)), Pointers(images));
}

TEST_P(PartWriterTest, FailsOnAWriteOfZeroBytes) {
  faults_.AnswerWrite(2, 0);
  const Image image("a", 4 * kChunk);
  ExpectFailed(Write({&image}), "IO_ERROR", "a");
}

TEST_P(PartWriterTest, FailsOnAResultThatDirectIoCannotHave) {
  faults_.AnswerWrite(2, 1000);
  const Image image("a", 4 * kChunk);
  const Result result = Write({&image});
  ExpectFailed(result, "IO_ERROR", "a");
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("the kernel wrote only 1000 bytes"));
}

TEST_P(PartWriterTest, FailsOnAFailedSyncAndNeverRepeatsIt) {
  faults_.FailSync(1, EIO);  // A second sync would succeed.
  const Image image("a", 2 * kChunk);
  ExpectFailed(Write({&image}), "IO_ERROR", "a");
  EXPECT_EQ(faults_.syncs(), 1);
}

TEST_P(PartWriterTest, FailsWithoutASyncWhenTruncateFails) {
  fs_.Fail({.op = FsOp::kTruncate, .error = EIO});
  const Image image("a", kChunk + 1);
  ExpectFailed(Write({&image}), "IO_ERROR", "a");
  EXPECT_EQ(faults_.syncs(), 0);
}

TEST_P(PartWriterTest, NeverWritesToAnExistingFile) {
  std::ofstream(dir_.path() + "/a") << "theirs";
  const Image image("a", kChunk);
  ExpectFailed(Write({&image}), "EEXIST", "a");
  EXPECT_EQ(Get("a"), "theirs");
}

TEST_P(PartWriterTest, RefusesAnInconsistentImage) {
  const Image image("a", 3 * kBlock, {kBlock, 2 * kBlock});
  const auto refused = [&](FileImage file) {
    std::promise<Result> promise;
    writer_->Write(&fs_, dir_.fd(), {std::move(file)}, &written_bytes_,
                   [&](Result r) { promise.set_value(std::move(r)); });
    std::future<Result> future = promise.get_future();
    return Await(future).status().code() == absl::StatusCode::kInvalidArgument;
  };
  FileImage wrong_size = image.image();
  wrong_size.size += 1;
  EXPECT_TRUE(refused(wrong_size));
  FileImage odd_run = image.image();
  odd_run.runs[0] = odd_run.runs[0].first(100);
  odd_run.size = 100 + 2 * kBlock;
  EXPECT_TRUE(refused(odd_run));
  FileImage unaligned = image.image();
  unaligned.runs[1] = unaligned.runs[1].subspan(1);
  unaligned.size -= 1;
  EXPECT_TRUE(refused(unaligned));
  EXPECT_EQ(fs_.Count(FsOp::kOpen), 0);
}

// The images may be unmapped as soon as `done` has run.
TEST_P(PartWriterTest, WaitsForWritesInFlightAfterAnError) {
  faults_.Hold();
  faults_.FailWrite(1, EIO);
  const Image image("a", 20 * kChunk);
  std::future<Result> future = Start({&image});
  ASSERT_TRUE(faults_.WaitUntilHeld(kDepth, std::chrono::seconds(60)));
  faults_.Release();
  ExpectFailed(Await(future), "IO_ERROR", "a");
}

TEST_P(PartWriterTest, WaitsForChecksumsInFlight) {
  std::promise<void> resume;
  std::shared_future<void> resumed = resume.get_future().share();
  for (int i = 0; i < 2; ++i) checksums_.Submit([resumed] { resumed.wait(); });  // Blocks both threads.
  std::promise<void> synced;
  fs_.SetHook([&](const FsCall& call) {
    if (call.op == FsOp::kClose) synced.set_value();
  });
  const Image image("a", 3 * kChunk);
  std::future<Result> future = Start({&image});
  ASSERT_EQ(synced.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready)
      << "the file is never synced";
  std::promise<void> turned;
  io_->Post([&](IoQueue&) { turned.set_value(); });  // Runs after the sync's completion.
  turned.get_future().wait();
  EXPECT_EQ(future.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  resume.set_value();
  ExpectWritten(Await(future), {&image});
}

TEST_P(PartWriterTest, DestructorWaitsForPartsInFlight) {
  const Image image("a", 20 * kChunk + 1);
  std::future<Result> future = Start({&image});
  writer_.reset();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  ExpectWritten(future.get(), {&image});
}

std::string NameOf(const ::testing::TestParamInfo<BackEnd>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(BackEnds, PartWriterTest,
                         ::testing::Values(BackEnd{"io_uring", &MakeUringQueue},
                                           BackEnd{"threads", &MakeThreadQueue}),
                         NameOf);

}  // namespace
}  // namespace ckptd
