// Checkpoints of NeuronX Distributed: finding, reading and adopting them, and leaving them untouched
// otherwise. Faults are injected at every call that changes something, and the power is cut after each.
//
// Longer than 500 lines because all tests share the tree that NeuronX Distributed leaves and the checks of
// it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/commit/checkpoint/foreign.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/checkpoint/verify.h"
#include "storage/commit/local/root_store.h"
#include "tests/crash/explorer.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/root_store_fixture.h"

namespace ckptd {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kTime = 1'700'000'000;  // Unix time in seconds.

// What NeuronX Distributed leaves of a finished save: two ranks, a tensor file and markers. One file has
// several chunks and an odd tail, and one is empty.
std::map<std::string, std::string> FilesOf(const std::string& tag) {
  return {{"checkpoint", "1"},
          {"done", "1"},
          {"model/dp_rank_00_tp_rank_00_pp_rank_00.pt", std::string(10'001, 'm') + tag},
          {"model/dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors/tensor_0.pt", std::string(4096, 't')},
          {"optim/dp_rank_01_tp_rank_00_pp_rank_00.pt", std::string(100, 'o')},
          {"user_content.pt", ""}};
}

absl::StatusOr<ForeignSurvey> Survey(FileSystem& fs, Handle root, const std::string& tag,
                                     uid_t owner = geteuid()) {
  ForeignReader reader(&fs, root, tag, owner, kTestChunkBytes, std::make_shared<SurveyProgress>());
  for (;;) {
    const absl::StatusOr<bool> more = reader.Step();
    if (!more.ok()) return more.status();
    if (!*more) return reader.Take();
  }
}

PublishResult AdoptSurveyed(RootStore& store, const ForeignSurvey& survey, int64_t sequence) {
  storage::v1::ManifestSummary summary = SummaryOfForeign(survey);
  summary.set_sequence(sequence);
  summary.set_run_id("run");
  return store.Adopt(survey, summary);
}

PublishResult Adopt(FileSystem& fs, Handle root, RootStore& store, const std::string& tag, int64_t sequence) {
  const absl::StatusOr<ForeignSurvey> survey = Survey(fs, root, tag);
  if (!survey.ok()) return {PublishOutcome::kFailed, survey.status()};
  return AdoptSurveyed(store, *survey, sequence);
}

std::vector<std::string> Committed(const RootStore& store) {
  std::vector<std::string> tags;
  for (const auto& [sequence, checkpoint] : store.committed())
    tags.push_back(absl::StrCat(checkpoint.summary.tag(), ":", sequence));
  return tags;
}

std::vector<std::string> Names(const std::vector<ForeignTag>& foreign) {
  std::vector<std::string> names;
  for (const ForeignTag& each : foreign) names.push_back(each.tag);
  return names;
}

// Makes one file belong to another user.
class OthersFile : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  absl::StatusOr<FileStat> Stat(Handle dir, std::string_view path) override {
    absl::StatusOr<FileStat> stat = FaultyFileSystem::Stat(dir, path);
    if (stat.ok() && path == "user_content.pt") stat->uid = 4711;
    return stat;
  }
};

class AdoptTest : public ::testing::Test {
 protected:
  void MakeForeign(const std::string& tag, int64_t seconds = kTime) {
    for (const auto& [path, content] : FilesOf(tag)) root_.Write(tag + "/" + path, content);
    SetTime(tag + "/done", seconds);
  }
  void SetTime(const std::string& path, int64_t seconds, int64_t nanos = 0) {
    const timespec times[2] = {{seconds, nanos}, {seconds, nanos}};
    ASSERT_EQ(utimensat(AT_FDCWD, root_.path(path).c_str(), times, 0), 0) << path;
  }
  PublishResult AdoptNow(const std::string& tag, int64_t sequence) {
    return Adopt(root_.fs(), root_.handle(), *store_, tag, sequence);
  }
  std::string Refusal(const std::string& tag) {
    const absl::Status refused = Survey(root_.fs(), root_.handle(), tag).status();
    return absl::StrCat(ReasonOf(refused), ": ", std::string(refused.message()));
  }
  void Reopen() {
    store_.reset();
    store_ = root_.Open();
    ASSERT_NE(store_, nullptr);
  }
  // Every name beneath `below` except ckptd's own, with its kind, inode, bytes and time.
  std::map<std::string, std::string> Everything(const std::string& below) const {
    std::map<std::string, std::string> all;
    for (auto at = std::filesystem::recursive_directory_iterator(root_.path(below));
         at != std::filesystem::recursive_directory_iterator(); ++at) {
      const std::string path = std::filesystem::relative(at->path(), root_.path());
      if (at->path().filename() == ".ckptd") {
        at.disable_recursion_pending();
        continue;
      }
      struct stat stat = {};
      EXPECT_EQ(lstat(at->path().c_str(), &stat), 0) << path;
      all[path] = absl::StrCat(
          stat.st_mode, " ", stat.st_ino, " ",
          S_ISREG(stat.st_mode)
              ? absl::StrCat(stat.st_mtim.tv_sec, ".", stat.st_mtim.tv_nsec, " ", root_.Read(path))
              : "");
    }
    return all;
  }
  void ExpectWhole(const std::string& tag) {
    const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(root_.fs(), root_.handle(), tag);
    ASSERT_TRUE(report.ok()) << report.status();
    for (const VerifyProblem& problem : report->problems)
      ADD_FAILURE() << problem.path << ": " << problem.message;
    std::map<std::string, std::string> files;
    for (const auto& file : report->manifest.body.files())
      files[file.path()] = root_.Read(tag + "/" + file.path());
    EXPECT_EQ(files, FilesOf(tag));
  }
  std::vector<std::string> InFlight() const { return root_.Names(".ckptd/nodes/local/inflight"); }
  bool HasOurs(const std::string& tag) const { return std::filesystem::exists(root_.path(tag + "/.ckptd")); }

  TemporaryRoot root_{TemporaryRoot::On::kMemory};
  std::unique_ptr<RootStore> store_ = root_.Open();
};

// ---- finding

TEST_F(AdoptTest, FindsFinishedOnesByMarkerTimeThenByName) {
  MakeForeign("late", kTime + 9);
  MakeForeign("twin_b", kTime + 5);
  MakeForeign("twin_a", kTime + 5);
  MakeForeign("early", kTime);
  MakeForeign("a name", kTime + 1);  // Not a valid tag of ckptd, but a checkpoint.
  ASSERT_EQ(Save(root_.fs(), *store_, {"ours", 1}), SaveVerdict::kCommitted);
  root_.Write("ours/done", "1");  // Perhaps NeuronX Distributed's, in a checkpoint that ckptd wrote for it.
  Reopen();
  EXPECT_THAT(Names(store_->foreign()), ElementsAre("early", "a name", "twin_a", "twin_b", "late"));
  EXPECT_EQ(store_->foreign()[0].done_us, kTime * 1'000'000);
  EXPECT_THAT(Committed(*store_), ElementsAre("ours:1"));
  EXPECT_THAT(store_->damaged(), IsEmpty());
}

TEST_F(AdoptTest, IgnoresUnfinishedOnesAndNonDirectories) {
  MakeForeign("whole");
  MakeForeign("half_deleted");
  std::filesystem::remove(root_.path("half_deleted/done"));
  std::filesystem::create_directories(root_.path("odd/done"));  // A directory called done.
  std::filesystem::create_directory(root_.path("empty"));
  std::filesystem::create_directory_symlink(root_.path("whole"), root_.path("link"));
  root_.Write("file", "done");
  Reopen();
  EXPECT_THAT(Names(store_->foreign()), ElementsAre("whole"));
}

TEST_F(AdoptTest, ListGivesSizesAndFileCounts) {
  MakeForeign("one");
  const auto list = ListForeign(root_.fs(), root_.handle());
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ((*list)[0].size_bytes, 1 + 1 + 10'004 + 4096 + 100);
  EXPECT_EQ((*list)[0].file_count, 6);
}

TEST_F(AdoptTest, ListsATooLargeTreeWithoutASizeAndRefusesIt) {
  MakeForeign("deep");
  std::string path = "deep";
  for (int i = 0; i < 600; ++i) path += "/d";
  std::filesystem::create_directories(root_.path(path));
  const auto list = ListForeign(root_.fs(), root_.handle());
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ((*list)[0].tag.tag, "deep");
  EXPECT_FALSE((*list)[0].size_bytes.has_value());
  EXPECT_THAT(Refusal("deep"), HasSubstr("is below 16 other directories"));
}

// ---- adopting

TEST_F(AdoptTest, AdoptsWithoutChangingItsFiles) {
  MakeForeign("epoch_2_step_500");
  const auto before = Everything("epoch_2_step_500");
  const PublishResult result = AdoptNow("epoch_2_step_500", 7);
  ASSERT_EQ(result.outcome, PublishOutcome::kCommitted) << result.status;
  for (int opened = 0; opened < 2; ++opened) {
    EXPECT_THAT(Committed(*store_), ElementsAre("epoch_2_step_500:7"));
    EXPECT_THAT(store_->foreign(), IsEmpty());
    EXPECT_EQ(store_->highest_sequence(), 7);
    ExpectWhole("epoch_2_step_500");
    EXPECT_EQ(Everything("epoch_2_step_500"), before);
    EXPECT_THAT(root_.Names("epoch_2_step_500/.ckptd"), ElementsAre("manifest", "part-00000"));
    EXPECT_THAT(InFlight(), IsEmpty());
    Reopen();
  }
  const storage::v1::ManifestSummary& summary = store_->committed().at(7).summary;
  EXPECT_EQ(summary.adopted_from(), "nxd");
  EXPECT_EQ(summary.step(), 500);
  EXPECT_EQ(summary.attempt(), 0) << "no attempt saved it";
  EXPECT_EQ(summary.ordinal(), 0);
  EXPECT_EQ(summary.world_size(), 1);
  EXPECT_EQ(summary.commit_time_us(), kTime * 1'000'000);
  EXPECT_EQ(summary.create_time_us(), kTime * 1'000'000);
  EXPECT_EQ(summary.run_id(), "run");
}

TEST_F(AdoptTest, TakesTheStepFromANumberAtTheTagsEnd) {
  const auto step_of = [](const std::string& tag) {
    ForeignSurvey survey;
    survey.tree.tag.tag = tag;
    const storage::v1::ManifestSummary summary = SummaryOfForeign(survey);
    return summary.has_step() ? absl::StrCat(summary.step()) : "none";
  };
  EXPECT_EQ(step_of("step_1000"), "1000");
  EXPECT_EQ(step_of("1000"), "1000");
  EXPECT_EQ(step_of("best"), "none");
  EXPECT_EQ(step_of("step_1000_final"), "none");
  EXPECT_EQ(step_of("run_99999999999999999999"), "none");
}

TEST_F(AdoptTest, AdoptedOneIsPinnedReadReplacedAndEvictedLikeAnyOther) {
  MakeForeign("one");
  MakeForeign("two");
  ASSERT_EQ(AdoptNow("one", 1).outcome, PublishOutcome::kCommitted);
  ASSERT_EQ(AdoptNow("two", 2).outcome, PublishOutcome::kCommitted);
  EXPECT_TRUE(store_->OpenCheckpoint("one", 1).ok());
  EXPECT_EQ(store_->ReadManifest("one", 1)->body.files_size(), 6);
  ASSERT_TRUE(store_->SetPinned("one", 1, true).ok());
  EXPECT_EQ(ReasonOf(store_->Evict("one", 1)), "PINNED");
  ASSERT_TRUE(store_->SetPinned("one", 1, false).ok());
  ASSERT_TRUE(store_->Evict("one", 1).ok());
  ASSERT_EQ(Save(root_.fs(), *store_, {"two", 3}), SaveVerdict::kCommitted);
  while (*store_->EmptyTrashStep({})) {
  }
  EXPECT_THAT(Committed(*store_), ElementsAre("two:3"));
  EXPECT_FALSE(std::filesystem::exists(root_.path("one")));
}

// ---- refusing

TEST_F(AdoptTest, RefusesUnsuitableContentByNameAndChangesNothing) {
  struct Case {
    std::string tag;
    std::function<void(const std::string&)> spoil;
    std::string says;
  };
  const std::vector<Case> cases = {
      {"unfinished", [&](const auto& t) { std::filesystem::remove(root_.path(t + "/done")); },
       "FOREIGN_UNFINISHED: unfinished has no file called done"},
      {"linked",
       [&](const auto& t) { std::filesystem::create_symlink("/etc/passwd", root_.path(t + "/model/link")); },
       "FOREIGN_UNSUITABLE: linked/model/link is a symbolic link"},
      {"piped", [&](const auto& t) { mkfifo(root_.path(t + "/pipe").c_str(), 0600); },
       "FOREIGN_UNSUITABLE: piped/pipe is neither a file nor a directory"},
      {"root", [&](const auto& t) { std::filesystem::create_directory(root_.path(t + "/.ckptd")); },
       "FOREIGN_UNSUITABLE: root/.ckptd is there"},
      {"control", [&](const auto& t) { root_.Write(t + "/a\x01z", "x"); }, "INVALID_PATH: control: "},
  };
  for (const Case& each : cases) {
    MakeForeign(each.tag);
    each.spoil(each.tag);
    const auto before = Everything(each.tag);
    EXPECT_THAT(Refusal(each.tag), HasSubstr(each.says));
    EXPECT_EQ(Everything(each.tag), before);
    EXPECT_EQ(HasOurs(each.tag), each.tag == "root");
  }
  EXPECT_THAT(Refusal("gone"), HasSubstr("NO_CHECKPOINT: there is no gone"));
  EXPECT_THAT(Refusal("../up"), HasSubstr("INVALID_TAG"));
  EXPECT_THAT(Refusal("latest"), HasSubstr("INVALID_TAG"));
  root_.Write("plain", "x");
  EXPECT_THAT(Refusal("plain"), HasSubstr("FOREIGN_UNSUITABLE: plain is no directory"));
  MakeForeign("target");
  std::filesystem::create_directory_symlink("target", root_.path("alias"));
  EXPECT_THAT(Refusal("alias"), HasSubstr("FOREIGN_UNSUITABLE: alias is a symbolic link"));
}

TEST_F(AdoptTest, RefusesAFileOfAnotherUserByName) {
  MakeForeign("one");
  const absl::Status all = Survey(root_.fs(), root_.handle(), "one", geteuid() + 1).status();
  EXPECT_EQ(ReasonOf(all), "WRONG_UID") << all;
  OthersFile fs(&root_.fs());
  const absl::Status file = Survey(fs, root_.handle(), "one").status();
  EXPECT_EQ(ReasonOf(file), "WRONG_UID") << file;
  EXPECT_THAT(std::string(file.message()), HasSubstr("one/user_content.pt belongs to uid 4711"));
}

TEST_F(AdoptTest, RefusesACheckpointOfCkptd) {
  MakeForeign("one");
  const absl::StatusOr<ForeignSurvey> early = Survey(root_.fs(), root_.handle(), "one");
  ASSERT_TRUE(early.ok());
  ASSERT_EQ(AdoptNow("one", 1).outcome, PublishOutcome::kCommitted);
  EXPECT_THAT(Refusal("one"), HasSubstr("FOREIGN_UNSUITABLE"));
  EXPECT_EQ(AdoptSurveyed(*store_, *early, 2).outcome, PublishOutcome::kFailed);
  EXPECT_THAT(Committed(*store_), ElementsAre("one:1"));
  ExpectWhole("one");
}

// Each change happens after the first byte was read and before the rename.
TEST_F(AdoptTest, StaysForeignWhenItChangesWhileItIsRead) {
  const std::string model = "/model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  const std::map<std::string, std::function<void(const std::string&)>> changes = {
      {"grown", [&](const auto& t) { root_.Write(t + model, root_.Read(t + model) + "x"); }},
      {"rewritten",
       [&](const auto& t) {  // The size stays the same, and the time is set back.
         struct stat before = {};
         ASSERT_EQ(stat(root_.path(t + model).c_str(), &before), 0);
         root_.FlipByte(t + model, 5);
         SetTime(t + model, before.st_mtim.tv_sec, before.st_mtim.tv_nsec);
       }},
      {"swapped",
       [&](const auto& t) {
         std::filesystem::copy_file(root_.path(t + model), root_.path(t + "/copy"));
         std::filesystem::rename(root_.path(t + "/copy"), root_.path(t + model));
       }},
      {"removed", [&](const auto& t) { std::filesystem::remove(root_.path(t + "/user_content.pt")); }},
      {"added", [&](const auto& t) { root_.Write(t + "/scheduler.pt", "late"); }},
      {"widened", [&](const auto& t) { std::filesystem::create_directory(root_.path(t + "/more")); }},
      {"undone", [&](const auto& t) { std::filesystem::remove(root_.path(t + "/done")); }},
      {"replaced",
       [&](const auto& t) {
         std::filesystem::rename(root_.path(t), root_.path("aside_" + t));
         MakeForeign(t);
       }},
  };
  int64_t sequence = 0;
  for (const auto& [tag, change] : changes) {
    SCOPED_TRACE(tag);
    MakeForeign(tag);
    const absl::StatusOr<ForeignSurvey> survey = Survey(root_.fs(), root_.handle(), tag);
    ASSERT_TRUE(survey.ok()) << survey.status();
    change(tag);
    const auto before = Everything(tag);
    const PublishResult result = AdoptSurveyed(*store_, *survey, ++sequence);
    EXPECT_EQ(result.outcome, PublishOutcome::kFailed);
    EXPECT_EQ(ReasonOf(result.status), tag == "undone" ? "FOREIGN_UNFINISHED" : "FOREIGN_CHANGED")
        << result.status;
    EXPECT_EQ(Everything(tag), before);
    EXPECT_FALSE(HasOurs(tag));
    EXPECT_THAT(InFlight(), IsEmpty());
  }
  EXPECT_THAT(Committed(*store_), IsEmpty());
}

TEST_F(AdoptTest, ReportsAFileThatIsCutOrRemovedWhileItIsRead) {
  for (const bool cut : {true, false}) {
    const std::string tag = cut ? "cut" : "gone";
    MakeForeign(tag);
    FaultyFileSystem fs(&root_.fs());
    const std::string last = root_.path(tag + "/optim/dp_rank_01_tp_rank_00_pp_rank_00.pt");
    fs.SetHook([&](const FsCall& call) {
      if (call.op != FsOp::kReadAt) return;
      cut ? std::filesystem::resize_file(last, 50) : (void)std::filesystem::remove(last);
      fs.SetHook(nullptr);
    });
    const absl::Status changed = Survey(fs, root_.handle(), tag).status();
    EXPECT_EQ(ReasonOf(changed), "FOREIGN_CHANGED") << changed;
    EXPECT_EQ(DetailsOf(changed)["path"], "optim/dp_rank_01_tp_rank_00_pp_rank_00.pt");
  }
}

TEST_F(AdoptTest, RefusesAFileThatCannotBeSynced) {
  MakeForeign("one");
  FaultyFileSystem fs(&root_.fs());
  int syncs = 0;
  {
    ASSERT_TRUE(Survey(fs, root_.handle(), "one").ok());
    syncs = fs.Count(FsOp::kSync);
    // Six files; three directories; the tag; the root.
    EXPECT_EQ(syncs, 6 + 3 + 1 + 1);
  }
  for (int nth = 1; nth <= syncs; ++nth) {
    fs.Fail({.op = FsOp::kSync, .nth = nth, .error = EIO});
    const absl::Status unsynced = Survey(fs, root_.handle(), "one").status();
    EXPECT_EQ(ReasonOf(unsynced), "FOREIGN_UNSYNCED") << unsynced;
    fs.ClearFaults();
  }
}

TEST_F(AdoptTest, ReadsInStepsAndStopsBetweenThem) {
  MakeForeign("many");
  for (int i = 0; i < 200; ++i) root_.Write(absl::StrCat("many/model/tensor_", i, ".pt"), "x");
  const auto progress = std::make_shared<SurveyProgress>();
  ForeignReader reader(&root_.fs(), root_.handle(), "many", geteuid(), kTestChunkBytes, progress);
  EXPECT_TRUE(*reader.Step());
  EXPECT_EQ(progress->size_bytes.load(), 1 + 1 + 10'005 + 4096 + 100 + 200);
  int64_t read = 0;
  int steps = 1;
  while (*reader.Step()) {
    EXPECT_GT(progress->read_bytes.load(), read);
    read = progress->read_bytes.load();
    ++steps;
  }
  EXPECT_GT(steps, 3);
  EXPECT_EQ(progress->read_bytes.load(), progress->size_bytes.load());
  ForeignReader other(&root_.fs(), root_.handle(), "many", geteuid(), kTestChunkBytes, progress);
  EXPECT_TRUE(*other.Step());
  progress->stop.store(true);
  EXPECT_TRUE(absl::IsCancelled(other.Step().status()));
}

// ---- leaving untouched

TEST_F(AdoptTest, RetentionAndTrashLeaveForeignOnesUntouched) {
  MakeForeign("theirs");
  const auto before = Everything("theirs");
  ASSERT_EQ(Save(root_.fs(), *store_, {"ours_1", 1}), SaveVerdict::kCommitted);
  ASSERT_EQ(Save(root_.fs(), *store_, {"ours_2", 2}), SaveVerdict::kCommitted);
  EXPECT_EQ(ReasonOf(store_->Evict("theirs", 1)), "NO_CHECKPOINT");
  ASSERT_TRUE(store_->Evict("ours_1", 1).ok());
  while (*store_->EmptyTrashStep({})) {
  }
  EXPECT_EQ(Everything("theirs"), before);
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/trash"), IsEmpty());
}

TEST_F(AdoptTest, RefusesAReSaveOfAForeignTag) {
  MakeForeign("theirs");
  const auto before = Everything("theirs");
  EXPECT_EQ(ReasonOf(store_->CheckTarget("theirs")), "TAG_FOREIGN");
  EXPECT_EQ(Save(root_.fs(), *store_, {"theirs", 1}), SaveVerdict::kFailed);
  EXPECT_EQ(Everything("theirs"), before);
}

TEST_F(AdoptTest, RecoveryAndScansLeaveForeignOnesUntouched) {
  MakeForeign("theirs");
  ASSERT_TRUE(Stage(root_.fs(), *store_, {"theirs", 1}).ok());  // In flight when the daemon dies, and whole.
  const auto before = Everything("theirs");
  Reopen();
  ASSERT_TRUE(store_->Rescan().ok());
  EXPECT_EQ(Everything("theirs"), before);
  EXPECT_FALSE(HasOurs("theirs"));
}

TEST_F(AdoptTest, LeavesHalfDeletedAndEmptyDirectoriesUntouched) {
  MakeForeign("half_deleted");  // As its retention leaves them: the marker goes first.
  std::filesystem::remove(root_.path("half_deleted/done"));
  root_.Write("folder/checkpoint", "somebody's");
  std::filesystem::create_directories(root_.path("other/checkpoint/inner"));
  std::filesystem::create_directory(root_.path("empty"));
  const auto before = Everything("");
  Reopen();
  for (int i = 1; i <= 3; ++i)
    ASSERT_EQ(Save(root_.fs(), *store_, {absl::StrCat("ours_", i), i}), SaveVerdict::kCommitted);
  for (const char* tag : {"half_deleted", "folder", "other"}) {
    EXPECT_EQ(ReasonOf(store_->CheckTarget(tag)), "TAG_FOREIGN") << tag;
    EXPECT_EQ(Save(root_.fs(), *store_, {tag, 9}), SaveVerdict::kFailed) << tag;
    EXPECT_EQ(Refusal(tag).substr(0, 18), "FOREIGN_UNFINISHED") << tag;
  }
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(store_->Evict(absl::StrCat("ours_", i), i).ok());
  while (*store_->EmptyTrashStep({})) {
  }
  Reopen();
  ASSERT_TRUE(store_->Rescan().ok());
  EXPECT_EQ(Everything(""), before);
}

// ---- faults at every call

TEST_F(AdoptTest, SyncsTheRecordsBeforeTheRenameAndBothDirectoriesAfter) {
  MakeForeign("one");
  FaultyFileSystem fs(&root_.fs());
  store_.reset();
  store_ = root_.OpenWith(fs);
  const size_t start = fs.calls().size();
  ASSERT_EQ(Adopt(fs, root_.handle(), *store_, "one", 5).outcome, PublishOutcome::kCommitted);
  std::vector<std::string> log;
  for (size_t i = start; i < fs.calls().size(); ++i) log.push_back(fs.calls()[i].ToString());
  const auto find = [&log](const std::string& op, const std::string& end, size_t from = 0) {
    for (size_t i = from; i < log.size(); ++i) {
      if (log[i].starts_with(op) && log[i].ends_with(end)) return i;
    }
    ADD_FAILURE() << "no " << op << "..." << end << " from " << from << " on";
    return log.size();
  };
  const size_t renamed = find("Rename .ckptd/nodes/local/inflight/one.5.", "/.ckptd");
  for (const auto& file : FilesOf("one")) {
    const size_t synced = find("Sync", "/" + file.first);
    EXPECT_LT(synced, renamed) << file.first;
    if (!file.second.empty()) {
      EXPECT_LT(synced, find("ReadAt", "/" + file.first)) << file.first;
    }
  }
  const size_t made = find("MakeDir .ckptd/nodes/local/inflight/one.5.", "");
  for (const char* dir : {"/model", "/model/dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors", "/optim"})
    EXPECT_LT(find("Sync", dir), made) << dir;
  EXPECT_LT(find("Sync", "/part-00000", made), renamed);
  const size_t manifest = find("Sync", "/manifest", made);
  EXPECT_LT(find("Sync .ckptd/nodes/local/inflight/one.5.", "", manifest), renamed);
  EXPECT_LT(find("Sync", "/inflight", find("Sync one", "", renamed)), log.size());
  // The next daemon syncs the name before it trusts it.
  store_.reset();
  const size_t opened = fs.calls().size();
  store_ = root_.OpenWith(fs);
  bool synced = false;
  for (size_t i = opened; i < fs.calls().size(); ++i) synced |= fs.calls()[i].ToString() == "Sync one";
  EXPECT_TRUE(synced);
  store_.reset();  // Before its file system.
}

enum class Fault { kIoError, kNoSpace, kDoneButReported, kDeath };

// Injects a fault at the `at`-th changing call while "one" is adopted. False if there were fewer calls.
bool TryPoint(Fault fault, int at) {
  TemporaryRoot root(TemporaryRoot::On::kMemory);
  for (const auto& [path, content] : FilesOf("one")) root.Write("one/" + path, content);
  FaultyFileSystem fs(&root.fs());
  std::unique_ptr<RootStore> store = root.OpenWith(fs);
  int calls = 0;
  bool hit = false;
  const auto is_counted = [](FsOp op) {
    return op != FsOp::kClose && op != FsOp::kList && op != FsOp::kStat && op != FsOp::kReadAt &&
           op != FsOp::kSpace;
  };
  const auto inject = [&] {
    for (int op = 0; op <= static_cast<int>(FsOp::kSpace); ++op) {
      if (static_cast<FsOp>(op) == FsOp::kClose) continue;
      if (fault != Fault::kDeath && !is_counted(static_cast<FsOp>(op))) continue;
      fs.Fail({.op = static_cast<FsOp>(op),
               .nth = fault == Fault::kDeath ? FsFault::kEvery : 1,
               .error = fault == Fault::kNoSpace ? ENOSPC : EIO,
               .after = fault == Fault::kDoneButReported});
    }
  };
  std::string which;
  fs.SetHook([&](const FsCall& call) {
    if (fault == Fault::kDeath && calls == at - 1 && !hit && call.op != FsOp::kClose) {
      hit = true;
      which = call.ToString();
    }
    if (!is_counted(call.op)) return;
    ++calls;
    if (calls == at && fault != Fault::kDeath) {
      hit = true;
      which = call.ToString();
      fs.ClearFaults();
    }
    if (calls == at - 1) inject();
  });
  if (at == 1) inject();
  const PublishResult result = Adopt(fs, root.handle(), *store, "one", 5);
  fs.SetHook(nullptr);
  fs.ClearFaults();
  SCOPED_TRACE(absl::StrCat("fault ", static_cast<int>(fault), " at call ", at, ": ", which, "; outcome ",
                            static_cast<int>(result.outcome)));
  if (!hit) {
    EXPECT_EQ(result.outcome, PublishOutcome::kCommitted) << result.status;
  }
  if (fault != Fault::kDeath) {
    if (result.outcome == PublishOutcome::kIndeterminate) {
      EXPECT_EQ(ReasonOf(store->SetPinned("one", 5, true)), "ROOT_READ_ONLY");
      EXPECT_TRUE(store->Rescan().ok());
    }
  }
  std::vector<std::string> committed;
  for (int opened = 0; opened < 2; ++opened) {  // The second recovery must change nothing.
    if (opened > 0 || fault == Fault::kDeath) {
      store.reset();
      store = root.Open();
    }
    if (result.outcome == PublishOutcome::kCommitted) {
      EXPECT_THAT(Committed(*store), ElementsAre("one:5"));
    }
    if (result.outcome == PublishOutcome::kFailed) {
      EXPECT_THAT(Committed(*store), IsEmpty());
    }
    if (opened == 0) committed = Committed(*store);
    EXPECT_EQ(Committed(*store), committed);
    EXPECT_EQ(std::filesystem::exists(root.path("one/.ckptd")), !committed.empty()) << "foreign or adopted";
    EXPECT_EQ(Names(store->foreign()).size(), committed.empty() ? 1u : 0u);
    EXPECT_THAT(store->damaged(), IsEmpty());
    for (const auto& [path, content] : FilesOf("one")) EXPECT_EQ(root.Read("one/" + path), content) << path;
    if (!committed.empty()) {
      EXPECT_THAT(VerifyCheckpoint(root.fs(), root.handle(), "one")->problems, IsEmpty());
    }
  }
  EXPECT_THAT(root.Names(".ckptd/nodes/local/inflight"), IsEmpty());
  if (committed.empty()) {  // Adopt it again, without a fault.
    EXPECT_EQ(Adopt(root.fs(), root.handle(), *store, "one", 6).outcome, PublishOutcome::kCommitted);
  }
  return hit && !::testing::Test::HasFailure();
}

TEST(AdoptCrashTest, IsForeignOrAdoptedWhicheverCallFails) {
  for (const Fault fault : {Fault::kIoError, Fault::kNoSpace, Fault::kDoneButReported, Fault::kDeath}) {
    int points = 0;
    while (TryPoint(fault, points + 1)) ++points;
    if (::testing::Test::HasFailure()) return;
    EXPECT_GE(points, 30) << "adopting made fewer calls than it must";
  }
}

// The power is cut after every changing operation: each unsynced byte and name may be lost.
TEST(AdoptCrashTest, IsForeignOrAdoptedAfterAPowerCutAndStaysWhatWasReported) {
  CrashDisk disk;
  FakeClock clock;
  const auto files = FilesOf("one");
  disk.Plant("one", FileType::kDirectory);
  for (const auto& [path, content] : files) {
    for (size_t at = path.find('/'); at != std::string::npos; at = path.find('/', at + 1))
      disk.Plant("one/" + path.substr(0, at), FileType::kDirectory);
  }
  int points = 0, states = 0;
  bool said = false;
  const auto look = [&](const std::string& after) {
    ++points;
    for (const Loss loss : {Loss::kNothing, Loss::kEverything, Loss::kData, Loss::kBytes, Loss::kEntries,
                            Loss::kRandom, Loss::kRandom, Loss::kRandom}) {
      const std::unique_ptr<CrashDisk> left = disk.CutPower(loss, static_cast<uint64_t>(++states));
      SCOPED_TRACE(absl::StrCat("after ", after, ", ", NameOf(loss), " ", states));
      const absl::StatusOr<std::unique_ptr<RootStore>> store = OpenStore(*left, clock);
      ASSERT_TRUE(store.ok()) << store.status();
      EXPECT_THAT((*store)->damaged(), IsEmpty());
      const bool ours = !(*store)->committed().empty();
      if (said) {
        EXPECT_TRUE(ours) << "the adoption had been reported";
      }
      EXPECT_EQ(left->Exists("one/.ckptd"), ours);
      EXPECT_THAT(left->NamesIn(".ckptd/nodes/local/inflight"), IsEmpty());
      if (!ours) continue;
      for (const auto& [path, content] : files) EXPECT_EQ(left->Content("one/" + path), content) << path;
      EXPECT_THAT(VerifyCheckpoint(*left, left->root(), "one")->problems, IsEmpty());
    }
  };
  absl::StatusOr<std::unique_ptr<RootStore>> store = OpenStore(disk, clock);
  ASSERT_TRUE(store.ok()) << store.status();
  // As the other program leaves its files: written, and not synced.
  const absl::StatusOr<ScopedHandle> tag = OpenScoped(disk, disk.root(), "one", OpenMode::kDirectory);
  ASSERT_TRUE(tag.ok()) << tag.status();
  for (const auto& [path, content] : files) {
    const absl::StatusOr<ScopedHandle> file = OpenScoped(disk, tag->get(), path, OpenMode::kCreate);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(WriteFully(disk, file->get(), 0, std::as_bytes(std::span(content))).ok());
  }
  disk.OnChange(look);
  const PublishResult result = Adopt(disk, disk.root(), **store, "one", 5);
  ASSERT_EQ(result.outcome, PublishOutcome::kCommitted) << result.status;
  disk.OnChange(nullptr);
  said = true;
  look("the answer");
  EXPECT_GE(points, 20);
}

}  // namespace
}  // namespace ckptd
