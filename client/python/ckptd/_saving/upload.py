"""The upload of one rank's part: Begin, copy, Seal; and once more to the next daemon if the first one ends."""

import logging
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar

from ckptd import errors
from ckptd._membership.membership import RPC_SECONDS, Joined, Membership
from ckptd._membership.unended_save import UnendedSave
from ckptd._memory.copies import finish_all
from ckptd._memory.image import Memory, PiecesImage
from ckptd._saving import finite
from ckptd._saving.finite import NonFiniteTensor
from ckptd._saving.layout import Layout, names_and_sizes
from ckptd._saving.part_files import PartFile, PartRoom, check_places, part_file
from ckptd._saving.save_options import SaveOptions
from ckptd._saving.save_state import SaveState
from ckptd._saving.wait_budget import WaitBudget
from ckptd._session.interrupts import uninterrupted
from ckptd._session.segments import SealedBytes
from ckptd._session.session import Session, is_transient, segments_of
from ckptd._wire.protocol import messages, set_duration, types
from ckptd._wire.status import error_of_save
from ckptd.retention import set_policy

_log = logging.getLogger("ckptd")
_Answer = TypeVar("_Answer")

_ABORT_SECONDS = 5.0
_ABORT_PAUSE_SECONDS = 0.01
# A call of a save ends this much after its timeout, at the latest: a daemon that has not answered then is hung.
_SILENCE_SECONDS = 1.0
_SHORTEST_CALL_SECONDS = 0.2
# The daemon is asked to refuse the save this much before the timeout, or a tenth of it if that is less: its answer says
# what the save waited for.
_EARLY_SECONDS = 1.0
_LEAST_ADMISSION_SECONDS = 0.001  # The daemon refuses 0.
_RECOVERY_SILENCE_SECONDS = 5.0  # In the place of _SILENCE_SECONDS where no trainer waits.
# How long a recovered save waits to be admitted, at least, unless the run's commit_timeout is shorter: the
# other ranks have to notice the new daemon, too.
_RECOVERY_ADMISSION_SECONDS = 30.0
_BUSY_POLICY_ERRORS = (errors.Skipped, errors.Superseded)
_WRITE_FILE_BYTES = 1 << 20  # Data in one WriteFile message.
_SLOWEST_STREAM = 20e6  # Bytes per second; a slower stream times out.


class PartUpload(UnendedSave):
    """Brings one rank's part to a daemon.

    Until it is sealed, one thread at a time drives it. Each step may be repeated: after a restart of the
    daemon it begins again with the same key, and writes again what is missing there. Once it is sealed, the
    run's SaveRecovery may upload it to the next daemon.
    """

    def __init__(self, membership: Membership, options: SaveOptions, growing: bool) -> None:
        """growing: files are added after Begin, one by one."""
        self._started = time.monotonic()
        self.membership = membership
        self._options = options
        self._growing = growing
        self._budget = WaitBudget(options.timeout)
        if not membership.connection.unfinished.wait(options.timeout):
            raise errors.Unavailable(
                f"the bytes of the save before {options.tag} were not staged after {options.timeout:g} s: devices still copy "
                "them, or the daemon does not answer",
                reason="UNAVAILABLE",
                tag=options.tag,
                ranks=[membership.rank],
            )
        joined = self._repeat(lambda: membership.joined(self._seconds_left()))
        self._joined_at = time.monotonic()
        self.state = SaveState(membership, options.tag, joined, options.contributors)
        self.tag = options.tag
        self.number = self.state.number
        self.attempt = self.state.attempt
        self.key = self.state.key
        self._begun: Optional[Joined] = None  # The session in which Begin was answered.
        self._is_begin_unanswered = False  # A Begin was sent that may still arrive at the daemon.
        self._is_seal_sent = False
        self._files: List[PartFile] = []
        self._non_finite: List[NonFiniteTensor] = []  # Found by the check.
        self._suspect = ""  # Why, if the check calls the part suspect.
        self._memory: Optional[Memory] = None
        self._room = PartRoom()
        self._layout: Optional[Layout] = None  # Of all files of the part, if the daemon keeps it.
        self._borrower = object()  # Marks the segments that are lent for this part.
        self._sealed_bytes: Optional[SealedBytes] = None  # Kept for the next daemon, from Seal to the end.
        self._overlapping: List[PartFile] = []  # Those that devices copy after the call that has added them.

    # ---- steps of the trainer's thread

    def begin(self, files: Sequence[PartFile] = ()) -> None:
        """Has the daemon admit the save, and uploads the files that are there already."""
        self._budget.add(time.monotonic() - self._joined_at)  # The caller has made the files meanwhile.
        self._files = list(files)
        self._repeat(self._write_missing)
        self._forget_images(files)

    def save(self, files: List[PartFile]) -> None:
        """Uploads the whole part and seals it."""
        self._budget.add(time.monotonic() - self._joined_at)  # The caller has made the files meanwhile.
        self._files = files
        if self._options.overlaps:
            self._repeat(self._write_missing)
            self._forget_images(files)
        self._seal_when_staged()

    def has_file(self, name: str) -> bool:
        """Returns whether the part has a file of this name."""
        return any(file.name == name for file in self._files)

    def add(self, name: str, value: Any) -> None:
        """Uploads one more file of a growing part. TypeError if the value has no form as a file."""
        file = part_file(name, value, self._options.check)
        self._files.append(file)
        self._budget = WaitBudget(self._options.timeout)
        try:
            self._repeat(self._write_missing)
        except _BUSY_POLICY_ERRORS as error:
            self._end_by_busy_policy(error)
        except BaseException:
            self._files.remove(file)  # A caller that goes on after the error seals without this file.
            raise
        self._forget_images([file])

    def seal(self) -> None:
        """Hands a growing part over to the daemon."""
        self._budget = WaitBudget(self._options.timeout)
        self._seal_when_staged()

    def _forget_images(self, files: Sequence[PartFile]) -> None:
        """Drops what files are made of, once their bytes are copied: the caller may change or free its values."""
        for file in files:
            if file.image is None:
                continue
            if self._options.overlaps and file.image.copies():
                self._overlapping.append(file)
                self.state.copies += file.image.copies()
            else:
                file.image = None

    def _seal_when_staged(self) -> None:
        """Seals the part; in a thread if devices still copy."""
        if self.has_ended() or not self._overlapping:
            return self._repeat(self._advance_to_seal)
        self._act_on_check()
        self.state.stall_seconds = time.monotonic() - self._started
        self.membership.connection.unfinished.start(self._finish_staging, "ckptd-staging")

    def _finish_staging(self) -> None:
        """Seals the part when its bytes are there. If that fails, the save ends with the error: no call raises it."""
        try:
            with self.abort_on_error():
                self._finish_copies()
                self._budget = WaitBudget(self._options.timeout)
                self._repeat(self._advance_to_seal)
        except Exception as error:
            self.state.end_as_aborted(f"{type(error).__name__}: {error}")
            self._release()
            if not isinstance(error, errors.CkptdError):
                self.membership.add_failure(
                    errors.CheckpointFailed(str(error), reason="SAVE_ABORTED", tag=self.tag, ranks=[self.membership.rank])
                )
            _log.warning("ckptd: the save of %s failed while its bytes were staged: %s", self.tag, error)

    def _finish_copies(self) -> None:
        """Waits for the copies of earlier calls. CheckpointFailed if a tensor was changed before its copy."""
        files, self._overlapping = self._overlapping, []
        for file in files:
            image, file.image = file.image, None
            for copies in image.copies() if image is not None else []:
                copies.finish()
                if copies.changed():
                    raise errors.CheckpointFailed(
                        f'{self.tag} is not saved: a tensor of file "{file.name}" ({copies.changed()}) was changed before its '
                        'bytes were copied; call save.staged() before the change, or save with stage="blocking"',
                        reason="SAVE_ABORTED",
                        tag=self.tag,
                        ranks=[self.membership.rank],
                    )

    def abort(self, why: str, wait: bool = True) -> None:
        """Ends the save for all ranks, even if this rank has not begun it yet.

        Best effort: the end of this session tells the daemon, too. No-op if the save has ended.

        Args:
            wait: for the daemon's answer, 5 seconds at most.
        """
        if self.has_ended():
            return
        joined = self._begun or self.membership.present
        if joined is not None and joined.session.alive():
            try:
                if wait:
                    self.send_abort(joined, why)
                else:
                    session = joined.session
                    session.start(session.checkpoints.Abort, self._abort_request(why), _ABORT_SECONDS)
            except errors.CkptdError as error:
                _log.debug("ckptd: aborting %s: %s", self.tag, error)
        self.state.end_as_aborted(why)
        self._release()

    def abort_on_error(self) -> "_AbortOnError":
        """Returns a context manager: an exception inside, Ctrl-C included, ends the save for all ranks."""
        return _AbortOnError(self)

    # ---- waiting

    def _repeat(self, ask: "Callable[[], _Answer]") -> _Answer:
        """Returns ask(), repeated while the daemon is away and the budget lasts."""
        return self.membership.connection.repeat(ask, self._options.timeout, lambda: self._budget.end)

    def _call_seconds(self) -> float:
        """Returns the timeout of the next request to the daemon."""
        if self.state.is_recovered:
            return self._admission_timeout() + _RECOVERY_SILENCE_SECONDS
        return self._seconds_left()

    def _seconds_left(self) -> float:
        return max(_SHORTEST_CALL_SECONDS, self._budget.end + _SILENCE_SECONDS - time.monotonic())

    # ---- Begin

    def _attach(self) -> Joined:
        return self._attach_to(self.membership.joined(self._call_seconds()))

    def _attach_to(self, joined: Joined) -> Joined:
        """Begins the save in a session, unless that has been done: with the same key, and all files so far."""
        if self._begun is joined or self.has_ended():
            return joined
        if not self.state.is_recovered:  # A recovered one has waited for its turn already.
            self.membership.recovery.await_earlier(self.number, joined.session, self._budget.left())
        try:
            self._is_begin_unanswered = True  # Before the call: Ctrl-C may end it when the request is on its way.
            begun = self._ask_begin(joined)
        except errors.CkptdError as error:
            self._is_begin_unanswered = isinstance(error, errors.Unavailable)
            if error.reason == "SAVE_CONFLICT" and self._is_seal_sent and self._was_committed_before(joined):
                return joined
            raise
        self._is_begin_unanswered = False
        # Copies of an earlier save, or of this one to an earlier daemon's memory: see finish_all().
        self._finish_copies()
        finish_all()
        self.state.sequence = begun.sequence
        self._begun, self._room = joined, PartRoom()
        if begun.level == types.SKIPPED:
            self.update(
                types.Checkpoint(
                    tag=self.tag, level=types.SKIPPED, sequence=begun.sequence, error=begun.error
                )
            )
            return joined
        self._map_granted(joined, begun)
        self._place(self._files, self._layout.offsets if self._layout is not None else _offsets(begun.placements))
        return joined

    def _ask_begin(self, joined: Joined) -> Any:
        """Returns the answer to Begin. Files as those of the last part are not listed again."""
        begin, last = joined.session.checkpoints.Begin, self.membership.last_layout
        self._layout = None
        if last is not None and not self._is_growing() and last.is_of(joined, self._files):
            try:
                begun = joined.session.call(begin, self._begin_request(last), self._call_seconds())
            except errors.Refused as error:
                if error.reason != "UNKNOWN_LAYOUT":
                    raise
            else:
                if begun.layout == last.number:
                    self._layout = last
                    return begun
                return self._note_layout(joined, begun)
        return self._note_layout(joined, joined.session.call(begin, self._begin_request(None), self._call_seconds()))

    def _note_layout(self, joined: Joined, begun: Any) -> Any:
        if begun.layout:
            self._layout = Layout(joined, begun.layout, names_and_sizes(self._files), _offsets(begun.placements))
            self.membership.last_layout = self._layout
        return begun

    def _is_growing(self) -> bool:
        return self._growing and not self.state.is_recovered  # A recovered part has all its files.

    def _admission_timeout(self) -> float:
        if not self.state.is_recovered:
            # The daemon uses that of a growing part for each file that is added later, too.
            wait = self._options.timeout if self._growing else self._budget.left()
            return max(_LEAST_ADMISSION_SECONDS, wait - min(_EARLY_SECONDS, wait / 10))
        return min(max(self._options.timeout, _RECOVERY_ADMISSION_SECONDS), self.membership.commit_timeout)

    def _begin_request(self, layout: Optional[Layout]) -> Any:
        """layout: names the files; None: they are listed."""
        request = messages.BeginRequest(
            key=self.key,
            growing=self._is_growing(),
            # The trainer has seen a recovered part sealed and does not expect it to be skipped.
            busy=types.WAIT if self.state.is_recovered else self._options.busy_policy,
            metrics=self._options.metrics,
            pointers=self._options.pointers,
            ranks=self._options.contributors,
        )
        if self._options.step is not None:
            request.step = self._options.step
        if layout is not None:
            request.layout = layout.number
        else:
            _add_files(request, self._files)
            request.layout = 0 if self._is_growing() else -1  # -1: the answer is to have the number of this layout.
        set_duration(request.timeout, self._admission_timeout())
        set_duration(request.commit_timeout, self.membership.commit_timeout)
        if self.membership.keep is not None:
            set_policy(request, self.membership.keep)
        request.share_unchanged = self.membership.share_unchanged
        return request

    def _was_committed_before(self, joined: Joined) -> bool:
        """Returns whether the earlier daemon had the whole save on disk, so that the next one has published
        it.
        """
        checkpoint = self.state.query(joined)
        if checkpoint.level != types.COMMITTED:
            return False
        self._begun = joined
        return self.update(checkpoint)

    def _map_granted(self, joined: Joined, granted: Any) -> None:
        """Maps the segments of a BeginResponse or ExtendResponse."""
        session = joined.session
        self.state.transport = session.transport
        if session.segments is None:
            self._memory = None
            return
        session.segments.forget(getattr(granted, "retired_segments", ()))
        try:
            self._memory = session.segments.memory(
                segments_of(granted.segments), self._call_seconds(), self._borrower
            )
        except errors.NotFound:  # The daemon has taken them back: another rank's end has just ended the save.
            end = self.state.query(joined)
            if end.level >= types.FAILED:
                raise error_of_save(end) from None
            raise
        if self._is_growing():
            self._room.grant([segment.size_bytes for segment in granted.segments], granted.placements)

    def _place(self, files: List[PartFile], offsets: Dict[str, int]) -> None:
        """Gives files their places. What was written with an earlier daemon is copied from there."""
        for file in files:
            before, file.offset, file.is_asked = file.offset, offsets[file.name], True
            if file.image is not None:
                continue
            if file.memory is None:
                raise errors.CheckpointFailed(
                    f'the daemon has ended, and the bytes of file "{file.name}" of {self.tag} that it had are lost; save again',
                    reason="SESSION_LOST",
                    tag=self.tag,
                )
            file.image = PiecesImage(file.size, file.memory.pieces(before, file.size), file.memory)

    # ---- copying

    def _write_missing(self) -> Joined:
        joined = self._attach()
        if not self.has_ended():
            self._write_to(joined)
        return joined

    def _write_to(self, joined: Joined) -> None:
        """Writes the files that this session does not have."""
        session = joined.session
        if not self._room.place(self._files):
            self._extend(joined)
        started = time.monotonic()
        written = []
        for file in list(self._files):
            if file.written is joined or file.image is None:
                continue
            written.append(file.image)
            begin = time.monotonic()
            if self._memory is not None:
                file.image.write(self._memory, file.offset, self.membership.copy_threads, self._options.overlaps)
            elif file.size:
                self._stream(session, file)
            file.written, file.memory = joined, self._memory
            self._check(file)
            self._budget.add(time.monotonic() - begin)
        if not self._options.overlaps:
            begin = time.monotonic()
            for image in written:  # At the end: a device copies one file while the CPU copies another one.
                image.finish()
            self._budget.add(time.monotonic() - begin)
        if not self.state.is_recovered:  # No trainer waits for the copy of a recovered part.
            self.state.copy_seconds += time.monotonic() - started

    def _extend(self, joined: Joined) -> None:
        """Has the daemon place the files that it does not know of."""
        files = [file for file in self._files if not file.is_asked]
        request = messages.ExtendRequest(key=self.key)
        _add_files(request, files)
        extended = joined.session.call(joined.session.checkpoints.Extend, request, self._call_seconds())
        check_places(files, extended.placements)
        self._map_granted(joined, extended)
        self._place([file for file in files if file.written is not joined], _offsets(extended.placements))
        for file in files:
            file.is_asked = True

    def _check(self, file: PartFile) -> None:
        """Looks for numbers that are not finite, the first time that a file is written."""
        if file.unchecked is None or file.image is None:
            return
        value, file.unchecked = file.unchecked, None
        self._non_finite += finite.find(file.name, value, file.image)

    def _stream(self, session: Session, file: PartFile) -> None:
        """Sends a file over gRPC, for clients that cannot receive descriptors."""

        def requests() -> Any:
            yield messages.WriteFileRequest(header=messages.WriteFileHeader(key=self.key, path=file.name))
            for window in file.image.stream() if file.image is not None else ():
                for at in range(0, len(window), _WRITE_FILE_BYTES):
                    yield messages.WriteFileRequest(data=window[at : at + _WRITE_FILE_BYTES])

        timeout = self._call_seconds() + file.size / _SLOWEST_STREAM
        session.call(session.checkpoints.WriteFile, requests(), timeout)

    # ---- Seal

    def _advance_to_seal(self) -> None:
        joined = self._write_missing()
        if self.has_ended():
            return
        self._act_on_check()
        if not self.state.copies:  # Otherwise the trainer goes on already.
            self.state.stall_seconds = time.monotonic() - self._started  # Seal reports it, without its own time.
        self._seal_with(joined)
        if not self.state.copies:
            self.state.stall_seconds = time.monotonic() - self._started
        self.membership.add_unended(self)  # Not before: a part that is not sealed ends with its session.

    def _act_on_check(self) -> None:
        if self._options.check is not None:
            self._suspect = finite.act(self._options.check, self.tag, self._non_finite) or self._suspect
            self._non_finite = []

    def _seal_with(self, joined: Joined) -> None:
        request = messages.SealRequest(key=self.key, suspect=self._suspect)
        if self._layout is not None:
            request.as_placed = True
        else:
            _add_files(request, self._files)
        set_duration(request.stall, self.state.stall_seconds)
        self._is_seal_sent = True  # Before the call: the daemon may seal it although its answer does not arrive.
        timeout = min(RPC_SECONDS, self._call_seconds())
        sealed = joined.session.call(joined.session.checkpoints.Seal, request, timeout)
        self._memory = None
        self._sealed_bytes = self._keep_sealed_bytes()
        for file in self._files:
            file.image = None
            if self._sealed_bytes is None:
                file.memory = None
        self.assign_to(joined.session.daemon_instance)
        self.state.advance_to(sealed.level)

    def _keep_sealed_bytes(self) -> Optional[SealedBytes]:
        """Returns the bytes of the part, or None if not all of them are mapped here."""
        places = [(file.memory, file.offset, file.size) for file in self._files if file.memory is not None]
        return SealedBytes(self._borrower, places) if len(places) == len(self._files) else None

    # ---- UnendedSave: what the watcher and the recovery see

    @property
    def level(self) -> int:
        return self.state.level

    @property
    def sequence(self) -> int:
        return self.state.sequence

    @property
    def daemon_instance(self) -> str:
        return self.state.daemon_instance

    def assign_to(self, daemon_instance: str) -> None:
        self.state.daemon_instance = daemon_instance

    def has_ended(self) -> bool:
        return self.state.has_ended()

    def update(self, checkpoint: Any) -> bool:
        ended = self.state.update(checkpoint)
        if ended:
            self._release()
        return ended

    def end_as_unknown(self, why: str, expected: bool = False) -> None:
        self.state.end_as_unknown(why, expected)
        self._release()

    def _release(self) -> None:
        """Drops everything that only an unended save needs."""
        self._memory = self._sealed_bytes = self._begun = None
        for file in self._files:
            file.image = file.memory = file.written = None
        self.membership.remove_unended(self)

    # ---- recovery: the daemon ended after Seal, and the next one gets the part from here

    def is_recoverable(self) -> bool:
        sealed = self._sealed_bytes
        return sealed is not None and not sealed.are_lent_again() and not sealed.are_freed()

    def queue_recovery(self) -> None:
        self.membership.recovery.add([self])

    def upload_again(self, joined: Joined) -> None:
        """Begins, copies and seals the part with another daemon, under the same key.

        It reads only the memory that was sealed.
        """
        self.state.is_recovered = True
        self._attach_to(joined)
        sealed = self._sealed_bytes
        if self.has_ended() or sealed is None:
            return
        # Look again now that the daemon has granted memory: before it makes any of its own, it frees what its
        # predecessor left and it does not need.
        if sealed.are_freed():
            raise _bytes_lost(self.tag)
        self._write_to(joined)
        is_written = all(file.written is joined for file in self._files)
        if self.has_ended():
            return
        if sealed.are_lent_again() or not is_written:
            raise _bytes_lost(self.tag)
        self._seal_with(joined)

    def fail_recovery(self, cause: Exception) -> None:
        """Ends the save because the next daemon cannot have it."""
        if isinstance(cause, errors.Superseded):
            return self._end_by_busy_policy(cause)
        end = types.Checkpoint(tag=self.tag, level=types.FAILED, sequence=self.sequence)
        end.error.reason = getattr(cause, "reason", "") or type(cause).__name__
        end.error.message = str(cause)
        end.error.ranks.extend(getattr(cause, "ranks", ()))
        self.state.is_recovered = True  # update() reports it as STAGED_LOST then: it was sealed once.
        self.update(end)

    # ---- ends without a Seal

    def _end_by_busy_policy(self, error: errors.CkptdError) -> None:
        """Ends a save that a busy policy gave up, this save's or a younger one's: a result and not an error."""
        level = types.SUPERSEDED if isinstance(error, errors.Superseded) else types.SKIPPED
        end = types.Checkpoint(tag=self.tag, level=level, sequence=self.sequence)
        end.error.reason, end.error.message = error.reason, str(error)
        self.update(end)

    def send_abort(self, joined: Joined, why: str) -> None:
        """Tells a daemon to end the save for all ranks."""
        session, begin = joined.session, None
        request = self._abort_request(why)
        deadline = time.monotonic() + _ABORT_SECONDS
        while True:
            try:
                session.call(session.checkpoints.Abort, request, _ABORT_SECONDS)
                break
            except errors.NotFound:
                # The daemon does not know this save. But the other ranks wait for this one in their Begin; or
                # this rank's Begin is still on its way, and would leave a save behind that is never sealed. Begin it,
                # so that there is a save that can be aborted.
                with uninterrupted():
                    is_begun = begin is not None and begin.done()
                is_alone = self.membership.world_size == 1 or len(self._options.contributors) == 1
                is_unknown_to_all = is_alone and not self._is_begin_unanswered
                if is_unknown_to_all or time.monotonic() >= deadline or is_begun:
                    break
            if begin is None:
                empty = messages.BeginRequest(key=self.key, growing=True, ranks=self._options.contributors)
                if self._options.step is not None:
                    empty.step = self._options.step
                begin = session.start(session.checkpoints.Begin, empty, _ABORT_SECONDS)
            # Give the Begin time to arrive. Its answer may not come before all ranks have begun.
            threading.Event().wait(_ABORT_PAUSE_SECONDS)
        if begin is not None:
            with uninterrupted():
                begin.cancel()

    def _abort_request(self, why: str) -> Any:
        return messages.AbortRequest(key=self.key, message=why[:1000])


def _add_files(request: Any, files: Sequence[PartFile]) -> None:
    for file in files:
        request.files.add(path=file.name, size_bytes=file.size)


def _offsets(placements: Any) -> Dict[str, int]:
    return {placement.path: placement.offset for placement in placements}


def _bytes_lost(tag: str) -> errors.CkptdError:
    return errors.CheckpointFailed(
        f"the memory in which {tag} was sealed has been given back", reason="SESSION_LOST", tag=tag
    )


class _AbortOnError:
    """See PartUpload.abort_on_error()."""

    def __init__(self, upload: PartUpload) -> None:
        self._upload = upload

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        if kind is not None:
            finish_all()
        if isinstance(value, _BUSY_POLICY_ERRORS):
            self._upload._end_by_busy_policy(value)
            return True
        if isinstance(value, errors.CkptdError):
            self._upload.membership.add_failure(value)
        is_daemon_away = isinstance(value, errors.CkptdError) and is_transient(value)
        if kind is not None and not is_daemon_away:
            # A daemon that has not answered in time may not answer this either, and save() ends at its timeout.
            self._upload.abort(f"{kind.__name__}: {value}", wait=not isinstance(value, errors.Unavailable))
        return False
