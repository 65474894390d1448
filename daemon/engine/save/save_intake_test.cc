// Begin until the save waits for admission: who makes the save, who joins it, and what is refused.
#include "daemon/engine/save/save_intake.h"

#include <optional>
#include <set>

#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class SaveIntakeTest : public ClassTest {
 protected:
  struct Begun {
    std::optional<absl::StatusOr<v1::BeginResponse>> answer;
    std::string reason() const { return answer ? ReasonOf(answer->status()) : "no answer"; }
    std::string message() const { return answer ? std::string(answer->status().message()) : ""; }
  };

  void SetUp() override {
    options_.limits.saves_per_uid = 2;
    shares_ = std::make_unique<MemoryShares>(pool_.get(), &saves_, &sizes_, 100,
                                             [] { return std::map<uid_t, int64_t>(); });
    grants_ = std::make_unique<PartGrants>(pool_.get(), &saves_, &sizes_, shares_.get(), &disk_, &placer_,
                                           [this](Save* save, absl::Status error) { Fail(save, error); });
    admission_ = std::make_unique<AdmissionQueue>(
        &clock_, pool_.get(), &saves_, &sizes_, shares_.get(), &disk_, std::chrono::seconds(10),
        AdmissionQueue::Hooks{.fail = [this](Save* save, const absl::Status& error) { Fail(save, error); },
                              .accepted =
                                  [this](Save* save) {
                                    save->life.Admitted();
                                    admitted_.push_back(save);
                                  },
                              .session_of_rank = [](const Run&, int64_t, int) { return SessionId(); }});
    intake_ = std::make_unique<SaveIntake>(
        options_, &clock_, static_cast<EngineObserver*>(this), &saves_, &placer_, &layouts_, admission_.get(),
        grants_.get(), &disk_,
        SaveIntake::Hooks{
            .find_run = [this](const std::string&) { return closed_ ? nullptr : run_; },
            .find_member = [](Run* run, SessionId session,
                              int rank) { return run->members.Find(session, rank); },
            .fence_off = [this](Run*, int64_t attempt) { fenced_off_before_.push_back(attempt); },
            .answer_if_ended = [this](Run*, const SaveId&) { return ended_answer_; },
            .is_pinned = [this](const Run&, int64_t sequence) { return pinned_.contains(sequence); },
            .is_undeleting = [this](const Run&, const std::string& tag) { return tag == undeleting_; },
            .check_takes_saves = [] { return absl::OkStatus(); },
            .fail = [this](Save* save, absl::Status error) { Fail(save, error); }});
    run_ = AddRun(1000, {7});
    Authority::Hooks decided;
    decided.changed = [this](const SaveId& id, const Authority::Decision& decision) {
      intake_->OnSequence(run_->name, id, decision.sequence);
    };
    decided.failed = [this](const SaveId& id, const absl::Status& why) {
      intake_->OnSequence(run_->name, id, why);
    };
    run_->authority->Start(std::move(decided));
    for (int rank : {0, 1}) run_->members.Join(Of(rank));
    for (int rank : {0, 1}) {
      Ledger::JoinSpec spec;
      spec.rank = rank;
      spec.world_size = 2;
      spec.launch_id = "launch";
      spec.instance = Of(rank).instance;
      run_->ledger->Join(spec, [](absl::StatusOr<int64_t>) {});
    }
  }

  static Member Of(int rank) {
    return {.session = SessionId(1 + rank),
            .instance = "process " + std::to_string(rank),
            .rank = rank,
            .world_size = 2,
            .attempt = 1};
  }
  v1::BeginRequest Request(int rank, const std::string& tag, int64_t ordinal = 1) const {
    v1::BeginRequest request;
    request.mutable_key()->set_run(run_->name);
    request.mutable_key()->set_rank(rank);
    request.mutable_key()->set_tag(tag);
    request.mutable_key()->set_ordinal(ordinal);
    v1::FileSpec& file = *request.add_files();
    file.set_path("rank" + std::to_string(rank) + ".pt");
    file.set_size_bytes(100);
    return request;
  }
  // Begins without running what the root's disk answers.
  std::shared_ptr<Begun> Start(const v1::BeginRequest& request) {
    auto begun = std::make_shared<Begun>();
    intake_->Begin(run_, Of(request.key().rank()), request,
                   [begun](absl::StatusOr<v1::BeginResponse> answer) { begun->answer = std::move(answer); });
    return begun;
  }
  std::shared_ptr<Begun> Begin(const v1::BeginRequest& request) {
    auto begun = Start(request);
    RunCallbacks();
    return begun;
  }
  void Fail(Save* save, const absl::Status& error) {
    failed_ = error;
    save->error = error;
    save->life.Fail(v1::FAILED);
  }
  Save* OnlySave() { return saves_.all().size() == 1 ? saves_.all().begin()->second : nullptr; }

  EngineOptions options_;
  Run* run_ = nullptr;
  ExpectedSizes sizes_;
  DiskRoom disk_{&clock_,
                 &runs_,
                 &saves_,
                 &sizes_,
                 {.may_free_room = [](const Run&) { return false; },
                  .empty_trash = [](Run*, int64_t) { return int64_t{0}; },
                  .room_changed = [] {}}};
  FilePlacer placer_{EngineLimits(), 8 << 20};
  KeptLayouts layouts_{EngineLimits()};
  std::unique_ptr<MemoryShares> shares_;
  std::unique_ptr<PartGrants> grants_;
  std::unique_ptr<AdmissionQueue> admission_;
  std::unique_ptr<SaveIntake> intake_;
  bool closed_ = false;
  std::vector<Save*> admitted_;
  std::vector<int64_t> fenced_off_before_;
  std::optional<absl::StatusOr<v1::BeginResponse>> ended_answer_;
  std::set<int64_t> pinned_;
  std::string undeleting_;
  absl::Status failed_;
};

TEST_F(SaveIntakeTest, RanksThatBeginTogetherShareOneSave) {
  const auto first = Start(Request(0, "t")), second = Start(Request(1, "t"));
  RunCallbacks();
  Save* save = OnlySave();
  ASSERT_NE(save, nullptr);
  EXPECT_EQ(save->world_size, 2);
  EXPECT_EQ(save->key, (SaveId{1, "t", 1}));
  EXPECT_THAT(admitted_, ElementsAre(save));
  EXPECT_THAT(save->parts, SizeIs(2));
  EXPECT_THAT(fenced_off_before_, ElementsAre(1, 1));
}

TEST_F(SaveIntakeTest, WaitsForTheSizesOfAllRanks) {
  Begin(Request(0, "t"));
  EXPECT_THAT(admitted_, IsEmpty());
  EXPECT_EQ(OnlySave()->phase(), SavePhase::kGathering);
  Begin(Request(1, "t"));
  EXPECT_THAT(admitted_, SizeIs(1));
}

TEST_F(SaveIntakeTest, RanksThatContributeNothingNeedNotBegin) {
  v1::BeginRequest request = Request(0, "t");
  request.add_ranks(0);
  Begin(request);
  ASSERT_THAT(admitted_, SizeIs(1));
  EXPECT_TRUE(OnlySave()->FindPart(1)->sealed);
}

TEST_F(SaveIntakeTest, EverySaveHasAHigherSequence) {
  for (int ordinal : {1, 2}) {
    for (int rank : {0, 1}) Begin(Request(rank, "t" + std::to_string(ordinal), ordinal));
  }
  ASSERT_THAT(saves_.all(), SizeIs(2));
  const Save* first = saves_.all().begin()->second;
  const Save* second = saves_.all().rbegin()->second;
  EXPECT_LT(first->sequence, second->sequence);
}

TEST_F(SaveIntakeTest, RanksAgreeOnStepRanksAndRetention) {
  v1::BeginRequest request = Request(0, "t");
  request.set_step(5);
  request.set_num_kept_ckpts(3);
  Begin(request);
  v1::BeginRequest other = Request(1, "t");
  const auto without_step = Begin(other);
  EXPECT_EQ(without_step->reason(), reason::kSaveConflict);
  EXPECT_THAT(without_step->message(), HasSubstr("rank 1 saves t as no step, but it was begun as step 5"));
  other.set_step(5);
  other.add_ranks(1);
  EXPECT_THAT(Begin(other)->message(), HasSubstr("with ranks 1, but it was begun with all ranks"));
  other.clear_ranks();
  other.set_num_kept_ckpts(4);
  EXPECT_EQ(Begin(other)->reason(), reason::kSaveConflict);
  EXPECT_TRUE(failed_.ok()) << "what one rank says wrongly does not fail the others: " << failed_;
  other.clear_num_kept_ckpts();
  Begin(other);
  EXPECT_THAT(admitted_, SizeIs(1)) << "a rank that names no policy follows the others";
}

TEST_F(SaveIntakeTest, PointersOfAllRanksAreOneMap) {
  v1::BeginRequest first = Request(0, "t"), second = Request(1, "t");
  (*first.mutable_pointers())["latest"] = "t";
  (*second.mutable_pointers())["latest"] = "t/other";
  Begin(first);
  EXPECT_THAT(Begin(second)->message(), HasSubstr("with the pointer latest = \"t/other\", but it was begun"));
  second.mutable_pointers()->clear();
  (*second.mutable_pointers())["newest"] = "t";
  Begin(second);
  EXPECT_THAT(OnlySave()->pointers, UnorderedElementsAre(std::pair("latest", "t"), std::pair("newest", "t")));
}

TEST_F(SaveIntakeTest, ARankBelongsToTheSessionThatBegan) {
  const auto begun = Begin(Request(0, "t"));
  const auto retry = Begin(Request(0, "t"));
  EXPECT_THAT(OnlySave()->PartOf(0).begin_replies, SizeIs(2)) << "both calls are answered with memory";
  run_->members.Leave(1);
  Member other = Of(0);
  other.session = 9;
  run_->members.Join(other);
  Begun stranger;
  intake_->Begin(run_, other, Request(0, "t"),
                 [&](absl::StatusOr<v1::BeginResponse> answer) { stranger.answer = std::move(answer); });
  RunCallbacks();
  EXPECT_EQ(stranger.reason(), reason::kRankTaken);
}

TEST_F(SaveIntakeTest, APartSealedWithAnEarlierDaemonWaitsForTheEnd) {
  Begin(Request(0, "t"));
  Part& part = OnlySave()->PartOf(0);
  part.sealed = true;
  part.session = 0;  // The daemon that knew the session is gone.
  part.begin_replies.clear();
  const auto again = Begin(Request(0, "t"));
  EXPECT_EQ(again->reason(), "no answer");
  EXPECT_THAT(part.begin_replies, SizeIs(1));
}

TEST_F(SaveIntakeTest, ASaveThatHasEndedAnswersAtOnce) {
  ended_answer_ = MakeError(absl::StatusCode::kAborted, "SUPERSEDED", "a newer save took its place");
  EXPECT_EQ(Begin(Request(0, "t"))->reason(), "SUPERSEDED");
  EXPECT_THAT(saves_.all(), IsEmpty());
}

TEST_F(SaveIntakeTest, LimitsTheSavesInFlightOfAUser) {
  for (int ordinal : {1, 2}) Begin(Request(0, "t" + std::to_string(ordinal), ordinal));
  const auto third = Begin(Request(0, "t3", 3));
  EXPECT_EQ(third->reason(), reason::kLimitExceeded);
  EXPECT_THAT(third->message(), HasSubstr("limits.saves_per_uid"));
}

TEST_F(SaveIntakeTest, RefusesATimeoutBeyondTheDaemonsBound) {
  v1::BeginRequest request = Request(0, "t");
  request.mutable_timeout()->set_seconds(25 * 3600);
  EXPECT_THAT(Begin(request)->message(), HasSubstr("limits.max_admission_timeout_seconds"));
  request.clear_timeout();
  request.mutable_commit_timeout()->set_seconds(8 * 24 * 3600);
  EXPECT_THAT(Begin(request)->message(), HasSubstr("limits.max_commit_timeout_seconds"));
  EXPECT_THAT(saves_.all(), IsEmpty());
}

TEST_F(SaveIntakeTest, APinnedCheckpointIsNotReplaced) {
  pinned_ = {7};
  Begin(Request(0, "s7"));
  EXPECT_EQ(ReasonOf(failed_), reason::kPinned);
}

TEST_F(SaveIntakeTest, AForeignDirectoryUnderTheTagFailsTheSave) {
  disks_.at(run_)->foreign = {"t"};
  Begin(Request(0, "t"));
  EXPECT_FALSE(failed_.ok());
}

TEST_F(SaveIntakeTest, AResaveOfItsOwnTagAsksOnlyForTheDisk) {
  Begin(Request(0, "s7"));
  EXPECT_EQ(ios_.at(run_)->calls["CheckTarget"], 0);
  EXPECT_EQ(OnlySave()->phase(), SavePhase::kGathering);
}

TEST_F(SaveIntakeTest, ADiskThatCannotBeMeasuredFailsTheSave) {
  ios_.at(run_)->errors["FreeBytes"] = absl::UnavailableError("statvfs: Input/output error");
  Begin(Request(0, "t"));
  EXPECT_THAT(std::string(failed_.message()), HasSubstr("statvfs"));
}

TEST_F(SaveIntakeTest, ASessionThatEndsBeforeTheSequenceIsKnownMakesNoSave) {
  const auto begun = Start(Request(0, "t"));
  run_->members.Leave(1);
  RunCallbacks();
  EXPECT_EQ(begun->reason(), reason::kSessionLost);
  EXPECT_THAT(saves_.all(), IsEmpty());
}

TEST_F(SaveIntakeTest, ARunThatIsClosedBeforeTheSequenceIsKnownMakesNoSave) {
  const auto begun = Start(Request(0, "t"));
  closed_ = true;
  RunCallbacks();
  EXPECT_EQ(begun->reason(), reason::kSessionLost);
  EXPECT_THAT(saves_.all(), IsEmpty());
}

TEST_F(SaveIntakeTest, LogsThatTheRunGoesBackToAnOlderStep) {
  CommittedCheckpoint newest = *run_->catalog.Find(7);
  newest.summary.set_step(70);
  run_->catalog.Add(newest);
  v1::BeginRequest request = Request(0, "t");
  request.set_step(60);
  Begin(request);
  EXPECT_THAT(infos_, ElementsAre(HasSubstr("goes back: step 60 (t) is saved after step 70 (s7)")));
}

}  // namespace
}  // namespace ckptd
