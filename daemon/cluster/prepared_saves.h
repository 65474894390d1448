// The saves that a coordinator makes in advance: each has a sequence and a directory, and no name.
//
// Between a Begin and its answer there is the transaction of each node's vote then, at once, of which the
// last admits the save (daemon/ledger/last_vote.h), or that and one of the coordinator: no node asks for a
// sequence first, and the disk has been asked before.
//
//   - One is made when the attempt that acts has a save, and there is none with the last sequence.
//   - It becomes the save that the first of the votes names, as soon as that can be decided. If the nodes do
//     not agree, or some are late, it becomes PROPOSED, and continues as any other save.
//   - If its sequence is not the last one any more, for a node has asked for one, it ends: a save that begins
//     later has a higher sequence.
#ifndef CKPTD_DAEMON_CLUSTER_PREPARED_SAVES_H_
#define CKPTD_DAEMON_CLUSTER_PREPARED_SAVES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/cluster/save_watch.h"
#include "daemon/engine/seams/shared_root_io.h"
#include "daemon/etcd/backoff.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/change_save.h"
#include "daemon/ledger/keys.h"
#include "daemon/ledger/save_admission.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// A part of SaveCoordinator, which says what it sees. It decides by transactions, and may act on what is old.
class PreparedSaves {
 public:
  struct Tools {
    Clock* clock;
    SharedRootIo* root;
    SaveAdmission* admission;
    const SaveWatch* watch;
    const EtcdMirror* states;
  };
  struct Hooks {
    // One has got its name, or has ended; or another save has the sequence for which one was made.
    std::function<void(const SharedSave&)> decided;
    // A directory was made, and another save has the sequence.
    std::function<void(int64_t sequence)> unused;
    // Errors after which the coordinator decides no more.
    std::function<void(const absl::Status&)> lost;
  };
  // All must outlive it.
  PreparedSaves(Tools tools, LedgerKeys keys, CompareAndSwap::Held leadership, Hooks hooks);

  // Etcd shows that it is OPEN.
  void OnOpen(const SharedSave& save);
  // Etcd shows a save that is not OPEN, with this sequence.
  void OnOther(const SharedSave& save);
  void OnVotes(int64_t sequence);
  void OnTick();
  // Asks for what can be decided or made by now.
  void Go();

  std::set<int64_t> sequences() const;
  // Whether a save with a lower sequence may have got its name without this coordinator knowing it yet: what
  // was made and has not been seen to end, and what is being made.
  bool MayPrecede(int64_t sequence) const;
  // Of the saves that nodes have voted for, for SaveWatch::FollowAttempts.
  std::set<int64_t> attempts() const;

 private:
  struct Prepared {
    SharedSave save;
    bool changed = true;  // Since etcd was asked last.
    bool asking = false;
    std::optional<Instant> voted_at;  // Since when a vote has been seen.
    Backoff backoff;
  };

  void MakeNext();
  void Made(int64_t sequence, const absl::StatusOr<std::string>& inflight);
  void Opened(int64_t sequence, const std::string& inflight, const absl::StatusOr<SharedSave>& answer);
  void Act(Prepared& prepared);
  void Decide(Prepared& prepared);
  std::optional<CompareAndSwap::Found> GuessOf(const SharedSave& save,
                                               const ledger::v1::SaveProposal& proposal) const;
  SaveAdmission::Answer<SharedSave> Decided(int64_t sequence);
  bool IsTransient(const absl::Status& error, Backoff* backoff);

  const Tools tools_;
  const LedgerKeys keys_;
  const CompareAndSwap::Held leadership_;
  const Hooks hooks_;
  std::map<int64_t, Prepared> prepared_;  // By sequence: those that are OPEN, for all that is known.
  int64_t last_ = 0;                      // The last sequence, for all that is known.
  int64_t saving_ = 0;                    // The last attempt that has a save.
  int64_t making_ = 0;                    // The sequence of the one that is being made; 0: none is.
  Backoff backoff_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_PREPARED_SAVES_H_
