"""The error of a save of several ranks, with its cause first."""

from typing import Any

from torch.distributed.checkpoint import api

from ckptd import errors


class CheckpointException(api.CheckpointException):
    """DCP's error, whose text begins with the cause; DCP's own ends with it, behind the tracebacks of all ranks.

    Attributes:
        reason (str): of the cause, as of a CkptdError; empty for another error.
    """

    def __init__(self, msg: str, failures: Any) -> None:
        super().__init__(msg, failures)
        rank, self._cause = _cause_of(failures)
        self._where = f"rank {rank} of {len(failures)} that have failed"
        self.reason = str(getattr(self._cause, "reason", ""))

    def __str__(self) -> str:
        kind = f"{type(self._cause).__name__} {self.reason}".rstrip()
        return f"{kind}: {self._cause} ({self._where})\n{super().__str__()}"


def with_cause_first(error: api.CheckpointException) -> CheckpointException:
    """Returns the same error with its cause first."""
    return CheckpointException(str(error.args[0]) if error.args else "save", error.failures)


def _cause_of(failures: Any) -> "tuple[int, BaseException]":
    """Returns a rank and its error: one that has not only heard of another rank's."""
    found = [(rank, failure[0]) for rank, failure in sorted(failures.items())]
    own = [(rank, error) for rank, error in found if not isinstance(error, errors.CheckpointFailed) or rank in error.ranks]
    return (own or found)[0]
