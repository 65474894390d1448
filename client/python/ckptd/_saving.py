"""Saves and parts: from Begin to Seal, and how they end. What a daemon took along goes to the next one (_offers.py)."""

import concurrent.futures
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple

from ckptd import _values, errors
from ckptd._image import Image, Memory, PiecesImage
from ckptd._progress import Progress, showing
from ckptd._segments import Held
from ckptd._session import Session, is_transient, segments_of
from ckptd._wire import LEVELS_TO_WAIT_FOR, error_of_save, level_name, messages, set_duration, types

if TYPE_CHECKING:
    from ckptd.run import Run

_log = logging.getLogger("ckptd")

_RPC_SECONDS = 30.0
_LOOK_SECONDS = 0.5  # Between two words of progress.
_ABORT_SECONDS = 5.0  # For what must not take long.
# For an offer's admission, at least, where that is not longer than the run waits for seals: the other ranks
# have to notice the new daemon, too.
_OFFER_SECONDS = 30.0
_GIVEN_UP = (errors.Skipped, errors.Superseded)
# Ends that mean the same with whichever daemon.
_NOT_LOST = ("STAGED_LOST", "FENCED", "FILE_CONFLICT", "SAVE_ABORTED")
_STREAM_BYTES = 1 << 20  # Of a WriteFile message.
_STREAM_RATE = 20e6  # Bytes a second that a stream has at least.


class Options(NamedTuple):
    """Of one save, beside its tag and files."""

    step: Optional[int]
    metrics: Dict[str, float]
    pointers: Dict[str, str]
    busy: Any  # types.BusyPolicy
    timeout: float


class Joined(NamedTuple):
    """The run as one session has joined it."""

    session: Session
    run: str  # `runs/{run}`
    attempt: int
    run_id: str


class _File:
    """A file of a part."""

    def __init__(self, name: str, image: Image) -> None:
        self.name = name
        self.size = image.size
        self.image: Optional[Image] = image  # None once it is taken: its owner may have changed it since.
        self.offset = -1  # In the part; -1: it has no place yet.
        self.written: Optional[Joined] = None  # In which session.
        self.memory: Optional[Memory] = None  # Where to; None when it went over gRPC.


class Save:
    """A save whose bytes are staged (or that was skipped). It goes on by itself; waiting is optional. Should the
    daemon be killed before it is committed, the next one gets it from the memory that it was staged in, if all
    ranks live; else it ends as STAGED_LOST. Thread-safe.
    """

    def __init__(self, run: "Run", tag: str) -> None:
        self._run = run
        self.tag = tag
        self.sequence = 0
        self.transport = (
            ""  # "shm", or "grpc" where shared memory could not be had; empty when nothing was copied.
        )
        self.stall_seconds = 0.0  # How long the trainer waited in all.
        self.copy_seconds = 0.0  # Of it: copying.
        self._changed = threading.Condition()
        self._level: int = types.OPEN
        self._end: Any = None  # Of a save that did not become a checkpoint: its last description,
        self._lost = ""  # or why it is not known how it ended.
        self._told = False  # The run has heard of the end.
        self._waiting = 0
        self._futures: List[Tuple[int, "concurrent.futures.Future[Save]"]] = []

    @property
    def level(self) -> str:
        """One of "staged", "sealed", "committed"; "skipped", "superseded", "failed" or "indeterminate". As last
        heard; does not wait.
        """
        return level_name(self._level)

    def wait(
        self, level: str = "committed", timeout: Optional[float] = None, progress: Progress = False
    ) -> "Save":
        """Returns when `level` ("staged" < "sealed" < "committed") is reached. progress: as for Checkpoint.load(), of the
        bytes that are on disk, of all ranks.

        CheckpointFailed (Skipped, Superseded), Fenced, FileConflict or Indeterminate when the save ended
        without it. WaitTimeout after `timeout` seconds, by default the run's commit_timeout; it ends
        nothing but the wait.
        """
        wanted = _wanted(level)
        if not self._over():
            self._run._check_usable()
        seconds = self._run._commit_timeout if timeout is None else timeout
        with self._changed:
            self._waiting += 1
        try:
            self._wait_until(wanted, time.monotonic() + max(0.0, seconds), progress)
        finally:
            with self._changed:
                self._waiting -= 1
        with self._changed:
            error = self._error(wanted)
            if error is not None:
                raise error
            if self._level >= wanted:
                return self
        missing = self._missing_ranks()
        whom = f", and ranks {', '.join(map(str, missing))} have not sealed their parts" if missing else ""
        raise errors.WaitTimeout(
            f"the save of {self.tag} is {self.level} and not {level} after {seconds:g} s{whom}; it goes on: wait again, or longer",
            reason="WAIT_TIMEOUT",
            tag=self.tag,
            ranks=missing,
        )

    def _wait_until(self, wanted: int, deadline: float, progress: Progress) -> None:
        def reached() -> bool:
            return self._over() or self._level >= wanted

        now = self._now() if progress else None
        if now is None:
            with self._changed:
                self._changed.wait_for(reached, deadline - time.monotonic())
            return
        with showing(progress, self.tag, now.size_bytes) as tell:
            while True:
                tell(now.written_bytes)
                with self._changed:
                    if self._changed.wait_for(reached, min(_LOOK_SECONDS, deadline - time.monotonic())):
                        break
                if time.monotonic() >= deadline:
                    return
                now = self._now() or now
            if self._level == types.COMMITTED:
                tell(now.size_bytes)

    def future(self, level: str = "committed") -> "concurrent.futures.Future[Save]":
        """A future of wait(level), without a thread or a deadline of its own."""
        wanted = _wanted(level)
        if not self._over():
            self._run._check_usable()
        future: "concurrent.futures.Future[Save]" = concurrent.futures.Future()
        with self._changed:
            self._futures.append((wanted, future))
        self._settle_futures()
        return future

    def __repr__(self) -> str:
        return f"<ckptd.Save {self.tag} {self.level}>"

    def _missing_ranks(self) -> List[int]:
        """Whose parts are not sealed, as far as is known."""
        now = self._now()
        return [] if now is None else list(now.missing_ranks)

    def _now(self) -> Any:
        """What the daemon knows of it at this moment; None: nothing, or it does not answer."""
        return None

    # ---- how it goes on, as the follower hears it

    def _over(self) -> bool:
        return self._level >= types.COMMITTED or bool(self._lost)

    def _error(self, wanted: int) -> Optional[errors.CkptdError]:
        """Why `wanted` will not be reached; a new object each time, for each is raised on its own."""
        if self._level >= types.FAILED:
            return error_of_save(self._end)
        if self._lost and self._level < wanted:
            return errors.Unavailable(
                f"whether {self.tag} was committed is not known: {self._lost}; look at run.latest() when a daemon is there",
                reason="UNAVAILABLE",
                tag=self.tag,
            )
        return None

    def _hear(self, checkpoint: Any) -> bool:
        """What the daemon says of it now. True when that was the last word."""
        with self._changed:
            self._level = max(self._level, checkpoint.level)
            if self._level >= types.FAILED:
                self._end = checkpoint
        return self._tell()

    def _lose(self, why: str, expected: bool = False) -> None:
        """Nobody will say any more how it ended. expected: that is no news to the user, who has closed the
        client.
        """
        with self._changed:
            self._lost = why
        self._tell(quiet=expected)

    def _tell(self, quiet: bool = False) -> bool:
        """Tells those who wait. Nothing fails silently: a failure that nobody waits for is logged."""
        with self._changed:
            over, error = self._over(), self._error(types.COMMITTED)
            heard = self._waiting > 0 or bool(self._futures) or self._level == types.SKIPPED
            first, self._told = over and not self._told, over
            self._changed.notify_all()
        if first:
            self._release()
            self._run._forget(self, None if quiet else error)
            if error is not None and not heard and not quiet:
                _log.warning("ckptd: %s", error)
        self._settle_futures()
        return over

    def _release(self) -> None:
        """It is over: what only its bytes needed goes."""

    def _settle_futures(self) -> None:
        with self._changed:
            due = [(f, self._error(w)) for w, f in self._futures if self._over() or self._level >= w]
            done = {id(future) for future, _ in due}
            self._futures = [entry for entry in self._futures if id(entry[1]) not in done]
        for future, error in due:
            if not future.set_running_or_notify_cancel():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(self)


def _wanted(level: str) -> int:
    if level not in LEVELS_TO_WAIT_FOR:
        raise ValueError(f'level is "{level}"; it is "staged", "sealed" or "committed"')
    return LEVELS_TO_WAIT_FOR[level]


class Part(Save):
    """This rank's part of a save, filled file by file; from run.begin(). By one thread at a time until it
    is sealed.

    Leaving the `with` seals it; an exception aborts the save for all ranks. Then it is a Save.
    """

    def __init__(self, run: "Run", tag: str, options: Options, growing: bool) -> None:
        super().__init__(run, tag)
        self._started = time.monotonic()
        self._options = options
        self._growing = growing
        joined = run._sessions.repeat(run._joined, options.timeout)
        self._number = run._next_number()
        self._attempt = joined.attempt
        self._key = types.SaveKey(
            run=joined.run, rank=run.rank, tag=tag, ordinal=run._next_ordinal(tag, joined.attempt)
        )
        self._begun: Optional[Joined] = None  # Where Begin was answered.
        self._seal_sent = False
        self._files: List[_File] = []
        self._memory: Optional[Memory] = None
        self._token = object()  # Marks the segments that are lent for it.
        self._home = ""  # The daemon that has it since it was sealed.
        self._held: Optional[Held] = None  # From there on: its bytes, for the next daemon if need be.
        self._offered = False  # To another daemon than it was sealed with.

    # ---- what users call

    def add(self, name: str, value: Any) -> None:
        """Adds one file; its bytes are taken now. After a skip it does nothing."""
        self._run._check_usable()
        if self._over() and self._level != types.COMMITTED:
            return
        if self._level != types.OPEN:
            raise errors.Refused(
                f"the part of {self.tag} is sealed and takes no more files", reason="SEALED", tag=self.tag
            )
        if any(file.name == name for file in self._files):
            raise errors.Refused(
                f'file "{name}" of {self.tag} is there already', reason="SAVE_CONFLICT", tag=self.tag
            )
        file = _File(name, _values.image_of(name, value))
        self._files.append(file)
        try:
            self._run._sessions.repeat(self._write_missing, self._options.timeout)
        except _GIVEN_UP as error:
            self._give_up(error)
        except BaseException:
            self._files.remove(file)  # Whoever goes on after an error seals without it.
            raise
        file.image = None

    def seal(self) -> "Part":
        """Hands the part over, as leaving the `with` does."""
        if self._level == types.OPEN:
            with self._abort_on_error():
                self._run._sessions.repeat(self._advance_to_seal, self._options.timeout)
        return self

    def abort(self, message: str = "") -> None:
        """Ends the save for all ranks, who hear `message`."""
        self._abort(message or "aborted by its user")

    def __enter__(self) -> "Part":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.seal()
        elif self._level == types.OPEN:
            self._abort(f"{kind.__name__}: {value}")

    # ---- steps, each of which may be repeated

    def _begin(self) -> None:
        self._run._sessions.repeat(self._attach, self._options.timeout)

    def _save(self, files: List[_File]) -> None:
        """The whole part at once."""
        self._files = files
        self._run._sessions.repeat(self._advance_to_seal, self._options.timeout)

    def _attach(self) -> Joined:
        """Begin, if not yet in this session: again after a restart of the daemon, with the same key and all
        files so far.
        """
        return self._attach_to(self._run._joined(self._options.timeout))

    def _attach_to(self, joined: Joined) -> Joined:
        if self._begun is joined or self._over():
            return joined
        if not self._offered:  # Else its turn has come.
            self._run._offers.await_earlier(self._number, joined.session)
        options = self._options
        if self._offered:  # Its files are all there, and whoever staged it does not expect it to be skipped.
            patience = min(max(options.timeout, _OFFER_SECONDS), self._run._commit_timeout)
            options = options._replace(busy=types.WAIT, timeout=patience)
        request = messages.BeginRequest(
            key=self._key,
            growing=self._growing and not self._offered,
            busy=options.busy,
            metrics=options.metrics,
            pointers=options.pointers,
        )
        if options.step is not None:
            request.step = options.step
        for file in self._files:
            request.files.add(path=file.name, size_bytes=file.size)
        set_duration(request.timeout, options.timeout)
        set_duration(request.commit_timeout, self._run._commit_timeout)
        if self._run._num_kept_ckpts is not None:
            request.num_kept_ckpts = self._run._num_kept_ckpts
        try:
            begun = joined.session.call(joined.session.checkpoints.Begin, request, options.timeout + 5.0)
        except errors.CkptdError as error:
            if error.reason == "SAVE_CONFLICT" and self._seal_sent and self._committed_before(joined):
                return joined
            raise
        self.sequence = begun.sequence
        self._begun = joined
        if begun.level == types.SKIPPED:
            self._hear(
                types.Checkpoint(
                    tag=self.tag, level=types.SKIPPED, sequence=begun.sequence, error=begun.error
                )
            )
            return joined
        self._take_room(joined, begun)
        self._place(self._files, begun.placements)
        return joined

    def _committed_before(self, joined: Joined) -> bool:
        """Whether the daemon of before had it all on disk when it ended, so that its successor published
        it.
        """
        checkpoint = self._ask_now(joined)
        if checkpoint.level != types.COMMITTED:
            return False
        self._begun = joined
        return self._hear(checkpoint)

    def _take_room(self, joined: Joined, granted: Any) -> None:
        session = joined.session
        self.transport = session.transport
        if session.segments is None:
            self._memory = None
            return
        session.segments.forget(getattr(granted, "retired_segments", ()))
        try:
            self._memory = session.segments.memory(segments_of(granted.segments), _RPC_SECONDS, self._token)
        except errors.NotFound:  # Taken back: the end of another rank has just ended the save.
            end = self._ask_now(joined)
            if end.level >= types.FAILED:
                raise error_of_save(end) from None
            raise

    def _place(self, files: List[_File], placements: Any) -> None:
        """Files have got their places; what was written with an earlier daemon will move there."""
        by_name = {placement.path: placement for placement in placements}
        for file in files:
            before, file.offset = file.offset, by_name[file.name].offset
            if file.image is not None:
                continue
            if file.memory is None:
                raise errors.CheckpointFailed(
                    f'the daemon has ended, and what it had of file "{file.name}" of {self.tag} with it; save again',
                    reason="SESSION_LOST",
                    tag=self.tag,
                )
            file.image = PiecesImage(file.size, file.memory.pieces(before, file.size), file.memory)

    def _write_missing(self) -> Joined:
        joined = self._attach()
        if not self._over():
            self._write_to(joined)
        return joined

    def _write_to(self, joined: Joined) -> None:
        session = joined.session
        unplaced = [file for file in self._files if file.offset < 0]
        if unplaced:
            request = messages.ExtendRequest(key=self._key)
            for file in unplaced:
                request.files.add(path=file.name, size_bytes=file.size)
            extended = session.call(session.checkpoints.Extend, request, self._options.timeout + 5.0)
            self._take_room(joined, extended)
            self._place(unplaced, extended.placements)
        started = time.monotonic()
        for file in list(self._files):
            if file.written is joined or file.image is None:
                continue
            if self._memory is not None:
                file.image.write(self._memory, file.offset, self._run._threads)
            elif file.size:
                self._stream(session, file)
            file.written, file.memory = joined, self._memory
        if not self._offered:  # Nobody waits for that copy.
            self.copy_seconds += time.monotonic() - started

    def _stream(self, session: Session, file: _File) -> None:
        """Bytes over gRPC: for clients that cannot receive descriptors."""

        def messages_of() -> Any:
            yield messages.WriteFileRequest(header=messages.WriteFileHeader(key=self._key, path=file.name))
            for window in file.image.stream() if file.image is not None else ():
                for at in range(0, len(window), _STREAM_BYTES):
                    yield messages.WriteFileRequest(data=window[at : at + _STREAM_BYTES])

        session.call(session.checkpoints.WriteFile, messages_of(), _RPC_SECONDS + file.size / _STREAM_RATE)

    def _advance_to_seal(self) -> None:
        joined = self._write_missing()
        if self._over():
            return
        self.stall_seconds = time.monotonic() - self._started
        self._seal_with(joined)
        self.stall_seconds = time.monotonic() - self._started
        self._run._staged(self)

    def _seal_with(self, joined: Joined) -> None:
        request = messages.SealRequest(key=self._key)
        for file in self._files:
            request.files.add(path=file.name, size_bytes=file.size)
        set_duration(request.stall, self.stall_seconds)
        self._seal_sent = True
        sealed = joined.session.call(joined.session.checkpoints.Seal, request, _RPC_SECONDS)
        self._memory = None
        self._held = self._hold()
        for file in self._files:
            file.image = None
            if self._held is None:
                file.memory = None
        self._home = joined.session.daemon_instance
        with self._changed:
            self._level = max(self._level, sealed.level)

    # ---- sealed, and the daemon ended: the next one gets it from here (_offers.py)

    def _hold(self) -> Optional[Held]:
        """None when not all of it is mapped here."""
        places = [(file.memory, file.offset, file.size) for file in self._files if file.memory is not None]
        return Held(self._token, places) if len(places) == len(self._files) else None

    def _may_be_offered(self) -> bool:
        held = self._held
        return held is not None and not held.lent_again() and not held.freed()

    def _offer(self, joined: Joined) -> None:
        """Begin, copy and Seal under the same key, as if it had not been sealed before. Only what it was sealed with
        is read.
        """
        self._offered = True
        self._attach_to(joined)
        held = self._held
        if self._over() or held is None:
            return
        # Now that the daemon has granted memory: a successor frees what it does not need of what it was
        # left before it makes any of its own.
        if held.freed():
            raise _memory_gone(self.tag)
        self._write_to(joined)
        written = all(file.written is joined for file in self._files)
        if self._over():
            return
        if held.lent_again() or not written:
            raise _memory_gone(self.tag)
        self._seal_with(joined)

    def _fail_offer(self, cause: Exception) -> None:
        """The daemon, or we, will not have it."""
        if isinstance(cause, errors.Superseded):
            return self._give_up(cause)
        end = types.Checkpoint(tag=self.tag, level=types.FAILED, sequence=self.sequence)
        end.error.reason = getattr(cause, "reason", "") or type(cause).__name__
        end.error.message = str(cause)
        end.error.ranks.extend(getattr(cause, "ranks", ()))
        self._offered = True
        self._hear(end)

    def _hear(self, checkpoint: Any) -> bool:
        error = checkpoint.error
        if (
            self._offered
            and checkpoint.level in (types.FAILED, types.SKIPPED)
            and error.reason not in _NOT_LOST
        ):
            lost = types.Checkpoint()
            lost.CopyFrom(checkpoint)
            lost.level, lost.error.reason = types.FAILED, "STAGED_LOST"
            lost.error.message = (
                "the daemon ended before it was committed, and its offer to the next one ended with "
                f"{error.reason}: {error.message}; save again"
            )
            checkpoint = lost
        return super()._hear(checkpoint)

    def _release(self) -> None:
        self._memory = self._held = self._begun = None
        for file in self._files:
            file.image = file.memory = file.written = None

    def _now(self) -> Any:
        try:
            return self._ask_now(self._run._joined(_ABORT_SECONDS))
        except errors.CkptdError:
            return None

    def _ask_now(self, joined: Joined) -> Any:
        """What the daemon knows of it, at once."""
        request = messages.WaitRequest(
            key=self._key, level=types.COMMITTED, attempt=self._attempt, sequence=self.sequence
        )
        set_duration(request.timeout, 0.0)
        return joined.session.call(joined.session.checkpoints.Wait, request, _ABORT_SECONDS).checkpoint

    # ---- ends that are not a seal

    def _abort_on_error(self) -> "_AbortOnError":
        return _AbortOnError(self)

    def _give_up(self, error: errors.CkptdError) -> None:
        """The busy policy, ours or a younger save's, has ended it: a result, not an error."""
        level = types.SUPERSEDED if isinstance(error, errors.Superseded) else types.SKIPPED
        end = types.Checkpoint(tag=self.tag, level=level, sequence=self.sequence)
        end.error.reason, end.error.message = error.reason, str(error)
        self._hear(end)

    def _abort(self, why: str) -> None:
        """Ends the save for all ranks, even if this rank had not begun it yet. Best effort: a session's end
        tells the daemon, too.
        """
        if self._over():
            return
        joined = self._begun or self._run._peek_joined()
        if joined is not None and joined.session.alive():
            try:
                self._tell_abort(joined, why)
            except errors.CkptdError as error:
                _log.debug("ckptd: aborting %s: %s", self.tag, error)
        with self._changed:
            if self._level < types.COMMITTED:
                self._level = types.FAILED
                self._end = types.Checkpoint(tag=self.tag, level=types.FAILED, sequence=self.sequence)
                self._end.error.reason, self._end.error.message = "SAVE_ABORTED", why
                self._end.error.ranks.append(self._run.rank)
            self._changed.notify_all()
        self._release()
        self._settle_futures()

    def _tell_abort(self, joined: Joined, why: str) -> None:
        session, begin = joined.session, None
        request = messages.AbortRequest(key=self._key, message=why[:1000])
        deadline = time.monotonic() + _ABORT_SECONDS
        while True:
            try:
                session.call(session.checkpoints.Abort, request, _ABORT_SECONDS)
                break
            except errors.NotFound:
                # The daemon has not heard of this save. The other ranks wait for us in theirs: begin it for
                # them to hear how it ended.
                if (
                    self._run.world_size == 1
                    or time.monotonic() >= deadline
                    or (begin is not None and begin.done())
                ):
                    break
            if begin is None:
                empty = messages.BeginRequest(key=self._key, growing=True)
                if self._options.step is not None:
                    empty.step = self._options.step
                begin = session.start(session.checkpoints.Begin, empty, _ABORT_SECONDS)
            threading.Event().wait(
                0.01
            )  # For the Begin to get there; its answer may come only when all ranks have begun.
        if begin is not None:
            begin.cancel()


def _memory_gone(tag: str) -> errors.CkptdError:
    return errors.CheckpointFailed(
        f"the memory that {tag} was sealed in has been given back", reason="SESSION_LOST", tag=tag
    )


class _AbortOnError:
    """What goes wrong inside ends the save for all ranks, Ctrl-C included."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        if isinstance(value, _GIVEN_UP):
            self._part._give_up(value)
            return True
        # Without a daemon there is nobody to tell.
        if kind is not None and not (isinstance(value, errors.CkptdError) and is_transient(value)):
            self._part._abort(f"{kind.__name__}: {value}")
        return False
