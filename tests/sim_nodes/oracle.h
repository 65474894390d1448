// Checks the promises of a run that several nodes share, from the answers to ranks and the changes of the
// disk, without knowledge of any daemon's state. It keeps the first violation, which ends the case.
#ifndef CKPTD_TESTS_SIM_NODES_ORACLE_H_
#define CKPTD_TESTS_SIM_NODES_ORACLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/seams/save_id.h"
#include "tests/sim/marks.h"

namespace ckptd::sim_nodes {

std::string NameOf(const SaveId& save);

class Oracle {
 public:
  const std::string& violation() const { return violation_; }
  void Violated(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }
  // The number of checkpoints to keep; nullopt: all.
  void SetKept(std::optional<int> kept) { kept_ = kept; }
  // Whether the registration of a node holds, by its own clock. While it holds, the checkpoints that the
  // node's ranks read are protected.
  void SetHolds(std::function<bool(int node)> holds) { holds_ = std::move(holds); }

  // A fault by which a save that has begun may be lost: a node's death, pause or absence, or an error of the
  // disk. Actions of ranks are no faults, and neither is behaviour that etcd and the file system may always
  // show.
  void Fault() { ++faults_; }

  // ---- restores of etcd
  // Etcd counts attempts, so a restored etcd gives the same numbers again. The oracle's own numbers are
  // unique.
  int64_t IdOf(int64_t attempt) const;
  // Etcd was restored, while no daemon and no rank lived, from a backup that knows attempts up to `last`.
  // `known_damaged`: the marks of the backup and of the root. `newest`: the last attempt before the restore.
  void EtcdRestored(int64_t newest, int64_t last, const std::set<int64_t>& known_damaged);

  // The root and etcd are lost, while no daemon and no rank lived; EtcdRestored was called. This is the newest
  // checkpoint of the bucket, and is to be the next that a launch resumes from.
  void RootLost(int64_t newest);

  // ---- attempts
  // All attempts are those of IdOf. A request was answered with OK: from then on earlier attempts are fenced.
  void TookEffect(int64_t attempt, int64_t acted_before, const std::string& by);
  int64_t acted() const { return acted_; }  // For `acted_before`, when a request is sent.
  void RequestSent(int64_t attempt) { asked_ = std::max(asked_, attempt); }
  void ToldFenced(int64_t attempt);

  // ---- resume
  void ResumeSent(int64_t attempt);
  // `told_before`: told_damaged() when the rank asked, without a checkpoint on which its attempt had agreed
  // before that.
  void Resumed(int64_t attempt, int64_t sequence, const std::string& tag,
               const std::set<int64_t>& told_before, bool allows_suspect);
  // The rank reports that it has read its part.
  void FinishSent(int64_t attempt, int rank, int64_t sequence) {
    finishes_[{attempt, sequence}].insert(rank);
  }
  // A rank is told that all ranks have read theirs.
  void Agreed(int64_t attempt, int64_t sequence, int world_size);

  // ---- damage
  // Bytes of a checkpoint have changed.
  void Damaged(int64_t sequence) { damaged_.insert(sequence); }
  // A rank is told that all nodes know the damage that it has found.
  void ToldDamaged(int64_t sequence) { told_damaged_.insert(sequence); }
  const std::set<int64_t>& told_damaged() const { return told_damaged_; }
  // A daemon calls the checkpoint damaged.
  void CalledDamaged(const std::string& by, int64_t sequence);

  // ---- saves
  void BeginSent(const SaveId& save, const std::set<int>& ranks);
  void Begun(const SaveId& save, int64_t sequence);
  // Whether a rank was told so.
  bool IsAdmitted(const SaveId& save) const { return saves_.at(save).begun != 0; }
  void SealSent(const SaveId& save, int rank, const sim::Contents& contents);
  // A rank seals the save as suspect.
  void Suspected(const SaveId& save) { saves_[save].suspect = true; }
  void AbortSent(const SaveId& save) { aborted_.insert(save); }
  void ToldSealed(const SaveId& save);
  void OutcomeReported(const SaveId& save, const std::string& rank, v1::Level level,
                       const std::string& reason, int64_t sequence);
  // COMMITTED answers that ranks received.
  int64_t commits() const { return commits_; }

  // ---- the disk
  void Published(const SaveId& save, const storage::v1::ManifestSummary& summary,
                 const std::map<int, sim::Contents>& contents);
  const std::set<int64_t>& published() const { return published_; }
  bool IsPublished(int64_t sequence) const { return published_.contains(sequence); }
  bool IsSuspect(int64_t sequence) const { return suspect_.contains(sequence); }
  // Another program takes the tag.
  void TagTaken(const std::string& tag);
  // A removal has begun. `left`: the tags of the other checkpoints, by sequence. `replaced`: a save is to
  // replace the checkpoint.
  void Removed(const std::string& tag, int64_t sequence, const std::map<int64_t, std::string>& left,
               bool replaced);
  // A removed checkpoint was put back. Earlier decisions do not hold for it.
  void PutBack(int64_t sequence) { removed_.erase(sequence); }
  bool IsRemoved(int64_t sequence) const { return removed_.contains(sequence); }

  // ---- pins
  // An operator asks a node to pin the checkpoint, or to unpin it; and is told that it is done. `sent`: what
  // PinSent returned. A pin counts only if no request to unpin overlaps it, which may have come after it.
  int64_t PinSent(const std::string& tag, int64_t sequence, bool pinned);
  void PinAnswered(int64_t sequence, bool pinned, int64_t sent);

  // ---- readers
  // `node`: the node whose daemon has given the lease. `losses_before`: losses(node) when the rank asked for
  // the lease. No-op if there was a loss since, because the lease may be older than the loss.
  void LeaseOpen(int node, const std::string& lease, int64_t sequence, int losses_before) {
    if (losses_[node] == losses_before) leases_[{node, lease}] = sequence;
  }
  void LeaseEnded(int node, const std::string& lease) { leases_.erase({node, lease}); }
  // The daemon has ended, or its registration may be over: the checkpoints that its ranks read are not
  // protected.
  void LeasesLost(int node);
  int losses(int node) { return losses_[node]; }

  // The checkpoint that a node calls the latest; 0: there is none. `daemon`: one life of a daemon.
  void Latest(const std::string& daemon, int64_t sequence);

 private:
  struct Save {
    std::set<int> ranks;  // That have something to save.
    int64_t faults_before = 0;
    bool suspect = false;      // A rank has sealed it as suspect.
    bool of_backup = false;    // It was begun before etcd was restored.
    bool begun_late = false;   // A later attempt had acted before the first rank began it,
    bool sealed_late = false;  // and before a rank sealed it.
    std::map<int, sim::Contents> sealed;
    int64_t begun = 0;  // The sequence that ranks were told.
    bool told_sealed = false;
    std::optional<v1::Level> outcome;
    int64_t published = 0;
  };
  // The newest checkpoint up to this sequence that was reported as committed, and exists and is whole; 0:
  // none.
  int64_t NewestWhole(int64_t up_to) const;
  bool IsSealed(const Save& save) const { return save.sealed.size() == save.ranks.size(); }
  void Failed(const SaveId& id, const Save& save, const std::string& rank, v1::Level level,
              const std::string& reason);

  std::string violation_;
  std::optional<int> kept_;
  std::function<bool(int node)> holds_;
  int64_t faults_ = 0;
  int64_t acted_ = 0, asked_ = 0;
  // For each restore of etcd: the last attempt of the backup, and how much IdOf adds to later attempts.
  std::vector<std::pair<int64_t, int64_t>> restores_;
  int64_t newest_reported_ = 0, last_published_ = 0;
  std::set<int64_t> published_, suspect_;
  // For tags whose older checkpoint is gone and whose newer one does not exist yet: the sequence of the older
  // one.
  std::map<std::string, int64_t> replaced_;
  std::set<std::string> taken_;  // Tags that another program has.
  // Checkpoints that were to be replaced, and another program took the tag before the newer one had it.
  std::set<int64_t> lost_to_others_;
  // By attempt: the newest checkpoint that was known to be committed, whole or not, when the attempt first
  // asked; the checkpoint on which its ranks have agreed; and those that its ranks were told.
  std::map<int64_t, int64_t> resume_at_least_, agreed_;
  std::map<int64_t, std::set<int64_t>> resumed_;
  std::set<int64_t> reported_;  // As COMMITTED, and not suspect.
  std::set<int64_t> damaged_, told_damaged_, removed_;
  std::map<std::pair<int64_t, int64_t>, std::set<int>> finishes_;
  std::set<std::string> pin_tags_;  // That operators have asked to pin.
  struct Unpins {
    int64_t sent = 0;
    int unanswered = 0;  // They may still take effect.
  };
  std::map<int64_t, Unpins> unpins_;  // By sequence.
  std::set<int64_t> pinned_;          // For sure.
  std::map<SaveId, Save> saves_;
  std::set<SaveId> aborted_;
  std::map<std::pair<int, std::string>, int64_t> leases_;
  std::map<int, int> losses_;  // By node.
  std::map<std::string, int64_t> latest_;
  int64_t commits_ = 0;
};

}  // namespace ckptd::sim_nodes
#endif  // CKPTD_TESTS_SIM_NODES_ORACLE_H_
