#include "daemon/engine/reading/lease_table.h"

#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LeaseTableTest : public ClassTest {
 protected:
  void SetUp() override {
    for (SessionId session : {1, 2}) {
      SessionInfo info;
      info.id = session;
      info.uid = 1000;
      sessions_.Add(info);
    }
  }
  Run* AddReadableRun(const std::vector<int64_t>& sequences) {
    Run* run = AddRun(1000, sequences);
    for (int64_t sequence : sequences) {
      disks_.at(run)->manifests[sequence].summary = run->catalog.Find(sequence)->summary;
      disks_.at(run)->manifests[sequence].body.add_files()->set_path("model.pt");
    }
    return run;
  }
  // The lease's id, or empty; then status_ has the error.
  std::string Open(SessionId session, Run* run, int64_t sequence) {
    std::string id;
    table_.Open(session, run, sequence, /*resumes=*/false, [&](auto opened) {
      status_ = opened.status();
      if (opened.ok()) id = opened->first;
    });
    RunCallbacks();
    return id;
  }
  Caller Of(SessionId session) const {
    Caller caller;
    caller.session = session;
    return caller;
  }

  SessionTable sessions_;
  absl::Status status_;
  std::vector<int64_t> damaged_, released_;
  std::vector<v1::Restore> restores_;
  LeaseTable table_{
      {2, 1 << 20},
      &sessions_,
      {.describe = [](const Run& run,
                      const CommittedCheckpoint& committed) { return ToWire(run, committed, {}); },
       .mark_damaged =
           [this](Run*, int64_t sequence, storage::v1::Damage, DamageMarked done) {
             damaged_.push_back(sequence);
             done(absl::OkStatus());
           },
       .notify = [this](const Run&, v1::WatchResponse event) { restores_.push_back(event.restore()); },
       .released = [this](const Lease& lease) { released_.push_back(lease.sequence); }}};
};

TEST_F(LeaseTableTest, LeasesTheCheckpointBeforeItIsOpen) {
  Run* run = AddReadableRun({1});
  run->members.Join({1, "process of 1", 0, 1, run->active_attempt});
  run->members.Join({2, "process of 2", 0, 1, run->active_attempt - 1});
  for (const SessionId session : {1, 2}) table_.Open(session, run, 1, /*resumes=*/true, [](auto) {});
  EXPECT_THAT(table_.LeasedSequences(*run), ElementsAre(1, 1));
  const std::vector<std::string> ids = table_.ResumingFrom(*run, 1);
  ASSERT_EQ(ids.size(), 1u) << "without that of the fenced attempt";
  EXPECT_EQ(ReasonOf(table_.Find(Of(1), ids[0]).status()), reason::kUnknownLease) << "it is not open yet";
  RunCallbacks();
  EXPECT_TRUE(table_.Find(Of(1), ids[0]).ok());
  EXPECT_FALSE(table_.Find(Of(2), ids[0]).ok()) << "it is another session's";
}

TEST_F(LeaseTableTest, CountsTheLeasesOfEachCheckpoint) {
  Run* run = AddReadableRun({1, 2});
  const std::string first = Open(1, run, 1);
  Open(2, run, 1);
  EXPECT_EQ(table_.Count(*run, 1), 2);
  EXPECT_EQ(table_.Count(*run, 2), 0);
  EXPECT_TRUE(table_.Close(Of(1), first).ok());
  EXPECT_TRUE(table_.Close(Of(1), first).ok()) << "a retry";
  EXPECT_EQ(table_.Count(*run, 1), 1);
  table_.OnSessionEnded(2);
  EXPECT_EQ(table_.Count(*run, 1), 0);
}

TEST_F(LeaseTableTest, LimitsTheLeasesOfAUser) {
  Run* run = AddReadableRun({1});
  EXPECT_NE(Open(1, run, 1), "");
  const std::string second = Open(2, run, 1);
  EXPECT_EQ(Open(1, run, 1), "");
  EXPECT_EQ(ReasonOf(status_), reason::kLimitExceeded);
  EXPECT_EQ(ReasonOf(table_.Close(Of(1), second)), reason::kUnknownLease);
  EXPECT_TRUE(table_.Close(Of(2), second).ok());
  EXPECT_TRUE(table_.Close(Of(2), second).ok()) << "a retry";
  EXPECT_NE(Open(1, run, 1), "");
}

TEST_F(LeaseTableTest, MarksADamagedCheckpointBeforeItAnswers) {
  Run* run = AddReadableRun({1});
  disks_.at(run)->unreadable.insert(1);
  EXPECT_EQ(Open(1, run, 1), "");
  EXPECT_FALSE(status_.ok());
  EXPECT_THAT(damaged_, ElementsAre(1));
  EXPECT_FALSE(table_.HasAny(*run));
}

TEST_F(LeaseTableTest, ReleasesTheLeasesOfASessionThatEnds) {
  Run* run = AddReadableRun({1, 2});
  Open(1, run, 1);
  const std::string other = Open(2, run, 2);
  table_.OnSessionEnded(1);
  EXPECT_THAT(released_, ElementsAre(1));
  EXPECT_NE(table_.Find(other), nullptr);
  table_.Open(2, run, 1, false, [this](auto opened) { status_ = opened.status(); });
  sessions_.Remove(2);
  table_.OnSessionEnded(2);
  RunCallbacks();
  EXPECT_EQ(ReasonOf(status_), reason::kSessionLost) << "it ended before the checkpoint was open";
  EXPECT_THAT(table_.LeasedSequences(*run), IsEmpty());
}

TEST_F(LeaseTableTest, ReportsProgressAndItsEnd) {
  Run* run = AddReadableRun({1});
  v1::ReportReadingRequest request;
  request.set_lease(Open(1, run, 1));
  request.set_read_bytes(10);
  EXPECT_EQ(ReasonOf(table_.Report(Of(1), request)), reason::kInvalidArgument) << "more than there is";
  request.set_total_bytes(100);
  EXPECT_TRUE(table_.Report(Of(1), request).ok());
  EXPECT_TRUE(table_.Close(Of(1), request.lease()).ok());
  ASSERT_EQ(restores_.size(), 2u);
  EXPECT_EQ(restores_[0].read_bytes(), 10);
  EXPECT_TRUE(restores_[1].ended());
}

}  // namespace
}  // namespace ckptd
