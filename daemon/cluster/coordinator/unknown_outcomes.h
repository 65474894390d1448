// Settles saves of several nodes that have ended INDETERMINATE, so that the run can continue.
#ifndef CKPTD_DAEMON_CLUSTER_COORDINATOR_UNKNOWN_OUTCOMES_H_
#define CKPTD_DAEMON_CLUSTER_COORDINATOR_UNKNOWN_OUTCOMES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/engine/seams/shared_root_io.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/save/change_save.h"
#include "daemon/ledger/save/save_publication.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// Lives as long as this node leads. While the outcome of a save is not known, no other save of the run is
// published. The coordinator looks for the save from time to time: at its tag it is a checkpoint, and in the
// trash it never becomes one. If it is in neither place, an operator must state that it is no checkpoint. The
// result is written into the save's state, and the run continues.
class UnknownOutcomes {
 public:
  using Settled = Authority::Settled;
  using Answer = absl::AnyInvocable<void(absl::StatusOr<Settled>)>;

  // They must outlive the object.
  struct Tools {
    SavePublication* decisions = nullptr;
    SharedRootIo* root = nullptr;
    Clock* clock = nullptr;
  };
  struct Hooks {
    std::function<void()> settled;                  // The run continues.
    std::function<void(const absl::Status&)> lost;  // As SaveCoordinator::Hooks::lost.
  };
  // `run`: for messages.
  UnknownOutcomes(Tools tools, CompareAndSwap::Held leadership, std::string run, Hooks hooks);
  // Answers waiting calls of Settle with NOT_COORDINATOR: the operator's statement may have been recorded.
  ~UnknownOutcomes();

  // Etcd shows a save that has ended with the reason INDETERMINATE.
  void OnEnded(const SharedSave& save);
  // The saves whose outcome is not known yet.
  std::set<int64_t> sequences() const;
  // Whether a save of this tag is one of them, or was until it was settled.
  bool HasTag(const std::string& tag) const;
  void OnTick();  // Call it several times a second.

  // An operator has looked, and states whether the save of this tag is a checkpoint. The coordinator looks,
  // too. OUTCOME_DIFFERS if it sees something else, or does not see the checkpoint that the operator has
  // seen; UNKNOWN_SAVE if no save of this tag has ended INDETERMINATE. A repeated call gets the same answer.
  void Settle(const std::string& tag, bool is_checkpoint, Answer answer);

 private:
  struct Statement {
    bool is_checkpoint = false;
    Answer answer;
  };
  struct Unknown {
    SharedSave save;
    bool asking = false;
    Instant next_look;
    std::vector<Statement> statements;  // Of operators.
  };

  void Look(Unknown& unknown);
  void Looked(int64_t sequence, const absl::StatusOr<SharedPlace>& place);
  void Release(Unknown& unknown, bool is_checkpoint);
  void Released(int64_t sequence, const absl::StatusOr<SharedSave>& save);
  void Refuse(Unknown& unknown, const absl::Status& why);

  const Tools tools_;
  const CompareAndSwap::Held leadership_;
  const std::string run_;
  const Hooks hooks_;
  std::map<int64_t, Unknown> unknown_;      // By sequence.
  std::map<std::string, Settled> settled_;  // By tag: the last one of each.
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_COORDINATOR_UNKNOWN_OUTCOMES_H_
