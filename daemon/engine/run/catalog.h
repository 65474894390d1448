// The committed checkpoints of one run.
#ifndef CKPTD_DAEMON_ENGINE_RUN_CATALOG_H_
#define CKPTD_DAEMON_ENGINE_RUN_CATALOG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

// Neither damaged nor suspect: it may be resumed from without asking, and counts for retention.
bool IsGood(const CommittedCheckpoint& checkpoint);

// Owns what the engine knows of a root's committed checkpoints: their manifests' summaries, pins, damage, and
// which of them are being evicted. The disk is the truth: Replace takes over what a scan found.
class Catalog {
 public:
  // By sequence, oldest first.
  const std::map<int64_t, CommittedCheckpoint>& committed() const { return committed_; }
  // Checkpoints whose manifests cannot be read; their sequences are unknown.
  const std::vector<DamagedCheckpoint>& unreadable() const { return unreadable_; }

  // Null: there is none.
  const CommittedCheckpoint* Find(int64_t sequence) const;
  // The newest one of this tag.
  const CommittedCheckpoint* FindTag(const std::string& tag) const;
  // The sequences of the checkpoints of a tag. There is at most one but while a newer one takes its place.
  // Requests that name a checkpoint use it: a root may have ten thousand others.
  const std::set<int64_t>& SequencesOf(const std::string& tag) const;
  // The newest one that is neither damaged nor suspect nor being evicted; null: there is none.
  const CommittedCheckpoint* Newest() const;
  // The same, but it may be suspect.
  const CommittedCheckpoint* NewestWithSuspects() const;
  bool IsDamaged(int64_t sequence) const;
  bool IsSuspect(int64_t sequence) const;

  // The latest time of begin of all checkpoints that it has ever had, Unix time in microseconds; 0: it had none.
  int64_t latest_begin_us() const { return latest_begin_us_; }

  // Takes over the result of a scan. Damage that is known here and could not be written to disk stays known.
  // Evictions whose outcome was unknown are over: the scan decided them. `leaving`: those whose successor is
  // not there yet (RootSnapshot).
  void Replace(std::map<int64_t, CommittedCheckpoint> committed, std::vector<DamagedCheckpoint> unreadable,
               const std::set<int64_t>& leaving = {});
  // Adds a checkpoint, by its summary's sequence.
  const CommittedCheckpoint& Add(CommittedCheckpoint checkpoint);
  void Remove(int64_t sequence);
  // Another node removes it, because of a newer one. It is listed until the newer one is, which this node may
  // are told later: what is the newest never goes back.
  void Withdraw(int64_t sequence);
  // Removes every generation of `tag`: a newer one takes its place.
  void RemoveTag(const std::string& tag);
  // No-ops when the checkpoint is gone.
  void SetDamage(int64_t sequence, std::optional<storage::v1::Damage> damage);
  void SetPinned(int64_t sequence, bool pinned);

  // Evictions. An eviction that failed halfway stays in `evicting` until a scan tells whether it took effect.
  const std::set<int64_t>& evicting() const { return evicting_; }
  const std::set<int64_t>& perhaps_evicted() const { return perhaps_evicted_; }
  const std::set<int64_t>& withdrawn() const { return withdrawn_; }
  // Whether it is being removed, by this node or another one: it may be gone at any moment.
  bool IsLeaving(int64_t sequence) const {
    return evicting_.contains(sequence) || withdrawn_.contains(sequence);
  }
  // False: this checkpoint is being evicted already.
  bool BeginEviction(int64_t sequence) { return evicting_.insert(sequence).second; }
  void EndEviction(int64_t sequence) { evicting_.erase(sequence); }
  void EvictionIsUncertain(int64_t sequence) { perhaps_evicted_.insert(sequence); }

 private:
  void ForgetWithdrawn();

  std::map<int64_t, CommittedCheckpoint> committed_;
  std::unordered_map<std::string, std::set<int64_t>> by_tag_;  // Of committed_. No set is empty.
  std::vector<DamagedCheckpoint> unreadable_;
  std::set<int64_t> evicting_;
  std::set<int64_t> perhaps_evicted_;  // A subset of evicting_.
  int64_t latest_begin_us_ = 0;
  std::set<int64_t> withdrawn_;  // Of committed_: those that no newer one follows which is as good.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_CATALOG_H_
