"""The state of one save of this rank: its key, its level and its end; and waiting for them."""

import concurrent.futures
import logging
import threading
import time
from typing import Any, List, Optional, Tuple

from ckptd import errors
from ckptd._membership.membership import Joined, Membership
from ckptd._memory.copies import Copies
from ckptd._progress_bar import Progress, progress_bar
from ckptd._wire.protocol import LEVELS_TO_WAIT_FOR, level_name, messages, set_duration, types
from ckptd._wire.status import error_of_save

_log = logging.getLogger("ckptd")

_PROGRESS_SECONDS = 0.5  # Between two updates of the progress.
_QUERY_SECONDS = 5.0  # A query must not take long.
_UPLOAD_SECONDS = 30.0  # The daemon holds a call that waits for an upload this long.
# Failures that mean the same whether a save fails with the daemon that it was sealed with or with the next
# one.
_NOT_LOST = ("STAGED_LOST", "FENCED", "FILE_CONFLICT", "SAVE_ABORTED")


class SaveState:
    """The state of one save. Thread-safe.

    The upload that fills the part, the save watcher and the save recovery advance it; Save and Part show it
    to users.
    """

    def __init__(self, membership: Membership, tag: str, joined: Joined, ranks: Tuple[int, ...] = ()) -> None:
        """ranks: those that contribute; empty for all."""
        self.membership = membership
        self.tag = tag
        self.number = membership.next_number()
        self.attempt = joined.attempt
        self.key = types.SaveKey(
            run=joined.run,
            rank=membership.rank,
            tag=tag,
            ordinal=membership.next_ordinal(tag, joined.attempt, ranks),
        )
        self.sequence = 0
        self.transport = ""
        self.stall_seconds = 0.0
        self.copy_seconds = 0.0
        self.daemon_instance = ""  # The daemon that has the save since it was sealed.
        # It was begun again with another daemon than the one with which it was sealed.
        self.is_recovered = False
        self.copies: List[Copies] = []  # From devices, which go on after the call of a save with stage="overlap".
        # Its users enter its lock and not the condition: _session/interrupts.py says why.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._level: int = types.OPEN
        self._failure: Any = None  # The last types.Checkpoint of a save that did not become a checkpoint.
        self._unknown_reason = ""  # Why the end of the save cannot be known; empty while it can.
        self._has_announced_end = False
        self._num_waiting = 0
        self._futures: List[Tuple[int, "concurrent.futures.Future[Any]", Any]] = []

    # ---- for users

    @property
    def level(self) -> int:
        """The types.Level that was known last."""
        return self._level

    @property
    def level_name(self) -> str:
        return level_name(self._level)

    def wait(self, level: str, timeout: Optional[float], progress: Progress) -> None:
        """Blocks until a level is reached, see Save.wait()."""
        seconds = self.membership.commit_timeout if timeout is None else timeout
        if level == "uploaded":
            deadline = time.monotonic() + max(0.0, seconds)
            self.wait("committed", seconds, progress)
            return self._wait_for_upload(deadline, seconds)
        wanted = _level_to_wait_for(level)
        if not self.has_ended():
            self.membership.connection.check_usable()
        with self._lock:
            self._num_waiting += 1
        try:
            self._wait_until(wanted, time.monotonic() + max(0.0, seconds), progress)
        finally:
            with self._lock:
                self._num_waiting -= 1
        with self._lock:
            error = self._error(wanted)
            if error is not None:
                raise error
            if self._level >= wanted:
                return
        now = self._query_or_none()
        missing = [] if now is None else list(now.missing_ranks)
        away = str(self.membership.connection.outage)
        if away:
            raise errors.WaitTimeout(
                f"the save of {self.tag} was {self.level_name} and not {level} after {seconds:g} s, and {away}; it cannot go "
                "on before a daemon answers: start it again (systemctl status ckptd), then wait again",
                reason="WAIT_TIMEOUT",
                tag=self.tag,
            )
        ranks = f", and ranks {', '.join(map(str, missing))} have not sealed their parts" if missing else ""
        raise errors.WaitTimeout(
            f"the save of {self.tag} is {self.level_name} and not {level} after {seconds:g} s{ranks}; it goes on: wait "
            "again, or longer",
            reason="WAIT_TIMEOUT",
            tag=self.tag,
            ranks=missing,
        )

    def _wait_for_upload(self, deadline: float, seconds: float) -> None:
        """Blocks until the committed checkpoint is in the bucket."""
        while True:
            left = max(0.0, deadline - time.monotonic())
            request = messages.WaitRequest(
                key=self.key, level=types.UPLOADED, attempt=self.attempt, sequence=self.sequence
            )
            set_duration(request.timeout, min(left, _UPLOAD_SECONDS))

            def call(joined: Joined) -> Any:
                return joined.session.call(
                    joined.session.checkpoints.Wait, request, request.timeout.ToSeconds() + _QUERY_SECONDS
                )

            checkpoint = self.membership.ask(call, left + _QUERY_SECONDS).checkpoint
            if checkpoint.level == types.UPLOADED:
                return
            if time.monotonic() >= deadline:
                why = checkpoint.upload.error.message
                raise errors.WaitTimeout(
                    f"{self.tag} is committed and not uploaded after {seconds:g} s"
                    f"{f'; the last try: {why}' if why else ''}; the upload goes on: wait again, or longer",
                    reason="WAIT_TIMEOUT",
                    tag=self.tag,
                )

    def _wait_until(self, wanted: int, deadline: float, progress: Progress) -> None:
        def reached() -> bool:
            return self.has_ended() or self._level >= wanted

        now = self._query_or_none() if progress else None
        if now is None:
            with self._lock:
                self._changed.wait_for(reached, deadline - time.monotonic())
            return
        with progress_bar(progress, self.tag, now.size_bytes) as show:
            while True:
                show(now.written_bytes)
                with self._lock:
                    if self._changed.wait_for(reached, min(_PROGRESS_SECONDS, deadline - time.monotonic())):
                        break
                if time.monotonic() >= deadline:
                    return
                now = self._query_or_none() or now
            if self._level == types.COMMITTED:
                show(now.size_bytes)

    def future(self, level: str, result: Any) -> "concurrent.futures.Future[Any]":
        """Returns a future that gets `result` when a level is reached, or the error of wait()."""
        wanted = _level_to_wait_for(level)
        if not self.has_ended():
            self.membership.connection.check_usable()
        future: "concurrent.futures.Future[Any]" = concurrent.futures.Future()
        with self._lock:
            self._futures.append((wanted, future, result))
        self._settle_futures()
        return future

    # ---- queries

    def query(self, joined: Joined) -> Any:
        """Returns the daemon's types.Checkpoint of the save at this moment."""
        request = messages.WaitRequest(
            key=self.key, level=types.COMMITTED, attempt=self.attempt, sequence=self.sequence
        )
        set_duration(request.timeout, 0.0)
        return joined.session.call(joined.session.checkpoints.Wait, request, _QUERY_SECONDS).checkpoint

    def _query_or_none(self) -> Any:
        """Returns the answer to query(), or None if no daemon answers or knows the save."""
        try:
            return self.query(self.membership.joined(_QUERY_SECONDS))
        except errors.CkptdError:
            return None

    def has_ended(self) -> bool:
        """Returns whether the save is committed, has failed, or has an end that cannot be known any more."""
        return self._level >= types.COMMITTED or bool(self._unknown_reason)

    def _error(self, wanted: int) -> Optional[errors.CkptdError]:
        """Returns why `wanted` will not be reached, or None.

        A new exception each time: each is raised separately.
        """
        if self._level >= types.FAILED:
            return error_of_save(self._failure)
        if self._unknown_reason and self._level < wanted:
            return errors.Unavailable(
                f"whether {self.tag} was committed is not known: {self._unknown_reason}; look at run.latest() when a "
                "daemon is there",
                reason="UNAVAILABLE",
                tag=self.tag,
            )
        return None

    # ---- changes

    def advance_to(self, level: int) -> None:
        """Raises the level: this rank's part has just been sealed."""
        with self._lock:
            self._level = max(self._level, level)
            self._changed.notify_all()
        self._settle_futures()

    def update(self, checkpoint: Any) -> bool:
        """Takes over what a daemon says of the save. Returns whether the save has ended."""
        if self.is_recovered:
            checkpoint = _lost_in_recovery(checkpoint)
        with self._lock:
            # An end that the daemon tells stands: an abort of this rank may have come after the commit.
            self._level = checkpoint.level if checkpoint.level >= types.COMMITTED else max(self._level, checkpoint.level)
            if checkpoint.level >= types.FAILED:
                self._failure = checkpoint
        return self._announce()

    def end_as_unknown(self, why: str, expected: bool = False) -> None:
        """Ends the save with an unknown result. expected: do not log it, because the user closed the client."""
        with self._lock:
            self._unknown_reason = why
        self._announce(quiet=expected)

    def end_as_aborted(self, why: str) -> None:
        """Ends a save that this rank has aborted. No-op if it has ended already."""
        with self._lock:
            if self._level < types.COMMITTED:
                self._level = types.FAILED
                self._failure = types.Checkpoint(tag=self.tag, level=types.FAILED, sequence=self.sequence)
                self._failure.error.reason, self._failure.error.message = "SAVE_ABORTED", why
                self._failure.error.ranks.append(self.membership.rank)
            self._changed.notify_all()
        self._settle_futures()

    def _announce(self, quiet: bool = False) -> bool:
        """Wakes the waiters; logs a failure that has none. Returns whether the save has ended."""
        with self._lock:
            ended, error = self.has_ended(), self._error(types.COMMITTED)
            is_awaited = self._num_waiting > 0 or bool(self._futures) or self._level == types.SKIPPED
            is_first, self._has_announced_end = ended and not self._has_announced_end, ended
            self._changed.notify_all()
        if is_first and error is not None and not quiet:
            if not isinstance(error, errors.Skipped):
                self.membership.add_failure(error)
            if not is_awaited:
                _log.warning("ckptd: %s", error)
        self._settle_futures()
        return ended

    def _settle_futures(self) -> None:
        with self._lock:
            due = [(f, self._error(w), r) for w, f, r in self._futures if self.has_ended() or self._level >= w]
            done = {id(future) for future, _, _ in due}
            self._futures = [entry for entry in self._futures if id(entry[1]) not in done]
        for future, error, result in due:  # Without the lock: a future runs its callbacks here, and they may call us.
            if not future.set_running_or_notify_cancel():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)


def _level_to_wait_for(level: str) -> int:
    if level not in LEVELS_TO_WAIT_FOR:
        raise ValueError(f'level is "{level}"; it must be "staged", "sealed" or "committed"')
    return LEVELS_TO_WAIT_FOR[level]


def _lost_in_recovery(checkpoint: Any) -> Any:
    """Returns how a recovered save ended: as STAGED_LOST where its second upload failed or was skipped."""
    error = checkpoint.error
    if checkpoint.level not in (types.FAILED, types.SKIPPED) or error.reason in _NOT_LOST:
        return checkpoint
    lost = types.Checkpoint()
    lost.CopyFrom(checkpoint)
    lost.level, lost.error.reason = types.FAILED, "STAGED_LOST"
    lost.error.message = (
        "the daemon ended before the save was committed, and offering it to the next daemon ended with "
        f"{error.reason}: {error.message}; save again"
    )
    return lost
