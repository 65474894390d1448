"""Retention: which committed checkpoints a run keeps."""

import dataclasses
import datetime
import math
from typing import Any, Iterable, Optional, Tuple, Union

from ckptd import errors
from ckptd._checkpoint_info import CheckpointInfo, info_of_message
from ckptd._wire.protocol import set_duration, time_of, types

_MODES = {"min": types.MIN, "max": types.MAX}


@dataclasses.dataclass(frozen=True)
class Keep:
    """Which committed checkpoints a run keeps: those that at least one argument keeps.

        ckptd.Keep(last=3, best=2, metric="loss", every=1000)

    Checkpoints that are pinned, named by a pointer, being read or resumed from are kept besides. ``Keep()`` keeps
    all.

    Args:
        last (int, optional): the newest ones that are not damaged, at least 1. Default: 1 beside another argument
        best (int, optional): that many with the best value of ``metric``. Of equal values, the newer one is better.
            A checkpoint without the metric, or where it is NaN, is never among the best
        metric (str, optional): the metric's name, as in :meth:`Run.save`
        mode (str): ``"min"`` if the lowest value is the best, ``"max"`` if the highest is. Default: ``"min"``
        every (int, optional): those whose step is a multiple of this number
        newer_than (datetime.timedelta or float, optional): those that were committed less than this time ago; a
            number is in seconds, which count whole

    Raises:
        Refused: an argument is out of its range.
    """

    last: Optional[int] = None
    best: Optional[int] = None
    metric: Optional[str] = None
    mode: str = "min"
    every: Optional[int] = None
    newer_than: "Union[datetime.timedelta, float, None]" = None

    def __post_init__(self) -> None:
        for name in ("last", "best", "every"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise errors.invalid(f"{name} is {value!r}; it must be a whole number, at least 1, or None")
        if (self.best is None) != (not self.metric):
            raise errors.invalid(f"best is {self.best} and metric is {self.metric!r}; give both, or none of them")
        if self.mode not in _MODES:
            raise errors.invalid(f'mode is {self.mode!r}; it must be "min" or "max"')
        if self.newer_than is not None and not 1 <= _seconds(self.newer_than) < math.inf:
            raise errors.invalid(f"newer_than is {self.newer_than!r}; it must be at least 1 second, or None")


@dataclasses.dataclass(frozen=True)
class RetentionDecision:
    """The decision of retention about one committed checkpoint. From :meth:`Run.explain_retention`.

    Attributes:
        tag (str): the checkpoint.
        sequence (int): its place in the order of the run's checkpoints.
        step (int, optional): the step that it was saved with.
        kept_by (Tuple[str, ...]): what keeps it, in words: ``"last 3"``, ``"pinned"``. Empty: it is evicted by the
            next commit.
    """

    tag: str
    sequence: int
    step: Optional[int]
    kept_by: Tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class TrashedCheckpoint:
    """A checkpoint that was deleted, evicted or replaced, and can be brought back. From :meth:`Run.trash`.

    Attributes:
        checkpoint (CheckpointInfo): what it was.
        delete_time (datetime.datetime): when it was moved to the trash, in UTC.
        purge_time (datetime.datetime): when its grace period is over, in UTC. It is deleted soon after that, or
            earlier if a save needs the room.
    """

    checkpoint: CheckpointInfo
    delete_time: datetime.datetime
    purge_time: datetime.datetime


def _seconds(time: "Union[datetime.timedelta, float]") -> float:
    return time.total_seconds() if isinstance(time, datetime.timedelta) else float(time)


def best_of(checkpoints: "Iterable[CheckpointInfo]", metric: str, mode: str) -> Optional[CheckpointInfo]:
    """Returns the checkpoint with the best value of a metric by the rules of :class:`Keep`; None if none has it."""
    if mode not in _MODES:
        raise errors.invalid(f'mode is {mode!r}; it must be "min" or "max"')
    sign = 1.0 if mode == "max" else -1.0
    rated = [each for each in checkpoints if not each.damage and not each.suspect and metric in each.metrics]
    rated = [each for each in rated if not math.isnan(each.metrics[metric])]
    return max(rated, key=lambda each: (sign * each.metrics[metric], each.sequence), default=None)


def keep_of_arguments(retention: Optional[Keep], num_kept_ckpts: Optional[int]) -> Optional[Keep]:
    """Returns the policy of two arguments of which at most one may be given; None, which keeps all, if neither is."""
    if num_kept_ckpts is None:
        if retention is not None and not isinstance(retention, Keep):
            raise TypeError(f"retention is {retention!r}; it must be a ckptd.Keep")
        return retention
    if retention is not None:
        raise errors.invalid("retention and num_kept_ckpts are both given; write retention=ckptd.Keep(last=...)")
    if not isinstance(num_kept_ckpts, int):
        raise TypeError(f"num_kept_ckpts is {num_kept_ckpts!r}; it must be an int, or None to keep all checkpoints")
    if num_kept_ckpts < 1:
        raise errors.invalid(
            f"num_kept_ckpts is {num_kept_ckpts}; it must be at least 1, or None to keep all checkpoints"
        )
    return Keep(last=num_kept_ckpts)


def set_policy(request: Any, keep: Keep) -> None:
    """Sets the policy of a messages.BeginRequest. One of ``last`` alone goes into the field that every daemon knows."""
    if keep == Keep(last=keep.last, mode=keep.mode) and keep.last is not None:
        request.num_kept_ckpts = keep.last
    else:
        request.retention.CopyFrom(policy_message(keep))


def policy_message(keep: Keep) -> Any:
    """Converts to a types.RetentionPolicy."""
    policy = types.RetentionPolicy(
        best=keep.best or 0, metric=keep.metric or "", every_steps=keep.every or 0, order=_MODES[keep.mode]
    )
    if keep.last is not None:
        policy.last = keep.last
    if keep.newer_than is not None:
        set_duration(policy.newer_than, math.floor(_seconds(keep.newer_than)))
    return policy


def decision_of_message(decision: Any) -> RetentionDecision:
    """Converts a messages.RetentionDecision."""
    step = decision.step if decision.HasField("step") else None
    return RetentionDecision(decision.tag, decision.sequence, step, tuple(decision.kept_by))


def trashed_of_message(trashed: Any) -> TrashedCheckpoint:
    """Converts a messages.TrashedCheckpoint."""
    delete_time, purge_time = time_of(trashed.delete_time), time_of(trashed.purge_time)
    assert delete_time is not None and purge_time is not None  # The daemon sets both.
    return TrashedCheckpoint(info_of_message(trashed.checkpoint), delete_time, purge_time)
