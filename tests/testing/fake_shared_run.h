// A shared run whose other nodes are the test: records what the engine says, and lets the test answer.
#ifndef CKPTD_TESTS_TESTING_FAKE_SHARED_RUN_H_
#define CKPTD_TESTS_TESTING_FAKE_SHARED_RUN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/root_io.h"
#include "daemon/engine/shared_run.h"
#include "storage/base/errors.h"
#include "storage/ledger/local_ledger.h"

namespace ckptd {

class FakeSharedRun : public SharedRun {
 public:
  // `io` must outlive it.
  explicit FakeSharedRun(RootIo* io)
      : io_(io),
        ledger_(storage::v1::RunRecord(), 0,
                [](const storage::v1::RunRecord&, absl::AnyInvocable<void(absl::Status)> done) {
                  done(absl::OkStatus());
                }) {}

  // What the engine has said, such as "Begin a", "Fail a NO_SPACE", in order.
  std::vector<std::string> calls;
  std::vector<int> begun_for;                        // The ranks of the last Begin.
  std::optional<storage::v1::RetentionPolicy> kept;  // What the last Accept has named.
  bool has_office = false;
  int ticks = 0;
  Hooks hooks;
  // Calls that the test answers.
  std::vector<Callback<absl::Status>> opens, settles, finishes;
  std::vector<Callback<absl::StatusOr<Settled>>> settlings;
  std::vector<Callback<absl::StatusOr<std::string>>> parts;
  std::vector<Callback<absl::StatusOr<SharedFilesIo::Loaded>>> loads;
  std::vector<storage::v1::PartRecord> records;  // Of the last FinishPart.

  // What the nodes decide.
  void Change(const SaveId& save, Decision::Phase phase, int64_t sequence = 1,
              const absl::Status& end = absl::OkStatus()) {
    hooks.changed(save, {.phase = phase, .sequence = sequence, .inflight = "1.dir", .end = end});
  }

  // ---- SharedRun
  void Start(Hooks with) override {
    calls.emplace_back("Start");
    hooks = std::move(with);
  }
  void OnTick() override { ++ticks; }
  Ledger* ledger() override { return &ledger_; }
  bool coordinates() const override { return has_office; }
  void Begin(const SaveId& save, Instant, const std::vector<int>& ranks) override {
    calls.push_back("Begin " + save.tag);
    begun_for = ranks;
  }
  void Accept(const SaveId& save, const std::optional<storage::v1::RetentionPolicy>& retention) override {
    calls.push_back("Accept " + save.tag);
    kept = retention;
  }
  void Fail(const SaveId& save, const absl::Status& why) override {
    calls.push_back("Fail " + save.tag + " " + ReasonOf(why));
  }
  void Sealed(const SaveId& save) override { calls.push_back("Sealed " + save.tag); }
  void Durable(const SaveId& save, const std::string& digest) override {
    calls.push_back("Durable " + save.tag + " " + digest);
  }
  std::string WaitsFor(const SaveId&) const override { return "node b"; }
  void OpenPart(InflightId64 id, const std::string& tag, int64_t sequence, const std::string& inflight,
                Callback<absl::Status> done) override {
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
                      Callback<absl::StatusOr<SharedFilesIo::Loaded>> done) override {
    calls.push_back(absl::StrCat("LoadCheckpoint ", tag, " ", sequence));
    loads.push_back(std::move(done));
  }
  void SettleSave(const std::string& tag, bool is_checkpoint,
                  Callback<absl::StatusOr<Settled>> done) override {
    calls.push_back(absl::StrCat("SettleSave ", tag, is_checkpoint ? " is a checkpoint" : " is none"));
    settlings.push_back(std::move(done));
  }
  void WhenSettled(int64_t attempt, Callback<absl::Status> settled) override {
    calls.push_back(absl::StrCat("WhenSettled ", attempt));
    settles.push_back(std::move(settled));
  }
  void FinishResume(int64_t attempt, int64_t sequence, const absl::Status& mine, Instant,
                    Callback<absl::Status> finished) override {
    calls.push_back(
        absl::StrCat("FinishResume ", attempt, " ", sequence, mine.ok() ? "" : " " + ReasonOf(mine)));
    finishes.push_back(std::move(finished));
  }

 private:
  RootIo* const io_;
  LocalLedger ledger_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_FAKE_SHARED_RUN_H_
