// The ledger of one node. It decides in memory and remembers decisions in the root's RunRecord.
#ifndef CKPTD_STORAGE_LEDGER_LOCAL_LEDGER_H_
#define CKPTD_STORAGE_LEDGER_LOCAL_LEDGER_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/ledger/ledger.h"

namespace ckptd {

class LocalLedger : public Ledger {
 public:
  // Writes the record durably, then answers.
  using Save = std::function<void(const storage::v1::RunRecord&, absl::AnyInvocable<void(absl::Status)>)>;

  // `record` is what the root holds; `highest_sequence` is the highest of anything found there. No save gets
  // one of the sequences reserved for adoption.
  LocalLedger(storage::v1::RunRecord record, int64_t highest_sequence, Save save);

  void Join(const JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer) override;
  std::string RunningBeside(const std::string& job) const override;
  void ProcessEnded(const std::string& instance) override;
  void Activate(int64_t attempt, Answer<absl::Status> answer) override;
  void WatchActiveAttempt(std::function<void(int64_t attempt)> changed) override;
  void Admit(int64_t attempt, Answer<absl::StatusOr<int64_t>> answer) override;
  void RaiseSequence(int64_t found) override;
  void RaiseAttempt(int64_t found) override;
  // Processes that none of the attempts up to this one knows join none of them: their launch gets a new
  // attempt.
  void CloseAttempts(int64_t through) { closed_through_ = through; }
  void AdmitAdopted(int64_t above, int64_t below, int64_t more,
                    Answer<absl::StatusOr<int64_t>> answer) override;
  void DecideResume(int64_t attempt, const ResumeChoice& newest,
                    Answer<absl::StatusOr<ResumeChoice>> answer) override;
  void DecidedResume(int64_t attempt, Answer<absl::StatusOr<std::optional<ResumeChoice>>> answer) override;
  void RejectResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) override;
  void AgreeResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) override;
  void ResumeFailed(int64_t attempt, int64_t sequence) override;
  void Committed(int64_t attempt) override;
  void RecordOutcome(const storage::v1::Outcome& outcome, Answer<absl::Status> recorded) override;
  void WriteHistory(Answer<absl::Status> written) override { Persist(std::move(written)); }
  void SetRetention(const storage::v1::RetentionPolicy& in_force,
                    const std::vector<storage::v1::RetentionPolicy>& next) override;
  void SetRetentionOverride(const std::optional<storage::v1::RetentionPolicy>& policy,
                            Answer<absl::Status> set) override;
  void SetUploads(const storage::v1::UploadRecord& uploads) override { *record_.mutable_uploads() = uploads; }
  const storage::v1::RunRecord& record() const override { return record_; }

 private:
  using Launch = storage::v1::Launch;

  absl::StatusOr<int64_t> JoinNow(const JoinSpec& spec);
  // Whether every process that has joined the launch lives and is of another job.
  bool RunsBeside(const Launch& launch, const std::string& job) const;
  bool IsHeldByOther(const std::string& instance, const JoinSpec& spec) const;
  absl::StatusOr<int64_t> Bind(Launch& launch, const JoinSpec& spec);
  int64_t newest_attempt() const;
  Launch& AddLaunch(int64_t attempt);
  Launch& AddLaunch(const JoinSpec& spec, int generation);
  Launch* Find(int64_t attempt);
  const Launch* Find(int64_t attempt) const;
  int64_t active_attempt() const { return acted_.empty() ? 0 : *acted_.rbegin(); }
  void Acted(int64_t attempt);
  // nullopt: nothing is decided and on disk.
  std::optional<ResumeChoice> Decided(int64_t attempt) const;
  absl::Status CheckNotFenced(int64_t attempt) const;
  int64_t ReservedBetween(int64_t above, int64_t below, int64_t more) const;
  // Calls `done` when everything that the record says now is on disk.
  void Persist(Answer<absl::Status> done);
  void Write();

  storage::v1::RunRecord record_;
  // What is on disk: the attempts that have acted, and for each attempt how many bindings of processes were
  // written, beside how many were made. (0 of 0: the record is as it was found.)
  std::set<int64_t> acted_;
  int64_t closed_through_ = 0;
  std::map<int64_t, int64_t> bound_, bound_on_disk_;
  std::map<int64_t, int> activating_;  // For each attempt, the writes in flight that say that it acts.
  std::map<int64_t, std::vector<Answer<absl::StatusOr<ResumeChoice>>>> deciding_;
  std::set<int64_t> agreed_;  // The attempts whose agreement is on disk.
  std::function<void(int64_t)> active_changed_;
  Save save_;
  bool writing_ = false;
  std::vector<Answer<absl::Status>> waiting_;  // Answered after the next write.
  struct Holder {
    std::string process, job;
  };
  std::map<std::string, Holder> living_;  // By instance: those whose session is open.
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_LEDGER_LOCAL_LEDGER_H_
