// The saves that a coordinator prepares: each has a sequence and a directory, and no name yet.
//
// With a prepared save, a Begin waits for one transaction of each node, its vote, and all nodes vote at the
// same time. The last vote admits the save (daemon/ledger/save/last_vote.h), or one more transaction of the
// coordinator does. No node asks for a sequence first, and the directory is there already.
//
//   - The coordinator prepares a save when the active attempt has a save, and no prepared save has the last
//     sequence.
//   - A prepared save becomes the save that the first vote names, as soon as that can be decided. If the
//     nodes vote for different saves, or some vote late, it becomes PROPOSED, and continues as any other
//     save.
//   - If a later sequence was given meanwhile, a prepared save ends unused: a save that begins later must get
//     a higher sequence.
#ifndef CKPTD_DAEMON_CLUSTER_COORDINATOR_PREPARED_SAVES_H_
#define CKPTD_DAEMON_CLUSTER_COORDINATOR_PREPARED_SAVES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/cluster/coordinator/save_watch.h"
#include "daemon/engine/seams/shared_root_io.h"
#include "daemon/etcd/backoff.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/save/change_save.h"
#include "daemon/ledger/save/save_admission.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// A part of SaveCoordinator, which passes changes in etcd to it. Its decisions are transactions, so it may
// act on an old state.
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
    // A prepared save has got its name, or has ended; or another save has got the sequence for which a save
    // was being prepared.
    std::function<void(const SharedSave&)> decided;
    // A directory was made for this sequence, and no save uses it.
    std::function<void(int64_t sequence)> unused;
    // Errors after which the coordinator decides no more.
    std::function<void(const absl::Status&)> lost;
  };
  // All must outlive it.
  PreparedSaves(Tools tools, LedgerKeys keys, CompareAndSwap::Held leadership, Hooks hooks);

  // Etcd shows a save that is OPEN.
  void OnOpen(const SharedSave& save);
  // Etcd shows a save that is not OPEN, with this sequence.
  void OnOther(const SharedSave& save);
  void OnVotes(int64_t sequence);
  void OnTick();
  // Makes all decisions and preparations that are possible by now.
  void Go();

  std::set<int64_t> sequences() const;
  // Whether a prepared save with a lower sequence may have got its name, and this coordinator does not know
  // it yet: it has not seen the end of that save, or is still preparing it.
  bool MayPrecede(int64_t sequence) const;
  // The attempts of the saves that nodes have voted for, for SaveWatch::FollowAttempts.
  std::set<int64_t> attempts() const;

 private:
  struct Prepared {
    SharedSave save;
    bool changed = true;  // Since etcd was asked last.
    bool asking = false;
    std::optional<Instant> voted_at;  // When the first vote was seen.
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
  std::map<int64_t, Prepared> prepared_;  // By sequence: those that are OPEN, as far as is known.
  int64_t last_ = 0;                      // The last sequence, as far as is known.
  int64_t saving_ = 0;                    // The last attempt that has a save.
  int64_t making_ = 0;                    // The sequence of the save that is being prepared; 0: none.
  Backoff backoff_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_COORDINATOR_PREPARED_SAVES_H_
