"""What this rank had sealed with a daemon that has ended, and that was not committed: the next daemon gets it from
the segments that are still mapped here.

For the daemon it is a save that was begun with it. First it is asked: it may have the save on disk, in its
history, or from its predecessor.
"""

import logging
import threading
from typing import TYPE_CHECKING, Any, Iterable, List, Optional

from ckptd import errors
from ckptd._follower import LOST_SECONDS
from ckptd._session import Session, is_transient
from ckptd._wire import messages, set_duration, types

if TYPE_CHECKING:
    from ckptd._saving import Joined, Part

_log = logging.getLogger("ckptd")

_RPC_SECONDS = 30.0
_LOOK_SECONDS = 1.0  # Between two looks at a session that may have ended unheard.


class Offers:
    """Those of one run, in the order in which the saves were begun, by a thread that is there while there are any.
    Thread-safe.
    """

    def __init__(self) -> None:  # Without the run, which has us: it is let go when nobody refers to it.
        self._changed = threading.Condition()
        self._pending: "List[Part]" = []
        self._away = False  # No daemon takes them just now.
        self._thread: Optional[threading.Thread] = None

    def add(self, saves: "Iterable[Part]") -> None:
        """Those that are here already stay as they are."""
        with self._changed:
            new = [save for save in saves if save not in self._pending]
            if not new:
                return
            self._pending = sorted(self._pending + new, key=lambda save: save._number)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ckptd-offers", daemon=True)
                self._thread.start()

    def await_earlier(self, number: int, session: Session) -> None:
        """Until a save may be begun without overtaking an earlier one of this rank. They have deadlines, each.
        Unavailable when no daemon takes them: then it would not take the save either.
        """
        with self._changed:
            while any(save._number < number for save in self._pending):
                if self._away or not session.alive():
                    raise errors.Unavailable(
                        "earlier saves of this rank wait for a daemon, too", reason="UNAVAILABLE"
                    )
                self._changed.wait(_LOOK_SECONDS)

    # ---- the thread

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._pending:
                    self._thread = None
                    return
                save = self._pending[0]
            if self._bring(save):
                with self._changed:
                    self._pending.remove(save)
                    self._changed.notify_all()
                save._run._sessions.follower.wake()

    def _bring(self, save: "Part") -> bool:
        """Returns when a daemon has it, or it is over; false when it is another one's turn."""
        sessions = save._run._sessions
        try:
            return sessions.repeat(lambda: self._try(save), LOST_SECONDS)
        except Exception as error:  # Whatever it is: those that wait for their turn must get it.
            if not sessions.closed.is_set() and not save._over():
                save._lose(str(error))
            return True

    def _try(self, save: "Part") -> bool:
        try:
            joined = save._run._joined()
            self._say_away(False)
            with self._changed:
                if self._pending[0] is not save:  # The daemon that had an earlier one has ended since, too.
                    return False
            self._bring_to(joined, save)
            return True
        except errors.CkptdError as error:
            if is_transient(error):
                self._say_away(True)
            raise

    def _say_away(self, away: bool) -> None:
        with self._changed:
            self._away = away
            self._changed.notify_all()

    def _bring_to(self, joined: "Joined", save: "Part") -> None:
        instance = joined.session.daemon_instance
        if save._over() or save._home == instance:
            return
        known = _known(joined, save)
        if known is not None and known.level >= types.STAGED:  # Then the follower hears the rest.
            save._home = instance
            return
        why = self._refusal(joined, save, known is None)
        if why is not None:
            return self._report_lost(joined, save, why)
        try:
            save._offer(joined)
        except errors.CkptdError as error:
            if isinstance(error, errors.Unavailable):  # No answer is not a no: it may be sealed.
                raise
            self._end(joined, save, error)
        except Exception as error:  # Of the machine: no memory, no descriptors.
            self._end(joined, save, error)

    def _refusal(self, joined: "Joined", save: "Part", unknown: bool) -> Optional[errors.CkptdError]:
        """Why a save is not offered. unknown: no other rank has offered it, so that it would get a new sequence."""
        if joined.attempt != save._attempt:
            return _lost(save, f"this process is of attempt {joined.attempt} now")
        if not save._may_be_offered():
            return _lost(save, "its memory is not there any more")
        if unknown and self._overtaken(joined, save):
            return _lost(save, "a newer one is there already, and would not be the latest any more")
        return None

    def _overtaken(self, joined: "Joined", save: "Part") -> bool:
        """Whether it would become newer than what was begun after it."""
        if _latest_sequence(joined) > save.sequence:
            return True
        with self._changed:
            later = [other for other in self._pending if other._number > save._number]
        found = [_known(joined, other) for other in later]
        return any(one is not None and types.STAGED <= one.level < types.FAILED for one in found)

    def _report_lost(self, joined: "Joined", save: "Part", why: errors.CkptdError) -> None:
        """To the other ranks, too, who may offer their parts."""
        if joined.attempt == save._attempt:
            save._run._join(joined.session, [save], _RPC_SECONDS)
        save._run._give_to(joined.session, [save])
        save._fail_offer(why)

    def _end(self, joined: "Joined", save: "Part", why: Exception) -> None:
        if save._over():
            return
        try:
            save._tell_abort(joined, str(why))  # No more than a courtesy where the daemon has ended it.
        except errors.CkptdError as error:
            _log.debug("ckptd: aborting the offer of %s: %s", save.tag, error)
        save._fail_offer(why)


def _lost(save: "Part", why: str) -> errors.CkptdError:
    return errors.CheckpointFailed(
        f"the daemon ended before the save of {save.tag} was committed, and the next one cannot have it: {why}; save again",
        reason="STAGED_LOST",
        tag=save.tag,
        ranks=[save._run.rank],
    )


def _known(joined: "Joined", save: "Part") -> Any:
    """What the daemon knows of it, at once; None when it is not known there."""
    # Without a sequence: with one a daemon calls lost what it does not know.
    request = messages.WaitRequest(key=save._key, level=types.COMMITTED, attempt=save._attempt)
    set_duration(request.timeout, 0.0)
    try:
        return joined.session.call(joined.session.checkpoints.Wait, request, _RPC_SECONDS).checkpoint
    except errors.NotFound as error:
        if error.reason != "UNKNOWN_SAVE":
            raise
        return None


def _latest_sequence(joined: "Joined") -> int:
    """Of the newest committed checkpoint; 0 when there is none."""
    request = messages.GetCheckpointRequest(name=f"{joined.run}/checkpoints/latest")
    try:
        return int(
            joined.session.call(joined.session.checkpoints.GetCheckpoint, request, _RPC_SECONDS).sequence
        )
    except errors.NotFound as error:
        if error.reason != "NO_CHECKPOINT":
            raise
        return 0
