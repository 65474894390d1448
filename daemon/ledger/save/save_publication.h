// How an admitted save of several nodes becomes a checkpoint: the coordinator's decisions, in their order.
#ifndef CKPTD_DAEMON_LEDGER_SAVE_SAVE_PUBLICATION_H_
#define CKPTD_DAEMON_LEDGER_SAVE_SAVE_PUBLICATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/save/change_save.h"
#include "storage/base/callback_scope.h"

namespace ckptd {

// Used by the coordinator, which holds `leadership`. Each call may be made at any time and repeated, also by
// the next coordinator: it makes its change if the conditions hold by now, and answers with the save's
// present state. Answers come after the call has returned, and never after the destruction of this object.
// Errors: NOT_COORDINATOR, and those of etcd_errors.h; after them the change may have been made.
class SavePublication {
 public:
  template <typename T>
  using Answer = absl::AnyInvocable<void(absl::StatusOr<T>)>;

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    NodeIdentity node;
    std::string run;  // For messages.
  };
  struct Publishing {
    SharedSave save;
    // If it is PUBLISHING: the digest of each node's part record. A file with another digest is not yet, or
    // no longer, the record that the node has reported.
    std::map<std::string, std::string> digests;
    // If it is neither PUBLISHING nor ended: what must come first, for messages.
    std::string waits_for;
  };

  // The checkpoint that has the save's tag, and is removed.
  struct Replaces {
    int64_t sequence = 0;                              // 0: there is none.
    std::map<std::string, std::string> pointers = {};  // Those that the save takes over.
  };

  // `etcd` must outlive it.
  SavePublication(Etcd* etcd, Options options);

  // ADMITTED becomes SEALED when all nodes have sealed their parts, and ENDED with FENCED if a later attempt
  // has acted before that. ADMITTED and SEALED become ENDED if a node has reported that its part failed.
  void Settle(const SharedSave& save, const CompareAndSwap::Held& leadership, Answer<SharedSave> answer);
  // For a node whose lease has ended, and that has had the time to come back: the save becomes ENDED with
  // NODE_LOST, unless the node had reported that its files are durable, or is registered again and has
  // reported that it still has its sealed parts.
  void LoseNode(const SharedSave& save, const CompareAndSwap::Held& leadership, const std::string& node,
                Answer<SharedSave> answer);
  // The save becomes PUBLISHING when the files of all nodes are durable, no other save of the run is being
  // published, and the checkpoint that the save replaces is not pinned, and no node reads it; from then on no
  // node opens that checkpoint, or pins it. The new checkpoint gets `time_us` and the pointers, unless an earlier coordinator has fixed
  // others.
  void Publish(const SharedSave& save, const CompareAndSwap::Held& leadership, int64_t time_us,
               const Replaces& replaces, Answer<Publishing> answer);
  // For a save that is PUBLISHING: the checkpoint at its tag is not the one that Publish has decided to
  // remove, because a name was stale. Decides to remove `replaces`, and that the save takes over its
  // pointers, too.
  void ReplaceAnother(const SharedSave& save, const CompareAndSwap::Held& leadership,
                      const Replaces& replaces, Answer<SharedSave> answer);
  // The checkpoint is durably at its tag: PUBLISHING becomes COMMITTED. `moved_in`: as SaveState::moved_in.
  void Committed(const SharedSave& save, const CompareAndSwap::Held& leadership, int64_t moved_in,
                 Answer<SharedSave> answer);
  // Something foreign is at the tag, and the save's files are durably in the trash: PUBLISHING becomes ENDED.
  void NotPublished(const SharedSave& save, const CompareAndSwap::Held& leadership,
                    const ledger::v1::SaveEnd& end, Answer<SharedSave> answer);
  // It is unknown whether the checkpoint is at its tag: PUBLISHING becomes ENDED with INDETERMINATE, and no
  // other save is published until Release.
  void Unknown(const SharedSave& save, const CompareAndSwap::Held& leadership, Answer<SharedSave> answer);
  // Records whether a save that ended by Unknown is a checkpoint, and lets saves be published again. The
  // first record stays. No-op for a save that has not ended by Unknown.
  void Release(const SharedSave& save, const CompareAndSwap::Held& leadership,
               ledger::v1::SaveState::Found found, Answer<SharedSave> answer);

 private:
  using Operations = std::vector<etcdserverpb::RequestOp>;
  using Decide = std::function<Operations(const CompareAndSwap::Found&, ledger::v1::SaveState*)>;

  void Change(const SharedSave& save, std::vector<CompareAndSwap::Range> ranges,
              const CompareAndSwap::Held& leadership, const std::string& what, Decide decide,
              Answer<SharedSave> answer);
  void EndPublishing(const SharedSave& save, const CompareAndSwap::Held& leadership, const std::string& what,
                     const ledger::v1::PublishedNow& next, std::function<void(ledger::v1::SaveState*)> end,
                     Answer<SharedSave> answer);
  std::vector<CompareAndSwap::Range> View(const SharedSave& save) const;

  Etcd* const etcd_;
  const Options options_;
  const LedgerKeys keys_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_SAVE_SAVE_PUBLICATION_H_
