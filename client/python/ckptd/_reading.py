"""What a reader tells the daemon: damage, and, where every rank resumes from one checkpoint, how its own reading went."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING, Any, Callable, Optional

import grpc

from ckptd import errors
from ckptd._wire import messages, set_duration, types

if TYPE_CHECKING:
    from ckptd._session import Session
    from ckptd.run import CheckpointInfo, Run

_log = logging.getLogger("ckptd")
_RPC_SECONDS = 30.0
_TELL_SECONDS = 1.0
_TOLD_SECONDS = 1.0  # An answer that takes longer is not waited for.
_RECONNECT_SECONDS = 60.0  # For a daemon that restarts; the other ranks may take longer.
_MOST_TEXT, _MOST_VALUE = 1000, 100  # Bytes, as ckptd.v1.Damage has them.


class Reading:
    """Of a checkpoint that one rank reads for itself, from Run.open()."""

    def __init__(self, run: Run, info: CheckpointInfo) -> None:
        self._run = run
        self._info = info
        self.fault: Optional[errors.Corrupt] = None  # The first that was found.

    def found(self, fault: errors.Corrupt) -> None:
        """The checkpoint is not what was saved: the daemon remembers it, and offers an older one."""
        if self.fault is not None:
            return
        self.fault = fault
        try:
            self._tell(damage_of(fault))
        except errors.CkptdError as error:
            _log.warning(
                "ckptd: that %s is damaged could not be reported (%s): %s", self._info.tag, error, fault
            )

    def finish(self) -> None:
        """The reading is over. Raises what it found, also where the caller has gone on."""
        if self.fault is not None:
            raise self.fault

    def fail(self, why: str) -> None:
        """The rank could not go on, because of something else than damage."""

    def _tell(self, damage: Any) -> None:
        def ask() -> None:
            joined = self._run._joined()
            request = messages.ReportDamageRequest(
                name=f"{joined.run}/checkpoints/{self._info.tag}", sequence=self._info.sequence, damage=damage
            )
            joined.session.call(joined.session.checkpoints.ReportDamage, request, _RPC_SECONDS)

        self._run._sessions.repeat(ask, _RPC_SECONDS)


class Telling:
    """Tells the daemon, for those who watch, how far the reading of a checkpoint has come: once a second, and at its
    end where it has told anything.
    """

    def __init__(self, session: Session, lease: str) -> None:
        self._session = session
        self._lease = lease
        self._files_done = self._total = self._told = 0
        self._next = time.monotonic() + _TELL_SECONDS
        self._telling: Any = None  # The call under way: one at a time, else a later one could overtake it.

    def begin(self, size: int) -> "Callable[[int], None]":
        """Of a file: the function is to be called with the bytes of it that have been read, now and then."""
        before = self._files_done
        self._total += size

        def tell(done: int) -> None:
            self._files_done = before + min(done, size)
            if time.monotonic() >= self._next:
                self._tell()

        return tell

    def finish(self) -> None:
        """Before the lease is given back: nobody can be told afterwards."""
        if self._telling is None:
            return
        self._hear()
        if self._told < self._files_done:
            self._tell()
            self._hear()

    def _hear(self) -> None:
        """Until the call has ended, at the latest at its deadline; how is the same to the reader."""
        with contextlib.suppress(grpc.FutureCancelledError):
            self._telling.exception()

    def _tell(self) -> None:
        if self._telling is not None and not self._telling.done():
            return
        self._next = time.monotonic() + _TELL_SECONDS
        self._told = self._files_done
        request = messages.ReportReadingRequest(
            lease=self._lease, read_bytes=min(self._files_done, self._total), total_bytes=self._total
        )
        try:  # Nobody waits for the answer.
            self._telling = self._session.start(
                self._session.checkpoints.ReportReading, request, _TOLD_SECONDS
            )
        except errors.CkptdError:
            self._next = math.inf


class Resuming(Reading):
    """Of the checkpoint that every rank of the attempt resumes from."""

    def __init__(self, run: Run, info: CheckpointInfo, timeout: float) -> None:
        super().__init__(run, info)
        self._timeout = timeout

    def finish(self) -> None:
        """Waits until every rank has read its part. Corrupt when one of them found damage, CheckpointFailed
        when one could not go on, WaitTimeout with the ranks that are missing.
        """
        super().finish()
        self._say(self._timeout)

    def fail(self, why: str) -> None:
        if self.fault is not None:
            return  # They have heard of that.
        try:
            self._say(_RPC_SECONDS, failure=_cut(why, _MOST_TEXT))
        except errors.CkptdError as error:
            _log.debug("ckptd: the other ranks do not hear why this one does not resume: %s", error)

    def _tell(self, damage: Any) -> None:
        self._say(_RPC_SECONDS, damage=damage)

    def _say(self, timeout: float, **outcome: Any) -> None:
        def ask() -> None:
            joined = self._run._joined()
            request = messages.FinishResumeRequest(
                run=joined.run, rank=self._run.rank, sequence=self._info.sequence, **outcome
            )
            set_duration(request.timeout, timeout)
            joined.session.call(joined.session.checkpoints.FinishResume, request, timeout + 10.0)

        self._run._sessions.repeat(ask, min(timeout, _RECONNECT_SECONDS))


def damage_of(fault: errors.Corrupt) -> Any:
    """What the daemon is told of it."""
    details = fault.details
    damage = types.Damage(
        path=_cut(str(details.get("path", "")), _MOST_TEXT),
        expected=_value(details.get("expected")),
        found=_value(details.get("found")),
        message=_cut(str(fault), _MOST_TEXT),
    )
    if "chunk" in details:
        damage.chunk = int(details["chunk"])
    return damage


def _value(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:#010x}" if isinstance(value, int) else _cut(str(value), _MOST_VALUE)


def _cut(text: str, most: int) -> str:
    return text.encode(errors="replace")[:most].decode(errors="ignore")
