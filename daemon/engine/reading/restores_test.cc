#include "daemon/engine/reading/restores.h"

#include "storage/base/errors.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class RestoresTest : public ClassTest {
 protected:
  void SetUp() override {
    for (SessionId session : {1, 2}) {
      SessionInfo info;
      info.id = session;
      info.uid = 1000;
      sessions_.Add(info);
    }
    run_ = AddRun(1000, {7});
    disks_.at(run_)->manifests[7].summary = run_->catalog.Find(7)->summary;
    run_->members.Join({1, "process of 1", 0, 2, run_->active_attempt});
    run_->members.Join({2, "process of 2", 1, 2, run_->active_attempt});
  }
  std::string Open(SessionId session, bool resumes) {
    std::string id;
    table_.Open(session, run_, 7, resumes, [&](auto opened) { id = opened->first; });
    RunCallbacks();
    return id;
  }
  static Caller Of(SessionId session) {
    Caller caller;
    caller.session = session;
    return caller;
  }
  void Report(SessionId session, const std::string& lease, int64_t read, int64_t total) {
    v1::ReportReadingRequest request;
    request.set_lease(lease);
    request.set_read_bytes(read);
    request.set_total_bytes(total);
    EXPECT_TRUE(table_.Report(Of(session), request).ok());
  }
  void Close(SessionId session, const std::string& lease) {
    EXPECT_TRUE(table_.Close(Of(session), lease).ok());
  }
  void OnRestoreEnded(const RestoreSummary& summary) override { told_.push_back(summary); }

  Run* run_ = nullptr;
  std::vector<RestoreSummary> told_;
  SessionTable sessions_;
  LeaseTable table_{
      {8, 1 << 20},
      &sessions_,
      {.describe = [](const Run& run,
                      const CommittedCheckpoint& committed) { return ToWire(run, committed, {}); },
       .mark_damaged = [](Run*, int64_t, storage::v1::Damage, DamageMarked done) { done(absl::OkStatus()); },
       .notify = [](const Run&, v1::WatchResponse) {},
       .released = [this](const Lease& lease) { restores_.OnReleased(lease); },
       .opened = [this](const Lease& lease) { restores_.OnOpened(lease); }}};
  Restores restores_{&clock_, this, &table_};
};

TEST_F(RestoresTest, TellsOnceForAllReadersWithTheLastRankToClose) {
  const std::string first = Open(1, true);
  clock_.Advance(std::chrono::seconds(1));
  const std::string second = Open(2, true);
  Report(1, first, 40, 40);
  Report(2, second, 60, 60);
  clock_.Advance(std::chrono::seconds(2));
  Close(1, first);
  EXPECT_THAT(told_, IsEmpty()) << "rank 1 still reads";
  clock_.Advance(std::chrono::seconds(3));
  table_.OnSessionEnded(2);
  ASSERT_THAT(told_, SizeIs(1));
  EXPECT_EQ(told_[0].tag, "s7");
  EXPECT_EQ(told_[0].root.path, run_->path);
  EXPECT_EQ(told_[0].readers, 2);
  EXPECT_EQ(told_[0].read_bytes, 100);
  EXPECT_EQ(told_[0].total_bytes, 100);
  EXPECT_EQ(told_[0].seconds, 6);
  EXPECT_EQ(told_[0].slowest_rank, 1);
  EXPECT_EQ(told_[0].reason, "");
  Close(1, Open(1, true));
  ASSERT_THAT(told_, SizeIs(2)) << "a later restore is another one";
  EXPECT_EQ(told_[1].readers, 1);
  EXPECT_EQ(told_[1].total_bytes, 0) << "a short read reports nothing";
}

TEST_F(RestoresTest, IsSilentAboutProcessesThatOnlyLook) {
  Close(1, Open(1, false));
  EXPECT_THAT(told_, IsEmpty());
  const std::string reader = Open(1, false);
  Report(1, reader, 10, 40);
  Close(1, reader);
  ASSERT_THAT(told_, SizeIs(1));
  EXPECT_EQ(told_[0].read_bytes, 10) << "it has ended before its end";
}

TEST_F(RestoresTest, TellsTheFirstReasonWhyAReaderCouldNotGoOn) {
  v1::Damage damage;
  damage.set_path("model.pt");
  damage.set_message("chunk 3 differs");
  restores_.OnFailed(*run_, 7, 1, "", damage);  // Nobody has it open.
  const std::string first = Open(1, true), second = Open(2, true);
  restores_.OnFailed(*run_, 7, 1, "", damage);
  restores_.OnFailed(*run_, 7, 0, "no memory", {});
  Close(1, first);
  Close(2, second);
  ASSERT_THAT(told_, SizeIs(1));
  EXPECT_EQ(told_[0].reason, "CHECKPOINT_DAMAGED");
  EXPECT_EQ(told_[0].message, "rank 1 has found damage in model.pt: chunk 3 differs");
  const std::string third = Open(1, true);
  restores_.OnFailed(*run_, 7, 0, "no memory", {});
  Close(1, third);
  ASSERT_THAT(told_, SizeIs(2));
  EXPECT_EQ(told_[1].reason, "RESUME_FAILED");
  EXPECT_EQ(told_[1].message, "rank 0 could not go on: no memory");
}

}  // namespace
}  // namespace ckptd
