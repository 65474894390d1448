// Reasons of errors: stable words in UPPER_SNAKE_CASE that travel with a status from any layer to the wire.
// docs/protocol.md has the table of all of them, with their codes and what a caller does. Here are those that
// the engine makes and those that code compares with, so that a misspelt one does not compile.
#ifndef CKPTD_STORAGE_BASE_REASONS_H_
#define CKPTD_STORAGE_BASE_REASONS_H_

namespace ckptd::reason {

// ---- Requests

// A tag that may not be a directory's name.
inline constexpr char kInvalidTag[] = "INVALID_TAG";
// A file name that is absolute, leaves the checkpoint, is empty or reserved.
inline constexpr char kInvalidPath[] = "INVALID_PATH";
// Another value out of its range.
inline constexpr char kInvalidArgument[] = "INVALID_ARGUMENT";
// Too many metrics, or a metric's name is too long.
inline constexpr char kMetricsTooLarge[] = "METRICS_TOO_LARGE";
// A pointer that is no file name in the root, is its save's tag or is empty; too many pointers.
inline constexpr char kInvalidPointer[] = "INVALID_POINTER";
// The job's world is larger than this node's ranks.
inline constexpr char kMultiNodeUnsupported[] = "MULTI_NODE_UNSUPPORTED";
// Not in a root that several nodes share.
inline constexpr char kSharedRootUnsupported[] = "SHARED_ROOT_UNSUPPORTED";
// The configuration does not allow uploads to this URL.
inline constexpr char kUploadNotAllowed[] = "UPLOAD_NOT_ALLOWED";
// The checkpoint is committed, and not in the bucket: it is not its turn, or it was given up.
inline constexpr char kNotUploaded[] = "NOT_UPLOADED";

// ---- Who may call

// There is no token, or the session has ended.
inline constexpr char kUnknownToken[] = "UNKNOWN_TOKEN";
// The run, checkpoint or token belongs to another user.
inline constexpr char kWrongUid[] = "WRONG_UID";
// The caller is in another namespace and names a root by path, or a run that nobody there has attached.
inline constexpr char kForeignNamespace[] = "FOREIGN_NAMESPACE";
// One user has as much of something as the configuration allows.
inline constexpr char kLimitExceeded[] = "LIMIT_EXCEEDED";

// ---- Runs, ranks, roots

// A newer launch of the job has begun or resumed.
inline constexpr char kFenced[] = "FENCED";
// The session has not joined the run as this rank.
inline constexpr char kNotJoined[] = "NOT_JOINED";
// Another world size than the rest of the launch.
inline constexpr char kWorldSizeMismatch[] = "WORLD_SIZE_MISMATCH";
// The root belongs to a run with another id.
inline constexpr char kRunIdMismatch[] = "RUN_ID_MISMATCH";
// Another process of this launch is that rank, and lives.
inline constexpr char kRankTaken[] = "RANK_TAKEN";
// No run has this name, or its root is being opened.
inline constexpr char kUnknownRun[] = "UNKNOWN_RUN";
// Another daemon holds the root.
inline constexpr char kRootLocked[] = "ROOT_LOCKED";
// One node has used the root alone, and several are to share it now; or the other way round.
inline constexpr char kRootSharingChanged[] = "ROOT_SHARING_CHANGED";
// A directory sync failed: the root takes no changes before it has been scanned.
inline constexpr char kRootReadOnly[] = "ROOT_READ_ONLY";
// The root's directory, or its directory .ckptd, was removed or replaced.
inline constexpr char kRootChanged[] = "ROOT_CHANGED";
// The file system of a root that is being attached does not answer.
inline constexpr char kFileSystemHangs[] = "FILE_SYSTEM_HANGS";
// A file is locked by another process.
inline constexpr char kLocked[] = "LOCKED";
// Another process listens on the socket.
inline constexpr char kSocketInUse[] = "SOCKET_IN_USE";

// ---- Saves

// Two ranks claim one file, or one rank's file is another's directory.
inline constexpr char kFileConflict[] = "FILE_CONFLICT";
// The ranks describe one save differently, or the tag is being saved.
inline constexpr char kSaveConflict[] = "SAVE_CONFLICT";
// The tag is a directory or file that ckptd has not written.
inline constexpr char kTagForeign[] = "TAG_FOREIGN";
// Undelete: a checkpoint, or a save under way, has the tag.
inline constexpr char kTagTaken[] = "TAG_TAKEN";
// A pointer's name is a directory or a special file.
inline constexpr char kPointerForeign[] = "POINTER_FOREIGN";
// The tag holds a pinned checkpoint.
inline constexpr char kPinned[] = "PINNED";
// The tag holds a checkpoint that is not suspect, and the save is; or all that there is to resume from is
// suspect.
inline constexpr char kSuspect[] = "SUSPECT";
// The part is sealed and takes no more bytes, or the save is being published.
inline constexpr char kSealed[] = "SEALED";
// There is no such save, or it does not accept this call yet.
inline constexpr char kUnknownSave[] = "UNKNOWN_SAVE";
// The file has no place in the part.
inline constexpr char kUnknownFile[] = "UNKNOWN_FILE";
inline constexpr char kUnknownLayout[] = "UNKNOWN_LAYOUT";
// The checkpoint needs more memory than the pool, or one user's part of it, has.
inline constexpr char kPoolTooSmall[] = "POOL_TOO_SMALL";
// There is not enough memory now.
inline constexpr char kPoolExhausted[] = "POOL_EXHAUSTED";
// The disk has no room, and none is coming.
inline constexpr char kNoSpace[] = "NO_SPACE";
// There was no room within the save's timeout.
inline constexpr char kAdmissionTimeout[] = "ADMISSION_TIMEOUT";
// Ranks have not begun, or not sealed, in time.
inline constexpr char kRanksMissing[] = "RANKS_MISSING";
// The daemon is ending.
inline constexpr char kDraining[] = "DRAINING";
// An operator has drained the daemon: it takes no new saves until that is undone.
inline constexpr char kNodeDrained[] = "NODE_DRAINED";
// A rank or an operator aborted the save.
inline constexpr char kSaveAborted[] = "SAVE_ABORTED";
// The session ended before its part was sealed, or before its call was answered.
inline constexpr char kSessionLost[] = "SESSION_LOST";
// The save was staged with an earlier daemon, and is neither committed nor kept.
inline constexpr char kStagedLost[] = "STAGED_LOST";
// The save held more than its user's share of memory while others waited.
inline constexpr char kOverShare[] = "OVER_SHARE";
// A younger save took its place.
inline constexpr char kSuperseded[] = "SUPERSEDED";
// There was no room, and the busy policy was SKIP.
inline constexpr char kSkipped[] = "SKIPPED";
// Whether the save survives a crash is unknown.
inline constexpr char kIndeterminate[] = "INDETERMINATE";
// FAILED_PRECONDITION: the daemon still finds out by itself what has become of the save.
inline constexpr char kOutcomePending[] = "OUTCOME_PENDING";
// FAILED_PRECONDITION: what an operator says of the save is not what the daemon sees.
inline constexpr char kOutcomeDiffers[] = "OUTCOME_DIFFERS";

// ---- Reading

// There is no such checkpoint, or none at all.
inline constexpr char kNoCheckpoint[] = "NO_CHECKPOINT";
// A pointer file names the checkpoint, which is not removed meanwhile.
inline constexpr char kPointed[] = "POINTED";
// The session has no such open lease.
inline constexpr char kUnknownLease[] = "UNKNOWN_LEASE";
// Another checkpoint of the run is being read into memory.
inline constexpr char kPrefetchBusy[] = "PREFETCH_BUSY";
// A checkpoint is damaged, or nothing undamaged may be offered.
inline constexpr char kCheckpointDamaged[] = "CHECKPOINT_DAMAGED";
// A rank cannot resume from the checkpoint, or its trainer has ended.
inline constexpr char kResumeFailed[] = "RESUME_FAILED";
// What the run's bucket has could not be found out or fetched.
inline constexpr char kRestoreFailed[] = "RESTORE_FAILED";
// Earlier sealed checkpoints were not published in time, or a checkpoint of the bucket is still on its way.
inline constexpr char kResumeTimeout[] = "RESUME_TIMEOUT";
// Ranks have not finished reading in time.
inline constexpr char kResumeIncomplete[] = "RESUME_INCOMPLETE";

// ---- Foreign checkpoints

// Checkpoints of this run are being adopted already.
inline constexpr char kAdopting[] = "ADOPTING";
// No sequence is left for the checkpoint, or its marker is from the future.
inline constexpr char kAdoptOrder[] = "ADOPT_ORDER";
// The checkpoint is not deleted: something needs it, or it is the newest whole one.
inline constexpr char kCheckpointKept[] = "CHECKPOINT_KEPT";
// The checkpoint is not removed: a process reads it, on this node or on another one.
inline constexpr char kBeingRead[] = "BEING_READ";
// Retention would remove the adopted checkpoint at once.
inline constexpr char kAdoptRemoved[] = "ADOPT_REMOVED";
// A sync of the checkpoint has failed: its bytes may be lost.
inline constexpr char kForeignUnsynced[] = "FOREIGN_UNSYNCED";

// ---- Disk

// The disk failed.
inline constexpr char kIoError[] = "IO_ERROR";
// A file is missing or shorter than it was.
inline constexpr char kShortFile[] = "SHORT_FILE";
// A manifest or record of a later format.
inline constexpr char kNewerFormat[] = "NEWER_FORMAT";
// A checkpoint cannot be converted without loss.
inline constexpr char kCannotConvert[] = "CANNOT_CONVERT";

}  // namespace ckptd::reason
#endif  // CKPTD_STORAGE_BASE_REASONS_H_
