// Sealed saves outlive the daemon: the engine's part of that promise, on a root in memory.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/succession/inheritance.h"
#include "storage/base/errors.h"
#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FakeStore : public DescriptorStore {
 public:
  absl::Status Put(const std::string& name, int fd) override {
    std::lock_guard lock(mutex_);
    if (full) return absl::ResourceExhaustedError("the store is full");
    kept_[name] = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    return absl::OkStatus();
  }
  absl::Status Remove(const std::string& name) override {
    std::lock_guard lock(mutex_);
    kept_.erase(name);
    return absl::OkStatus();
  }
  // Copies of the segments as they are now. A test cannot kill a daemon, and one that ends frees its memory.
  std::vector<NamedDescriptor> Left() {
    std::lock_guard lock(mutex_);
    std::vector<NamedDescriptor> left;
    for (const auto& [name, fd] : kept_) {
      UniqueFd copy(::memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      std::string bytes(kSegment, '\0');
      EXPECT_EQ(::pread(fd.get(), bytes.data(), bytes.size(), 0), kSegment);
      EXPECT_EQ(::pwrite(copy.get(), bytes.data(), bytes.size(), 0), kSegment);
      EXPECT_EQ(::fcntl(copy.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
      left.push_back({name, std::move(copy)});
    }
    return left;
  }
  void Clear() {
    std::lock_guard lock(mutex_);
    kept_.clear();
  }
  std::atomic<bool> full = false;

 private:
  std::mutex mutex_;
  std::map<std::string, UniqueFd> kept_;
};

class SuccessionTest : public EngineTest {
 protected:
  void SetUp() override {
    journal_ = SealJournal::Create().value();
    succession_.store = &store_;
    Start(16);
  }

  // Ends the daemon as SIGKILL would, and starts the next one up to its first root.
  void Crash(int segments = 16) {
    queue_.clear();
    std::vector<NamedDescriptor> left = store_.Left();
    engine_.reset();
    pool_.reset();
    store_.Clear();
    for (NamedDescriptor& kept : left) EXPECT_TRUE(store_.Put(kept.name, kept.fd.get()).ok());
    left.push_back({kJournalName, UniqueFd(::fcntl(journal_->fd(), F_DUPFD_CLOEXEC, 0))});
    Inheritance inheritance = TakeInheritance(std::move(left));
    EXPECT_THAT(inheritance.problems, ElementsAre());
    journal_ = std::move(inheritance.journal);
    succession_.store = &store_;
    succession_.used = std::move(inheritance.used);
    succession_.unused = std::move(inheritance.unused);
    Start(segments);
    engine_->Inherit(std::move(inheritance.saves));
  }

  // All ranks write their bytes and seal; the disk answers nothing yet.
  void SealAll(const std::vector<SessionId>& sessions, const std::string& tag, int64_t bytes,
               int64_t ordinal = 1) {
    ios_[1]->hold_writes = true;
    std::vector<Answer<v1::BeginResponse>> begun;
    std::vector<v1::BeginRequest> requests;
    for (int rank = 0; rank < static_cast<int>(sessions.size()); ++rank) {
      requests.push_back(BeginOf(rank, tag, 1, bytes));
      requests.back().mutable_key()->set_ordinal(ordinal);
      requests.back().mutable_pointers()->insert(pointers_.begin(), pointers_.end());
      begun.push_back(Begin(sessions[rank], requests.back()));
    }
    RunQueued([&] { return std::all_of(begun.begin(), begun.end(), [](const auto& b) { return b.has(); }); });
    for (int rank = 0; rank < static_cast<int>(sessions.size()); ++rank) {
      const v1::BeginRequest& request = requests[rank];
      auto target = engine_->BeginWrite(As(sessions[rank]), request.key(), request.files(0).path(),
                                        [](const absl::Status&) {});
      ASSERT_TRUE(target.ok()) << target.status();
      char next = static_cast<char>('a' + rank);
      for (const auto& run : target->runs) {
        for (std::byte& byte : run) byte = static_cast<std::byte>(next = static_cast<char>(next * 31 + 7));
      }
      engine_->EndWrite(target->id);
      ASSERT_EQ(Seal(sessions[rank], request).get().level(),
                rank + 1 == static_cast<int>(sessions.size()) ? v1::SEALED : v1::STAGED);
    }
  }
  static std::string BytesOf(int rank, int64_t size) {
    std::string bytes;
    char next = static_cast<char>('a' + rank);
    for (int64_t i = 0; i < size; ++i) bytes.push_back(next = static_cast<char>(next * 31 + 7));
    return bytes;
  }
  // Opens the root as one that the daemon knows at its start.
  void Recover(uid_t uid = 1000) { Attach(Trainer("nobody", uid), 1, uid); }
  // The same, but the disk answers nothing yet.
  void RecoverAndHold() {
    RootAttachment attachment{1, 1, "/root1", 1000, [this] {
                                auto io = std::make_unique<FakeRootIo>(disks_[1], &queue_);
                                ios_[1] = io.get();
                                io->hold_writes = true;
                                return RootAccess(std::move(io));
                              }};
    Answer<std::string> root;
    engine_->RecoverRoot(std::move(attachment), root.reply());
    RunQueued();
    run_ = root.get();
  }
  bool Logged(const std::string& text) {
    return std::any_of(observer_.infos.begin(), observer_.infos.end(),
                       [&](const std::string& info) { return info.find(text) != std::string::npos; });
  }

  FakeStore store_;
  std::map<std::string, std::string> pointers_;  // That every rank's save names.
};

TEST_F(SuccessionTest, NextDaemonPublishesSealedSaveByteForByte) {
  constexpr int64_t kBytes = 2 * kSegment + 12345;
  SealAll(Launch("a", 2), "step_1", kBytes);
  EXPECT_EQ(journal_->size(), 1);
  Crash();
  EXPECT_EQ(pool_->usage().used_bytes, 6 * kSegment);
  Recover();
  EXPECT_THAT(Tags(), ElementsAre("step_1"));
  EXPECT_EQ(disks_[1]->bytes["1/rank0.pt"], BytesOf(0, kBytes));
  EXPECT_EQ(disks_[1]->bytes["1/rank1.pt"], BytesOf(1, kBytes));
  EXPECT_EQ(disks_[1]->committed.at(1).summary.step(), 1);
  EXPECT_EQ(pool_->usage().used_bytes, 0);
  EXPECT_EQ(journal_->size(), 0);
  ASSERT_EQ(observer_.ended.size(), 1u);

  Crash();  // Nothing is left to take over.
  Recover();
  EXPECT_EQ(observer_.ended.size(), 1u);
}

TEST_F(SuccessionTest, CopyOfAnInheritedSaveIsKeptUntilTheMemoryIsIdle) {
  engine_options_.idle_pool = std::chrono::seconds(10);
  resident_segments_ = 16;
  clock_.now += std::chrono::hours(1);
  SealAll(Launch("a", 1), "step_1", 100);
  Crash();
  Recover();
  ASSERT_THAT(Tags(), ElementsAre("step_1"));
  engine_->Tick();
  EXPECT_EQ(pool_->usage().resident_bytes, kSegment);
  AdvanceClock(std::chrono::seconds(11));
  EXPECT_EQ(pool_->usage().resident_bytes, 0);
}

TEST_F(SuccessionTest, InheritsPointers) {
  pointers_ = {{"latest", "step_1"}};
  SealAll(Launch("a", 2), "step_1", 100);
  Crash();
  Recover();
  EXPECT_THAT(Tags(), ElementsAre("step_1"));
  EXPECT_EQ(disks_[1]->committed.at(1).summary.pointers().at("latest"), "step_1");
}

TEST_F(SuccessionTest, InheritedSaveIsNotCalledLost) {
  SealAll(Launch("a", 2), "step_1", 5000);
  disks_[1]->recovered = {{"step_1", 1, false, "no part of it is complete"}};
  Crash();
  RecoverAndHold();
  EXPECT_THAT(Failures(), ElementsAre());
  EXPECT_EQ(disks_[1]->run_record.outcomes_size(), 0) << "it has not ended yet";
}

TEST_F(SuccessionTest, InheritsAcrossRepeatedKills) {
  SealAll(Launch("a", 2), "step_1", 5000);
  for (int i = 0; i < 5; ++i) {
    Crash();
    if (i % 2 == 0) RecoverAndHold();  // Killed while it writes; else before the root is open.
  }
  EXPECT_THAT(observer_.ended, ElementsAre());
  Crash();
  Recover();
  EXPECT_THAT(Tags(), ElementsAre("step_1"));
  EXPECT_EQ(disks_[1]->bytes["1/rank1.pt"], BytesOf(1, 5000));
}

TEST_F(SuccessionTest, PublishesSavesOfOneTagInTheirOrder) {
  auto sessions = Launch("a", 1);
  SealAll(sessions, "same", 100, 1);
  SealAll(sessions, "other", 100);
  SealAll(sessions, "same", 300, 2);
  Crash();
  Recover();
  EXPECT_THAT(Tags(), ElementsAre("same", "other"));
  EXPECT_EQ(disks_[1]->committed.at(3).summary.ordinal(), 2);
  EXPECT_EQ(observer_.ended.size(), 3u);
}

TEST_F(SuccessionTest, PublishesOnceWhatOldDaemonHadPublished) {
  SealAll(Launch("a", 1), "step_1", 100);
  auto& summary = disks_[1]->committed[1].summary;  // Killed between the rename and the journal.
  summary.set_tag("step_1");
  summary.set_sequence(1);
  Crash();
  Recover();
  EXPECT_TRUE(Logged("is let go: it is committed"));
  EXPECT_THAT(observer_.ended, ElementsAre());
  EXPECT_TRUE(disks_[1]->bytes.empty());
  EXPECT_EQ(journal_->size(), 0);
  EXPECT_EQ(pool_->usage().used_bytes, 0);
}

TEST_F(SuccessionTest, OlderGenerationDoesNotReplaceNewerOne) {
  SealAll(Launch("a", 1), "step_1", 100);
  auto& summary = disks_[1]->committed[7].summary;
  summary.set_tag("step_1");
  summary.set_sequence(7);
  summary.set_attempt(1);
  summary.set_ordinal(2);
  Crash();
  Recover();
  EXPECT_TRUE(Logged("the tag holds a newer one (sequence 7)"));
  EXPECT_EQ(disks_[1]->committed.size(), 1u);
  EXPECT_EQ(journal_->size(), 0);
}

TEST_F(SuccessionTest, FailedSaveNeverReappears) {
  auto sessions = Launch("a", 1);
  SealAll(sessions, "step_1", 100);
  ios_[1]->write_error = MakeError(absl::StatusCode::kDataLoss, "IO_ERROR", "the disk is broken");
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_EQ(Wait(sessions[0], Key(0, "step_1")).get().checkpoint().error().reason(), "IO_ERROR");
  EXPECT_EQ(journal_->size(), 0);
  Crash();
  Recover();
  EXPECT_THAT(Tags(), ElementsAre());
}

TEST_F(SuccessionTest, DropsSaveThatNotEveryRankHadSealed) {
  auto sessions = Launch("a", 2);
  auto first = BeginOf(0, "one", 1, 100), second = BeginOf(1, "one", 1, 100);
  auto a = Begin(sessions[0], first), b = Begin(sessions[1], second);
  RunQueued([&] { return a.has() && b.has(); });
  Seal(sessions[0], first);
  EXPECT_EQ(journal_->size(), 0);
  Crash();
  EXPECT_EQ(pool_->usage().used_bytes, 0);
}

TEST_F(SuccessionTest, DoesNotReuseItsSequence) {
  SealAll(Launch("a", 1), "step_1", 100);
  Crash();
  SessionId rank = Trainer("a/0");
  ASSERT_TRUE(Join(rank, 0, 1, "a").status().ok());
  auto begun = Begin(rank, BeginOf(0, "step_2", 2, 100));
  RunQueued([&] { return begun.has(); });
  EXPECT_EQ(begun.get().sequence(), 2);
}

TEST_F(SuccessionTest, PublishesSealedSaveOfFencedAttemptAndResumeWaitsForIt) {
  SealAll(Launch("a", 1), "step_1", 100);
  Crash();
  Answer<std::string> attached = AttachLater(Trainer("nobody"));
  auto sessions = Launch("b", 1);
  auto resumed = Resume(sessions[0], 0);
  RunQueued([&] { return resumed.has(); });
  EXPECT_EQ(resumed.get().checkpoint().tag(), "step_1");
}

TEST_F(SuccessionTest, TrainerWithoutSealAnswerHearsHowSaveEnds) {
  SealAll(Launch("a", 1), "step_1", 100);
  Crash();
  SessionId rank = Trainer("a/0");
  ASSERT_TRUE(Join(rank, 0, 1, "a", {Key(0, "step_1")}).status().ok());
  v1::BeginRequest request = BeginOf(0, "step_1", 1, 100);
  EXPECT_EQ(Begin(rank, request).reason(), "SAVE_CONFLICT");  // Which says that it is committed.
  EXPECT_EQ(Wait(rank, request.key()).get().checkpoint().level(), v1::COMMITTED);
  EXPECT_EQ(Seal(rank, request).get().level(), v1::COMMITTED);
}

// The user has moved the run's record away, as ROOT_UNREADABLE advises.
TEST_F(SuccessionTest, AttemptOfAnInheritedSaveIsNotGivenAgain) {
  SealAll(Launch("a", 1), "step_1", 100);
  disks_[1]->run_record.Clear();
  Crash();
  RecoverAndHold();
  EXPECT_EQ(Join(Trainer("b/0"), 0, 1, "b").get().attempt(), 2);
}

// The user has put a record in the place of the run's own that gives its attempt to another launch.
TEST_F(SuccessionTest, RefusesSealOfOtherAttemptWithSameOrdinal) {
  SealAll(Launch("a", 1), "step_1", 100);
  storage::v1::Launch& launch = *disks_[1]->run_record.mutable_launches(0);
  launch.set_launch_id("b");
  launch.clear_instances();
  Crash();
  RecoverAndHold();
  SessionId other = Trainer("b/0");
  ASSERT_EQ(Join(other, 0, 1, "b").get().attempt(), 1);
  EXPECT_EQ(Seal(other, BeginOf(0, "step_1", 1, 100)).reason(), "RANK_TAKEN");
}

TEST_F(SuccessionTest, AnswersRepeatedSealWhileInheritedSaveIsWritten) {
  SealAll(Launch("a", 1), "step_1", 100);
  Crash();
  SessionId rank = Trainer("a/0");
  RecoverAndHold();
  ASSERT_TRUE(Join(rank, 0, 1, "a", {Key(0, "step_1")}).status().ok());
  v1::BeginRequest request = BeginOf(0, "step_1", 1, 100);
  EXPECT_EQ(Seal(rank, request).get().level(), v1::SEALED);
  EXPECT_EQ(Wait(rank, request.key(), v1::SEALED).get().checkpoint().level(), v1::SEALED);
  auto begun = Begin(rank, request);
  auto waiting = Wait(rank, request.key());
  EXPECT_FALSE(begun.has() || waiting.has());
  EXPECT_TRUE(engine_->HasSealedSaves());
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_EQ(begun.reason(), "SAVE_CONFLICT");
  EXPECT_EQ(waiting.get().checkpoint().level(), v1::COMMITTED);
}

TEST_F(SuccessionTest, InheritedMemoryCountsAgainstBudgetUntilWritten) {
  SealAll(Launch("a", 1), "step_1", 3 * kSegment);
  Crash(4);
  EXPECT_EQ(pool_->usage().used_bytes, 3 * kSegment);
  auto two = pool_->Reserve({SegmentDemand{0, 2}});
  EXPECT_EQ(ReasonOf(two.status()), "POOL_EXHAUSTED");
  EXPECT_TRUE(pool_->Reserve({SegmentDemand{0, 1}}).ok());
  Recover();
  EXPECT_THAT(Tags(), ElementsAre("step_1"));
  EXPECT_TRUE(pool_->Reserve({SegmentDemand{0, 3}}).ok());
}

TEST_F(SuccessionTest, PublishesSaveLargerThanNewPool) {
  SealAll(Launch("a", 1), "step_1", 9 * kSegment);
  Crash(4);
  EXPECT_EQ(ReasonOf(pool_->Reserve({SegmentDemand{0, 1}}).status()), "POOL_EXHAUSTED");
  Recover();
  EXPECT_EQ(disks_[1]->bytes["1/rank0.pt"], BytesOf(0, 9 * kSegment));
  EXPECT_TRUE(pool_->Reserve({SegmentDemand{0, 4}}).ok());
}

TEST_F(SuccessionTest, ReleasesMemoryOfUnopenedRootAfterTenMinutes) {
  SealAll(Launch("a", 1), "step_1", 100);
  Crash();
  AdvanceClock(std::chrono::seconds(599));
  EXPECT_EQ(pool_->usage().used_bytes, kSegment);
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_EQ(pool_->usage().used_bytes, 0);
  EXPECT_EQ(journal_->size(), 0);
  EXPECT_THAT(observer_.warnings, ElementsAre(HasSubstr("its root could not be opened in time")));
}

TEST_F(SuccessionTest, IgnoresRootOfOtherUser) {
  SealAll(Launch("a", 1), "step_1", 100);
  disks_[1]->run_record.set_format_version(1);
  disks_[1]->run_record.set_uid(1001);
  Crash();
  Recover(1001);
  EXPECT_TRUE(Logged("is let go: the run belongs to uid 1001"));
  EXPECT_TRUE(disks_[1]->bytes.empty());
}

TEST_F(SuccessionTest, WarnsWhenStoreCannotKeepSealedSave) {
  store_.full = true;
  succession_.store = &store_;
  Start(16);
  SealAll(Launch("a", 1), "step_1", 100);
  EXPECT_EQ(journal_->size(), 0);
  EXPECT_THAT(pool_warnings_, ElementsAre(HasSubstr("the store is full")));
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("step_1"));
}

}  // namespace
}  // namespace ckptd
