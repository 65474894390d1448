// A shared run whose other nodes are the test: records what the engine says, and lets the test answer.
#ifndef CKPTD_TESTS_TESTING_FAKE_SHARED_RUN_H_
#define CKPTD_TESTS_TESTING_FAKE_SHARED_RUN_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/engine/seams/local_root_io.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/ledger/local_ledger.h"
#include "tests/testing/fake_shared_uploads.h"

namespace ckptd {

class FakeSharedRun : public Authority {
 public:
  // `io` must outlive it.
  explicit FakeSharedRun(LocalRootIo* io) : io_(io), ledger_(this) {}

  // What the engine has said, such as "Begin a", "Fail a NO_SPACE", in order.
  std::vector<std::string> calls;
  std::vector<int> begun_for;                        // The ranks of the last Begin.
  absl::Status failed;                               // Of the last Fail.
  std::optional<storage::v1::RetentionPolicy> kept;  // What the last Accept has named.
  bool leads = false;
  FakeSharedUploads uploaded;
  bool idle = false;          // As SetIdle was called last.
  std::set<int64_t> damaged;  // As the ledger knows, and perhaps not yet this node.
  int ticks = 0;
  Hooks hooks;
  // Calls that the test answers.
  std::vector<Callback<absl::Status>> opens, settles, finishes, marks, clearings, pinnings, deletions;
  storage::v1::Damage damage;  // Of the last MarkDamaged.
  std::vector<Callback<absl::StatusOr<Settled>>> settlings;
  std::vector<Callback<absl::StatusOr<std::string>>> parts;
  std::vector<Callback<absl::StatusOr<LoadedCheckpoint>>> loads;
  std::vector<Callback<std::optional<Decision>>> ends;
  std::vector<storage::v1::PartRecord> records;  // Of the last FinishPart.

  // Whether what is decided of a resume is answered by AnswerLate, as it was when it was asked.
  bool answers_late = false;
  void AnswerLate() {
    for (auto& answer : std::exchange(late_, {})) answer();
  }

  // Whether the ledger answers with AnswerLate that an attempt acts.
  bool activates_late = false;

  // What the nodes decide.
  void Change(const SaveId& save, Decision::Phase phase, int64_t sequence = 1,
              const absl::Status& end = absl::OkStatus()) {
    hooks.changed(save, {.phase = phase, .sequence = sequence, .inflight = "1.dir", .end = end});
  }

  // ---- Authority
  void Start(Hooks with) override {
    calls.emplace_back("Start");
    hooks = std::move(with);
  }
  void OnTick() override { ++ticks; }
  std::string name() const override { return "etcd"; }
  bool may_span_nodes() const override { return true; }
  bool next_daemon_continues() const override { return false; }
  Ledger* ledger() override { return &ledger_; }
  SharedUploads* uploads() override { return &uploaded; }
  bool coordinates() const override { return leads; }
  void SetIdle(bool now) override { idle = now; }
  bool may_close() const override { return !leads; }
  void Begin(const SaveId& save, Instant, const std::vector<int>& ranks) override {
    calls.push_back("Begin " + save.tag);
    begun_for = ranks;
  }
  void SkipAfter(const SaveId& save, Duration silence) override {
    calls.push_back(absl::StrCat("SkipAfter ", save.tag, " ", silence / std::chrono::seconds(1)));
  }
  void Accept(const SaveId& save, const std::optional<storage::v1::RetentionPolicy>& retention) override {
    calls.push_back("Accept " + save.tag);
    kept = retention;
  }
  void Fail(const SaveId& save, const absl::Status& why) override {
    failed = why;
    calls.push_back("Fail " + save.tag + " " + ReasonOf(why));
  }
  void Sealed(const SaveId& save) override { calls.push_back("Sealed " + save.tag); }
  void Durable(const SaveId& save, const std::string& digest) override {
    calls.push_back("Durable " + save.tag + " " + digest);
  }
  void WhenEnded(const SaveId& save, Callback<std::optional<Decision>> ended) override {
    calls.push_back("WhenEnded " + save.tag);
    ends.push_back(std::move(ended));
  }
  void OpenPart(InflightId64 id, const std::string& tag, int64_t sequence, const std::string& inflight,
                int64_t, Callback<absl::Status> done) override {
    calls.push_back("OpenPart " + tag + " " + inflight);
    io_->CreateInflight(id, tag, sequence, 0, [](const absl::Status&) {});  // The coordinator has.
    opens.push_back(std::move(done));
  }
  void FinishPart(InflightId64, std::vector<storage::v1::PartRecord> of,
                  Callback<absl::StatusOr<std::string>> done) override {
    calls.push_back(absl::StrCat("FinishPart ", of.size()));
    records = std::move(of);
    parts.push_back(std::move(done));
  }
  void LoadCheckpoint(const std::string& tag, int64_t sequence,
                      Callback<absl::StatusOr<LoadedCheckpoint>> done) override {
    calls.push_back(absl::StrCat("LoadCheckpoint ", tag, " ", sequence));
    loads.push_back(std::move(done));
  }
  void SettleSave(const std::string& tag, bool is_checkpoint,
                  Callback<absl::StatusOr<Settled>> done) override {
    calls.push_back(absl::StrCat("SettleSave ", tag, is_checkpoint ? " is a checkpoint" : " is none"));
    settlings.push_back(std::move(done));
  }
  void WhenSettled(int64_t attempt, Callback<absl::StatusOr<bool>> settled) override {
    calls.push_back(absl::StrCat("WhenSettled ", attempt));
    settles.push_back([settled = std::move(settled)](const absl::Status& over) mutable {
      settled(over.ok() ? absl::StatusOr<bool>(true) : over);
    });
  }
  // A later call for the same attempt replaces an earlier one.
  void FinishResume(int64_t attempt, int64_t sequence, const absl::Status& mine, Instant,
                    Callback<absl::Status> finished) override {
    calls.push_back(
        absl::StrCat("FinishResume ", attempt, " ", sequence, mine.ok() ? "" : " " + ReasonOf(mine)));
    const auto [earlier, is_first] = finishing_.try_emplace(attempt, finishes.size());
    if (!is_first) {
      Callback<absl::Status> replaced = std::move(finishes.at(earlier->second));
      earlier->second = finishes.size();
      replaced(mine.ok() ? absl::AbortedError("replaced") : mine);
    }
    finishes.push_back(std::move(finished));
  }
  // Answers the last FinishResume of the attempt.
  void FinishAll(int64_t attempt, const absl::Status& result) {
    Callback<absl::Status> finished = std::move(finishes.at(finishing_.at(attempt)));
    finishing_.erase(attempt);
    finished(result);
  }
  void MarkDamaged(const storage::v1::Damage& found, Callback<absl::Status> marked) override {
    calls.push_back(absl::StrCat("MarkDamaged ", found.tag(), " ", found.sequence()));
    damage = found;
    marks.push_back(std::move(marked));
  }
  void ClearDamage(int64_t sequence, Callback<absl::Status> cleared) override {
    calls.push_back(absl::StrCat("ClearDamage ", sequence));
    clearings.push_back(std::move(cleared));
  }
  // The coordinator's engine answers, or the test in its place.
  void Delete(const std::string& tag, int64_t sequence, bool force, Callback<absl::Status> deleted) override {
    if (leads) return hooks.delete_requested(tag, sequence, force, std::move(deleted));
    calls.push_back(absl::StrCat("Delete ", tag, " ", sequence, force ? " by force" : ""));
    deletions.push_back(std::move(deleted));
  }
  // On this node; the test runs `pin_changed`.
  void SetPinned(const std::string& tag, int64_t sequence, bool pinned, Callback<absl::Status> set) override {
    calls.push_back(absl::StrCat(pinned ? "Pin " : "Unpin ", tag, " ", sequence));
    pinnings.push_back(std::move(set));
  }

 private:
  class NodesLedger : public LocalLedger {
   public:
    explicit NodesLedger(FakeSharedRun* nodes)
        : LocalLedger(storage::v1::RunRecord(), 0,
                      [](const storage::v1::RunRecord&, absl::AnyInvocable<void(absl::Status)> done) {
                        done(absl::OkStatus());
                      }),
          nodes_(*nodes) {}
    void Activate(int64_t attempt, Answer<absl::Status> answer) override {
      if (!nodes_.activates_late) return LocalLedger::Activate(attempt, std::move(answer));
      nodes_.late_.push_back([this, attempt, answer = std::move(answer)]() mutable {
        LocalLedger::Activate(attempt, std::move(answer));
      });
    }
    void DecideResume(int64_t attempt, const ResumeChoice& newest,
                      Answer<absl::StatusOr<ResumeChoice>> answer) override {
      if (!nodes_.damaged.contains(newest.sequence))
        return LocalLedger::DecideResume(attempt, newest, std::move(answer));
      answer(MakeError(absl::StatusCode::kDataLoss, reason::kCheckpointDamaged, "a node has found damage"));
    }
    // It hears of that with the next question, whose answer says what has come of it.
    void Committed(int64_t attempt) override { committed_.insert(attempt); }
    void DecidedResume(int64_t attempt, Answer<absl::StatusOr<std::optional<ResumeChoice>>> answer) override {
      LocalLedger::DecidedResume(
          attempt, [this, committed = std::exchange(committed_, {}),
                    answer = std::move(answer)](absl::StatusOr<std::optional<ResumeChoice>> now) mutable {
            auto tell = [this, committed, answer = std::move(answer), now]() mutable {
              for (const int64_t each : committed) LocalLedger::Committed(each);
              answer(now);
            };
            if (!nodes_.answers_late) return tell();
            nodes_.late_.push_back(std::move(tell));
          });
    }

   private:
    FakeSharedRun& nodes_;
    std::set<int64_t> committed_;  // Attempts of which it has not heard.
  };

  LocalRootIo* const io_;
  NodesLedger ledger_;
  std::vector<absl::AnyInvocable<void()>> late_;
  std::map<int64_t, size_t> finishing_;  // By attempt: which of `finishes` is not answered.
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_FAKE_SHARED_RUN_H_
