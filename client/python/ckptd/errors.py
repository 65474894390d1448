"""What can go wrong. Every error carries `reason` (stable, docs/protocol.md has the table), and `tag` and
`ranks` where they are known.
"""

from typing import Any, Dict, Optional, Sequence, Tuple, Type


class CkptdError(Exception):
    """Base of all errors of ckptd."""

    def __init__(
        self,
        message: str,
        reason: str = "",
        tag: Optional[str] = None,
        ranks: Sequence[int] = (),
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.tag = tag
        self.ranks: Tuple[int, ...] = tuple(ranks)
        self.details: Dict[str, Any] = details  # E.g. "path", "chunk", "expected", "found".


class Unavailable(CkptdError):
    """No daemon answers, or it is ending. Trying again later may help."""


class Refused(CkptdError):
    """The request is not acceptable as it is, or not here; nothing was changed."""


class NoSpace(Refused):
    """The disk, or the daemon's memory budget, is too small for it."""


class Busy(Refused):
    """There was no room in time."""


class Fenced(CkptdError):
    """A newer attempt of this run has begun: this process should end."""


class FileConflict(CkptdError):
    """Two ranks claim one file of a checkpoint."""


class CheckpointFailed(CkptdError):
    """The save ended without a checkpoint, on all ranks; or not all ranks could resume from one."""


class Skipped(CheckpointFailed):
    """The save was given up at once because there was no room (busy="skip")."""


class Superseded(CheckpointFailed):
    """A younger save took this one's place (busy="supersede")."""


class Indeterminate(CkptdError):
    """Whether the checkpoint survives a crash is not known until its root has been scanned anew."""


class WaitTimeout(CkptdError, TimeoutError):
    """The caller's patience ended; what it waited for goes on."""


class NotFound(CkptdError):
    """No such checkpoint, file or run."""


class Corrupt(CkptdError):
    """What is on disk is not what was saved."""


class UnsafeGlobalsWarning(UserWarning):
    """What is being saved holds classes that torch.load(weights_only=True), the default when loading,
    refuses.
    """


# By reason first, then by the name of the gRPC code.
_BY_REASON: Dict[str, Type[CkptdError]] = {
    "FENCED": Fenced,
    "FILE_CONFLICT": FileConflict,
    "NO_SPACE": NoSpace,
    "POOL_TOO_SMALL": NoSpace,
    "POOL_EXHAUSTED": Busy,
    "ADMISSION_TIMEOUT": Busy,
    "PREFETCH_BUSY": Busy,
    "TOO_MANY_SESSIONS": Busy,
    "LIMIT_EXCEEDED": Busy,
    "FILE_SYSTEM_HANGS": Busy,
    "WAIT_TIMEOUT": WaitTimeout,
    "SKIPPED": Skipped,
    "SUPERSEDED": Superseded,
    "INDETERMINATE": Indeterminate,
    "SAVE_ABORTED": CheckpointFailed,
    "SESSION_LOST": CheckpointFailed,
    "OVER_SHARE": CheckpointFailed,
    "STAGED_LOST": CheckpointFailed,
    "RANKS_MISSING": CheckpointFailed,
    "IO_ERROR": CheckpointFailed,
    "CORRUPT_FILE": Corrupt,
    "CORRUPT_MANIFEST": Corrupt,
    "CORRUPT_PART_RECORD": Corrupt,
    "SHORT_FILE": Corrupt,
    "RESUME_TIMEOUT": WaitTimeout,
    "RESUME_INCOMPLETE": WaitTimeout,
    "RESUME_FAILED": CheckpointFailed,
    "CHECKPOINT_DAMAGED": Corrupt,
    "DRAINING": Unavailable,
}
_BY_CODE: Dict[str, Type[CkptdError]] = {
    "UNAVAILABLE": Unavailable,
    "CANCELLED": Unavailable,
    "UNAUTHENTICATED": Unavailable,
    # Without a reason it is not the daemon's answer: there was none in time.
    "DEADLINE_EXCEEDED": Unavailable,
    "NOT_FOUND": NotFound,
    "DATA_LOSS": Corrupt,
    "ABORTED": CheckpointFailed,
    "INVALID_ARGUMENT": Refused,
    "PERMISSION_DENIED": Refused,
    "FAILED_PRECONDITION": Refused,
    "ALREADY_EXISTS": Refused,
    "RESOURCE_EXHAUSTED": Refused,
    "UNIMPLEMENTED": Refused,
    "OUT_OF_RANGE": Refused,
}


def make(
    code: str, reason: str, message: str, tag: Optional[str] = None, ranks: Sequence[int] = (), **details: Any
) -> CkptdError:
    """The error for a gRPC code's name and a reason, which may be empty or one that this version does not
    know.
    """
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code) or CkptdError
    return kind(message, reason=reason or code, tag=tag, ranks=ranks, **details)


def invalid(message: str) -> Refused:
    """An argument that no daemon would take."""
    return Refused(message, reason="INVALID_ARGUMENT")
