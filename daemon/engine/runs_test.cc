// Attaching roots: permissions, and when the daemon remembers a root.
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "tests/testing/engine_fixture.h"
#include "tests/testing/fake_shared_run.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uid_t kOwner = 1000, kOther = 2000;

class RunsTest : public EngineTest {
 protected:
  // Queues the attach without running its callbacks. `remembers` is the answer of the list of known roots.
  Answer<std::string> AttachAs(uid_t uid, absl::Status opens = absl::OkStatus()) {
    RootAttachment attachment;
    attachment.device = 1;
    attachment.inode = 1;
    attachment.path = "/root1";
    attachment.uid = uid;
    attachment.make_io = [this, opens] {
      if (disks_[1] == nullptr) disks_[1] = std::make_shared<FakeDisk>();
      disks_[1]->open_error = opens;
      return RootAccess{std::make_unique<FakeRootIo>(disks_[1], &queue_)};
    };
    attachment.remember = [this, uid](RootAttachment::Remembered done) {
      asked_.push_back(uid);
      remembering_.push_back(std::move(done));
    };
    Answer<std::string> root;
    engine_->AttachRoot(Trainer("t" + std::to_string(next_session_), uid), std::move(attachment),
                        root.reply());
    return root;
  }
  void Remembered(const absl::Status& status = absl::OkStatus()) {
    for (auto& done : std::exchange(remembering_, {})) {
      if (status.ok()) {
        done(in_use_);
      } else {
        done(status);
      }
    }
    RunQueued();
  }
  void MakeOwned() {
    disks_[1] = std::make_shared<FakeDisk>();
    disks_[1]->run_record.set_format_version(1);
    disks_[1]->run_record.set_uid(kOwner);
  }

  std::vector<uid_t> asked_;
  std::vector<RootAttachment::Remembered> remembering_;
  std::shared_ptr<const void> in_use_ = std::make_shared<char>();
};

TEST_F(RunsTest, AnswersAttachWhenRootIsRemembered) {
  Answer<std::string> root = AttachAs(kOwner);
  RunQueued();
  EXPECT_THAT(asked_, ElementsAre(kOwner));
  EXPECT_FALSE(root.has());
  Remembered();
  ASSERT_TRUE(root.has());
  EXPECT_TRUE(root.status().ok()) << root.status();
  EXPECT_EQ(in_use_.use_count(), 2) << "the run keeps its entry in use";
}

TEST_F(RunsTest, FailsAttachThatCannotBeRemembered) {
  Answer<std::string> root = AttachAs(kOwner);
  RunQueued();
  Remembered(MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_EXCEEDED", "too many"));
  EXPECT_EQ(root.reason(), "LIMIT_EXCEEDED");
}

TEST_F(RunsTest, DoesNotRememberRootThatCannotBeOpened) {
  Answer<std::string> root = AttachAs(kOwner, absl::PermissionDeniedError("closed"));
  RunQueued();
  EXPECT_EQ(root.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(RunsTest, DoesNotRememberRootOfOtherUser) {
  Answer<std::string> owner = AttachAs(kOwner);
  RunQueued();
  Remembered();
  ASSERT_TRUE(owner.status().ok());
  Answer<std::string> other = AttachAs(kOther);
  RunQueued();
  EXPECT_EQ(other.reason(), "WRONG_UID");
  EXPECT_THAT(asked_, ElementsAre(kOwner));
}

// The run's record names its owner. Another user who opens the root first neither owns it nor gives it
// rights.
TEST_F(RunsTest, RefusesUserWhoOpensRootOfOtherUserFirst) {
  MakeOwned();
  Answer<std::string> other = AttachAs(kOther);
  RunQueued();
  EXPECT_EQ(other.reason(), "WRONG_UID");
  EXPECT_THAT(asked_, IsEmpty());
  Answer<std::string> owner = AttachAs(kOwner);
  RunQueued();
  Remembered();
  EXPECT_TRUE(owner.status().ok()) << owner.status();
}

TEST_F(RunsTest, OpensRootForOwnerWhileOtherUserTries) {
  MakeOwned();
  Answer<std::string> other = AttachAs(kOther);
  Answer<std::string> owner = AttachAs(kOwner);
  RunQueued();
  Remembered();
  EXPECT_EQ(other.reason(), "WRONG_UID");
  EXPECT_TRUE(owner.status().ok()) << owner.status();
}

TEST_F(RunsTest, OpensRootForPermittedUserAfterRefusedOne) {
  Answer<std::string> other = AttachAs(kOther, absl::PermissionDeniedError("closed"));
  Answer<std::string> again = AttachAs(kOther);
  Answer<std::string> owner = AttachAs(kOwner);
  RunQueued();
  Remembered();
  EXPECT_EQ(other.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(owner.status().ok()) << owner.status();
  EXPECT_THAT(asked_, ElementsAre(kOwner));
}

// Idle runs.
class IdleRunsTest : public EngineTest {
 protected:
  void SetUp() override {
    engine_options_.idle_root = std::chrono::seconds(60);
    engine_options_.roots_per_uid = 3;
    engine_options_.file_systems_per_uid = 2;
    Start(16);
  }

  RootAttachment AttachmentOf(uint64_t inode, uint64_t device = 1) {
    RootAttachment attachment;
    attachment.device = device;
    attachment.inode = inode;
    attachment.path = "/root" + std::to_string(inode);
    attachment.uid = 1000;
    attachment.own_path = "/own" + std::to_string(inode);
    attachment.make_io = [this, inode]() -> absl::StatusOr<RootAccess> {
      if (!io_error_.ok()) return io_error_;
      if (disks_[inode] == nullptr) disks_[inode] = std::make_shared<FakeDisk>();
      ++made_;
      auto io = std::make_unique<FakeRootIo>(disks_[inode], &queue_);
      ios_[inode] = io.get();
      RootAccess access{std::move(io)};
      if (is_shared_) {
        auto nodes = std::make_unique<FakeSharedRun>(ios_.at(inode));
        nodes_ = nodes.get();
        access.authority = std::move(nodes);
      }
      return access;
    };
    attachment.reopen = [this, inode, device](RootAttachment::Reopened done) {
      queue_.push_back([this, inode, device, done = std::move(done)]() mutable {
        if (!reopen_error_.ok()) return done(reopen_error_);
        done(AttachmentOf(inode, device));
      });
    };
    return attachment;
  }
  Answer<std::string> AttachReopenable(SessionId session, uint64_t inode = 1, uint64_t device = 1) {
    Answer<std::string> root;
    engine_->AttachRoot(session, AttachmentOf(inode, device), root.reply());
    RunQueued();
    if (root.status().ok()) run_ = root.get();
    return root;
  }
  // A run with a committed checkpoint, whose trainer has ended.
  void MakeIdle() {
    const SessionId trainer = Trainer("a");
    ASSERT_TRUE(AttachReopenable(trainer).status().ok());
    ASSERT_TRUE(Join(trainer, 0, 1, "a").status().ok());
    SaveAll({trainer}, "one", 1);
    RunQueued([&] { return disks_[1]->committed.size() == 1; });
    RunQueued();
    engine_->SessionClosed(trainer, "done");
    RunQueued();
    made_ = 0;
  }
  // Whether the run was closed and opened again.
  bool WasClosed() {
    AttachReopenable(Trainer("looks"));
    return made_ > 0;
  }

  int made_ = 0;
  absl::Status io_error_, reopen_error_;
  bool is_shared_ = false;
  FakeSharedRun* nodes_ = nullptr;  // Of the last run that was opened, if it is shared.
};

TEST_F(IdleRunsTest, RunThatThisNodeCoordinatesClosesWhenAnotherNodeCoordinatesItOrNoneDoes) {
  is_shared_ = true;
  const SessionId first = Trainer("a");
  ASSERT_TRUE(AttachReopenable(first).status().ok());
  nodes_->leads = true;
  AdvanceClock(std::chrono::seconds(61));
  AdvanceClock(std::chrono::seconds(61));
  EXPECT_FALSE(nodes_->idle) << "a session has it attached";
  engine_->SessionClosed(first, "done");
  AdvanceClock(std::chrono::seconds(1));
  AdvanceClock(std::chrono::seconds(59));
  EXPECT_FALSE(nodes_->idle);
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_TRUE(nodes_->idle);
  const SessionId next = Trainer("b");
  ASSERT_TRUE(AttachReopenable(next).status().ok());
  EXPECT_EQ(made_, 1) << "it was not closed";
  AdvanceClock(std::chrono::seconds(1));
  EXPECT_FALSE(nodes_->idle) << "it is used again";
  engine_->SessionClosed(next, "done");
  AdvanceClock(std::chrono::seconds(1));
  AdvanceClock(std::chrono::seconds(61));
  EXPECT_TRUE(nodes_->idle);
  nodes_->leads = false;
  AdvanceClock(std::chrono::seconds(1));
  made_ = 0;
  EXPECT_TRUE(WasClosed());
}

TEST_F(IdleRunsTest, IdleTimeoutChangesWhileARunIsIdle) {
  MakeIdle();
  AdvanceClock(std::chrono::seconds(1));
  engine_options_.idle_root = std::chrono::seconds(20);
  engine_->SetLimits(engine_options_);
  AdvanceClock(std::chrono::seconds(21));
  EXPECT_TRUE(WasClosed());
}

TEST_F(IdleRunsTest, ClosesTheIdleOnesOfTheNamedRootsAndNamesTheOthers) {
  MakeIdle();
  const SessionId session = Trainer("b");
  ASSERT_TRUE(AttachReopenable(session, 2).status().ok());
  EXPECT_THAT(engine_->CloseIdleRoots([](const std::string& path) { return path == "/own3"; }),
              ElementsAre());
  made_ = 0;
  EXPECT_FALSE(WasClosed());
  engine_->SessionClosed(next_session_ - 1, "done");
  RunQueued();
  EXPECT_THAT(engine_->CloseIdleRoots([](const std::string& path) { return path != "/own3"; }),
              ElementsAre("/root2"));
  EXPECT_TRUE(WasClosed());
}

TEST_F(IdleRunsTest, ClosesRunOnlyAfterIdleTimeout) {
  MakeIdle();
  AdvanceClock(std::chrono::seconds(1));
  AdvanceClock(std::chrono::seconds(59));
  EXPECT_FALSE(WasClosed());
}

TEST_F(IdleRunsTest, ClosedRunIsListedAndReopensOnUse) {
  MakeIdle();
  AdvanceClock(std::chrono::seconds(1));
  AdvanceClock(std::chrono::seconds(61));
  const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
  ASSERT_EQ(status.runs_size(), 1);
  EXPECT_EQ(status.runs(0).name(), run_);
  EXPECT_EQ(status.runs(0).checkpoint_count(), 1);
  EXPECT_EQ(engine_->GetStatus(As(0, 2000)).runs_size(), 0) << "a stranger";
  EXPECT_EQ(made_, 0);

  v1::ListCheckpointsRequest request;
  request.set_parent(run_);
  Answer<v1::ListCheckpointsResponse> stranger, list;
  engine_->ListCheckpoints(As(0, 2000), request, stranger.reply());
  EXPECT_EQ(stranger.reason(), "WRONG_UID");
  engine_->ListCheckpoints(As(0), request, list.reply());
  RunQueued();
  ASSERT_TRUE(list.status().ok()) << list.status();
  ASSERT_EQ(list.get().checkpoints_size(), 1);
  EXPECT_EQ(list.get().checkpoints(0).tag(), "one");
  EXPECT_EQ(made_, 1);
  EXPECT_EQ(engine_->GetStatus(Caller{0, 0, true}).runs_size(), 1);
}

TEST_F(IdleRunsTest, ReportsWhyRunCannotBeReopened) {
  MakeIdle();
  AdvanceClock(std::chrono::seconds(1));
  AdvanceClock(std::chrono::seconds(61));
  reopen_error_ = MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_MOVED", "not mounted");
  EXPECT_EQ(Open(Trainer("b"), "one").reason(), "ROOT_MOVED");
  reopen_error_ = absl::OkStatus();
  EXPECT_TRUE(Open(Trainer("b"), "one").status().ok());
}

TEST_F(IdleRunsTest, KeepsRunOpenWhileInUse) {
  MakeIdle();
  const SessionId attached = Trainer("b");
  ASSERT_TRUE(AttachReopenable(attached).status().ok());
  AdvanceClock(std::chrono::seconds(1));
  AdvanceClock(std::chrono::seconds(61));
  EXPECT_FALSE(WasClosed()) << "a session has it";

  engine_->SessionClosed(attached, "done");
  engine_->SessionClosed(next_session_ - 1, "done");  // Of WasClosed.
  absl::Status refused;
  v1::WatchRequest watch;
  watch.set_parent(run_);
  const int64_t watcher = engine_->AddWatcher(
      As(0), watch, [](const v1::WatchResponse&) { return true; }, &refused);
  AdvanceClock(std::chrono::seconds(1));
  AdvanceClock(std::chrono::seconds(61));
  EXPECT_FALSE(WasClosed()) << "somebody watches it";
  engine_->SessionClosed(next_session_ - 1, "done");
  engine_->RemoveWatcher(watcher);

  ios_[1]->held.insert("OpenCheckpoint");
  v1::GetCheckpointRequest get;
  get.set_name(run_ + "/checkpoints/one");
  get.set_view(v1::FULL);
  Answer<v1::Checkpoint> described;
  engine_->GetCheckpoint(As(0), get, described.reply());
  AdvanceClock(std::chrono::seconds(1));
  AdvanceClock(std::chrono::seconds(61));
  EXPECT_FALSE(described.has());
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_TRUE(described.has() && described.status().ok()) << "an operation is under way";
}

TEST_F(IdleRunsTest, ClosesIdleRunForAnotherRootOfItsUser) {
  for (uint64_t inode = 1; inode <= 3; ++inode) {
    const SessionId session = Trainer("a" + std::to_string(inode));
    ASSERT_TRUE(AttachReopenable(session, inode).status().ok());
    if (inode == 2) engine_->SessionClosed(session, "done");
    RunQueued();
  }
  EXPECT_TRUE(AttachReopenable(Trainer("b"), 4).status().ok());
  Answer<std::string> refused = AttachReopenable(Trainer("c"), 5);
  EXPECT_EQ(refused.reason(), "LIMIT_EXCEEDED");
  EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr("limits.roots_per_uid"));
  EXPECT_TRUE(AttachLater(Trainer("d", 2000), 6, 2000).status().ok()) << "another user's";
}

TEST_F(IdleRunsTest, RefusesRootsOnTooManyFileSystems) {
  ASSERT_TRUE(AttachReopenable(Trainer("a"), 1, 1).status().ok());
  ASSERT_TRUE(AttachReopenable(Trainer("a"), 2, 2).status().ok());
  Answer<std::string> refused = AttachReopenable(Trainer("a"), 3, 3);
  EXPECT_EQ(refused.reason(), "LIMIT_EXCEEDED");
  EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr("limits.file_systems_per_uid"));
  EXPECT_TRUE(AttachReopenable(Trainer("a"), 3, 2).status().ok());
}

TEST_F(IdleRunsTest, FailsOpenOfRootWhenThreadsCannotBeStarted) {
  io_error_ = ErrnoError(EAGAIN, "starting the thread meta-8:1");
  EXPECT_EQ(ErrnoOf(AttachReopenable(Trainer("a")).status()), EAGAIN);
  io_error_ = absl::OkStatus();
  EXPECT_TRUE(AttachReopenable(Trainer("a")).status().ok());
}

TEST_F(IdleRunsTest, ScrubberOpensClosedRunWhenCheckpointIsDue) {
  engine_options_.scrub_period = std::chrono::hours(1);
  Start(16);
  MakeIdle();
  AdvanceClock(std::chrono::seconds(1));
  AdvanceClock(std::chrono::seconds(61));
  AdvanceClock(std::chrono::seconds(1));
  EXPECT_EQ(made_, 0);
  AdvanceClock(std::chrono::hours(1));
  EXPECT_EQ(made_, 1);
  for (int i = 0; i < 5; ++i) AdvanceClock(std::chrono::seconds(2));
  EXPECT_GT(ios_[1]->calls["ReadBack"], 0);
}

TEST_F(IdleRunsTest, AttachEndsAtTimeoutWhenRootDoesNotOpen) {
  Answer<std::string> root;
  engine_->AttachRoot(Trainer("a"), AttachmentOf(1), root.reply());  // Not run: it hangs.
  clock_.now += std::chrono::seconds(61);
  engine_->Tick();
  EXPECT_EQ(root.reason(), "FILE_SYSTEM_HANGS");
  RunQueued();
  EXPECT_TRUE(AttachReopenable(Trainer("b")).status().ok()) << "when it answers again";
}

}  // namespace
}  // namespace ckptd
