// Retention decides which committed checkpoints a run keeps, and evicts the others.
//
// A run keeps what its policy keeps (retention_policy.h), and besides that every checkpoint that is pinned,
// leased, named by a pointer file, or resumed from. Evicting moves a checkpoint into the root's trash.
#ifndef CKPTD_DAEMON_ENGINE_RETENTION_RETENTION_H_
#define CKPTD_DAEMON_ENGINE_RETENTION_RETENTION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/retention/outcome_history.h"
#include "daemon/engine/retention/retention_policy.h"
#include "daemon/engine/retention/trash_collector.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/seams/engine_types.h"
#include "storage/base/clock.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

class Retention {
 public:
  struct Hooks {
    std::function<std::vector<int64_t>(const Run&)> leased_sequences;
    std::function<std::vector<int64_t>(const Run&)> held_for_upload = nullptr;  // Null: none are.
    std::function<void(Run*)> evicted;  // A checkpoint has left the catalog.
    // An eviction failed half-way, perhaps: only a scan tells what is on disk.
    std::function<void(Run*)> needs_scan;
    std::function<void()> settled;  // An eviction has ended, well or not.
  };
  Retention(Clock* clock, EngineObserver* observer, const OutcomeHistory* history, TrashCollector* trash,
            Hooks hooks);

  // Evicts what the run need not keep any more, once the history is on disk. Call it whenever a checkpoint
  // was committed, or lost a reason to be kept.
  void Apply(Run* run);
  // Apply, when the next scan has shown what others have committed.
  void ApplyAfterScan(Run* run) { states_.Of(run).apply_after_scan = true; }
  void OnScanned(Run* run);
  // The sequences that the next commit will push out, most likely.
  std::vector<int64_t> PredictedVictims(const Run& run) const;

  // Checkpoints that retention would evict now if they did not wait for their upload.
  std::vector<int64_t> HeldForUploadAlone(const Run& run) const;

  // Checkpoints that are being evicted, or will be as soon as the history is on disk.
  std::set<int64_t> Leaving(const Run& run) const;

  // Checkpoints by sequence -> what keeps them, in words: parts of the policy, "pinned", "being read", ...
  // One that nothing keeps has no words.
  using Keepers = std::map<int64_t, std::vector<std::string>>;
  // What `policy` would keep if it were in force now.
  void Explain(Run* run, const RetentionPolicy& policy, Reply<Keepers> reply);
  // Evicts a checkpoint although its policy may keep it, and answers when it is in the trash. CHECKPOINT_KEPT
  // if it is pinned or a pointer names it, unless `force`, which makes the pointer name the newest other one
  // that names it, or removes it; and always if it is resumed from, or is the newest good one. BEING_READ,
  // also always, if a process reads it.
  // Waits while the history is being written, but not for the repetition of a write that failed.
  void Delete(Run* run, int64_t sequence, bool force, Callback<absl::Status> deleted);

  // The history could not be written: deletions that wait for it are refused.
  void OnHistoryFailed(Run* run) { ContinueDeletions(run); }

  // Sets the policy that replaces those of the saves, from the next commit on; nullopt: none does. Answers
  // when it is on disk.
  void SetOverride(Run* run, const std::optional<RetentionPolicy>& policy, Reply<bool> reply);

  // The policy that the next commit puts in force: the operator's, or else most likely the one in force.
  RetentionPolicy NextPolicy(const Run& run) const;
  // How many of the newest checkpoints are kept at least; nullopt: all are.
  std::optional<int> KeptLast(const Run& run) const;
  // What is in force: a checkpoint is kept if at least one of the policies keeps it. None: all are kept.
  void SetPolicies(const Run* run, std::vector<RetentionPolicy> policies);
  // Of a run that several nodes share: the save of this sequence is the newest that is a checkpoint, and its
  // ranks have named `of_save`. Its policy is in force from now on, unless that of a newer one is. Nothing is
  // removed while the root shows a checkpoint that is newer still: its policy is not known here yet.
  void SetPolicyOf(Run* run, int64_t sequence, const std::optional<RetentionPolicy>& of_save);
  // Which checkpoints the root's pointer files name, as a commit or a scan found it.
  void SetPointers(const Run* run, PointerFiles pointers);
  // Of a run that several nodes share: this node decides for all, or no longer does. Others may have written
  // the pointer files before, so it removes nothing until SetPointers.
  void OnLeadershipChanged(Run* run);

  // A pin or a resume decision that is on its way to disk keeps its checkpoint already.
  void BeginPin(const Run* run, int64_t sequence);
  void EndPin(const Run* run, int64_t sequence);
  void BeginResumeDecision(const Run* run, int64_t sequence);
  void EndResumeDecision(const Run* run, int64_t sequence);
  bool IsPinned(const Run& run, int64_t sequence) const;

  bool HasEvictions(const Run& run) const { return !run.catalog.evicting().empty(); }
  // An eviction is under way, one of unknown outcome not counted.
  bool IsWorking(const Run& run) const;
  // Nothing of the run would be lost or forgotten if it were closed.
  bool IsIdle(const Run& run) const;

  void Forget(const Run* run) { states_.Forget(run); }

 private:
  struct Deletion {
    int64_t sequence = 0;
    bool force = false;
    Callback<absl::Status> deleted;
    bool has_scanned = false;  // The root, because the checkpoint was not listed.
  };
  struct State {
    std::vector<RetentionPolicy> policies;
    int64_t policy_sequence = 0;  // Of SetPolicyOf: which save has named them; 0: not known.
    bool apply_after_scan = false;
    std::set<int64_t> pointed;
    bool pointers_known = false;
    // The newest checkpoint when the ledger was last asked which ones are left alone; 0: it has not answered
    // yet.
    int64_t retained_as_of = 0;
    std::multiset<int64_t> pinning;   // Pins on their way to disk.
    std::multiset<int64_t> deciding;  // Resume decisions on their way to disk.
    int asking = 0;                   // Questions to the ledger that are not answered.
    std::vector<Deletion> deletions;  // Wait for the history.
    std::vector<Deletion> deletions_after_scan;
  };
  // Answers with the checkpoint that the newest attempt resumes from; 0: none.
  void AskResumed(Run* run, absl::AnyInvocable<void(absl::StatusOr<int64_t>)> answer);
  // What retention would evict now, oldest first; perhaps also what waits for its upload.
  std::vector<int64_t> Victims(const Run& run, int64_t resumed, bool also_held = false) const;
  void AddUses(const Run& run, int64_t resumed, Keepers* keepers, bool also_held = false) const;
  void EvictVictims(Run* run, int64_t resumed);
  void ContinueDeletions(Run* run);
  void TryToDelete(Run* run, Deletion deletion);
  bool MayBeUnseen(const Run& run, const Deletion& deletion) const;
  absl::Status CheckDeletable(const Run& run, int64_t sequence, bool force, int64_t resumed) const;
  void ReleaseAndEvict(Run* run, int64_t sequence, Callback<absl::Status> deleted);
  void UnpinAndEvict(Run* run, int64_t sequence, Callback<absl::Status> deleted);
  void EvictAndAnswer(Run* run, int64_t sequence, Callback<absl::Status> deleted);
  void Evict(Run* run, int64_t sequence, absl::AnyInvocable<void(const absl::Status&)> done);
  void OnEvicted(Run* run, int64_t sequence, const std::string& tag, const absl::Status& evicted);

  Clock* const clock_;
  EngineObserver* const observer_;
  const OutcomeHistory* const history_;
  TrashCollector* const trash_;
  const Hooks hooks_;
  RunStates<State> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RETENTION_RETENTION_H_
