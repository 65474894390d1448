"""Runs: a job's series of checkpoints, as one of its ranks sees it."""

import collections
import concurrent.futures
import dataclasses
import datetime
import logging
import os
import threading
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Deque,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Set,
    Tuple,
    TypeVar,
    Union,
)

from ckptd import _accel, _rank, _values, errors
from ckptd._offers import Offers
from ckptd._reading import Reading, Resuming
from ckptd._saving import Joined, Options, Part, Save, _File
from ckptd._session import Session
from ckptd._wire import level_name, messages, set_duration, time_of, types

if TYPE_CHECKING:
    from ckptd._client import Client
    from ckptd.restore import Checkpoint

T = TypeVar("T")
_log = logging.getLogger("ckptd")
_BUSY = {"wait": types.WAIT, "skip": types.SKIP, "supersede": types.SUPERSEDE}
_RPC_SECONDS = 30.0
_ATTACH_SECONDS = 120.0  # A root may have to be recovered first.
_REMEMBERED = 100


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint, as the daemon or a manifest describes it."""

    tag: str
    step: Optional[int]
    sequence: int  # The only order there is.
    attempt: int
    world_size: int
    bytes: int
    metrics: Dict[str, float]
    files: Tuple[str, ...]  # Of all ranks.
    level: str
    time: Optional[datetime.datetime]  # Of the commit.
    pinned: bool = False
    reason: str = ""  # Of one that failed.
    error: str = ""
    missing_ranks: Tuple[int, ...] = ()
    written_bytes: int = 0
    damage: str = ""  # Of one that is not what was saved: what was found.
    resident: bool = False  # Its bytes are in the daemon's memory still: restoring it reads no disk.


def info_of(checkpoint: Any) -> CheckpointInfo:
    return CheckpointInfo(
        tag=checkpoint.tag,
        step=checkpoint.step if checkpoint.HasField("step") else None,
        sequence=checkpoint.sequence,
        attempt=checkpoint.attempt,
        world_size=checkpoint.world_size,
        bytes=checkpoint.size_bytes,
        metrics=dict(checkpoint.metrics),
        files=tuple(file.path for file in checkpoint.files),
        level=level_name(checkpoint.level),
        time=time_of(checkpoint.commit_time) or time_of(checkpoint.create_time),
        pinned=checkpoint.pinned,
        reason=checkpoint.error.reason,
        error=checkpoint.error.message,
        missing_ranks=tuple(checkpoint.missing_ranks),
        written_bytes=checkpoint.written_bytes,
        damage=checkpoint.damage.message,
        resident=checkpoint.resident,
    )


class Run:
    """From Client.run(). Thread-safe."""

    def __init__(
        self,
        client: "Client",
        root: "Union[str, os.PathLike[str]]",
        rank: Optional[int],
        world_size: Optional[int],
        num_kept_ckpts: Optional[int],
        run_id: str,
        attempt: Optional[int],
        commit_timeout: float,
    ) -> None:
        if num_kept_ckpts is not None and num_kept_ckpts < 1:
            raise errors.invalid(f"num_kept_ckpts is {num_kept_ckpts}; it is at least 1, and None keeps all")
        self._client = client  # Its session lasts as long as we do.
        self._sessions = client._sessions
        self._sessions.check_usable()
        self.root = os.path.abspath(os.fspath(root))
        self._membership = _rank.membership(rank, world_size)
        self.rank = self._membership.rank
        self.world_size = self._membership.world_size
        self._num_kept_ckpts = num_kept_ckpts
        self._asked_run_id = run_id
        self._asked_attempt = attempt or 0
        self._commit_timeout = commit_timeout
        self._threads = _accel.default_threads(self._membership.local_world_size or self.world_size)
        self._root = _Directory(self.root)
        self._lock = threading.Lock()
        self._join_lock = threading.Lock()
        self._present: Optional[Joined] = None
        self._ordinals: Dict[str, int] = {}
        self._ordinals_attempt = 0
        self._begun = 0  # Saves, in all attempts.
        self._unended: Set[Part] = set()  # Staged, and not known to have ended.
        self._offers = Offers()
        self._failures: Deque[errors.CkptdError] = collections.deque(maxlen=_REMEMBERED)
        self._sessions.repeat(self._joined, _ATTACH_SECONDS)
        self._sessions.follower.join(self)

    @property
    def attempt(self) -> int:
        """Which launch of the job this is, as the daemon numbers them."""
        return self._present.attempt if self._present is not None else 0

    @property
    def run_id(self) -> str:
        return self._present.run_id if self._present is not None else ""

    # ---- saving

    def save(
        self,
        tag: str,
        *,
        files: Mapping[str, Any],
        step: Optional[int] = None,
        metrics: Optional[Mapping[str, float]] = None,
        pointers: Optional[Mapping[str, str]] = None,
        busy: str = "wait",
        timeout: float = 30.0,
        views: str = "compact",
    ) -> Save:
        """Saves this rank's part of the checkpoint `tag`; returns when its bytes are staged, after one copy
        of them.

        Every rank calls it with the same tag and step; a rank that contributes nothing passes files={}.
        files: name -> bytes-like, ckptd.File(path), ckptd.Torch(obj), or any object under a name that ends
        in .pt, .pth, .bin or .ckpt. One name belongs to one rank.
        pointers: name -> text of files in the root itself that name this checkpoint for other programs,
        as DeepSpeed's latest does: pointers={"latest": tag}. Written once the checkpoint is committed; of
        several saves that name one, the newest counts. At most 8, together 1024 bytes; ranks may repeat
        them, but not differ. A pointer is rewritten when a daemon starts, and what it names is not removed
        by retention.
        busy: when there is no room, "wait" (up to `timeout` seconds), "skip" (the result's level is
        "skipped"), or "supersede" (drop the older save that is not yet sealed by all ranks, whose level is
        then "superseded"). views: "keep" saves storages whole as torch does; "compact" drops the parts that
        no tensor uses.
        """
        if views not in _values.VIEWS:
            raise ValueError(f'views is "{views}"; it is "compact" or "keep"')
        part = Part(self, tag, _options(step, metrics, pointers, busy, timeout), growing=False)
        with part._abort_on_error():
            part._save([_File(name, _values.image_of(name, value, views)) for name, value in files.items()])
        return part

    def begin(
        self,
        tag: str,
        *,
        step: Optional[int] = None,
        metrics: Optional[Mapping[str, float]] = None,
        pointers: Optional[Mapping[str, str]] = None,
        busy: str = "wait",
        timeout: float = 30.0,
    ) -> Part:
        """The same, file by file: `with run.begin("step_200", step=200) as part: part.add("a.pt", obj)`."""
        part = Part(self, tag, _options(step, metrics, pointers, busy, timeout), growing=True)
        with part._abort_on_error():
            part._begin()
        return part

    def failures(self) -> List[errors.CkptdError]:
        """Saves of this rank that did not become checkpoints, oldest first: what wait() raises or would
        have raised. The last 100.
        """
        with self._lock:
            return list(self._failures)

    # ---- looking

    def latest(self) -> Optional[CheckpointInfo]:
        """The newest committed checkpoint, or None."""

        def ask() -> Any:
            joined = self._joined()
            request = messages.GetCheckpointRequest(
                name=f"{joined.run}/checkpoints/latest", view=messages.FULL
            )
            return joined.session.call(joined.session.checkpoints.GetCheckpoint, request, _RPC_SECONDS)

        try:
            return info_of(self._sessions.repeat(ask, _RPC_SECONDS))
        except errors.NotFound as error:
            if error.reason != "NO_CHECKPOINT":
                raise
            return None

    def list(self, show_all: bool = False) -> List[CheckpointInfo]:
        """Committed checkpoints, newest first. show_all: also those in flight, and the failed ones that are
        remembered.
        """
        found: List[CheckpointInfo] = []
        token = ""

        def ask() -> Any:
            joined = self._joined()
            request = messages.ListCheckpointsRequest(
                parent=joined.run, page_size=1000, page_token=token, show_all=show_all, view=messages.FULL
            )
            return joined.session.call(joined.session.checkpoints.ListCheckpoints, request, _RPC_SECONDS)

        while True:
            page = self._sessions.repeat(ask, _RPC_SECONDS)
            found += [info_of(checkpoint) for checkpoint in page.checkpoints]
            token = page.next_page_token
            if not token:
                return found

    # ---- restoring

    def resume(
        self, timeout: float = 60.0, *, strict: bool = False, finish_timeout: float = 600.0
    ) -> "Checkpoint":
        """What this attempt resumes from, as a context manager: falsy when there is nothing. The same
        answer on every rank.

        Earlier attempts are fenced off. Waits up to `timeout` seconds until what they had sealed is
        published or has failed.

        It is the newest checkpoint that is not known to be damaged; `passed_over` of the result names newer
        ones that are. strict=True: Corrupt, rather than an older one. Corrupt also when all that there is is
        damaged: only an empty root is begun from nothing.

        Leaving the `with` block waits, up to `finish_timeout` seconds, until every rank has left it. When one
        of them has found damage it raises Corrupt on all of them, and the next resume() gives all of them the
        next older one; restore() does that by itself.
        """
        from ckptd.restore import Checkpoint, opened

        def ask() -> Any:
            joined = self._joined()
            request = messages.ResumeRequest(run=joined.run, rank=self.rank, strict=strict)
            set_duration(request.timeout, timeout)
            return joined, joined.session.call(joined.session.checkpoints.Resume, request, timeout + 10.0)

        joined, response = self._sessions.repeat(ask, timeout)
        if not response.HasField("checkpoint"):
            return Checkpoint(None, None)
        reading = Resuming(self, info_of(response.checkpoint), finish_timeout)
        return opened(self._root.descriptor, joined.session, response, self._threads, reading)

    def restore(
        self,
        load: "Callable[[Checkpoint], T]",
        timeout: float = 60.0,
        *,
        strict: bool = False,
        finish_timeout: float = 600.0,
    ) -> T:
        """`load(checkpoint)` within resume(), which see, until every rank has loaded the same one: where one
        turns out to be damaged on any rank, all of them load the next older one. Returns what `load` did.

            state = run.restore(lambda c: c.load("model.pt") if c else None)

        Every rank calls it. `load` may be called several times, and must not keep what it loaded before.
        """
        before = None
        while True:
            checkpoint = self.resume(timeout, strict=strict, finish_timeout=finish_timeout)
            if not checkpoint:
                return load(checkpoint)
            try:
                with checkpoint:
                    loaded = load(checkpoint)
                return loaded
            except errors.Corrupt as error:
                # Another checkpoint's, or one that the daemon did not hear of.
                if before is not None and checkpoint.sequence >= before:
                    raise
                before = checkpoint.sequence
                _log.warning("ckptd: the next older checkpoint is tried: %s", error)

    def prefetch(self, tag: str = "latest", timeout: float = 600.0) -> "concurrent.futures.Future[CheckpointInfo]":
        """Has the daemon read a checkpoint into its memory while this process does something else, such as building its
        model; returns at once. resume() and open() read it from there, and wait for it where it is under way.

        One rank of a node asks for all. The result, which nobody needs to wait for: Refused where there is too little
        memory beside it for a save, or it is damaged; then readers read the disk.
        """
        joined = self._joined()
        request = messages.PrefetchRequest(name=f"{joined.run}/checkpoints/{tag}")
        result: "concurrent.futures.Future[CheckpointInfo]" = concurrent.futures.Future()

        def ask() -> None:
            try:
                result.set_result(info_of(joined.session.call(joined.session.admin.Prefetch, request, timeout)))
            except Exception as error:
                _log.info("ckptd: %s of %s is not read ahead: %s", tag, self.root, error)
                result.set_exception(error)

        threading.Thread(target=ask, name="ckptd-prefetch", daemon=True).start()
        return result

    def open(self, tag: str = "latest", *, strict: bool = False, background: bool = False) -> "Checkpoint":
        """A committed checkpoint for reading, by this rank alone. NotFound when it is not there.

        "latest" is the newest that is not known to be damaged, see resume(). strict=True: Corrupt, rather
        than a damaged one or an older one in its place.

        background=True is for who looks at a checkpoint while others on this machine train, such as an evaluation:
        reading gives way to them. It computes only where nothing else wants the core (SCHED_IDLE), and the disk
        takes its reads behind all others where its scheduler has an idle class. Where every core is busy it may take
        very long.
        """
        from ckptd.restore import opened

        def ask() -> Any:
            joined = self._joined()
            request = messages.OpenCheckpointRequest(name=f"{joined.run}/checkpoints/{tag}", strict=strict)
            return joined, joined.session.call(
                joined.session.checkpoints.OpenCheckpoint, request, _RPC_SECONDS
            )

        joined, response = self._sessions.repeat(ask, _RPC_SECONDS)
        reading = Reading(self, info_of(response.checkpoint))
        checkpoint = opened(self._root.descriptor, joined.session, response, self._threads, reading)
        checkpoint.background = background
        return checkpoint

    def __repr__(self) -> str:
        return f"<ckptd.Run {self.root} rank={self.rank}/{self.world_size} attempt={self.attempt}>"

    # ---- for the rest of the package

    def _ended(self, tag: str, timeout: float) -> CheckpointInfo:
        """The newest save of a tag, whoever began it, when it has ended, or so far after `timeout` seconds."""

        def ask() -> Any:
            joined = self._joined()
            request = messages.WaitRequest(name=f"{joined.run}/checkpoints/{tag}", level=types.COMMITTED)
            set_duration(request.timeout, timeout)
            return joined.session.call(joined.session.checkpoints.Wait, request, timeout + 10.0)

        return info_of(self._sessions.repeat(ask, timeout).checkpoint)

    def _check_usable(self) -> None:
        self._sessions.check_usable()

    def _peek_joined(self) -> Optional[Joined]:
        return self._present

    def _joined(self, timeout: float = _ATTACH_SECONDS) -> Joined:
        """The run, joined in the present session."""
        session = self._sessions.current()
        present = self._present
        if present is not None and present.session is session:
            return present
        with self._join_lock:
            present = self._present
            if present is not None and present.session is session:
                return present
            with self._lock:
                elsewhere = [save for save in self._unended if save._home != session.daemon_instance]
            offered = [save for save in elsewhere if save._may_be_offered()]
            orphaned = [save for save in elsewhere if save not in offered]
            joined = self._join(session, orphaned, timeout)
            self._give_to(session, orphaned)  # It has them on disk, or has told every rank that they are lost.
            self._offers.add(offered)  # Before any Begin.
            self._present = Joined(session, joined.run, joined.attempt, joined.run_id)
            return self._present

    def _join(self, session: Session, orphaned: "Iterable[Part]", timeout: float) -> Any:
        if session.handoff is not None and self._root.descriptor is None:
            raise errors.Refused(
                f"the root {self.root} cannot be opened: {self._root.error}", reason="ROOT_UNSUITABLE"
            )
        request = messages.JoinRunRequest(
            root=session.attach_root(self._root.descriptor, self.root, timeout),
            run_id=self._asked_run_id,
            rank=self.rank,
            world_size=self.world_size,
            local_world_size=self._membership.local_world_size,
            launch_id=self._membership.launch_id,
            attempt=self._asked_attempt,
        )
        request.orphaned.extend(save._key for save in orphaned)
        return session.call(session.checkpoints.JoinRun, request, timeout)

    def _give_to(self, session: Session, saves: "Iterable[Part]") -> None:
        """From now on this session's daemon is asked how they end, and nothing is offered any more."""
        with self._lock:
            for save in saves:
                save._home = session.daemon_instance
                self._unended.discard(save)

    def _next_number(self) -> int:
        """Of a save of this rank, in the order in which they are begun."""
        with self._lock:
            self._begun += 1
            return self._begun

    def _next_ordinal(self, tag: str, attempt: int) -> int:
        """How often this rank has begun to save this tag in this attempt, from 1."""
        with self._lock:
            if self._ordinals_attempt != attempt:
                self._ordinals_attempt = attempt
                self._ordinals.clear()
            self._ordinals[tag] = self._ordinals.get(tag, 0) + 1
            return self._ordinals[tag]

    def _staged(self, save: Part) -> None:
        with self._lock:
            self._unended.add(save)
        self._sessions.follower.follow(save)

    def _forget(self, save: Any, error: Optional[errors.CkptdError]) -> None:
        """A save has ended."""
        with self._lock:
            self._unended.discard(save)
            if error is not None and not isinstance(error, errors.Skipped):
                self._failures.append(error)


def _options(
    step: Optional[int],
    metrics: Optional[Mapping[str, float]],
    pointers: Optional[Mapping[str, str]],
    busy: str,
    timeout: float,
) -> Options:
    if busy not in _BUSY:
        raise ValueError(f'busy is "{busy}"; it is "wait", "skip" or "supersede"')
    if timeout <= 0:
        raise ValueError(f"timeout is {timeout}; it is more than 0 seconds")
    numbers = {str(name): float(value) for name, value in (metrics or {}).items()}
    contents = dict(pointers or {})
    for name, content in contents.items():
        if not isinstance(name, str) or not isinstance(content, str):
            raise TypeError(f"pointers has {name!r}: {content!r}; it is a file's name and its text")
    return Options(None if step is None else int(step), numbers, contents, _BUSY[busy], timeout)


class _Directory:
    """The root, made when it is missing. `descriptor` is None where this process has no way to it, as in
    another container.
    """

    def __init__(self, path: str) -> None:
        self.descriptor: Optional[int] = None
        self.error = ""
        try:
            os.makedirs(path, exist_ok=True)
            self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self.error = error.strerror or str(error)

    def __del__(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
