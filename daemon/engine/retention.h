// Retention decides which committed checkpoints a run keeps, and evicts the others.
//
// A run keeps its newest N undamaged checkpoints (num_kept_ckpts), and besides those every one that is
// pinned, leased, named by a pointer file, or resumed from. Evicting moves a checkpoint into the root's
// trash.
#ifndef CKPTD_DAEMON_ENGINE_RETENTION_H_
#define CKPTD_DAEMON_ENGINE_RETENTION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/engine/engine_types.h"
#include "daemon/engine/outcome_history.h"
#include "daemon/engine/run.h"
#include "daemon/engine/run_states.h"
#include "daemon/engine/trash_collector.h"
#include "storage/commit/types.h"

namespace ckptd {

class Retention {
 public:
  struct Hooks {
    std::function<std::vector<int64_t>(const Run&)> leased_sequences;
    std::function<void(Run*)> evicted;  // A checkpoint has left the catalog.
    // An eviction failed half-way, perhaps: only a scan tells what is on disk.
    std::function<void(Run*)> needs_scan;
    std::function<void()> settled;  // An eviction has ended, well or not.
  };
  Retention(EngineObserver* observer, const OutcomeHistory* history, TrashCollector* trash, Hooks hooks);

  // Evicts what the run need not keep any more, once the history is on disk. Call it whenever a checkpoint
  // was committed, or lost a reason to be kept.
  void Apply(Run* run);
  // The tags that the next commit will push out, most likely.
  std::vector<int64_t> PredictedVictims(const Run& run) const;

  // Checkpoints that are being evicted, or will be as soon as the history is on disk.
  std::set<int64_t> Leaving(const Run& run) const;

  // nullopt: the run keeps all its checkpoints.
  std::optional<int> num_kept_ckpts(const Run& run) const { return states_.Of(&run).num_kept_ckpts; }
  void SetNumKept(const Run* run, std::optional<int> count) { states_.Of(run).num_kept_ckpts = count; }
  // Which checkpoints the root's pointer files name, as a commit or a scan found it.
  void SetPointers(const Run* run, PointerFiles pointers);

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
  struct State {
    std::optional<int> num_kept_ckpts;
    std::set<int64_t> pointed;
    std::multiset<int64_t> pinning;   // Pins on their way to disk.
    std::multiset<int64_t> deciding;  // Resume decisions on their way to disk.
    int asking = 0;                   // Questions to the ledger that are not answered.
  };
  // `resumed`: the checkpoint that the newest attempt resumes from; 0: none.
  std::vector<int64_t> Victims(const Run& run, bool after_next_commit, int64_t resumed) const;
  std::set<int64_t> Wanted(const Run& run, bool after_next_commit, int64_t resumed) const;
  void EvictVictims(Run* run, int64_t resumed);
  void Evict(Run* run, int64_t sequence);
  void OnEvicted(Run* run, int64_t sequence, const std::string& tag, const absl::Status& evicted);

  EngineObserver* const observer_;
  const OutcomeHistory* const history_;
  TrashCollector* const trash_;
  const Hooks hooks_;
  RunStates<State> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RETENTION_H_
