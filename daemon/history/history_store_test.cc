#include "daemon/history/history_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/history/history_entries.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kTime = 1'700'000'000'000'000;

SaveSummary Save(int64_t sequence, v1::Level level = v1::COMMITTED) {
  SaveSummary save;
  save.checkpoint.set_tag("step_" + std::to_string(sequence));
  save.checkpoint.set_step(sequence);
  save.checkpoint.set_sequence(sequence);
  save.checkpoint.set_level(level);
  save.checkpoint.set_size_bytes(1000);
  save.checkpoint.set_world_size(2);
  save.stall_seconds = 0.25;
  save.written_seconds = 2;
  save.slowest_rank = 1;
  return save;
}

class HistoryStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "/historyXXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    options_.directory = folder + "/history";
    options_.warn = [this](const std::string& text) { warnings_.push_back(text); };
    options_.dropped = [this] { ++dropped_; };
    options_.post = [](absl::AnyInvocable<void()> work) { work(); };
    Restart();
  }
  void TearDown() override {
    store_.reset();
    std::filesystem::remove_all(std::filesystem::path(options_.directory).parent_path());
  }
  void Restart() {
    store_.reset();
    store_ = std::make_unique<HistoryStore>(options_);
  }
  void Add(int64_t sequence, const RootKey& root = {1000, 7, "/data/ckpts"}) {
    store_->Add(root, EntryOf(Save(sequence), kTime + sequence));
  }
  absl::StatusOr<v1::GetHistoryResponse> Ask(const v1::GetHistoryRequest& request = {},
                                             const RootKey& root = {1000, 7, "/data/ckpts"}) {
    std::promise<absl::StatusOr<v1::GetHistoryResponse>> answer;
    store_->Read(root, request,
                 [&](absl::StatusOr<v1::GetHistoryResponse> read) { answer.set_value(std::move(read)); });
    return answer.get_future().get();
  }
  std::vector<int64_t> Sequences(const RootKey& root = {1000, 7, "/data/ckpts"}) {
    v1::GetHistoryRequest request;
    request.set_max_entries(10000);
    const absl::StatusOr<v1::GetHistoryResponse> response = Ask(request, root);
    EXPECT_TRUE(response.ok()) << response.status();
    std::vector<int64_t> sequences;
    for (const v1::HistoryEntry& entry : response->entries()) sequences.push_back(entry.sequence());
    return sequences;
  }
  std::filesystem::path File() const {
    std::vector<std::filesystem::path> files;
    for (const auto& file : std::filesystem::directory_iterator(options_.directory)) files.push_back(file);
    EXPECT_THAT(files, SizeIs(1));
    return files.at(0);
  }

  HistoryStore::Options options_;
  std::vector<std::string> warnings_;
  std::atomic<int> dropped_ = 0;
  std::unique_ptr<HistoryStore> store_;
};

TEST_F(HistoryStoreTest, AnswersNewestFirstAfterARestart) {
  Add(1);
  SaveSummary failed = Save(2, v1::FAILED);
  failed.checkpoint.mutable_error()->set_reason("RANKS_MISSING");
  failed.checkpoint.mutable_error()->set_message("ranks 1 have not sealed");
  failed.checkpoint.mutable_error()->add_ranks(1);
  store_->Add({1000, 7, "/data/ckpts"}, EntryOf(failed, kTime));
  Restart();
  const absl::StatusOr<v1::GetHistoryResponse> read = Ask();
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->entries_size(), 2);
  const v1::HistoryEntry& newest = read->entries(0);
  EXPECT_EQ(newest.kind(), v1::HistoryEntry::SAVE);
  EXPECT_EQ(newest.level(), v1::FAILED);
  EXPECT_EQ(newest.reason(), "RANKS_MISSING");
  EXPECT_THAT(newest.ranks(), ElementsAre(1));
  const v1::HistoryEntry& oldest = read->entries(1);
  EXPECT_EQ(oldest.tag(), "step_1");
  EXPECT_EQ(oldest.step(), 1);
  EXPECT_EQ(oldest.stall_seconds(), 0.25);
  EXPECT_EQ(oldest.written_seconds(), 2);
  EXPECT_EQ(oldest.slowest_rank(), 1);
  EXPECT_EQ(oldest.time().seconds(), kTime / 1'000'000);
  EXPECT_EQ(read->begin_time().seconds(), kTime / 1'000'000);
  EXPECT_TRUE(Ask({}, {1000, 8, "/other"})->entries().empty()) << "another root has its own";
}

TEST_F(HistoryStoreTest, KeepsRestoresAndRemovals) {
  RestoreSummary restore;
  restore.tag = "step_1";
  restore.readers = 2;
  restore.read_bytes = restore.total_bytes = 1000;
  restore.seconds = 4;
  RemovalSummary removal;
  removal.tag = "step_1";
  store_->Add({}, EntryOf(restore, kTime));
  store_->Add({}, EntryOf(removal, kTime));
  removal.by = 1001;
  store_->Add({}, EntryOf(removal, kTime));
  const v1::GetHistoryResponse read = *Ask({}, {});
  ASSERT_EQ(read.entries_size(), 3);
  EXPECT_EQ(read.entries(0).kind(), v1::HistoryEntry::DELETED);
  EXPECT_EQ(read.entries(0).uid(), 1001);
  EXPECT_EQ(read.entries(1).kind(), v1::HistoryEntry::EVICTED);
  EXPECT_EQ(read.entries(2).kind(), v1::HistoryEntry::RESTORE);
  EXPECT_EQ(read.entries(2).processes(), 2);
  EXPECT_EQ(read.entries(2).staged_seconds(), 4);
}

TEST_F(HistoryStoreTest, AnswersOfOneTagAndSoManyEntries) {
  for (int64_t sequence : {1, 2, 3}) Add(sequence);
  v1::GetHistoryRequest request;
  request.set_max_entries(2);
  EXPECT_EQ(Ask(request)->entries_size(), 2);
  EXPECT_EQ(Ask(request)->entries(0).sequence(), 3);
  request.set_tag("step_1");
  ASSERT_EQ(Ask(request)->entries_size(), 1);
  EXPECT_EQ(Ask(request)->entries(0).sequence(), 1);
  request.set_max_entries(10001);
  EXPECT_EQ(Ask(request).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Ask(request).status().message()), HasSubstr("10001"));
}

TEST_F(HistoryStoreTest, AnswersWithTheOutlookOfTheWholeHistoryWhateverWasAskedFor) {
  EXPECT_FALSE(Ask()->has_outlook());
  for (int64_t i = 1; i <= 3; ++i) {
    SaveSummary save = Save(i);
    save.checkpoint.set_attempt(1);
    save.committed_seconds = 3;
    store_->Add({1000, 7, "/data/ckpts"}, EntryOf(save, kTime + i * 600'000'000));
  }
  v1::GetHistoryRequest request;
  request.set_tag("step_1");
  request.set_max_entries(1);
  request.set_seconds_between_failures(86400);
  const v1::SaveOutlook outlook = Ask(request)->outlook();
  EXPECT_EQ(outlook.saves(), 3);
  EXPECT_EQ(outlook.durable_seconds(), 3);
  EXPECT_EQ(outlook.interval_seconds(), 600);
  EXPECT_EQ(outlook.seconds_between_failures(), 86400);
  EXPECT_THAT(outlook.advice(), HasSubstr("(now every 10 min)"));
  for (const double wrong : {-1.0, std::nan(""), HUGE_VAL}) {
    request.set_seconds_between_failures(wrong);
    EXPECT_EQ(ReasonOf(Ask(request).status()), "INVALID_ARGUMENT") << wrong;
  }
}

TEST_F(HistoryStoreTest, PassesOverALineThatWasCutOffOrDamaged) {
  Add(1);
  Restart();
  std::ofstream(File(), std::ios::app) << "{\"kind\":\"SAVE\",\"tag\":\"st";  // The daemon was killed here.
  Add(2);
  Restart();
  std::ofstream(File(), std::ios::app)
      << "\xff\xfe nonsense\n\n{\"kind\":\"SAVE\",\"later\":1,\"sequence\":\"3\"}\n";
  Add(4);
  EXPECT_THAT(Sequences(), ElementsAre(4, 3, 2, 1)) << "and not over a field that a newer daemon has added";
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(HistoryStoreTest, KeepsItsNewerHalfWhenItHasGrownTooLong) {
  options_.file_bytes = 4000;
  Restart();
  int64_t largest = 0;
  for (int64_t sequence = 1; sequence <= 200; ++sequence) {
    Add(sequence);
    const std::vector<int64_t> kept = Sequences();
    ASSERT_EQ(kept.front(), sequence);
    ASSERT_GE(kept.size(), std::min<size_t>(static_cast<size_t>(sequence), 4)) << "half of it, in entries";
    ASSERT_EQ(kept.front() - kept.back() + 1, static_cast<int64_t>(kept.size())) << "without a gap";
    largest = std::max(largest, static_cast<int64_t>(std::filesystem::file_size(File())));
  }
  EXPECT_LE(largest, 4000);
  EXPECT_GT(Ask()->begin_time().nanos(), 1000) << "the reader learns where it begins";
}

TEST_F(HistoryStoreTest, BoundsTheFilesOfAUser) {
  options_.files_per_uid = 2;
  Restart();
  const RootKey other = {1001, 1, "/other"};
  Add(1, other);
  for (uint64_t inode : {1, 2, 3}) {
    Add(1, {1000, inode, "/root"});
    ASSERT_THAT(Sequences({1000, inode, "/root"}), SizeIs(1));                  // It is on disk.
    for (auto& file : std::filesystem::directory_iterator(options_.directory))  // As if a minute passed.
      std::filesystem::last_write_time(file, file.last_write_time() - std::chrono::minutes(1));
  }
  EXPECT_THAT(Sequences({1000, 1, "/root"}), IsEmpty());
  EXPECT_THAT(Sequences({1000, 2, "/root"}), SizeIs(1));
  EXPECT_THAT(Sequences({1000, 3, "/root"}), SizeIs(1));
  EXPECT_THAT(Sequences(other), SizeIs(1)) << "one user does not push out another's";
}

TEST_F(HistoryStoreTest, ThatCannotBeWrittenWarnsOnceAndGoesOnWhenItCan) {
  std::ofstream(options_.directory) << "in the way";
  for (int64_t sequence : {1, 2, 3}) Add(sequence);
  EXPECT_FALSE(Ask().ok()) << "an unreadable history is not an empty one";
  EXPECT_EQ(dropped_, 3);
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("/data/ckpts"));
  std::filesystem::remove(options_.directory);
  Add(4);
  EXPECT_THAT(Sequences(), ElementsAre(4));
  std::filesystem::remove(File());
  std::filesystem::create_directory(options_.directory + "/x");
  EXPECT_EQ(dropped_, 3);
}

TEST_F(HistoryStoreTest, DropsEntriesWhileTheDiskHangsAndNeverBlocksWhoAdds) {
  options_.pending_entries = 3;
  std::promise<void> hangs;
  options_.post = [hang = hangs.get_future().share()](absl::AnyInvocable<void()> work) {
    hang.wait();  // Stands for the disk: the store's thread is held up here.
    work();
  };
  Restart();
  std::promise<void> read;
  store_->Read({}, {}, [&](const absl::StatusOr<v1::GetHistoryResponse>&) { read.set_value(); });
  for (int64_t sequence = 1; sequence <= 5; ++sequence) Add(sequence);
  EXPECT_EQ(dropped_, 2);
  hangs.set_value();
  read.get_future().get();
  EXPECT_THAT(Sequences(), ElementsAre(3, 2, 1));
}

TEST_F(HistoryStoreTest, CutsALongMessageBetweenCharacters) {
  SaveSummary failed = Save(1, v1::FAILED);
  std::string message(999, 'x');
  message += "\u00e9 and much more";
  failed.checkpoint.mutable_error()->set_message(message);
  store_->Add({}, EntryOf(failed, kTime));
  EXPECT_EQ(Ask({}, {})->entries(0).message(), std::string(999, 'x'));
}

TEST_F(HistoryStoreTest, TellsOfASaveOnceAndWithItsTimes) {
  Add(1);
  SaveSummary found = Save(1);  // The daemon was killed; the next one has found the checkpoint in the root.
  found.stall_seconds = 0;
  store_->Add({1000, 7, "/data/ckpts"}, EntryOf(found, kTime + 5));
  ASSERT_EQ(Ask()->entries_size(), 1);
  EXPECT_EQ(Ask()->entries(0).stall_seconds(), 0.25);
}

}  // namespace
}  // namespace ckptd
