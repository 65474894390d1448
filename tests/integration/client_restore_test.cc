// What the C++ client restores, with the real daemon: slices, prefetched checkpoints, mapped files, and what
// watchers see of a restore. Checked by bytes. Above 500 lines because all of it needs this fixture.
#include <linux/capability.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <system_error>
#include <thread>

#include "client/cpp/client.h"
#include "client/cpp/session/endpoint.h"
#include "client/cpp/session/rpc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "tests/integration/client_fixture.h"

namespace ckptd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr int64_t kChunk = int64_t{8} << 20;

class RestoreTest : public ClientTest {
 protected:
  // Saves with a process that has ended.
  void Saved(const std::string& tag, const std::vector<FileSource>& files) {
    Job run = OpenRun(0, 1, "launch-of-" + tag);
    absl::StatusOr<Save> save = run.Save({.tag = tag}, files);
    ASSERT_TRUE(save.ok()) << save.status();
    ASSERT_TRUE(save->Wait(Level::kCommitted, seconds(30)).ok());
  }
  // Restarts the daemon: nothing is in memory afterwards.
  void Restart() {
    daemon_.Stop();
    daemon_.Start();
  }
  void Flip(const std::string& tag, const std::string& path, int64_t at) {
    std::fstream file(root_ + "/" + tag + "/" + path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(file.good());
  }
  // Opens a checkpoint that this process may read and that is not in memory.
  Checkpoint Opened(Job& run, const std::string& tag, const OpenOptions& options = {}) {
    absl::StatusOr<Checkpoint> opened = run.Open(tag, options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }

  // True if `bytes` equal those of `file` from `offset` on.
  static bool Same(std::span<const std::byte> bytes, const std::vector<std::byte>& file, int64_t offset) {
    return std::equal(bytes.begin(), bytes.end(), file.begin() + offset);
  }

  // Reads slices of every kind, unordered: across chunks and segments, overlapping, the last byte, and empty
  // ones.
  void ExpectRanges(Checkpoint& checkpoint, const std::vector<std::byte>& a,
                    const std::vector<std::byte>& b) {
    const auto end = std::ssize(a);
    const std::vector<std::pair<int64_t, int64_t>> wanted = {
        {kChunk - 7, 4096}, {0, 1}, {end - 1, 1}, {kChunk, kChunk + 1}, {5, 0}, {kChunk + 50, 100}, {end, 0}};
    std::vector<std::vector<std::byte>> into;
    std::vector<ReadRange> ranges;
    for (const auto& [offset, size] : wanted) {
      into.emplace_back(static_cast<size_t>(size));
      ranges.push_back({"a", offset, into.back()});
    }
    std::vector<std::byte> of_b(b.size() - 1);
    ranges.insert(ranges.begin() + 2, {"sub/b", 1, of_b});
    const absl::Status read = checkpoint.ReadRanges(ranges);
    ASSERT_TRUE(read.ok()) << read;
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_TRUE(Same(into[i], a, wanted[i].first)) << "slice " << i;
    EXPECT_TRUE(Same(of_b, b, 1));
    EXPECT_TRUE(checkpoint.ReadRanges({}).ok());
  }

  const std::vector<std::byte> a_ = RandomBytes(2 * kChunk + 4097, 31), b_ = RandomBytes(1000, 32);
};

TEST_F(RestoreTest, ReadsRangesFromDisk) {
  Saved("s", {{"a", {a_}}, {"sub/b", {b_}}});
  Restart();
  Job run = OpenRun(0, 1, "launch-2");
  Checkpoint checkpoint = Opened(run, "s");
  EXPECT_FALSE(checkpoint.info().resident);
  ExpectRanges(checkpoint, a_, b_);
}

TEST_F(RestoreTest, ReadsRangesFromMemory) {
  Saved("s", {{"a", {a_}}, {"sub/b", {b_}}});
  Flip("s", "a", kChunk + 50);  // On disk.
  Flip("s", "sub/b", 5);
  Job run = OpenRun(0, 1, "launch-2");
  Checkpoint checkpoint = Opened(run, "s");
  EXPECT_TRUE(checkpoint.info().resident);
  ExpectRanges(checkpoint, a_, b_);
}

// True if a thread of this process with idle priority is seen while `read` is repeated. That depends on
// timing, so it tries at most `most` times.
bool UsesIdlePriority(const std::function<void()>& read, int most) {
  std::atomic<bool> seen = false, over = false;
  std::thread looker([&] {
    while (!over && !seen) {
      std::error_code gone;
      for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
        if (sched_getscheduler(std::stoi(task.path().filename())) == SCHED_IDLE) seen = true;
      }
    }
  });
  const auto end = std::chrono::steady_clock::now() + seconds(30);
  for (int i = 0; i < most && !seen && std::chrono::steady_clock::now() < end; ++i) read();
  over = true;
  looker.join();
  return seen;
}

TEST_F(RestoreTest, BackgroundReadUsesIdlePriority) {
  Saved("s", {{"a", {a_}}});
  for (const bool resident : {true, false}) {
    if (!resident) Restart();
    Job run = OpenRun(0, 1, resident ? "launch-2" : "launch-3");
    for (const bool background : {true, false}) {
      Checkpoint checkpoint = Opened(run, "s", {.background = background});
      EXPECT_EQ(checkpoint.info().resident, resident);
      const auto read = [&] { EXPECT_TRUE(*checkpoint.Read("a") == a_); };
      EXPECT_EQ(UsesIdlePriority(read, background ? 10'000 : 20), background) << "resident: " << resident;
    }
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  }
}

// While it lives, file modes apply to this thread even if it belongs to root.
class HeldToModes {
 public:
  HeldToModes() {
    syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct less[2] = {before_[0], before_[1]};
    less[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
    syscall(SYS_capset, &header_, less);
  }
  ~HeldToModes() { syscall(SYS_capset, &header_, before_); }

 private:
  __user_cap_header_struct header_ = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
};

TEST_F(RestoreTest, DaemonReadsRangesWhenProcessMayNotReadDisk) {
  if (getuid() != 0) GTEST_SKIP() << "needs root: only then can the daemon read more than its client";
  Saved("s", {{"a", {a_}}, {"sub/b", {b_}}});
  Restart();
  Job run = OpenRun(0, 1, "launch-2");
  ASSERT_EQ(chmod((root_ + "/s").c_str(), 0), 0);
  absl::StatusOr<Checkpoint> checkpoint = absl::UnknownError("not opened");
  {
    const HeldToModes held;
    struct stat ignored;
    ASSERT_TRUE(stat((root_ + "/s/a").c_str(), &ignored) != 0 && errno == EACCES)
        << "the client must not be able to look";
    checkpoint = run.Open("s");
  }
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ExpectRanges(*checkpoint, a_, b_);
  // More ranges than one request may have.
  std::vector<std::byte> bytes(10'050);
  std::vector<ReadRange> ranges;
  for (int64_t i = 0; i < std::ssize(bytes); ++i)
    ranges.push_back({"a", i * 3, std::span(bytes).subspan(static_cast<size_t>(i), 1)});
  ASSERT_TRUE(checkpoint->ReadRanges(ranges).ok());
  for (size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], a_[i * 3]) << i;
  Flip("s", "a", kChunk + 5);
  std::vector<std::byte> bad(1);
  EXPECT_EQ(ReasonOf(checkpoint->ReadRanges({{"a", kChunk, bad}})), "CORRUPT_FILE");
}

TEST_F(RestoreTest, DaemonReadsFileThatProcessMayNotRead) {
  if (getuid() != 0) GTEST_SKIP() << "needs root: only then can the daemon read more than its client";
  Saved("s", {{"a", {a_}}, {"sub/b", {b_}}});
  Restart();
  Job run = OpenRun(0, 1, "launch-2");
  Checkpoint checkpoint = Opened(run, "s");
  ASSERT_EQ(chmod((root_ + "/s/a").c_str(), 0), 0);
  const HeldToModes held;
  ASSERT_FALSE(std::ifstream(root_ + "/s/a").is_open()) << "the client must not be able to read";
  ExpectRanges(checkpoint, a_, b_);
}

// Returns the number of bytes that this process has read.
int64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string name;
  int64_t bytes = -1;
  io >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

TEST_F(RestoreTest, ReadsOnlyChunksOfRequestedSlicesOnceEach) {
  Saved("s", {{"a", {a_}}});
  Restart();
  Flip("s", "a", 100);  // In the first chunk, which nobody requests.
  Job run = OpenRun(0, 1, "launch-2");
  Checkpoint checkpoint = Opened(run, "s");
  std::vector<std::byte> into(16 * 4096);
  std::vector<ReadRange> ranges;
  for (int64_t i = 15; i >= 0; --i)  // Overlapping, too.
    ranges.push_back({"a", kChunk + i * 1000, std::span(into).subspan(static_cast<size_t>(i) * 4096, 4096)});
  const int64_t before = BytesRead();
  ASSERT_TRUE(checkpoint.ReadRanges(ranges).ok());
  EXPECT_LE(BytesRead() - before, kChunk + kChunk / 20);
  for (const ReadRange& range : ranges) EXPECT_TRUE(Same(range.into, a_, range.offset));
}

TEST_F(RestoreTest, CorruptChunkInRangeIsDataLossAndMarkedByDaemon) {
  Saved("one", {{"a", {b_}}});
  Saved("two", {{"a", {a_}}, {"sub/b", {b_}}});
  Restart();
  Flip("two", "a", kChunk + 5);
  {
    Job run = OpenRun(0, 1, "launch-2");
    Checkpoint checkpoint = Opened(run, "latest");
    std::vector<std::byte> good(10), bad(10);
    ASSERT_TRUE(checkpoint.ReadRanges({{"a", 0, good}, {"sub/b", 0, good}}).ok());
    const absl::Status read = checkpoint.ReadRanges({{"a", 0, good}, {"a", kChunk + 1000, bad}});
    EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss) << read;
    EXPECT_EQ(ReasonOf(read), "CORRUPT_FILE");
    EXPECT_EQ(DetailsOf(read)["path"], "a");
    EXPECT_EQ(DetailsOf(read)["chunk"], "1");
  }
  Restart();
  Job run = OpenRun(0, 1, "launch-3");
  Checkpoint older = Opened(run, "latest");
  EXPECT_EQ(older.info().tag, "one");
  ASSERT_EQ(older.passed_over().size(), 1u);
  EXPECT_THAT(older.passed_over()[0].damage, HasSubstr("chunk 1"));
}

TEST_F(RestoreTest, MissingFileIsDamageReportedToDaemon) {
  Saved("s", {{"a", {b_}}});
  Restart();
  Job run = OpenRun(0, 1, "launch-2");
  Checkpoint checkpoint = Opened(run, "s");
  std::filesystem::remove(root_ + "/s/a");
  const absl::Status read = checkpoint.Read("a").status();
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss) << read;
  EXPECT_EQ(ReasonOf(read), "CORRUPT_FILE");
  EXPECT_EQ(ReasonOf(run.Open("latest").status()), "CHECKPOINT_DAMAGED");
}

TEST_F(RestoreTest, RefusesRangeBeyondFileBeforeReading) {
  Saved("s", {{"a", {a_}}, {"sub/b", {b_}}});
  Restart();
  Job run = OpenRun(0, 1, "launch-2");
  Checkpoint checkpoint = Opened(run, "s");
  std::vector<std::byte> first(100, std::byte{42}), second(2, std::byte{42});
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t offset : {std::ssize(b_) - 1, std::ssize(b_) + 1, int64_t{-1}, kMost, -kMost}) {
    const absl::Status read = checkpoint.ReadRanges({{"a", 0, first}, {"sub/b", offset, second}});
    EXPECT_EQ(ReasonOf(read), "INVALID_ARGUMENT") << read;
    EXPECT_THAT(std::string(read.message()), HasSubstr("but the file has 1000 bytes"));
    EXPECT_EQ(checkpoint.ReadInto("sub/b", offset, second), read);
  }
  EXPECT_EQ(ReasonOf(checkpoint.ReadRanges({{"a", 0, first}, {"c", 0, {}}})), "UNKNOWN_FILE");
  EXPECT_EQ(std::count(first.begin(), first.end(), std::byte{42}), std::ssize(first));
  EXPECT_EQ(std::count(second.begin(), second.end(), std::byte{42}), std::ssize(second));
}

TEST_F(RestoreTest, ReadsPrefetchedCheckpointFromMemory) {
  Saved("s", {{"a", {a_}}, {"sub/b", {b_}}});
  Restart();
  Job run = OpenRun(0, 1, "launch-2");
  EXPECT_FALSE((*run.Latest())->resident);
  absl::StatusOr<CheckpointInfo> read = run.Prefetch();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->tag, "s");
  EXPECT_TRUE(read->resident);
  Flip("s", "a", kChunk + 50);  // On disk.
  Flip("s", "sub/b", 5);
  Checkpoint checkpoint = Opened(run, "s");
  EXPECT_TRUE(checkpoint.info().resident);
  EXPECT_TRUE(*checkpoint.Read("a") == a_);
  EXPECT_EQ(ReasonOf(run.Prefetch("t").status()), "NO_CHECKPOINT");
}

TEST_F(RestoreTest, PrefetchIsNotRepeatedWhenCallerDidNotWait) {
  Saved("s", {{"a", {a_}}});
  Restart();
  Job run = OpenRun(0, 1, "launch-2");
  // At any stage: not sent yet, running, or done.
  for (const auto timeout : {milliseconds(0), milliseconds(1), milliseconds(20)}) {
    const absl::Status asked = run.Prefetch("s", timeout).status();
    EXPECT_TRUE(asked.ok() || absl::IsDeadlineExceeded(asked)) << asked;
  }
  EXPECT_TRUE(run.Prefetch("s")->resident);
  const std::string log = daemon_.Log(), word = "is in memory: read in";
  ASSERT_THAT(log, HasSubstr(word));
  EXPECT_EQ(log.find(word), log.rfind(word));
}

TEST_F(RestoreTest, DamagedCheckpointIsNotPrefetched) {
  Saved("one", {{"a", {b_}}});
  Saved("two", {{"a", {a_}}});
  Restart();
  Flip("two", "a", kChunk + 5);
  Job run = OpenRun(0, 1, "launch-2");
  const absl::Status found = run.Prefetch().status();
  EXPECT_EQ(found.code(), absl::StatusCode::kDataLoss) << found;
  EXPECT_EQ(ReasonOf(found), "CORRUPT_FILE");
  const absl::Status known = run.Prefetch("two").status();
  EXPECT_EQ(known.code(), absl::StatusCode::kDataLoss) << known;
  EXPECT_EQ(ReasonOf(known), "CHECKPOINT_DAMAGED");
  EXPECT_EQ(run.Prefetch()->tag, "one");
}

TEST_F(RestoreTest, PrefetchTakesNoMemoryThatSaveNeeds) {
  const std::vector<std::byte> large = RandomBytes(size_t{40} << 20, 33);  // The pool has 64 MiB.
  Saved("s", {{"a", {large}}});
  Restart();
  Job run = OpenRun(0, 1, "launch-2");
  const absl::Status refused = run.Prefetch().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_EQ(ReasonOf(refused), "POOL_EXHAUSTED");
  EXPECT_TRUE(*Opened(run, "s").Read("a") == large);
}

TEST_F(RestoreTest, StrictOpenFailsWhenLatestIsDamaged) {
  Saved("one", {{"a", {b_}}});
  Saved("two", {{"a", {b_}}});
  Restart();
  Job run = OpenRun(0, 1, "launch-2");
  EXPECT_EQ(Opened(run, "latest", {.strict = true}).info().tag, "two");
  Flip("two", "a", 5);
  EXPECT_EQ(ReasonOf(Opened(run, "two").Read("a").status()), "CORRUPT_FILE");
  for (const char* tag : {"latest", "two"}) {
    const absl::Status refused = run.Open(tag, {.strict = true}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << refused;
    EXPECT_EQ(ReasonOf(refused), "CHECKPOINT_DAMAGED");
  }
  EXPECT_EQ(Opened(run, "one", {.strict = true}).info().tag, "one");
  EXPECT_EQ(Opened(run, "latest").info().tag, "one");
  EXPECT_NE(Opened(run, "two").info().damage, "");
}

TEST_F(RestoreTest, WatchShowsReadProgressUntilRestoreEnds) {
  Saved("s", {{"a", {a_}}, {"sub/b", {b_}}});
  Job run = OpenRun(0, 1, "launch-2");
  Mutex mutex;
  std::vector<v1::Restore> seen;
  CondVar changed;
  bool over = false;
  std::thread watching([&] {
    v1::WatchRequest request;
    request.set_parent(run.name());
    const absl::Status watched = Rpc(*ParseEndpoint(daemon_.endpoint()), "")
                                     .Watch(request, seconds(60), [&](const v1::WatchResponse& event) {
                                       if (!event.has_restore()) return true;
                                       MutexLock lock(mutex);
                                       seen.push_back(event.restore());
                                       changed.SignalAll();
                                       return !event.restore().ended();
                                     });
    EXPECT_TRUE(watched.ok()) << watched;
    MutexLock lock(mutex);
    over = true;
    changed.SignalAll();
  });
  {
    // Repeats until a watcher has been notified, which happens once a second.
    Checkpoint checkpoint = Opened(run, "s");
    std::vector<std::byte> into(static_cast<size_t>(kChunk));
    for (bool heard = false, good = true; good && !heard;) {
      EXPECT_TRUE(good = checkpoint.ReadInto("a", 0, into).ok());
      MutexLock lock(mutex);
      heard = !seen.empty() || over;
    }
    EXPECT_TRUE(checkpoint.ReadInto("sub/b", 0, std::span(into).first(b_.size())).ok());
  }
  watching.join();
  MutexLock lock(mutex);
  ASSERT_GE(seen.size(), 2u);
  EXPECT_EQ(seen.front().tag(), "s");
  EXPECT_EQ(seen.front().rank(), 0);
  EXPECT_GT(seen.front().read_bytes(), 0);
  EXPECT_FALSE(seen.front().ended());
  EXPECT_TRUE(seen.back().ended());
  EXPECT_EQ(seen.back().read_bytes(), seen.back().total_bytes());
  EXPECT_EQ(seen.back().total_bytes() % kChunk, std::ssize(b_));
}

// True if the bytes are in a segment of the daemon, not in a copy.
bool InASegment(const std::byte* data) {
  const auto at = reinterpret_cast<uint64_t>(data);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &begin, &end) != 2) continue;
    if (begin <= at && at < end) return line.find("ckptd-segment") != std::string::npos;
  }
  return false;
}

// Returns the mapping of a file that must be mappable.
MappedFile Mapped(Checkpoint& checkpoint, const std::string& path) {
  absl::StatusOr<std::optional<MappedFile>> mapped = checkpoint.Map(path);
  if (mapped.ok() && mapped->has_value()) return **std::move(mapped);
  ADD_FAILURE() << path << " cannot be mapped (" << mapped.status()
                << "); with huge pages reserved, /proc/sys/vm/nr_hugepages, enough of them must be free";
  std::abort();  // There is no empty MappedFile to go on with.
}

TEST_F(RestoreTest, MappedFileIsInDaemonMemoryAndPrivateToReader) {
  Saved("s", {{"a", {a_}}, {"sub/b", {b_}}, {"none", {}}});
  Job run = OpenRun(0, 1, "launch-2");
  Checkpoint one = Opened(run, "s"), two = Opened(run, "s");
  MappedFile a = Mapped(one, "a");
  EXPECT_TRUE(InASegment(a.bytes().data()));
  EXPECT_TRUE(std::ranges::equal(a.bytes(), a_));
  EXPECT_TRUE(std::ranges::equal(Mapped(one, "sub/b").bytes(), b_));
  EXPECT_FALSE((*one.Map("none")).has_value());
  EXPECT_EQ(ReasonOf(one.Map("other").status()), "UNKNOWN_FILE");
  std::ranges::fill(a.bytes(), std::byte{7});
  EXPECT_EQ(Mapped(one, "a").bytes().data(), a.bytes().data()) << "this reader's";
  EXPECT_TRUE(std::ranges::equal(Mapped(two, "a").bytes(), a_))
      << "writes of one reader must not be visible to another";
  EXPECT_TRUE(*two.Read("a") == a_);
  ExpectOnDisk("s", "a", a_);
}

TEST_F(RestoreTest, MappedFileOutlivesCheckpointClientAndDaemon) {
  Saved("s", {{"a", {a_}}});
  MappedFile kept = [this] {
    Job run = OpenRun(0, 1, "launch-2");
    Checkpoint checkpoint = Opened(run, "s");
    return Mapped(checkpoint, "a");
  }();
  EXPECT_TRUE(std::ranges::equal(kept.bytes(), a_));
  daemon_.Kill();
  EXPECT_TRUE(std::ranges::equal(kept.bytes(), a_));
  daemon_.Start();
  Saved("big", {{"b", {RandomBytes(size_t{60} << 20, 34)}}});  // The whole pool now belongs to another save.
  EXPECT_TRUE(InASegment(kept.bytes().data()));
  EXPECT_TRUE(std::ranges::equal(kept.bytes(), a_));
}

TEST_F(RestoreTest, MappedFileStaysReadableWhenDaemonIsKilled) {
  Saved("s", {{"a", {a_}}});
  Job run = OpenRun(0, 1, "launch-2");
  Checkpoint checkpoint = Opened(run, "s");
  const MappedFile a = Mapped(checkpoint, "a");
  daemon_.Kill();
  EXPECT_TRUE(std::ranges::equal(Mapped(checkpoint, "a").bytes(), a_)) << "it is already mapped";
  daemon_.Start();
  EXPECT_TRUE(std::ranges::equal(a.bytes(), a_));
  EXPECT_TRUE(*checkpoint.Read("a") == a_) << "from disk";
}

TEST_F(RestoreTest, ReadsFileThatCannotBeMapped) {
  Job writer = OpenRun(0, 1, "launch-1");
  absl::StatusOr<Save> save = writer.Save({.tag = "s"}, {{"a", {a_}}});
  ASSERT_TRUE(save.ok() && save->Wait(Level::kCommitted, seconds(30)).ok());
  Job run = OpenRun(0, 1, "launch-2");
  {
    Checkpoint checkpoint = Opened(run, "s");
    EXPECT_TRUE(checkpoint.info().resident);
    EXPECT_FALSE((*checkpoint.Map("a")).has_value()) << "its writer lives and could write to it";
    EXPECT_TRUE(*checkpoint.Read("a") == a_);
  }
  Restart();
  Checkpoint checkpoint = Opened(run, "s");
  EXPECT_FALSE((*checkpoint.Map("a")).has_value()) << "it is not in memory";
  EXPECT_TRUE(*checkpoint.Read("a") == a_);
}

TEST_F(RestoreTest, MapsNoMemoryThatSaveNeeds) {
  const std::vector<std::byte> large = RandomBytes(size_t{24} << 20, 35);  // The pool has 64 MiB.
  Saved("s", {{"a", {large}}});
  Client other = *Client::Connect(daemon_.endpoint());
  Job busy = *other.OpenRun(daemon_.MakeRoot("busy"), {.launch_id = "busy"});
  absl::StatusOr<Part> part = busy.Begin({.tag = "s"});
  ASSERT_TRUE(part.ok() && part->AddFile("f", 24 << 20).ok()) << part.status();
  Job run = OpenRun(0, 1, "launch-2");
  absl::StatusOr<std::optional<Checkpoint>> resumed = run.Resume(seconds(30));
  ASSERT_TRUE(resumed.ok() && resumed->has_value()) << resumed.status();
  EXPECT_TRUE((*resumed)->info().resident);
  EXPECT_FALSE((*(*resumed)->Map("a")).has_value());
  EXPECT_TRUE(*(*resumed)->Read("a") == large);
}

TEST_F(RestoreTest, MapsNothingAfterFinish) {
  Saved("s", {{"a", {a_}}});
  Job run = OpenRun(0, 1, "launch-2");
  absl::StatusOr<std::optional<Checkpoint>> resumed = run.Resume(seconds(30));
  ASSERT_TRUE(resumed.ok() && resumed->has_value()) << resumed.status();
  const MappedFile before = Mapped(**resumed, "a");
  ASSERT_TRUE((*resumed)->Finish(seconds(30)).ok());
  EXPECT_FALSE((*(*resumed)->Map("a")).has_value());
  EXPECT_TRUE(std::ranges::equal(before.bytes(), a_));
}

}  // namespace
}  // namespace ckptd::client
