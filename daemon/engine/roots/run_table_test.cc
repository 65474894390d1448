#include "daemon/engine/roots/run_table.h"

#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/format/run_name.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using std::chrono::seconds;

class TakenOverRootIo : public FakeRootIo {
 public:
  using FakeRootIo::FakeRootIo;
  bool is_taken_over() const override { return true; }
};

class RunTableTest : public ClassTest {
 protected:
  RootAttachment Root(uint64_t inode, uid_t uid = 1000) {
    RootAttachment root;
    root.device = 1;
    root.inode = inode;
    root.path = "/root" + std::to_string(inode);
    root.uid = uid;
    root.make_io = [this, inode] { return RootAccess{std::make_unique<FakeRootIo>(roots_[inode], &queue_)}; };
    root.reopen = [this, inode](RootAttachment::Reopened done) { done(Root(inode)); };
    return root;
  }
  // The run's name, or the reason why there is none.
  std::string Attach(SessionId session, RootAttachment root) {
    const uint64_t inode = root.inode;
    if (roots_[inode] == nullptr) roots_[inode] = std::make_shared<FakeDisk>();
    std::string answer = "no answer";
    table_.Attach(session, std::move(root), [&answer](absl::StatusOr<std::string> name) {
      answer = name.ok() ? *name : ReasonOf(name.status());
    });
    RunCallbacks();
    return answer;
  }
  static Caller User(uid_t uid) {
    Caller caller;
    caller.uid = uid;
    return caller;
  }
  void Idle(Duration how_long) {
    table_.CloseIdleRuns(clock_.Now());
    clock_.Advance(how_long);
    table_.CloseIdleRuns(clock_.Now());
  }

  std::map<uint64_t, std::shared_ptr<FakeDisk>> roots_;
  SessionTable sessions_;
  bool idle_ = true, due_ = false;
  RunTable table_{{seconds(1), seconds(60), seconds(100), 2, 8,
                   [](const std::string& path) { return path.starts_with("/shared/") ? "/shared" : ""; }},
                  &clock_,
                  this,
                  &sessions_,
                  {.publish = [](Run*, const SaveId&, const LocalAuthority::Decided&) {},
                   .opening = [](Run*) {},
                   .load =
                       [](Run* run, RootSnapshot snapshot) {
                         if (snapshot.run_record.format_version() != 0)
                           run->uid = static_cast<uid_t>(snapshot.run_record.uid());
                       },
                   .opened = [](Run*) {},
                   .accepted = [](Run*) {},
                   .is_idle = [this](const Run&) { return idle_; },
                   .describe =
                       [](const Run& run) {
                         v1::Run description;
                         description.set_path(run.path);
                         return description;
                       },
                   .closing = [](Run*) {},
                   .is_due = [this](const std::string&) { return due_; },
                   .reopen_failed = [](const std::string&) {}}};
};

TEST_F(RunTableTest, ARootIsOpenedOnceAndBelongsToItsOwner) {
  const std::string run = Attach(0, Root(1));
  EXPECT_EQ(Attach(0, Root(1)), run);
  EXPECT_EQ(table_.all().size(), 1u);
  EXPECT_TRUE(table_.Find(User(1000), run).ok());
  EXPECT_EQ(ReasonOf(table_.Find(User(1001), run).status()), reason::kWrongUid);
  EXPECT_EQ(Attach(0, Root(1, 1001)), reason::kWrongUid);
  EXPECT_EQ(ReasonOf(table_.Find(User(1000), "runs/0").status()), reason::kUnknownRun);
}

TEST_F(RunTableTest, RunInAFolderOfSeveralNodesHasTheSameNameOnEach) {
  RootAttachment here = Root(1), there = Root(1);
  here.own_path = there.own_path = "/shared/run";
  there.device = 2;  // Each node has its own number for that file system.
  const std::string run = Attach(0, std::move(here));
  EXPECT_EQ(run, SharedRunName("/shared", 1));
  table_.CloseIdle([](const Run&) { return true; });
  EXPECT_EQ(Attach(0, std::move(there)), run);
}

TEST_F(RunTableTest, NeitherAreTwoDirectoriesOneRunNorIsOneDirectoryTwo) {
  RootAttachment first = Root(1), mounted_beneath = Root(1), other_folder = Root(1);
  first.own_path = "/shared/a";
  mounted_beneath.own_path = "/shared/b";
  mounted_beneath.device = 2;
  other_folder.own_path = "/alias/a";
  const std::string run = Attach(0, std::move(first));
  EXPECT_EQ(Attach(0, std::move(mounted_beneath)), RunName(2, 1));
  EXPECT_EQ(Attach(0, std::move(other_folder)), run);
  EXPECT_EQ(table_.all().size(), 2u);
}

TEST_F(RunTableTest, WorksInNobodysRunWithAnotherUsersRights) {
  roots_[1] = std::make_shared<FakeDisk>();
  roots_[1]->run_record.set_format_version(1);
  roots_[1]->run_record.set_uid(1001);
  EXPECT_EQ(Attach(0, Root(1, 1000)), reason::kWrongUid);
  EXPECT_TRUE(table_.all().empty());
  EXPECT_TRUE(Attach(0, Root(1, 1001)).starts_with("runs/")) << "its owner may open it";
}

TEST_F(RunTableTest, TriesALockedRootAgainForAWhile) {
  roots_[1] = std::make_shared<FakeDisk>();
  roots_[1]->locked = true;
  std::string answer = "no answer";
  table_.Attach(0, Root(1), [&answer](absl::StatusOr<std::string> name) {
    answer = name.ok() ? "open" : ReasonOf(name.status());
  });
  RunCallbacks();
  EXPECT_EQ(answer, "no answer");
  roots_[1]->locked = false;
  clock_.Advance(std::chrono::milliseconds(50));
  table_.OnTick(table_.all().begin()->second.get(), clock_.Now());
  RunCallbacks();
  EXPECT_EQ(answer, "open");
}

TEST_F(RunTableTest, ClosesARunThatIsIdleForLongAndOpensItWhenSomebodyAsks) {
  const std::string run = Attach(0, Root(1));
  idle_ = false;
  Idle(seconds(200));
  EXPECT_NE(table_.Find(run), nullptr) << "a class has something to lose";
  idle_ = true;
  Idle(seconds(99));
  EXPECT_NE(table_.Find(run), nullptr);
  Idle(seconds(1));
  EXPECT_EQ(table_.Find(run), nullptr);
  EXPECT_EQ(table_.ClosedRuns(User(1000)).size(), 1u);
  EXPECT_TRUE(table_.ClosedRuns(User(1001)).empty());
  bool open = false;
  table_.WhenOpen<int>(
      User(1000), run, [](absl::StatusOr<int>) {}, [&open](Reply<int>) { open = true; });
  EXPECT_FALSE(open);
  RunCallbacks();
  EXPECT_TRUE(open);
  EXPECT_TRUE(table_.ClosedRuns(User(1000)).empty());
}

TEST_F(RunTableTest, RootThatWasTakenOverIsOpenedAnewByTheNextAttachOfALaterJob) {
  SessionInfo session;
  session.id = 1;
  session.uid = 1000;
  sessions_.Add(session);
  RootAttachment lost = Root(1);
  lost.make_io = [this] { return RootAccess{std::make_unique<TakenOverRootIo>(roots_[1], &queue_)}; };
  const std::string run = Attach(1, std::move(lost));
  idle_ = false;  // A removal fails again and again.
  Idle(seconds(1));
  const Run* const before = table_.Find(run);
  ASSERT_NE(before, nullptr) << "its job still has it";
  EXPECT_TRUE(before->local_io->is_taken_over());
  sessions_.Remove(1);
  table_.OnSessionEnded(1);
  EXPECT_EQ(Attach(0, Root(1)), run);
  EXPECT_FALSE(table_.Find(run)->local_io->is_taken_over());
}

TEST_F(RunTableTest, OpensAClosedRunThatIsDue) {
  const std::string run = Attach(0, Root(1));
  Idle(seconds(100));
  ASSERT_EQ(table_.Find(run), nullptr);
  due_ = true;
  table_.CloseIdleRuns(clock_.Now());
  RunCallbacks();
  EXPECT_NE(table_.Find(run), nullptr);
}

TEST_F(RunTableTest, AnIdleRunMakesRoomForAnotherRootOfItsUser) {
  SessionInfo session;
  session.id = 1;
  session.uid = 1000;
  sessions_.Add(session);
  const std::string first = Attach(0, Root(1));
  const std::string second = Attach(1, Root(2));
  EXPECT_TRUE(Attach(1, Root(3)).starts_with("runs/"));
  EXPECT_EQ(table_.Find(first), nullptr);
  EXPECT_NE(table_.Find(second), nullptr) << "a session has attached it";
  EXPECT_EQ(Attach(1, Root(4)), reason::kLimitExceeded);
}

}  // namespace
}  // namespace ckptd
