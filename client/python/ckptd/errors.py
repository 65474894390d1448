"""The exceptions of ckptd.

Programs should decide by their class or ``reason``, which are stable, not by the message.
"""

from typing import Any, Dict, Optional, Sequence, Tuple, Type


class CkptdError(Exception):
    """Base class of all errors of ckptd.

    Attributes:
        reason (str): a stable name of what happened; docs/protocol.md has the table.
        tag (str, optional): the checkpoint, if it is known.
        ranks (Tuple[int, ...]): the ranks that caused it, if they are known.
        details (Dict[str, Any]): more, such as ``path``, ``chunk``, ``expected`` and ``found``.
    """

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
        self.details: Dict[str, Any] = details


class Unavailable(CkptdError):
    """No daemon answers, or it is shutting down; or no server of a bucket answers. Trying again later may help."""


class Refused(CkptdError):
    """The request is not acceptable. Nothing was changed."""


class NoSpace(Refused):
    """The disk, or the daemon's pool, is too small for the checkpoint."""


class Busy(Refused):
    """There was no room before the timeout, or the daemon is at a limit or drained. Trying again later may help."""


class Fenced(CkptdError):
    """A newer attempt of the run has begun. This process should end."""


class FileConflict(CkptdError):
    """Two ranks claim one file name of a checkpoint."""


class CheckpointFailed(CkptdError):
    """The save ended without a checkpoint, on all ranks; or a rank could not resume from the checkpoint."""


class Skipped(CheckpointFailed):
    """The save was given up because there was no room (``busy="skip"``)."""


class Superseded(CheckpointFailed):
    """A newer save took the place of this one (``busy="supersede"``)."""


class Indeterminate(CkptdError):
    """Whether the checkpoint is durable is not known until the daemon has scanned its root again."""


class WaitTimeout(CkptdError, TimeoutError):
    """The timeout of a wait has passed. What was waited for goes on."""


class NotFound(CkptdError):
    """There is no such checkpoint, file or run."""


class Corrupt(CkptdError):
    """The bytes of a checkpoint are not those that were saved."""


class NonFinite(Refused):
    """The state has NaNs or infinities, and the save's check refuses that. ``details["tensors"]`` names them."""


class NonFiniteWarning(UserWarning):
    """The saved state has NaNs or infinities."""


class UnsafeGlobalsWarning(UserWarning):
    """The saved state holds classes that loading refuses by default (``weights_only=True``)."""


# The reason decides; for a reason that is not here, the name of the gRPC code.
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
    "NODE_DRAINED": Busy,
    "FILE_SYSTEM_HANGS": Busy,
    "WAIT_TIMEOUT": WaitTimeout,
    "SKIPPED": Skipped,
    "SUPERSEDED": Superseded,
    "INDETERMINATE": Indeterminate,
    "SAVE_ABORTED": CheckpointFailed,
    "SESSION_LOST": CheckpointFailed,
    "OVER_SHARE": CheckpointFailed,
    "STAGED_LOST": CheckpointFailed,
    "NODE_LOST": CheckpointFailed,
    "ROOT_CHANGED": CheckpointFailed,
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
    "NO_CREDENTIALS": Refused,
}
_BY_CODE: Dict[str, Type[CkptdError]] = {
    "UNAVAILABLE": Unavailable,
    "CANCELLED": Unavailable,
    "UNAUTHENTICATED": Unavailable,
    # Without a reason it is not an answer of the daemon: gRPC gave up waiting for one.
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
    """Returns the error for a gRPC code's name and a reason, which may be empty or unknown to this version."""
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code) or CkptdError
    return kind(message, reason=reason or code, tag=tag, ranks=ranks, **details)


def invalid(message: str) -> Refused:
    """Returns the error for an argument that no daemon would accept."""
    return Refused(message, reason="INVALID_ARGUMENT")


def check_seconds(**durations: float) -> None:
    """Raises ValueError, with the argument's name, if a duration is not more than 0 seconds."""
    for name, seconds in durations.items():
        if seconds <= 0:
            raise ValueError(f"{name} is {seconds}; it must be more than 0 seconds")
