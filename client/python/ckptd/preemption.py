"""Preemption: one last save between two steps, after a signal or a file says that the job is about to end.

preemption = ckptd.on_preemption(run, lambda: run.save(f"step_{step}", step=step, files=state()), grace=120)
for step in range(first, last):
    train(step)
    if preemption.check():
        break
"""

import dataclasses
import logging
import os
import signal
import threading
import time
from typing import Any, Callable, Dict, Optional, Sequence, Union

from ckptd import errors
from ckptd._checkpoint_info import CheckpointInfo
from ckptd._membership import launch
from ckptd.run import Run

__all__ = ["Preemption", "SaveOutlook", "on_preemption", "outlook"]

_log = logging.getLogger("ckptd")
_FILE_SECONDS = 1.0  # How often the file is looked for.


@dataclasses.dataclass(frozen=True)
class SaveOutlook:
    """Whether a save that begins now becomes durable in time.

    Attributes:
        left_seconds (float): the time that is left.
        needed_seconds (float, optional): within this time 9 of 10 of the run's last saves, at the size of the last one,
            were committed. None: no save of the run was yet, or the daemon did not answer.
        size_bytes (int): the size of that last one, of all ranks.
        latest (CheckpointInfo, optional): what the job resumes from if the save does not become durable.
        text (str): all of that for people, with what is lost.
    """

    left_seconds: float
    needed_seconds: Optional[float]
    size_bytes: int
    latest: Optional[CheckpointInfo]
    text: str

    @property
    def fits(self) -> Optional[bool]:
        """Whether it most likely does. None: not known."""
        return None if self.needed_seconds is None else self.needed_seconds <= self.left_seconds


def outlook(run: Run, left_seconds: float) -> SaveOutlook:
    """Asks the daemon whether a save that begins now becomes durable within a time, and what is lost if not.

    The answer is measured: from the size and the times of the run's last saves on this node.

    Args:
        run (Run): the run.
        left_seconds (float): the time until the job or the node ends.
    """
    try:
        measured, latest = run.save_outlook(), run.latest()
    except errors.CkptdError as error:
        return SaveOutlook(left_seconds, None, 0, None, f"whether a save fits is not known: {error}")
    needed = measured.durable_seconds if measured is not None else None
    size = measured.size_bytes if measured is not None else 0
    if needed is None:
        text = "whether a save fits is not known, because none of this run was committed yet"
    else:
        fits = "fits" if needed <= left_seconds else "does NOT fit"
        text = f"a save of {size / 1e9:.3g} GB needs about {needed:.2g} s, and {left_seconds:.3g} s are left: it {fits}"
    if needed is None or needed > left_seconds:
        text += f"; {_what_is_lost(latest)}"
    return SaveOutlook(left_seconds, needed, size, latest, text)


def _what_is_lost(latest: Optional[CheckpointInfo]) -> str:
    if latest is None:
        return "if the node ends before, all steps are lost; if only the job ends, the daemon still commits a sealed save"
    step = "" if latest.step is None else f" (step {latest.step})"
    age = "" if latest.time is None else f", committed {time.time() - latest.time.timestamp():.0f} s ago"
    return (
        f"if the node ends before, the steps after {latest.tag}{step}{age} are lost; if only the job ends, the daemon "
        "still commits a sealed save"
    )


def _any_rank(value: bool, group: Any) -> bool:
    """Returns on all ranks whether `value` is set on any of them."""
    distributed = launch.process_group()
    if distributed is None:
        return value
    import torch

    device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
    flag = torch.tensor([int(value)], device=device)
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX, group=group)
    return bool(flag.item())


class Preemption:
    """The state of :func:`on_preemption`; a context manager, which gives the signals back.

    Attributes:
        cause (str): what has asked for the end on this rank, such as "SIGTERM"; empty if nothing has.
        outlook (SaveOutlook, optional): what was expected of the last save when it began.
        result (Any): what ``save`` has returned.
    """

    def __init__(
        self,
        run: Run,
        save: Callable[[], Any],
        signals: Sequence[signal.Signals],
        file: "Optional[Union[str, os.PathLike[str]]]",
        grace: float,
        agree: Optional[Callable[[bool], bool]],
        group: Any,
    ) -> None:
        if signals and threading.current_thread() is not threading.main_thread():
            raise errors.Refused(
                "on_preemption(signals=...) was called outside of the main thread, where Python lets no signal be "
                "handled; call it on the main thread, or pass signals=() and file=",
                reason="INVALID_ARGUMENT",
            )
        if agree is None and run.world_size > 1 and launch.process_group() is None:
            raise errors.Refused(
                f"on_preemption needs a way for the {run.world_size} ranks to agree on the step of the last save; "
                "initialise torch.distributed before, or pass agree=",
                reason="INVALID_ARGUMENT",
            )
        self.cause = ""
        self.outlook: Optional[SaveOutlook] = None
        self.result: Any = None
        self._run, self._save, self._grace = run, save, grace
        self._agree = agree or (lambda value: _any_rank(value, group))
        self._file = None if file is None else os.fspath(file)
        self._next_look = 0.0
        self._requested_at: Optional[float] = None
        self._is_over = False
        self._earlier: Dict[signal.Signals, Any] = {}
        for number in signals:
            self._earlier[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: Any) -> None:
        # Between any two instructions of the main thread, perhaps within an optimizer's step: only take a note.
        self._request(signal.Signals(number).name)

    def _request(self, cause: str) -> None:
        if self._requested_at is None:
            self.cause, self._requested_at = cause, time.monotonic()

    @property
    def requested(self) -> bool:
        """Whether this rank was asked to end. Others may not have been: :meth:`check` agrees with them."""
        if self._requested_at is None and self._file is not None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _FILE_SECONDS
            if os.path.exists(self._file):
                self._request(f"the file {self._file}")
        return self._requested_at is not None

    @property
    def left_seconds(self) -> float:
        """What is left of the grace period, at least 0. Another rank's request counts from when this one hears of it."""
        since = time.monotonic() if self._requested_at is None else self._requested_at
        return max(0.0, since + self._grace - time.monotonic())

    def check(self) -> bool:
        """Returns whether the job should end now. Call it on all ranks alike, between two steps.

        It is the point at which the state is whole: after a request it calls ``save`` here, once, on this thread, and
        waits until the save is durable or the grace period is over. From then on it returns True without doing anything.

        With several ranks each call is a collective of the process group (one number), so that all ranks save the
        same step.

        Raises:
            CkptdError: the save has failed.
        """
        if self._is_over:
            return True
        if not self._agree(self.requested):
            return False
        self._is_over = True
        self._request("another rank")
        self.outlook = outlook(self._run, self.left_seconds)
        level = logging.INFO if self.outlook.fits or self._run.rank != 0 else logging.WARNING
        _log.log(level, "ckptd: %s asks the job to end: the last save begins; %s", self.cause, self.outlook.text)
        self.result = self._save()
        wait = getattr(self.result, "wait", None)
        if wait is None:
            return True
        try:
            wait(timeout=max(0.1, self.left_seconds))
        except errors.WaitTimeout as error:
            _log.warning(
                "ckptd: the last save is not durable within the %g s of grace: %s; %s",
                self._grace,
                error,
                _what_is_lost(self.outlook.latest),
            )
        return True

    def close(self) -> None:
        """Gives the signals back to their earlier handlers."""
        while self._earlier:
            number, handler = self._earlier.popitem()
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def __enter__(self) -> "Preemption":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def on_preemption(
    run: Run,
    save: Callable[[], Any],
    *,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGUSR1),
    file: "Optional[Union[str, os.PathLike[str]]]" = None,
    grace: float = 30.0,
    agree: Optional[Callable[[bool], bool]] = None,
    group: Any = None,
) -> Preemption:
    """Prepares one last save for the case that the job is told to end. Call :meth:`Preemption.check` between steps.

    A signal is only noted; ``save`` runs within the next ``check()``, never in the middle of a step. So one step has
    to be shorter than ``grace``. Signals that come again change nothing.

    Args:
        run (Run): the run that is saved.
        save (callable): begins the save, of the present step, and returns the :class:`Save`; or saves by itself.
        signals (Sequence[signal.Signals]): those that ask for the end, on this rank. Their earlier handlers do not run.
            Default: SIGTERM (Kubernetes, spot instances, ``scancel``) and SIGUSR1 (``sbatch --signal=USR1@120``)
        file (str or os.PathLike, optional): a file whose existence asks for it, too, looked for once a second
        grace (float): seconds from the request until the process is killed: Kubernetes'
            ``terminationGracePeriodSeconds``, Slurm's ``KillWait`` or the time in ``--signal``. Default: 30
        agree (callable, optional): returns on all ranks whether its argument is true on any of them. Default: an
            ``all_reduce`` of the process group; with NCCL that waits for the GPU, so pass a ``group`` of gloo
        group (torch.distributed.ProcessGroup, optional): for that. Default: the default group

    Raises:
        Refused: several ranks cannot agree, or this is not the main thread.
    """
    errors.check_seconds(grace=grace)
    return Preemption(run, save, signals, file, grace, agree, group)
