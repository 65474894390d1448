"""Save recovery: after a daemon has ended, this rank offers the next one the saves that were sealed but not
committed.

Their bytes lie in segments that are still mapped here. For the next daemon a recovered save is one that was
begun with it. It is asked first whether it has the save: on disk, in its history, or from its predecessor.
"""

import logging
import threading
import time
from typing import Any, Callable, Iterable, List, Optional

from ckptd import errors
from ckptd._membership.membership import RPC_SECONDS, Joined
from ckptd._saving.save_watcher import GIVE_UP_SECONDS
from ckptd._saving.upload import PartUpload
from ckptd._session.session import Session, is_transient
from ckptd._wire.protocol import messages, set_duration, types

_log = logging.getLogger("ckptd")

# A daemon of several nodes refuses the Begin before it looks for the save, whose files may be durable on all nodes. The
# coordinator publishes it then, before the newer launch resumes.
_FENCED_WHY = (
    "its daemon has ended, and a newer launch of the job has begun or resumed since, so this process must end; if the files "
    "of all nodes were durable, the save becomes a checkpoint (look with list())"
)
_SESSION_CHECK_SECONDS = 1.0  # A session may end without waking the threads that wait.


class SaveRecovery:
    """Recovers the saves of one run, in the order in which they were begun. Thread-safe.

    A thread does the work; it exists while there are saves to recover. There is no reference to the run,
    which refers to this object: so both go when nothing else refers to the run.
    """

    def __init__(self, on_progress: Callable[[], None]) -> None:
        """on_progress: called by the recovery's thread each time a daemon has got a save, or the save has
        ended.
        """
        self._on_progress = on_progress
        # Its users enter its lock and not the condition: _session/interrupts.py says why.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pending: List[PartUpload] = []
        self._is_daemon_away = False
        self._thread: Optional[threading.Thread] = None

    def add(self, saves: "Iterable[PartUpload]") -> None:
        """Queues saves that the present daemon may not have.

        Those that are queued already stay in their place.
        """
        with self._lock:
            new = [save for save in saves if save not in self._pending]
            if not new:
                return
            self._pending = sorted(self._pending + new, key=lambda save: save.number)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ckptd-save-recovery", daemon=True)
                self._thread.start()

    def await_earlier(self, number: int, session: Session, timeout: float) -> None:
        """Blocks until a save with this number may begin without overtaking an earlier one of this rank.

        Raises:
            errors.Unavailable: no daemon takes the earlier ones, so it would not take this one either; or it has not
                taken them after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        with self._lock:
            while any(save.number < number for save in self._pending):
                if self._is_daemon_away or not session.alive():
                    raise errors.Unavailable(
                        "earlier saves of this rank are waiting for a daemon, too", reason="UNAVAILABLE"
                    )
                left = deadline - time.monotonic()
                if left <= 0:
                    raise errors.Unavailable(
                        f"the daemon has not taken the earlier saves of this rank after {timeout:.3g} s",
                        reason="UNAVAILABLE",
                    )
                self._changed.wait(min(left, _SESSION_CHECK_SECONDS))

    # ---- the thread

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._pending:
                    self._thread = None
                    return
                save = self._pending[0]
            if self._recover(save):
                with self._lock:
                    self._pending.remove(save)
                    self._changed.notify_all()
                self._on_progress()

    def _recover(self, save: PartUpload) -> bool:
        """Returns True when a daemon has the save or the save has ended; False when an earlier save comes
        first.
        """
        connection = save.membership.connection
        try:
            return connection.repeat(lambda: self._try(save), GIVE_UP_SECONDS)
        except Exception as error:  # Whatever it is, the saves behind this one must get their turn.
            if not connection.closed.is_set() and not save.has_ended():
                save.end_as_unknown(str(error))
            return True

    def _try(self, save: PartUpload) -> bool:
        try:
            joined = save.membership.joined()
            self._set_daemon_away(False)
            with self._lock:
                if self._pending[0] is not save:  # The daemon that had taken an earlier save has ended since.
                    return False
            self._recover_with(joined, save)
            return True
        except errors.CkptdError as error:
            if is_transient(error):
                self._set_daemon_away(True)
            raise

    def _set_daemon_away(self, is_away: bool) -> None:
        with self._lock:
            self._is_daemon_away = is_away
            self._changed.notify_all()

    def _recover_with(self, joined: Joined, save: PartUpload) -> None:
        instance = joined.session.daemon_instance
        if save.has_ended() or save.daemon_instance == instance:
            return
        known = _find(joined, save)
        # The daemon has it; the watcher is told the rest.
        if known is not None and known.level >= types.STAGED:
            save.assign_to(instance)
            return
        why = self._why_not(joined, save, is_unknown=known is None)
        if why is not None:
            return self._report_lost(joined, save, why)
        try:
            save.upload_again(joined)
        except errors.CkptdError as error:
            # No answer is not a refusal: the part may be sealed there.
            if isinstance(error, errors.Unavailable):
                raise
            if isinstance(error, errors.Fenced) and save.membership.launch.local_world_size:
                return save.end_as_unknown(_FENCED_WHY)
            self._give_up(joined, save, error)
        except Exception as error:  # This machine's fault, such as too little memory or too few descriptors.
            self._give_up(joined, save, error)

    def _why_not(self, joined: Joined, save: PartUpload, is_unknown: bool) -> Optional[errors.CkptdError]:
        """Returns why a save must not be offered, or None.

        is_unknown: no other rank has offered it yet, so the daemon would give it a new sequence.
        """
        if joined.attempt != save.attempt:
            return _lost(save, f"this process is of attempt {joined.attempt} now")
        if not save.is_recoverable():
            return _lost(save, "its memory has been given back or lent again")
        if is_unknown and self._would_overtake(joined, save):
            return _lost(save, "a newer checkpoint is there already, which would no longer be the latest one")
        return None

    def _would_overtake(self, joined: Joined, save: PartUpload) -> bool:
        """Returns whether a new sequence would make the save newer than what was begun after it."""
        if _latest_sequence(joined) > save.sequence:
            return True
        with self._lock:
            later = [other for other in self._pending if other.number > save.number]
        found = [_find(joined, other) for other in later]
        return any(one is not None and types.STAGED <= one.level < types.FAILED for one in found)

    def _report_lost(self, joined: Joined, save: PartUpload, why: errors.CkptdError) -> None:
        save.membership.report_orphaned(joined, save)  # The other ranks may be about to offer their parts.
        save.fail_recovery(why)

    def _give_up(self, joined: Joined, save: PartUpload, why: Exception) -> None:
        if save.has_ended():
            return
        try:
            save.send_abort(joined, str(why))  # Best effort: the daemon may have ended the save itself.
        except errors.CkptdError as error:
            _log.debug("ckptd: aborting the recovery of %s: %s", save.tag, error)
        save.fail_recovery(why)


def _lost(save: PartUpload, why: str) -> errors.CkptdError:
    return errors.CheckpointFailed(
        f"the daemon ended before the save of {save.tag} was committed, and it cannot be offered to the next one: {why}; "
        "save again",
        reason="STAGED_LOST",
        tag=save.tag,
        ranks=[save.membership.rank],
    )


def _find(joined: Joined, save: PartUpload) -> Any:
    """Returns what the daemon knows of a save, or None if it does not know it. Does not wait for the save."""
    # Without a sequence: given one, a daemon answers that a save it does not know is lost.
    request = messages.WaitRequest(key=save.key, level=types.COMMITTED, attempt=save.attempt)
    set_duration(request.timeout, 0.0)
    try:
        return joined.session.call(joined.session.checkpoints.Wait, request, RPC_SECONDS).checkpoint
    except errors.NotFound as error:
        if error.reason != "UNKNOWN_SAVE":
            raise
        return None


def _latest_sequence(joined: Joined) -> int:
    """Returns the sequence of the newest committed checkpoint; 0 if there is none."""
    request = messages.GetCheckpointRequest(name=f"{joined.run}/checkpoints/latest")
    try:
        latest = joined.session.call(joined.session.checkpoints.GetCheckpoint, request, RPC_SECONDS)
        return int(latest.sequence)
    except errors.NotFound as error:
        if error.reason != "NO_CHECKPOINT":
            raise
        return 0
