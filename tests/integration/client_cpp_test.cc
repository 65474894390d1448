// The C++ client and the real daemon: the promises to a trainer, checked by the bytes on disk.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "client/cpp/client.h"
#include "client/cpp/session/rpc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "tests/integration/client_fixture.h"
#include "tests/integration/daemon_process.h"

namespace ckptd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

void Fill(const std::vector<std::span<std::byte>>& spans, const std::vector<std::byte>& bytes) {
  size_t done = 0;
  for (std::span<std::byte> span : spans) {
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(done), span.size(), span.begin());
    done += span.size();
  }
  ASSERT_EQ(done, bytes.size());
}

TEST_F(ClientTest, AcknowledgedSaveIsRestorable) {
  Job run = OpenRun();
  // An odd size over several segments in three pieces, one byte, and an empty file.
  const std::vector<std::byte> large = RandomBytes((5 << 20) + 4097, 1), tiny = RandomBytes(1, 2);
  const std::span<const std::byte> whole(large);
  absl::StatusOr<Save> save =
      run.Save({.tag = "step_1", .step = 1, .metrics = {{"loss", 2.5}}, .pointers = {{"latest", "step_1"}}},
               {{"model.bin", {whole.first(7), whole.subspan(7, 1 << 20), whole.subspan(7 + (1 << 20))}},
                {"sub/tiny", {tiny}},
                {"empty", {}}});
  ASSERT_TRUE(save.ok()) << save.status();
  EXPECT_GE(save->level(), Level::kStaged);
  ASSERT_TRUE(save->Wait(Level::kCommitted, seconds(30)).ok());
  EXPECT_EQ(save->level(), Level::kCommitted);
  ExpectOnDisk("step_1", "model.bin", large);
  ExpectOnDisk("step_1", "sub/tiny", tiny);
  ExpectOnDisk("step_1", "empty", {});
  const std::vector<std::byte> pointer = FileBytes(root_ + "/latest");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(pointer.data()), pointer.size()), "step_1");

  absl::StatusOr<std::optional<Checkpoint>> resumed = OpenRun(0, 1, "launch-2").Resume(seconds(30));
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  ASSERT_TRUE(resumed->has_value());
  EXPECT_EQ((*resumed)->info().tag, "step_1");
  EXPECT_EQ((*resumed)->info().step, 1);
  EXPECT_EQ((*resumed)->info().metrics.at("loss"), 2.5);
  EXPECT_EQ((*resumed)->info().files.size(), 3u);
  EXPECT_TRUE(*(*resumed)->Read("model.bin") == large);
  EXPECT_TRUE(*(*resumed)->Read("sub/tiny") == tiny);
  EXPECT_TRUE((*resumed)->Read("empty")->empty());
  std::vector<std::byte> slice(5000);
  ASSERT_TRUE((*resumed)->ReadInto("model.bin", 1'000'001, slice).ok());
  EXPECT_TRUE(std::equal(slice.begin(), slice.end(), large.begin() + 1'000'001));
  EXPECT_EQ(ReasonOf((*resumed)->Read("other").status()), "UNKNOWN_FILE");
  EXPECT_EQ((*resumed)->ReadInto("sub/tiny", 1, slice).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientTest, EmptyRootHasNothingToResumeFrom) {
  Job run = OpenRun();
  absl::StatusOr<std::optional<Checkpoint>> resumed = run.Resume(seconds(30));
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_FALSE(resumed->has_value());
  EXPECT_FALSE(run.Latest()->has_value());
  EXPECT_TRUE(run.List()->empty());
  EXPECT_EQ(ReasonOf(run.Open("latest").status()), "NO_CHECKPOINT");
}

TEST_F(ClientTest, DamageFoundByOneRankGivesAllRanksNextOlderCheckpoint) {
  const auto ranks_of = [this](const std::string& launch) {
    return std::vector<Job>{OpenRun(0, 2, launch), OpenRun(1, 2, launch)};
  };
  const auto resume = [](Job& rank) {
    absl::StatusOr<std::optional<Checkpoint>> resumed = rank.Resume(seconds(30));
    EXPECT_TRUE(resumed.ok() && resumed->has_value()) << resumed.status();
    return *std::move(*resumed);
  };
  {
    std::vector<Job> ranks = ranks_of("launch-1");
    for (const char* tag : {"one", "two"}) {
      std::vector<std::thread> threads;
      std::array<absl::StatusOr<Save>, 2> begun;
      for (int rank : {0, 1}) {
        threads.emplace_back([&, rank] {
          const std::vector<std::byte> bytes = RandomBytes(100'000, 7);
          begun[rank] = ranks[rank].Save({.tag = tag}, {{"f" + std::to_string(rank), {bytes}}});
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (const auto& save : begun) ASSERT_TRUE(save.ok()) << save.status();
      ASSERT_TRUE(begun[0]->Wait(Level::kCommitted, seconds(30)).ok());
    }
  }
  daemon_.Stop();  // Drops what is still in memory.
  daemon_.Start();
  std::fstream file(root_ + "/two/f1", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(50'000).put('!').put('?');
  file.close();

  std::vector<Job> ranks = ranks_of("launch-2");
  Checkpoint zero = resume(ranks[0]), one = resume(ranks[1]);
  EXPECT_EQ(zero.info().tag, "two");
  EXPECT_TRUE(zero.Read("f0").ok());
  EXPECT_EQ(ReasonOf(one.Read("f1").status()), "CORRUPT_FILE");
  const absl::Status told = zero.Finish(seconds(30));
  EXPECT_EQ(ReasonOf(told), "CHECKPOINT_DAMAGED") << told;
  EXPECT_EQ(DetailsOf(told).at("path"), "f1");
  EXPECT_EQ(one.Finish(seconds(30)).code(), absl::StatusCode::kDataLoss);

  Checkpoint older_zero = resume(ranks[0]), older_one = resume(ranks[1]);
  EXPECT_EQ(older_zero.info().tag, "one");
  ASSERT_EQ(older_one.passed_over().size(), 1u);
  EXPECT_EQ(older_one.passed_over()[0].tag, "two");
  EXPECT_NE(older_one.passed_over()[0].damage, "");
  absl::Status zero_left = absl::UnknownError("waits");
  std::thread leaving([&] { zero_left = older_zero.Finish(seconds(30)); });
  EXPECT_TRUE(older_one.Finish(seconds(30)).ok());
  leaving.join();
  EXPECT_TRUE(zero_left.ok()) << zero_left;
  EXPECT_EQ(ReasonOf(ranks[0].Resume(seconds(30), /*strict=*/true).status()), "CHECKPOINT_DAMAGED");
  EXPECT_EQ(ranks[0].Open("one")->Finish().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientTest, CheckpointReleasedBeforeFinishFailsResumeOnOtherRanks) {
  {
    Job only = OpenRun(0, 1, "launch-1");
    const std::vector<std::byte> bytes = RandomBytes(1000, 8);
    ASSERT_TRUE(only.Save({.tag = "one"}, {{"f", {bytes}}})->Wait(Level::kCommitted, seconds(30)).ok());
  }
  Job first = OpenRun(0, 2, "launch-2"), second = OpenRun(1, 2, "launch-2");
  absl::StatusOr<std::optional<Checkpoint>> zero = first.Resume(seconds(30)),
                                            one = second.Resume(seconds(30));
  ASSERT_TRUE(zero.ok() && one.ok());
  one->reset();
  const absl::Status told = (*zero)->Finish(seconds(30));
  EXPECT_EQ(ReasonOf(told), "RESUME_FAILED") << told;
  EXPECT_EQ(DetailsOf(told).at("ranks"), "1");
}

TEST_F(ClientTest, ChangingBytesAfterSaveReturnsLeavesCheckpointUnchanged) {
  Job run = OpenRun();
  const std::vector<std::byte> before = RandomBytes(16 << 20, 3);
  std::vector<std::byte> state = before;
  absl::StatusOr<Save> save = run.Save({.tag = "a"}, {{"f", {state}}});
  std::fill(state.begin(), state.end(), std::byte{0});
  ASSERT_TRUE(save.ok()) << save.status();
  absl::StatusOr<Save> next = run.Save({.tag = "b"}, {{"f", {state}}});  // Overlaps with the save before it.
  ASSERT_TRUE(next.ok()) << next.status();
  ASSERT_TRUE(save->Wait(Level::kCommitted, seconds(30)).ok());
  ASSERT_TRUE(next->Wait(Level::kCommitted, seconds(30)).ok());
  ExpectOnDisk("a", "f", before);
  ExpectOnDisk("b", "f", state);
  absl::StatusOr<std::vector<CheckpointInfo>> list = run.List();
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->size(), 2u);
  EXPECT_EQ((*list)[0].tag, "b");  // Newest first.
  EXPECT_EQ((*run.Latest())->tag, "b");
}

// Returns the bytes of this process's writable shared mappings: the segments.
int64_t MappedBytes() {
  std::ifstream maps("/proc/self/maps");
  int64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0;
    char mode[5] = {};
    const bool parsed = std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s", &begin, &end, mode) == 3;
    if (parsed && std::string(mode) == "rw-s") bytes += static_cast<int64_t>(end - begin);
  }
  return bytes;
}

TEST_F(ClientTest, LaterSaveOfSameShapeMapsNoNewMemory) {
  Job run = OpenRun();
  const std::vector<std::byte> state = RandomBytes(8 << 20, 4);
  for (int i = 0; i < 3; ++i) {
    absl::StatusOr<Save> save = run.Save({.tag = "s" + std::to_string(i)}, {{"f", {state}}});
    ASSERT_TRUE(save.ok()) << save.status();
    ASSERT_TRUE(save->Wait(Level::kCommitted, seconds(30)).ok());
    EXPECT_EQ(MappedBytes(), 8 << 20) << "save " << i;  // The same memory is lent again.
    const SaveTiming timing = save->timing();
    EXPECT_GT(timing.seal.count(), 0);
    EXPECT_LE(timing.begin + timing.map + timing.copy + timing.seal, timing.stall);
  }
}

TEST_F(ClientTest, SavesOfTheSameFilesAreWholeWhateverComesBetween) {
  Job run = OpenRun();
  const auto save = [&](const std::string& tag, const std::vector<std::pair<std::string, size_t>>& files) {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<FileSource> sources;
    for (const auto& [path, size] : files)
      bytes.push_back(RandomBytes(size, static_cast<unsigned>(std::hash<std::string>()(tag + path))));
    for (size_t i = 0; i < files.size(); ++i) sources.push_back({files[i].first, {bytes[i]}});
    absl::StatusOr<Save> saved = run.Save({.tag = tag}, sources);
    ASSERT_TRUE(saved.ok()) << tag << ": " << saved.status();
    ASSERT_TRUE(saved->Wait(Level::kCommitted, seconds(30)).ok()) << tag;
    for (size_t i = 0; i < files.size(); ++i) ExpectOnDisk(tag, files[i].first, bytes[i]);
    EXPECT_EQ(run.Open(tag)->info().files.size(), files.size()) << tag;
  };
  save("first", {{"a", 5000}, {"d/b", 3 << 20}, {"c", 0}});
  save("same", {{"a", 5000}, {"d/b", 3 << 20}, {"c", 0}});
  save("another_order", {{"d/b", 3 << 20}, {"a", 5000}, {"c", 0}});
  save("another_size", {{"d/b", 3 << 20}, {"a", 5001}, {"c", 0}});
  save("another_name", {{"d/b", 3 << 20}, {"a", 5001}, {"e", 0}});
  save("fewer", {{"d/b", 3 << 20}, {"a", 5001}});
  save("fewer_again", {{"d/b", 3 << 20}, {"a", 5001}});
  daemon_.Kill();
  daemon_.Start();
  save("after_restart", {{"d/b", 3 << 20}, {"a", 5001}});
  save("again", {{"d/b", 3 << 20}, {"a", 5001}});
}

TEST_F(ClientTest, PartIsFilledInPlaceFileByFile) {
  Job run = OpenRun();
  const std::vector<std::byte> a = RandomBytes(3 << 20, 5), b = RandomBytes(100, 6);
  absl::StatusOr<Part> part = run.Begin({.tag = "grown", .step = 7});
  ASSERT_TRUE(part.ok()) << part.status();
  auto first = part->AddFile("a", static_cast<int64_t>(a.size()));
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = part->AddFile("b", 5000);  // An upper bound.
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(ReasonOf(part->AddFile("a", 1).status()), "FILE_CONFLICT");
  Fill(*first, a);
  std::copy(b.begin(), b.end(), (*second)[0].begin());
  EXPECT_FALSE(part->Truncate("b", 5001).ok());
  ASSERT_TRUE(part->Truncate("b", 100).ok());
  absl::StatusOr<Save> save = part->Seal();
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(save->Wait(Level::kCommitted, seconds(30)).ok());
  ExpectOnDisk("grown", "a", a);
  ExpectOnDisk("grown", "b", b);
  EXPECT_EQ(ReasonOf(part->Seal().status()), "SEALED");
}

TEST_F(ClientTest, WaitNamesRanksThatHaveNotSealed) {
  Job rank0 = OpenRun(0, 2), rank1 = OpenRun(1, 2);
  absl::StatusOr<Save> save0 = absl::UnknownError("not saved");
  std::thread saving([&] { save0 = rank0.Save({.tag = "s", .step = 1}, {{"f0", {RandomBytes(1000, 7)}}}); });
  absl::StatusOr<Part> part1 = rank1.Begin({.tag = "s", .step = 1});
  saving.join();
  ASSERT_TRUE(save0.ok()) << save0.status();
  ASSERT_TRUE(part1.ok()) << part1.status();
  const absl::Status early = save0->Wait(Level::kSealed, milliseconds(50));
  EXPECT_EQ(early.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(early), "WAIT_TIMEOUT");
  EXPECT_EQ(DetailsOf(early)["ranks"], "1");
  ASSERT_TRUE(part1->AddFile("f1", 0).ok());
  absl::StatusOr<Save> save1 = part1->Seal();
  ASSERT_TRUE(save1.ok()) << save1.status();
  EXPECT_TRUE(save0->Wait(Level::kCommitted, seconds(30)).ok());
  EXPECT_TRUE(save1->Wait(Level::kCommitted, seconds(30)).ok());
  EXPECT_EQ(save0->sequence(), save1->sequence());
}

TEST_F(ClientTest, AbandonedPartAbortsSaveForAllRanks) {
  Job rank0 = OpenRun(0, 2), rank1 = OpenRun(1, 2);
  absl::StatusOr<Save> save0 = absl::UnknownError("not saved");
  std::thread saving([&] { save0 = rank0.Save({.tag = "s"}, {{"f0", {RandomBytes(1000, 7)}}}); });
  {
    absl::StatusOr<Part> part1 = rank1.Begin({.tag = "s"});
    EXPECT_TRUE(part1.ok()) << part1.status();
    saving.join();
  }
  ASSERT_TRUE(save0.ok()) << save0.status();
  const absl::Status ended = save0->Wait(Level::kCommitted, seconds(30));
  EXPECT_EQ(ended.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(ended), "SAVE_ABORTED");
  EXPECT_EQ(DetailsOf(ended)["ranks"], "1");
  EXPECT_EQ(save0->level(), Level::kFailed);
  EXPECT_FALSE(std::filesystem::exists(root_ + "/s"));
}

TEST_F(ClientTest, BusyPolicySkipReturnsBeforeCopying) {
  Job run = OpenRun();
  absl::StatusOr<Part> holder = run.Begin({.tag = "holder"});
  ASSERT_TRUE(holder.ok()) << holder.status();
  ASSERT_TRUE(holder->AddFile("f", 48 << 20).ok());  // The pool has 64 MiB.
  const std::vector<std::byte> state = RandomBytes(32 << 20, 8);
  absl::StatusOr<Save> skipped = run.Save({.tag = "skipped", .busy = BusyPolicy::kSkip}, {{"f", {state}}});
  ASSERT_TRUE(skipped.ok()) << skipped.status();
  EXPECT_EQ(skipped->level(), Level::kSkipped);
  EXPECT_EQ(skipped->timing().copy.count(), 0);
  const absl::Status waited = skipped->Wait(Level::kCommitted, seconds(1));
  EXPECT_EQ(waited.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(waited), "SKIPPED");
  const absl::Status refused =
      run.Save({.tag = "late", .timeout = milliseconds(200)}, {{"f", {state}}}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(refused), "ADMISSION_TIMEOUT");
}

TEST_F(ClientTest, ClientReconnectsAfterDaemonRestartAndLosesNothing) {
  Job run = OpenRun();
  const std::vector<std::byte> one = RandomBytes(2'000'003, 9), two = RandomBytes(3'000'001, 10);
  absl::StatusOr<Save> save = run.Save({.tag = "one"}, {{"f", {one}}});
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(save->Wait(Level::kCommitted, seconds(30)).ok());
  daemon_.Kill();
  daemon_.Start();
  EXPECT_TRUE(save->Wait(Level::kCommitted, seconds(30)).ok());
  absl::StatusOr<Save> next = run.Save({.tag = "two"}, {{"f", {two}}});
  ASSERT_TRUE(next.ok()) << next.status();
  ASSERT_TRUE(next->Wait(Level::kCommitted, seconds(30)).ok());
  ExpectOnDisk("one", "f", one);
  ExpectOnDisk("two", "f", two);
  EXPECT_EQ(next->sequence(), save->sequence() + 1);
  daemon_.Stop();
  daemon_.Start();
  Job restarted = OpenRun(0, 1, "launch-2");
  EXPECT_EQ(restarted.attempt(), run.attempt() + 1);
  absl::StatusOr<std::optional<Checkpoint>> resumed = restarted.Resume(seconds(30));
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  ASSERT_TRUE(resumed->has_value());
  EXPECT_TRUE(*(*resumed)->Read("f") == two);
}

TEST_F(ClientTest, PartBegunWithKilledDaemonIsSealedWithNextDaemon) {
  Job run = OpenRun();
  const std::vector<std::byte> a = RandomBytes(3'000'000, 11), b = RandomBytes(5000, 12),
                               c = RandomBytes(4096, 13);
  absl::StatusOr<Part> part = run.Begin({.tag = "s", .timeout = seconds(30)});
  ASSERT_TRUE(part.ok()) << part.status();
  auto spans_a = part->AddFile("a", static_cast<int64_t>(a.size()));
  auto spans_b = part->AddFile("b", static_cast<int64_t>(b.size()));
  ASSERT_TRUE(spans_a.ok() && spans_b.ok());
  Fill(*spans_a, a);
  daemon_.Kill();
  Fill(*spans_b, b);  // The memory still exists.
  daemon_.Start();
  auto spans_c = part->AddFile("c", static_cast<int64_t>(c.size()));
  ASSERT_TRUE(spans_c.ok()) << spans_c.status();
  Fill(*spans_c, c);
  absl::StatusOr<Save> save = part->Seal();
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(save->Wait(Level::kCommitted, seconds(30)).ok());
  ExpectOnDisk("s", "a", a);
  ExpectOnDisk("s", "b", b);
  ExpectOnDisk("s", "c", c);
}

TEST_F(ClientTest, SaveWaitsForRestartingDaemon) {
  Job run = OpenRun();
  daemon_.Kill();
  const std::vector<std::byte> state = RandomBytes(100'000, 14);
  absl::StatusOr<Save> save = absl::UnknownError("not saved");
  std::thread saving([&] { save = run.Save({.tag = "s", .timeout = seconds(30)}, {{"f", {state}}}); });
  daemon_.Start();
  saving.join();
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(save->Wait(Level::kCommitted, seconds(30)).ok());
  ExpectOnDisk("s", "f", state);
}

TEST_F(ClientTest, CallsWithoutDaemonEndInTimeAndNameSocket) {
  Job run = OpenRun();
  daemon_.Stop();
  const absl::Status saved = run.Save({.tag = "s", .timeout = milliseconds(300)}, {{"f", {}}}).status();
  EXPECT_EQ(saved.code(), absl::StatusCode::kUnavailable) << saved;
  EXPECT_THAT(std::string(saved.message()), HasSubstr(daemon_.endpoint()));
  const absl::Status connected =
      Client::Connect(daemon_.endpoint(), {.connect_timeout = milliseconds(0)}).status();
  EXPECT_EQ(connected.code(), absl::StatusCode::kUnavailable) << connected;
}

TEST_F(ClientTest, RefusesMissingTokenAndTokenOfOtherSession) {
  Job run = OpenRun();
  const Endpoint endpoint = *ParseEndpoint(daemon_.endpoint());
  v1::JoinRunRequest request;
  request.set_root(run.name());
  request.set_world_size(1);
  request.set_launch_id("x");
  for (const std::string& token : {std::string(32, '0'), std::string("garbage"), std::string()}) {
    const absl::Status status = Rpc(endpoint, token).JoinRun(request, seconds(10)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
    EXPECT_EQ(ReasonOf(status), "UNKNOWN_TOKEN");
  }
}

TEST_F(ClientTest, NewerAttemptFencesOlderOneFromItsFirstCall) {
  Job old = OpenRun(0, 1, "launch-1");
  ASSERT_TRUE(old.Resume(seconds(30)).ok());
  Job next = OpenRun(0, 1, "launch-2");
  ASSERT_TRUE(next.Resume(seconds(30)).ok());
  const absl::Status fenced = old.Save({.tag = "s"}, {{"f", {}}}).status();
  EXPECT_EQ(fenced.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(fenced), "FENCED");
  EXPECT_TRUE(next.Save({.tag = "s"}, {{"f", {}}}).ok());
}

TEST_F(ClientTest, ReadVerifiesChecksums) {
  Job run = OpenRun();
  const std::vector<std::byte> good = RandomBytes(50'000, 15);
  absl::StatusOr<Save> save = run.Save({.tag = "s"}, {{"bad", {good}}, {"good", {good}}});
  ASSERT_TRUE(save.ok()) << save.status();
  ASSERT_TRUE(save->Wait(Level::kCommitted, seconds(30)).ok());
  std::fstream file(root_ + "/s/bad", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(40'000);
  file.put(static_cast<char>(good[40'000] ^ std::byte{1}));
  file.close();
  EXPECT_TRUE(*run.Open("s")->Read("bad") == good) << "its bytes are still in memory, and were checked there";
  daemon_.Stop();
  daemon_.Start();
  absl::StatusOr<Checkpoint> checkpoint = run.Open("s");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(*checkpoint->Read("good") == good);
  const absl::Status corrupt = checkpoint->Read("bad").status();
  EXPECT_EQ(corrupt.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(corrupt), "CORRUPT_FILE");
  EXPECT_EQ(DetailsOf(corrupt)["path"], "bad");
}

TEST_F(ClientTest, OpenCheckpointIsUnchangedWhenItsTagIsSavedAgain) {
  Job run = OpenRun();
  const std::vector<std::byte> old_bytes = RandomBytes(100'000, 16), new_bytes = RandomBytes(100'000, 17);
  ASSERT_TRUE(run.Save({.tag = "last"}, {{"f", {old_bytes}}})->Wait(Level::kCommitted, seconds(30)).ok());
  absl::StatusOr<Checkpoint> open = run.Open("last");
  ASSERT_TRUE(open.ok()) << open.status();
  absl::StatusOr<Save> again = run.Save({.tag = "last"}, {{"f", {new_bytes}}});
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE(again->Wait(Level::kCommitted, seconds(30)).ok());
  EXPECT_TRUE(*open->Read("f") == old_bytes);
  EXPECT_TRUE(*run.Open("last")->Read("f") == new_bytes);
}

TEST_F(ClientTest, ReadsCheckpointOfEndedProcessesFromMemory) {
  const std::vector<std::byte> large = RandomBytes((9 << 20) + 4097, 21), tiny = RandomBytes(1, 22);
  {
    Job ended = OpenRun();
    absl::StatusOr<Save> save =
        ended.Save({.tag = "s"}, {{"large", {large}}, {"tiny", {tiny}}, {"none", {}}});
    ASSERT_TRUE(save.ok()) << save.status();
    ASSERT_TRUE(save->Wait(Level::kCommitted, seconds(30)).ok());
  }
  std::fstream(root_ + "/s/large", std::ios::in | std::ios::out | std::ios::binary).put('?').put('!');
  absl::StatusOr<std::optional<Checkpoint>> resumed = OpenRun(0, 1, "launch-2").Resume(seconds(30));
  ASSERT_TRUE(resumed.ok() && resumed->has_value()) << resumed.status();
  EXPECT_TRUE(*(*resumed)->Read("large") == large);
  EXPECT_TRUE(*(*resumed)->Read("tiny") == tiny);
  EXPECT_TRUE((*resumed)->Read("none")->empty());
  std::vector<std::byte> slice(3 << 20);
  ASSERT_TRUE((*resumed)->ReadInto("large", (4 << 20) - 17, slice).ok());
  EXPECT_TRUE(std::equal(slice.begin(), slice.end(), large.begin() + (4 << 20) - 17));
}

TEST_F(ClientTest, ForkedChildIsRefused) {
  Job run = OpenRun();
  const pid_t child = fork();
  if (child == 0) _exit(ReasonOf(run.Latest().status()) == "FORKED" ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(run.Latest().ok());  // The parent's session is still alive.
}

TEST_F(ClientTest, RefusalsNameInvalidArgument) {
  Job run = OpenRun();
  EXPECT_EQ(ReasonOf(run.Save({.tag = "../x"}, {}).status()), "INVALID_TAG");
  EXPECT_EQ(ReasonOf(run.Save({.tag = "latest"}, {}).status()), "INVALID_TAG");
  EXPECT_EQ(ReasonOf(run.Save({.tag = "ok"}, {{"../f", {}}}).status()), "INVALID_PATH");
  const absl::StatusOr<Client> client = Client::Connect(daemon_.endpoint());
  ASSERT_TRUE(client.ok()) << client.status();
  Client connected = *client;
  EXPECT_EQ(ReasonOf(connected.OpenRun(root_ + "/missing").status()), "ENOENT");
  EXPECT_EQ(ReasonOf(connected.OpenRun(root_, {.rank = 2, .world_size = 2}).status()), "INVALID_ARGUMENT");
  Job limited = *connected.OpenRun(root_, {.launch_id = "l", .num_kept_ckpts = 0});
  const absl::Status kept = limited.Save({.tag = "s"}, {}).status();
  EXPECT_EQ(kept.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(kept.message()), HasSubstr("num_kept_ckpts"));
}

TEST_F(ClientTest, ExampleProgramContinuesFromLastCheckpoint) {
  const std::string example = "examples/cpp/train";
  const ProgramResult first = RunProgram({example, daemon_.endpoint(), root_, "2"});
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("step_2 is committed"));
  const ProgramResult second = RunProgram({example, daemon_.endpoint(), root_, "3"});
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("resumed from step_2"));
  EXPECT_THAT(second.out, HasSubstr("step_3 is committed"));
}

}  // namespace
}  // namespace ckptd::client
