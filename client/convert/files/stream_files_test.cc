#include "client/convert/files/stream_files.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/faulty_io_queue.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kChunk = 16 << 10;

struct BackEnd {
  const char* name;
  absl::StatusOr<std::unique_ptr<IoQueue>> (*make)(int depth);
};

// Fails every read but the first.
class FailingReads : public IoQueue {
 public:
  explicit FailingReads(std::unique_ptr<IoQueue> base) : base_(std::move(base)) {}
  std::string_view name() const override { return base_->name(); }
  void Write(Handle file, std::span<const std::byte> from, int64_t offset, IoDone done) override {
    base_->Write(file, from, offset, std::move(done));
  }
  void Read(Handle file, std::span<std::byte> into, int64_t offset, IoDone done) override {
    base_->Read(file, into, offset, [fail = reads_++ > 0, done = std::move(done)](int64_t result) mutable {
      done(fail ? -EIO : result);
    });
  }
  void SyncData(Handle file, IoDone done) override { base_->SyncData(file, std::move(done)); }
  void Poll(Duration timeout) override { base_->Poll(timeout); }
  void Wake() override { base_->Wake(); }
  int in_flight() const override { return base_->in_flight(); }

 private:
  const std::unique_ptr<IoQueue> base_;
  int reads_ = 0;
};

class StreamFilesTest : public ::testing::TestWithParam<BackEnd> {
 protected:
  void SetUp() override {
    if (ReasonOf(GetParam().make(4).status()) == "IO_URING_UNAVAILABLE") GTEST_SKIP();
    for (int i = 0; i < 3; ++i) {
      std::string content(static_cast<size_t>(100'000 + i * 5000), '\0');
      for (size_t at = 0; at < content.size(); ++at)
        content[at] = static_cast<char>(at * 31 + at / 256 * 7 + static_cast<size_t>(i) * 101);
      inputs_.push_back(absl::StrCat("in", i));
      contents_.push_back(content);
      ASSERT_TRUE(WriteNewFile(fs_, dir_.fd(), inputs_.back(), content).ok());
    }
    ASSERT_TRUE(fs_.MakeDir(dir_.fd(), "out").ok());
    out_ = *OpenScoped(fs_, dir_.fd(), "out", OpenMode::kDirectory);
  }

  absl::Status Stream(const std::vector<PlannedFile>& files, bool direct = true) {
    StreamOptions options;
    options.queue = FaultyQueueFactory([] { return GetParam().make(4); }, &faults_);
    options.direct_writes = direct;
    options.chunk_bytes = kChunk;
    options.depth = 3;
    return StreamFiles(fs_, dir_.fd(), inputs_, out_.get(), files, options, [this](int64_t bytes) {
      EXPECT_GE(bytes, told_);
      told_ = bytes;
      return go_on_;
    });
  }

  // The content that the file must have.
  std::string Expected(const PlannedFile& file) const {
    std::string content(static_cast<size_t>(file.size), '\0');
    for (const Piece& piece : file.pieces) {
      const std::string& from =
          piece.input == Piece::kLiteral ? file.literals : contents_[static_cast<size_t>(piece.input)];
      content.replace(static_cast<size_t>(piece.offset), static_cast<size_t>(piece.size), from,
                      static_cast<size_t>(piece.from), static_cast<size_t>(piece.size));
    }
    return content;
  }
  std::string Written(const std::string& path) {
    return ReadSmallFile(fs_, out_.get(), path, 64 << 20).value_or("unreadable");
  }

  // A file of pieces of all inputs, in no order, at odd offsets, with gaps, beside literals.
  static PlannedFile Mixed(const std::string& path, int64_t size) {
    PlannedFile file = {.path = path, .size = size, .literals = "the words between", .pieces = {}};
    int64_t at = 0;
    for (int i = 0; at < size; ++i) {
      const int64_t length = std::min<int64_t>(1 + (i * 7919) % 9000, size - at);
      if (i % 4 == 3) {
        const int64_t short_length = std::min<int64_t>(length, 17);
        file.pieces.push_back(
            {.offset = at, .size = short_length, .input = Piece::kLiteral, .from = 17 - short_length});
        at += short_length + i % 5;
      } else {
        file.pieces.push_back({.offset = at, .size = length, .input = i % 3, .from = (i * 4099) % 90'000});
        at += length;
      }
    }
    return file;
  }

  TempDir dir_;
  std::unique_ptr<FileSystem> posix_ = *MakePosixFileSystem();
  FaultyFileSystem fs_{posix_.get()};
  IoFaults faults_;
  ScopedHandle out_;
  std::vector<std::string> inputs_, contents_;
  bool go_on_ = true;
  int64_t told_ = 0;
};

// The input is four times the output, so that a chunk needs more than its buffer holds at once.
TEST_P(StreamFilesTest, CastsElementsAcrossChunksAndRounds) {
  const Cast cast = {DataType::kFloat64, DataType::kBFloat16};
  std::string doubles;
  for (int i = 0; i < 20'000; ++i) {
    const double value = i * 1.25;
    doubles.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  ASSERT_TRUE(WriteNewFile(fs_, dir_.fd(), "doubles", "x" + doubles).ok());
  inputs_.push_back("doubles");
  PlannedFile file = {.path = "cast", .size = 40'006, .literals = "literal", .pieces = {}};
  file.pieces.push_back({.offset = 0, .size = 6, .input = Piece::kLiteral, .from = 0});
  file.pieces.push_back({.offset = 6, .size = 40'000, .input = 3, .from = 1, .cast = cast});

  ASSERT_TRUE(Stream({file}).ok());

  std::string expected(40'000, '\0');
  CastElements(cast, reinterpret_cast<const std::byte*>(doubles.data()),
               reinterpret_cast<std::byte*>(expected.data()), 20'000);
  EXPECT_TRUE(Written("cast") == "litera" + expected);
}

TEST_P(StreamFilesTest, WritesEveryByteAsPlanned) {
  for (const bool direct : {true, false}) {
    std::vector<PlannedFile> files;
    for (const int64_t size : {0, 1, 4095, 4096, 4097, 16384, 16385, 100'001, 333'333})
      files.push_back(Mixed(absl::StrCat("f", size, direct), size));
    files.push_back({.path = absl::StrCat("zeros", direct), .size = 50'000, .literals = {}, .pieces = {}});
    const absl::Status streamed = Stream(files, direct);
    ASSERT_TRUE(streamed.ok()) << streamed;
    int64_t total = 0;
    for (const PlannedFile& file : files) {
      EXPECT_EQ(Written(file.path), Expected(file)) << file.path;
      total += file.size;
    }
    EXPECT_EQ(told_, total);
    told_ = 0;
  }
}

// A chunk has more pieces than one round can read: each is a read of its own.
TEST_P(StreamFilesTest, ReadsInRoundsWhenTheArenaIsFull) {
  PlannedFile file = {.path = "f", .size = 40'000, .literals = {}, .pieces = {}};
  for (int64_t at = 0; at < file.size; at += 8) {
    file.pieces.push_back(
        {.offset = at, .size = 8, .input = static_cast<int>(at / 8 % 3), .from = (at * 2654435761 % 99'000)});
  }
  ASSERT_TRUE(Stream({file}).ok());
  EXPECT_EQ(Written("f"), Expected(file));
}

TEST_P(StreamFilesTest, ContinuesAShortWrite) {
  faults_.ShortenWrites(4096);
  const std::vector<PlannedFile> files = {Mixed("f", 70'000)};
  ASSERT_TRUE(Stream(files).ok());
  EXPECT_EQ(Written("f"), Expected(files[0]));
}

TEST_P(StreamFilesTest, FailsOnAShortWriteThatCannotBeContinued) {
  faults_.AnswerWrite(2, 100);
  const absl::Status status = Stream({Mixed("f", 70'000)});
  EXPECT_EQ(ReasonOf(status), "IO_ERROR");
  EXPECT_EQ(DetailsOf(status)["path"], "f");
}

TEST_P(StreamFilesTest, ReturnsTheErrorsOfTheDisk) {
  for (int nth = 1; nth <= 5; ++nth) {
    const int before = fs_.open_handles();
    faults_.FailWrite(faults_.writes() + nth, ENOSPC);
    const std::string path = absl::StrCat("f", nth);
    const absl::Status status = Stream({Mixed(path, 70'000), Mixed(path + "b", 1000)});
    EXPECT_EQ(ReasonOf(status), "NO_SPACE") << status;
    EXPECT_EQ(fs_.open_handles(), before);
  }
  for (int nth = 1; nth <= 2; ++nth) {
    faults_.FailSync(faults_.syncs() + nth, EIO);
    const std::string path = absl::StrCat("s", nth);
    const absl::Status status = Stream({Mixed(path, 70'000), Mixed(path + "b", 1000)});
    EXPECT_EQ(ReasonOf(status), "IO_ERROR") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("syncing"));
  }
}

TEST_P(StreamFilesTest, ReturnsTheErrorsOfTheFileSystem) {
  int number = 0;
  for (const FsOp op : {FsOp::kOpen, FsOp::kAllocate, FsOp::kTruncate}) {
    const std::string path = absl::StrCat("f", ++number);
    fs_.Fail({.op = op, .path = absl::StrCat("out/", path), .error = ENOSPC});
    fs_.Fail({.op = op, .path = path, .error = ENOSPC});
    const absl::Status status = Stream({Mixed(path, 70'001)});
    EXPECT_EQ(ReasonOf(status), "NO_SPACE") << FsOpName(op) << ": " << status;
    EXPECT_EQ(DetailsOf(status)["path"], path);
    fs_.ClearFaults();
  }
}

// Some file systems cannot allocate. Then the writes find out whether there is space.
TEST_P(StreamFilesTest, WorksOnAFileSystemThatCannotAllocate) {
  fs_.Fail({.op = FsOp::kAllocate, .nth = FsFault::kEvery, .error = EOPNOTSUPP});
  const std::vector<PlannedFile> files = {Mixed("f", 70'000)};
  ASSERT_TRUE(Stream(files).ok());
  EXPECT_EQ(Written("f"), Expected(files[0]));
}

TEST_P(StreamFilesTest, NamesAnInputThatIsTooShortOrMissing) {
  PlannedFile file = {.path = "f", .size = 5000, .literals = {}, .pieces = {}};
  file.pieces = {{.offset = 0, .size = 5000, .input = 0, .from = 96'000}};
  absl::Status status = Stream({file});
  EXPECT_EQ(ReasonOf(status), "SHORT_FILE") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("in0: ends at byte 100000, but byte 101000"));
  // The input ends within the second of two pieces that are read at once.
  file = {.path = "h", .size = 5000, .literals = {}, .pieces = {}};
  file.pieces = {{.offset = 0, .size = 100, .input = 0, .from = 98'000},
                 {.offset = 100, .size = 3000, .input = 0, .from = 98'100}};
  EXPECT_EQ(ReasonOf(Stream({file})), "SHORT_FILE");
  ASSERT_TRUE(fs_.Remove(dir_.fd(), "in0", FileType::kRegular).ok());
  file.path = "g";
  status = Stream({file});
  EXPECT_EQ(ReasonOf(status), "ENOENT") << status;
  EXPECT_EQ(DetailsOf(status)["path"], "in0");
}

TEST_P(StreamFilesTest, ReturnsTheErrorOfARead) {
  StreamOptions options;
  options.queue = []() -> absl::StatusOr<std::unique_ptr<IoQueue>> {
    return std::make_unique<FailingReads>(*GetParam().make(4));
  };
  options.chunk_bytes = kChunk;
  options.depth = 3;
  const absl::Status status = StreamFiles(fs_, dir_.fd(), inputs_, out_.get(), {Mixed("f", 70'000)}, options,
                                          [](int64_t) { return true; });
  EXPECT_EQ(ReasonOf(status), "IO_ERROR") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("reading"));
}

TEST_P(StreamFilesTest, StopsWhenProgressReturnsFalse) {
  go_on_ = false;
  const absl::Status status = Stream({Mixed("f", 333'333)});
  EXPECT_EQ(ReasonOf(status), "INTERRUPTED") << status;
}

TEST_P(StreamFilesTest, OpensNoMoreFilesThanAllowed) {
  int most = 0;
  fs_.SetHook([&](const FsCall&) { most = std::max(most, fs_.open_handles()); });
  std::vector<PlannedFile> files;
  // Empty files wait only for their sync.
  for (int i = 0; i < 500; ++i) files.push_back(Mixed(absl::StrCat("f", i), i < 250 ? 0 : i));
  ASSERT_TRUE(Stream(files).ok());
  fs_.SetHook(nullptr);  // The hook refers to a variable of this test.
  EXPECT_LE(most, 60);
  for (const PlannedFile& file : files) ASSERT_EQ(Written(file.path), Expected(file));
}

INSTANTIATE_TEST_SUITE_P(BackEnds, StreamFilesTest,
                         ::testing::Values(BackEnd{"io_uring", &MakeUringQueue},
                                           BackEnd{"threads", &MakeThreadQueue}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ckptd
