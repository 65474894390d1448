// The requests of one node to etcd about one save: a state machine without I/O.
#ifndef CKPTD_DAEMON_CLUSTER_NODE_NODE_SAVE_H_
#define CKPTD_DAEMON_CLUSTER_NODE_NODE_SAVE_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/etcd/backoff.h"
#include "daemon/ledger/save/change_save.h"
#include "storage/base/clock.h"

namespace ckptd {

// Whether a save has ended, as a checkpoint or not.
bool HasEnded(const ledger::v1::SaveState& state);
// Whether the save is a checkpoint, even if that was unknown when it ended.
bool IsCheckpoint(const ledger::v1::SaveState& state);
// Whether `after` is a later phase of a save than `before`. A state from a watch may be older than a known
// one.
bool IsLater(const ledger::v1::SaveState& before, const ledger::v1::SaveState& after);

class NodeSave {
 public:
  enum class Request { kNone, kBegin, kAccept, kReject, kSealed, kDurable, kFailed };

  NodeSave(Instant admission_deadline, std::vector<int> taking_part)
      : deadline(admission_deadline), ranks(std::move(taking_part)) {}

  // The next request to send to etcd.
  Request Next() const;
  // Etcd has answered `request`, with the save's present state.
  void Answered(Request request, const ledger::v1::SaveState& state);
  // Whether the save may still wait for its admission, as far as this node knows.
  bool IsUndecided() const;
  // The save has this sequence. Reports that were made for another sequence do not count.
  void Bind(const SharedSave& found);
  // Sends the acceptance again, although etcd has answered it.
  void VoteAgain();
  // For error messages: "etcd, to vote for the save", "the files of all nodes".
  std::string WaitsFor() const;

  const Instant deadline;        // Of the admission.
  const std::vector<int> ranks;  // Those that have something to save, as this node's ranks say; empty: all.
  // Sequence 0: not known yet. OPEN: this is a prepared save, whose sequence the save gets if all nodes vote
  // for it before another save gets the sequence.
  SharedSave save;

  // What the owner has reported.
  bool accepted = false, sealed = false, durable = false;
  std::optional<storage::v1::RetentionPolicy> retention;  // If accepted, and a rank of this node names one.
  std::string digest;                                     // If durable.
  std::optional<ledger::v1::SaveEnd> failed;              // A rejection, or why the part has failed.

  // How long the save waits at most without an answer of etcd; unset: until the deadline.
  std::optional<Duration> skip_after;
  std::optional<Instant> silent_since;  // Since when a request has had no answer; unset: all are answered.
  Instant answered_at;                  // When etcd last answered a request.
  bool asking = false;                  // A request is under way.
  // If set, the owner was told that the save fails with this error, and gets no later state.
  std::optional<absl::Status> given_up;
  bool released = false;          // No node counts on this node's memory any more; the owner was told.
  bool refused = false;           // The ledger refuses this node's reports; the coordinator ends the save.
  bool rejection_counts = false;  // Etcd has recorded the rejection or the failure.
  bool was_known = false;         // Etcd had it in an earlier registration.
  bool lost_prepared = false;     // Another save got the prepared sequence, so this save needs its own.
  std::string vote;               // The value of this node's vote key, if known.
  Backoff backoff;
  std::string last_error;  // Of the last request; empty: it was answered.

 private:
  Request NextReport() const;

  Request answered_ = Request::kBegin;  // The latest of kAccept, kSealed and kDurable that was answered.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODE_NODE_SAVE_H_
