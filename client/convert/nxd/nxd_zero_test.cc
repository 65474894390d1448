// ConvertNxdZero from tag to tag: results, refusals, faults and crashes.
//
// Longer than 500 lines because all tests share one made-up tag and the check of a whole result.
#include "client/convert/nxd/nxd_zero.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/convert_fixture.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/crash_io_queue.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/faulty_io_queue.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Files = std::map<std::string, std::string>;

class NxdZeroTest : public ::testing::Test {
 protected:
  NxdZeroTest() {
    EXPECT_TRUE(fs_.MakeDir(dir_.fd(), "tag").ok());
    in_ = *OpenScoped(fs_, dir_.fd(), "tag", OpenMode::kDirectory);
    options_.output.chunk_bytes = 4096;
    options_.output.depth = 2;
  }

  void Put(const TestTag& tag) {
    files_ = MakeTag(tag);
    PutTag(fs_, in_.get(), files_);
  }
  absl::StatusOr<NxdZeroReport> Convert(const std::string& name = "out") {
    return ConvertNxdZero(fs_, in_.get(), dir_.fd(), name, options_,
                          [](const NxdZeroReport&, int64_t) { return true; });
  }
  absl::StatusOr<NxdZeroReport> ToShards(int count, const std::string& name = "out") {
    options_.to_full = false;
    options_.dp_size = count;
    return Convert(name);
  }
  absl::StatusOr<NxdZeroReport> ToFull(const std::string& name = "out") {
    options_.to_full = true;
    return Convert(name);
  }
  Files Tree(const std::string& path) {
    const ScopedHandle dir = *OpenScoped(fs_, dir_.fd(), path, OpenMode::kDirectory);
    return ReadTree(fs_, dir.get());
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    const std::vector<DirEntry> entries = *fs_.List(dir_.fd());
    for (const DirEntry& entry : entries) names.push_back(entry.name);
    return names;
  }
  void ExpectRefused(const absl::StatusOr<NxdZeroReport>& result, const std::string& reason,
                     const std::string& words) {
    EXPECT_EQ(ReasonOf(result.status()), reason) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(words));
    EXPECT_THAT(Names(), ElementsAre("tag")) << "a refused conversion writes nothing";
  }
  // Expects that a tag with this change is refused, with `words` in the message.
  void ExpectChangeRefused(const std::function<void(int dp, torch::Dict& state, StorageBytes& bytes)>& change,
                           const std::string& words) {
    Put({.change = change});
    ExpectRefused(ToShards(3), "CANNOT_CONVERT", words);
  }

  TempDir dir_;
  std::unique_ptr<FileSystem> posix_ = *MakePosixFileSystem();
  FaultyFileSystem fs_{posix_.get()};
  ScopedHandle in_;
  NxdZeroOptions options_;
  Files files_;
};

torch::Dict& StatesOf(torch::Dict& state, int64_t id) {
  return *state.Find("base_state")->As<torch::Dict>()->Find(id)->As<torch::Dict>();
}

TEST_F(NxdZeroTest, MakesShardsForAnyNumberOfRanks) {
  for (const bool xser : {false, true}) {
    for (const int from : {1, 2, 3, 5, 8}) {
      const TestTag tag = {.dp = from, .xser = xser, .master_weights = true};
      const std::string in = absl::StrCat("in", from, xser);
      ASSERT_TRUE(fs_.MakeDir(dir_.fd(), in).ok());
      in_ = *OpenScoped(fs_, dir_.fd(), in, OpenMode::kDirectory);
      Put(tag);
      for (const int to : {1, 2, 3, 4, 7, 16}) {
        const std::string out = absl::StrCat(in, "_", to);
        const absl::StatusOr<NxdZeroReport> report = ToShards(to, out);
        ASSERT_TRUE(report.ok()) << report.status();
        EXPECT_EQ(WrongWith(Tree(out), tag, false, to), "") << out;
        EXPECT_EQ(report->from.xser, xser);
      }
      const absl::StatusOr<NxdZeroReport> report = ToFull(in + "_full");
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(WrongWith(Tree(in + "_full"), tag, true, 1), "") << in;
    }
  }
}

TEST_F(NxdZeroTest, ConvertsEachTensorAndPipelineParallelRankSeparately) {
  const TestTag tag = {.dp = 2, .tp = 3, .pp = 2};
  Put(tag);
  const absl::StatusOr<NxdZeroReport> report = ToShards(3);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->optim_files, 18);
  EXPECT_EQ(WrongWith(Tree("out"), tag, false, 3), "");
}

TEST_F(NxdZeroTest, ShardsAMergedStateAgain) {
  for (const bool xser : {false, true}) {
    const TestTag tag = {.full = true, .xser = xser, .markers = false, .master_weights = true};
    const std::string in = absl::StrCat("in", xser);
    ASSERT_TRUE(fs_.MakeDir(dir_.fd(), in).ok());
    in_ = *OpenScoped(fs_, dir_.fd(), in, OpenMode::kDirectory);
    Put(tag);
    const absl::StatusOr<NxdZeroReport> report = ToShards(4, in + "_4");
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(WrongWith(Tree(in + "_4"), tag, false, 4), "");
    EXPECT_EQ(ReasonOf(ToFull(in + "_full").status()), "CANNOT_CONVERT");
  }
}

// However much of the plan is made at once, the result is the same.
TEST_F(NxdZeroTest, SmallPlansGiveTheSameResult) {
  const TestTag tag = {.dp = 3, .xser = true};
  Put(tag);
  options_.plan_bytes = 1;
  ASSERT_TRUE(ToShards(5).ok());
  EXPECT_EQ(WrongWith(Tree("out"), tag, false, 5), "");
}

TEST_F(NxdZeroTest, DryRunWritesNothingAndReportsTheSame) {
  Put({});
  options_.dry_run = true;
  const absl::StatusOr<NxdZeroReport> planned = ToShards(3);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_THAT(Names(), ElementsAre("tag"));
  options_.dry_run = false;
  const absl::StatusOr<NxdZeroReport> done = ToShards(3);
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(planned->optim_bytes, done->optim_bytes);
  EXPECT_EQ(planned->optim_files, 3);
  EXPECT_EQ(planned->carried_files, 4);
  int64_t bytes = 0;
  for (const auto& [path, content] : Tree("out")) bytes += static_cast<int64_t>(content.size());
  EXPECT_EQ(done->total_bytes() + 2, bytes) << "with the two markers";
}

TEST_F(NxdZeroTest, SkipsAndReportsUnknownFiles) {
  Put({});
  PutTag(fs_, in_.get(),
         {{"notes.txt", "x"}, {"optim/dp_rank_0_tp_rank_00_pp_rank_00.pt", "x"}, {"optim/.swp", "x"}});
  const absl::StatusOr<NxdZeroReport> report = ToShards(3);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->from.skipped,
              ElementsAre("optim/.swp", "optim/dp_rank_0_tp_rank_00_pp_rank_00.pt", "notes.txt"));
  EXPECT_EQ(WrongWith(Tree("out"), {}, false, 3), "");
}

// ---- refused conversions, which write nothing ----

TEST_F(NxdZeroTest, NamesAllMissingFilesAtOnce) {
  Put({.dp = 3, .tp = 2});
  for (const char* path :
       {"optim/dp_rank_01_tp_rank_00_pp_rank_00.pt", "optim/dp_rank_02_tp_rank_01_pp_rank_00.pt"})
    ASSERT_TRUE(fs_.Remove(in_.get(), path, FileType::kRegular).ok());
  const absl::StatusOr<NxdZeroReport> report = ToShards(3);
  ExpectRefused(report, "INCOMPLETE_CHECKPOINT",
                "dp_rank_01_tp_rank_00_pp_rank_00.pt, dp_rank_02_tp_rank_01_pp_rank_00.pt");
}

TEST_F(NxdZeroTest, HugeRankInANameDoesNotMakeAnEndlessList) {
  Put({});
  PutTag(fs_, in_.get(), {{"optim/dp_rank_1000000_tp_rank_1000000_pp_rank_1000000.pt", "x"}});
  ExpectRefused(ToShards(3), "INCOMPLETE_CHECKPOINT", "1000003000002999966 more");
}

TEST_F(NxdZeroTest, NamesAllMissingTensorFilesAtOnce) {
  Put({.xser = true});
  for (const char* path : {"optim/dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors/tensor_2.pt",
                           "optim/dp_rank_01_tp_rank_00_pp_rank_00.pt.tensors/tensor_5.pt"})
    ASSERT_TRUE(fs_.Remove(in_.get(), path, FileType::kRegular).ok());
  ExpectRefused(
      ToShards(3), "INCOMPLETE_CHECKPOINT",
      "2 files of tensors in optim/ are missing: dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors/tensor_2.pt, "
      "dp_rank_01_tp_rank_00_pp_rank_00.pt.tensors/tensor_5.pt");
}

TEST_F(NxdZeroTest, ConvertsWithoutAnInfoFileAsOfOldReleases) {
  const TestTag tag = {.xser = true};
  Put(tag);
  for (const char* path : {"optim/dp_rank_00_tp_rank_00_pp_rank_00.pt.info.pt",
                           "optim/dp_rank_01_tp_rank_00_pp_rank_00.pt.info.pt"})
    ASSERT_TRUE(fs_.Remove(in_.get(), path, FileType::kRegular).ok());
  ASSERT_TRUE(ToShards(3).ok());
  EXPECT_EQ(WrongWith(Tree("out"), tag, false, 3), "");
}

TEST_F(NxdZeroTest, RefusesAnUnfinishedTagUnlessForced) {
  Put({});
  ASSERT_TRUE(fs_.Remove(in_.get(), "done", FileType::kRegular).ok());
  ExpectRefused(ToShards(3), "INCOMPLETE_CHECKPOINT", "--force");
  options_.allow_unfinished = true;
  ASSERT_TRUE(ToShards(3).ok());
  EXPECT_EQ(WrongWith(Tree("out"), {}, false, 3), "");
}

TEST_F(NxdZeroTest, RefusesATagWithoutAZero1Optimizer) {
  ExpectRefused(ToShards(3), "NO_OPTIMIZER_STATE", "no directory optim/");
  PutTag(fs_, in_.get(), {{"optim/other", "x"}});
  ExpectRefused(ToShards(3), "NO_OPTIMIZER_STATE", "no file of a ZeRO-1 optimizer");
  torch::Dict plain;
  plain.Set("state", torch::Make(torch::Dict()));
  PutTag(fs_, in_.get(),
         {{"optim/dp_rank_00_tp_rank_00_pp_rank_00.pt", ArchiveBytes(*torch::Make(std::move(plain)), {})}});
  ExpectRefused(ToShards(3), "NO_OPTIMIZER_STATE", "dp rank 0 has no base_state");
  PutTag(fs_, in_.get(), {{"optim/dp_rank_00_ep_rank_00_tp_rank_00_pp_rank_00.pt", "x"}});
  ExpectRefused(ToShards(3), "CANNOT_CONVERT", "without ZeRO-1");
  PutTag(fs_, in_.get(), {{"optim/.metadata", "x"}});
  ExpectRefused(ToShards(3), "CANNOT_CONVERT", "distributed checkpoints");
}

TEST_F(NxdZeroTest, RefusesShardsBesideAMergedState) {
  Put({});
  PutTag(fs_, in_.get(), {{"optim/full_tp_rank_00_pp_rank_00.pt", "x"}});
  ExpectRefused(ToShards(3), "CANNOT_CONVERT", "both a merged state");
}

TEST_F(NxdZeroTest, RefusesImpossibleNumbersOfShards) {
  Put({});
  for (const int count : {0, -1, kMaxShards + 1})
    ExpectRefused(ToShards(count), "INVALID_ARGUMENT", absl::StrCat("dp_size is ", count));
}

TEST_F(NxdZeroTest, RefusesParamGroupsThatDiffer) {
  ExpectChangeRefused(
      [](int dp, torch::Dict& state, StorageBytes&) {
        auto* group = state.Find("param_groups")->As<torch::List>()->items[0]->As<torch::Dict>();
        if (dp == 1) group->Set("weight_decay", torch::Make<double>(0.2));
      },
      "param_groups[0]['weight_decay'] is 0.1 and 0.2 on dp rank 0 and dp rank 1");
}

TEST_F(NxdZeroTest, RefusesStepsThatDiffer) {
  ExpectChangeRefused(
      [](int dp, torch::Dict& state, StorageBytes& bytes) {
        if (dp == 1) StatesOf(state, 1).Set("step", TestTensor("another step", {}, bytes));
      },
      "base_state[1]['step'] is a tensor float32[] and a tensor float32[], with different bytes on dp rank 0 "
      "and "
      "dp rank 1");
}

TEST_F(NxdZeroTest, RefusesAShardOfAnotherShape) {
  ExpectChangeRefused(
      [](int dp, torch::Dict& state, StorageBytes& bytes) {
        if (dp == 1) StatesOf(state, 0).Set("exp_avg", TestTensor("x", {6, 6}, bytes));
      },
      "base_state[0]['exp_avg'] of dp rank 1 is a tensor float32[6, 6]; one of 2 shards of a parameter [13, "
      "6] is [7, 6]");
}

TEST_F(NxdZeroTest, RefusesAStateOfItsOwnShape) {
  ExpectChangeRefused([](int, torch::Dict& state,
                         StorageBytes& bytes) { StatesOf(state, 0).Set("row", TestTensor("x", {7}, bytes)); },
                      "base_state[0]['row']");
}

TEST_F(NxdZeroTest, RefusesTensorsThatAreNotContiguous) {
  ExpectChangeRefused(
      [](int, torch::Dict& state, StorageBytes&) {
        auto* tensor = StatesOf(state, 0).Find("exp_avg")->As<torch::Tensor>();
        tensor->stride = {1, 7};
      },
      "has strides [1, 7]");
}

TEST_F(NxdZeroTest, RefusesAStateThatOneRankLacks) {
  ExpectChangeRefused(
      [](int dp, torch::Dict& state, StorageBytes& bytes) {
        if (dp == 0) StatesOf(state, 0).Set("more", TestTensor("x", {7, 6}, bytes));
      },
      "base_state[0]['more'] is in the state of dp rank 0 and not in that of dp rank 1");
}

TEST_F(NxdZeroTest, RefusesAStateWithoutAShape) {
  ExpectChangeRefused(
      [](int, torch::Dict& state, StorageBytes&) {
        torch::Dict one;
        one.Set(int64_t{0}, state.Find("shape_info")->As<torch::Dict>()->Find(int64_t{0}));
        state.Set("shape_info", torch::Make(std::move(one)));
      },
      "shape_info has no shape for base_state[1]");
}

// With two expert-parallel ranks each holds experts of its own, as if over one data-parallel rank.
TEST_F(NxdZeroTest, RefusesExpertsOfSeveralRanks) {
  ExpectChangeRefused(
      [](int dp, torch::Dict& state, StorageBytes& bytes) {
        state.Set("ep_base_state_offset", torch::MakeInt(4));
        for (const char* name : {"exp_avg", "exp_avg_sq"})
          StatesOf(state, 4).Set(name, TestTensor(absl::StrCat(dp, name), {5, 3, 2}, bytes));
      },
      "the state has experts (ep_base_state_offset is 4), and they are not sharded over all 2 data-parallel "
      "ranks");
}

TEST_F(NxdZeroTest, ConvertsExpertsShardedOverAllRanks) {
  const TestTag tag = {.change = [](int, torch::Dict& state, StorageBytes&) {
    state.Set("ep_base_state_offset", torch::MakeInt(4));
  }};
  Put(tag);
  ExpectRefused(ToFull(), "CANNOT_CONVERT", "Convert from sharded to sharded");
  ASSERT_TRUE(ToShards(3).ok());
  EXPECT_EQ(WrongWith(Tree("out"), tag, false, 3), "");
}

TEST_F(NxdZeroTest, KeepsOtherTensorsWithoutDimensionsThanStep) {
  const TestTag tag = {.change = [](int, torch::Dict& state, StorageBytes& bytes) {
    StatesOf(state, 0).Set("decay", TestTensor("decay", {}, bytes));
    StatesOf(state, 1).Set("count", torch::MakeInt(7));
  }};
  Put(tag);
  const absl::StatusOr<NxdZeroReport> report = ToShards(3);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(WrongWith(Tree("out"), tag, false, 3), "");
}

// One tensor has two names, and one of them is sharded.
TEST_F(NxdZeroTest, ConvertsATensorThatIsAlsoHeldElsewhere) {
  const TestTag tag = {.dp = 1, .change = [](int, torch::Dict& state, StorageBytes&) {
                         torch::Dict also;
                         also.Set("exp_avg", StatesOf(state, 0).Find("exp_avg"));
                         state.Set("state", torch::Make(std::move(also)));
                       }};
  Put(tag);
  const absl::StatusOr<NxdZeroReport> report = ToShards(3);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(WrongWith(Tree("out"), tag, false, 3), "");
}

TEST_F(NxdZeroTest, RefusesAPickleThatClaimsTooMuch) {
  Put({});
  std::string& file = files_["optim/dp_rank_01_tp_rank_00_pp_rank_00.pt"];
  const size_t at = file.find("param_groups");
  ASSERT_NE(at, std::string::npos);
  file[at - 1] = '\xff';  // The length of a text that is not there.
  ASSERT_TRUE(fs_.Remove(in_.get(), "optim/dp_rank_01_tp_rank_00_pp_rank_00.pt", FileType::kRegular).ok());
  PutTag(fs_, in_.get(), {{"optim/dp_rank_01_tp_rank_00_pp_rank_00.pt", file}});
  ExpectRefused(ToShards(3), "CORRUPT_ARCHIVE", "dp_rank_01");
}

// ---- faults ----

// Each operation fails in turn: the output is absent or whole, the input is unchanged, and no leftovers
// remain.
TEST_F(NxdZeroTest, OutputIsAbsentOrWholeWhicheverOperationFails) {
  const TestTag tag = {.shapes = {{0, {5, 3}}, {1, {2, 2}}}, .frozen = {}};
  Put(tag);
  const Files before = Tree("tag");
  int failed = 0;
  for (const FsOp op : {FsOp::kOpen, FsOp::kMakeDir, FsOp::kRename, FsOp::kList, FsOp::kStat, FsOp::kAllocate,
                        FsOp::kTruncate, FsOp::kSync, FsOp::kReadAt, FsOp::kWriteAt, FsOp::kLock,
                        FsOp::kSpace, FsOp::kRemove}) {
    for (int nth = 1;; ++nth) {
      fs_.Fail({.op = op, .nth = nth, .error = op == FsOp::kReadAt ? EIO : ENOSPC});
      const int before_it = fs_.Count(op);
      const absl::StatusOr<NxdZeroReport> report = ToShards(3);
      fs_.ClearFaults();
      const int calls = fs_.Count(op) - before_it;
      const std::string what =
          absl::StrCat(std::string(FsOpName(op)), " ", nth, ": ", report.status().ToString());
      const std::vector<std::string> names = Names();
      const bool there = std::find(names.begin(), names.end(), "out") != names.end();
      if (there) {
        ASSERT_EQ(WrongWith(Tree("out"), tag, false, 3), "") << what;
        ASSERT_TRUE(report.ok() || ReasonOf(report.status()) == "INDETERMINATE") << what;
        std::filesystem::remove_all(dir_.path() + "/out");
      } else {
        ASSERT_FALSE(report.ok()) << what;
        ++failed;
      }
      ASSERT_EQ(Tree("tag"), before) << what;
      const absl::StatusOr<NxdZeroReport> again = ToShards(3);
      ASSERT_TRUE(again.ok()) << what << ", then " << again.status();
      ASSERT_EQ(WrongWith(Tree("out"), tag, false, 3), "") << what;
      ASSERT_THAT(Names(), ElementsAre("out", "tag")) << what;
      std::filesystem::remove_all(dir_.path() + "/out");
      if (calls < nth) break;
      ASSERT_LT(nth, 2000);
    }
  }
  EXPECT_GT(failed, 60);
}

TEST_F(NxdZeroTest, FailedOrShortWritesLeaveNothing) {
  const TestTag tag;
  Put(tag);
  const auto with = [&](IoFaults* faults) {
    for (auto* make : {&options_.output.queues.uring, &options_.output.queues.threads}) {
      *make = [faults](int threads) {
        return FaultyQueueFactory([threads] { return MakeThreadQueue(threads); }, faults)();
      };
    }
  };
  int failed = 0;
  for (int nth = 1; nth <= 40; ++nth) {
    for (const int error : {ENOSPC, EIO}) {
      IoFaults faults;
      with(&faults);
      faults.FailWrite(nth, error);
      const absl::StatusOr<NxdZeroReport> report = ToShards(3);
      if (report.ok()) {  // The fault hit the probe, or there is no nth write.
        std::filesystem::remove_all(dir_.path() + "/out");
        continue;
      }
      EXPECT_EQ(ReasonOf(report.status()), error == EIO ? "IO_ERROR" : "NO_SPACE") << report.status();
      EXPECT_THAT(Names(), ElementsAre("tag"));
      ++failed;
    }
  }
  EXPECT_GT(failed, 20);
  IoFaults faults;
  with(&faults);
  faults.ShortenWrites(8192);  // No shorter than the probe needs.
  options_.output.chunk_bytes = 64 << 10;
  const absl::StatusOr<NxdZeroReport> report = ToShards(3);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(WrongWith(Tree("out"), tag, false, 3), "");
}

TEST_F(NxdZeroTest, RefusesAFullDiskBeforeWriting) {
  class FullFileSystem : public FaultyFileSystem {
   public:
    using FaultyFileSystem::FaultyFileSystem;
    absl::StatusOr<SpaceInfo> Space(Handle dir) override {
      absl::StatusOr<SpaceInfo> info = FaultyFileSystem::Space(dir);
      if (info.ok()) info->free_bytes = 5000;
      return info;
    }
  } full(posix_.get());
  Put({});
  options_.dp_size = 3;
  const absl::StatusOr<NxdZeroReport> report = ConvertNxdZero(
      full, in_.get(), dir_.fd(), "out", options_, [](const NxdZeroReport&, int64_t) { return true; });
  ExpectRefused(report, "NO_SPACE", "has 5000 left");
}

TEST_F(NxdZeroTest, AnInterruptedConversionLeavesNothing) {
  Put({});
  options_.dp_size = 3;
  for (int allowed = 0; allowed < 3; ++allowed) {
    int asked = 0;
    const absl::StatusOr<NxdZeroReport> report =
        ConvertNxdZero(fs_, in_.get(), dir_.fd(), "out", options_,
                       [&](const NxdZeroReport&, int64_t) { return asked++ < allowed; });
    ExpectRefused(report, "INTERRUPTED", "stopped");
  }
}

// ---- crashes ----

constexpr Loss kLosses[] = {Loss::kNothing, Loss::kEverything, Loss::kData,  Loss::kBytes,
                            Loss::kEntries, Loss::kRandom,     Loss::kRandom};

absl::StatusOr<NxdZeroReport> ConvertOn(CrashDisk& disk, bool to_full) {
  NxdZeroOptions options;
  options.to_full = to_full;
  options.dp_size = 3;
  options.output.chunk_bytes = 4096;
  options.output.depth = 3;
  options.output.queues.uring =
      options.output.queues.threads = [&disk](int) { return CrashQueueFactory(&disk)(); };
  const ScopedHandle in = *OpenScoped(disk, disk.root(), "tag", OpenMode::kDirectory);
  return ConvertNxdZero(disk, in.get(), disk.root(), "out", options,
                        [](const NxdZeroReport&, int64_t) { return true; });
}

Files TreeOf(CrashDisk& disk, const std::string& path) {
  const ScopedHandle dir = *OpenScoped(disk, disk.root(), path, OpenMode::kDirectory);
  return ReadTree(disk, dir.get());
}

// After every operation the process is killed, or the power is cut, with every kind of loss.
class NxdZeroCrashTest : public ::testing::TestWithParam<bool> {};

TEST_P(NxdZeroCrashTest, OutputIsAbsentOrWholeAndTheNextRunSucceeds) {
  const bool to_full = GetParam();
  const int count = to_full ? 1 : 3;
  const TestTag tag = {.xser = !to_full, .shapes = {{0, {5, 3}}, {1, {2, 2}}}, .frozen = {1}};
  CrashDisk disk;
  for (const auto& [path, content] : MakeTag(tag)) {
    for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
      const std::string above = "tag/" + path.substr(0, slash);
      if (!disk.Exists("tag")) disk.Plant("tag", FileType::kDirectory);
      if (!disk.Exists(above)) disk.Plant(above, FileType::kDirectory);
    }
    if (!disk.Exists("tag")) disk.Plant("tag", FileType::kDirectory);
    disk.Plant("tag/" + path, content);
  }
  const uint64_t input = disk.Fingerprint("tag");
  int points = 0, whole = 0, absent = 0;
  uint64_t seed = 0;
  std::set<std::pair<uint64_t, int>> seen;
  bool ended = false;
  const auto check = [&](std::unique_ptr<CrashDisk> left, const std::string& what) {
    if (!seen.insert({left->Fingerprint(), left->late_writes()}).second || ::testing::Test::HasFailure())
      return;
    EXPECT_EQ(left->Fingerprint("tag"), input) << what;
    const bool there = left->Exists("out");
    EXPECT_TRUE(there || !ended) << what << ": the conversion had reported success";
    if (there) {
      EXPECT_EQ(WrongWith(TreeOf(*left, "out"), tag, to_full, count), "") << what;
    }
    ++(there ? whole : absent);
    // Late writes of the killed process land while the next run works, or after it.
    const absl::StatusOr<NxdZeroReport> again = ConvertOn(*left, to_full);
    left->LandLateWrites();
    EXPECT_EQ(again.ok(), !there) << what << ": " << again.status();
    if (there) {
      EXPECT_EQ(ReasonOf(again.status()), "OUTPUT_NOT_EMPTY") << what;
    }
    EXPECT_EQ(WrongWith(TreeOf(*left, "out"), tag, to_full, count), "") << what << ", and the next run";
    EXPECT_EQ(left->Fingerprint("tag"), input) << what;
    std::vector<std::string> names = left->NamesIn("");
    if (!there) {
      EXPECT_THAT(names, ElementsAre("out", "tag")) << what;
    }
  };
  disk.OnChange([&](const std::string& what) {
    ++points;
    check(disk.Kill(), absl::StrCat("killed after ", what));
    for (const Loss loss : kLosses)
      check(disk.CutPower(loss, ++seed),
            absl::StrCat("power cut after ", what, ", losing ", NameOf(loss), " (seed ", seed, ")"));
  });
  const absl::StatusOr<NxdZeroReport> report = ConvertOn(disk, to_full);
  ended = true;
  disk.OnChange(nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  check(disk.Kill(), "killed at the end");
  for (const Loss loss : kLosses)
    check(disk.CutPower(loss, ++seed), "power cut at the end, losing " + NameOf(loss));
  std::cout << points << " crash points, " << absent << " states without the output, " << whole
            << " with it\n";
  EXPECT_GE(points, to_full ? 40 : 100);
  EXPECT_GE(absent, to_full ? 80 : 300);
  EXPECT_GE(whole, 2);
}

INSTANTIATE_TEST_SUITE_P(Kinds, NxdZeroCrashTest, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "ToFull" : "ToShardsXser");
});

}  // namespace
}  // namespace ckptd
