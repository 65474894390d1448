// Reasons of errors of a run that spans nodes, beside those of daemon/etcd/etcd_errors.h.
#ifndef CKPTD_DAEMON_LEDGER_KEYS_LEDGER_REASONS_H_
#define CKPTD_DAEMON_LEDGER_KEYS_LEDGER_REASONS_H_

namespace ckptd::ledger_reason {

// ALREADY_EXISTS: another daemon, which runs or ended a few seconds ago, is registered under this node's
// name.
inline constexpr char kNodeNameTaken[] = "NODE_NAME_TAKEN";
// FAILED_PRECONDITION: this daemon's registration is over: its lease has ended, or a successor has its name.
inline constexpr char kNodeReplaced[] = "NODE_REPLACED";
// FAILED_PRECONDITION: the path of the root holds another run on another node, so the nodes do not share it.
inline constexpr char kRootNotShared[] = "ROOT_NOT_SHARED";
// FAILED_PRECONDITION or PERMISSION_DENIED: the root holds the id of a run whose root is another directory,
// perhaps of another user.
inline constexpr char kRootCopied[] = "ROOT_COPIED";
// FAILED_PRECONDITION: two nodes seem to run parts of one launch under two launch ids.
inline constexpr char kLaunchIdsDiffer[] = "LAUNCH_IDS_DIFFER";
// FAILED_PRECONDITION: this daemon no longer coordinates the run.
inline constexpr char kNotCoordinator[] = "NOT_COORDINATOR";
// FAILED_PRECONDITION: this node has not voted for the save, or has not sealed its parts.
inline constexpr char kNotInSave[] = "NOT_IN_SAVE";
// The end of a save: one of its nodes was lost before that node's files were durable.
inline constexpr char kNodeLost[] = "NODE_LOST";
// FAILED_PRECONDITION: checkpoints were marked as damaged after retention had counted those that are kept.
inline constexpr char kDamageFound[] = "DAMAGE_FOUND";
// FAILED_PRECONDITION: retention has counted a checkpoint as kept whose removal was already decided, perhaps
// by an earlier coordinator.
inline constexpr char kRemovalFound[] = "REMOVAL_FOUND";
// UNAVAILABLE: the checkpoint is being removed, so no new read of it begins. It is not damaged, and a newer
// checkpoint exists, or replaces it in a moment.
inline constexpr char kBeingRemoved[] = "BEING_REMOVED";

}  // namespace ckptd::ledger_reason
#endif  // CKPTD_DAEMON_LEDGER_KEYS_LEDGER_REASONS_H_
