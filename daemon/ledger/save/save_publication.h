// How an admitted save of several nodes becomes a checkpoint: what its coordinator decides, in this order.
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

// Used by the coordinator, which holds `leadership`. Each step may be asked for at any time and again, also
// by the next coordinator: it does what can be done by now, and answers with the save as it is. Answers come
// later, and not after the end of this object. Errors: NOT_COORDINATOR, and those of etcd_errors.h; then what
// was asked for was done or not.
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
    // If it is PUBLISHING: of the part record of each node. What is read of a record with another digest is
    // not that of this save yet, or not any more.
    std::map<std::string, std::string> digests;
    // If not, and it has not ended: what must come first, for messages.
    std::string waits_for;
  };

  // The checkpoint that is removed: it has the save's tag.
  struct Replaces {
    int64_t sequence = 0;                              // 0: none has.
    std::map<std::string, std::string> pointers = {};  // That the save takes over.
  };

  // `etcd` must outlive it.
  SavePublication(Etcd* etcd, Options options);

  // ADMITTED becomes SEALED when all nodes have sealed their parts; ENDED, FENCED, if a later attempt has
  // acted before they had. Either becomes ENDED if a node has reported that its part failed.
  void Settle(const SharedSave& save, const CompareAndSwap::Held& leadership, Answer<SharedSave> answer);
  // A node's lease has ended, and it has had time to come back: ENDED, NODE_LOST, unless it had
  // reported that its files are durable, or it is registered again and has reported that it still has what it
  // had sealed.
  void LoseNode(const SharedSave& save, const CompareAndSwap::Held& leadership, const std::string& node,
                Answer<SharedSave> answer);
  // PUBLISHING when all nodes are durable, no other save of the run is being published, and no node reads the
  // checkpoint that it replaces, which is not opened any more from now on. `time_us` and the pointers are the
  // checkpoint's, unless an earlier coordinator has fixed them.
  void Publish(const SharedSave& save, const CompareAndSwap::Held& leadership, int64_t time_us,
               const Replaces& replaces, Answer<Publishing> answer);
  // Another checkpoint has the save's tag than was decided, because a name was stale: while it is PUBLISHING,
  // this one is removed, and the save takes over these pointers, too.
  void ReplaceAnother(const SharedSave& save, const CompareAndSwap::Held& leadership,
                      const Replaces& replaces, Answer<SharedSave> answer);
  // The checkpoint has its name, durably: PUBLISHING becomes COMMITTED. `moved_in`: as
  // SaveState::moved_in.
  void Committed(const SharedSave& save, const CompareAndSwap::Held& leadership, int64_t moved_in,
                 Answer<SharedSave> answer);
  // Something foreign has the checkpoint's place, and its files are in the trash, durably: PUBLISHING becomes
  // ENDED.
  void NotPublished(const SharedSave& save, const CompareAndSwap::Held& leadership,
                    const ledger::v1::SaveEnd& end, Answer<SharedSave> answer);
  // It is unknown whether the checkpoint has its name: PUBLISHING becomes ENDED, INDETERMINATE, and no
  // other save is published until Release.
  void Unknown(const SharedSave& save, const CompareAndSwap::Held& leadership, Answer<SharedSave> answer);
  // It is known by now whether a save that ended by Unknown is a checkpoint: saves may be published again.
  // The first answer stays. No-op for a save that has not ended so.
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
