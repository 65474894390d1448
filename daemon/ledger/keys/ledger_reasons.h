// Reasons of errors of a run that spans nodes, beside those of daemon/etcd/etcd_errors.h.
#ifndef CKPTD_DAEMON_LEDGER_KEYS_LEDGER_REASONS_H_
#define CKPTD_DAEMON_LEDGER_KEYS_LEDGER_REASONS_H_

namespace ckptd::ledger_reason {

// ALREADY_EXISTS: a daemon that runs, or has run a few seconds ago, has the name of this node.
inline constexpr char kNodeNameTaken[] = "NODE_NAME_TAKEN";
// FAILED_PRECONDITION: this daemon's registration is over: its lease has ended, or a successor has its name.
inline constexpr char kNodeReplaced[] = "NODE_REPLACED";
// FAILED_PRECONDITION: one path is another run on another node, so the nodes do not share the root.
inline constexpr char kRootNotShared[] = "ROOT_NOT_SHARED";
// FAILED_PRECONDITION or PERMISSION_DENIED: the root holds the id of a run whose root is another directory,
// perhaps of another user.
inline constexpr char kRootCopied[] = "ROOT_COPIED";
// FAILED_PRECONDITION: two nodes seem to have parts of one launch, under two launch ids.
inline constexpr char kLaunchIdsDiffer[] = "LAUNCH_IDS_DIFFER";
// FAILED_PRECONDITION: this daemon no longer coordinates the run.
inline constexpr char kNotCoordinator[] = "NOT_COORDINATOR";
// FAILED_PRECONDITION: this node has not voted for the save, or has not sealed its parts of it.
inline constexpr char kNotInSave[] = "NOT_IN_SAVE";
// A save has ended: a node of it was lost before its files were durable.
inline constexpr char kNodeLost[] = "NODE_LOST";
// FAILED_PRECONDITION: checkpoints were marked as damaged since it was decided which ones are kept.
inline constexpr char kDamageFound[] = "DAMAGE_FOUND";
// FAILED_PRECONDITION: it was decided before, perhaps by an earlier coordinator, that a checkpoint is removed
// that was counted as one that is kept.
inline constexpr char kRemovalFound[] = "REMOVAL_FOUND";
// UNAVAILABLE: the checkpoint is being removed, so no read of it begins. It is not damaged, and a newer one
// is there, or takes its place in a moment.
inline constexpr char kBeingRemoved[] = "BEING_REMOVED";

}  // namespace ckptd::ledger_reason
#endif  // CKPTD_DAEMON_LEDGER_KEYS_LEDGER_REASONS_H_
