"""Restoring: committed checkpoints, opened for reading, every chunk checked against its CRC32C."""

import contextlib
import datetime
import errno
import logging
import os
import pickle
from types import MappingProxyType
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ckptd import _accel, errors
from ckptd._into import load_into
from ckptd._manifest import open_beneath, read_damages, read_manifest, read_summary
from ckptd._mapped import over
from ckptd._progress import Progress, showing
from ckptd._ranges import Range, read_ranges
from ckptd._reading import Reading, Telling
from ckptd._resident import Residents
from ckptd._session import Session
from ckptd._verified import LocalFile, RemoteFile, VerifiedFile
from ckptd._wire import messages
from ckptd.run import CheckpointInfo, info_of

_log = logging.getLogger("ckptd")
_RPC_SECONDS = 30.0
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Local(NamedTuple):
    """The files as this process reads them itself."""

    directory: int
    records: Dict[str, Any]
    chunk_bytes: int


class Checkpoint:
    """A committed checkpoint that is open for reading; a context manager. Falsy when there is none to
    resume from.

    While it is open the daemon leaves it alone, whatever retention or a re-save of its tag wants. Every
    byte that comes out of it was checked: Corrupt says which file and chunk is not what was saved, and the
    daemon is told: it remembers that, and offers an older one.

    background: reading gives way to all other work on this machine, see Run.open(); may be set between reads.

    Leaving the one that run.resume() gave waits until every rank has left it, so that none trains on alone.
    Corrupt when any rank has found it damaged, CheckpointFailed when one could not go on or has ended,
    WaitTimeout with the ranks that are missing: then call run.resume() again.
    """

    def __init__(
        self,
        info: Optional[CheckpointInfo],
        local: Optional[_Local],
        sizes: Mapping[str, int] = MappingProxyType({}),
        session: Optional[Session] = None,
        lease: str = "",
        threads: int = 1,
        reading: Optional[Reading] = None,
        passed_over: Tuple[CheckpointInfo, ...] = (),
    ) -> None:
        self._info = info
        self._local = local
        self._sizes = sizes
        self._session = session
        self._lease = lease
        self._threads = threads
        self._reading = reading
        self._passed_over = passed_over
        self.background = False
        self._residents: Optional[Residents] = None  # Not asked for yet.
        self._telling = Telling(session, lease) if session is not None and lease else None

    def __bool__(self) -> bool:
        return self._info is not None

    @property
    def info(self) -> CheckpointInfo:
        """What is known of it. NotFound when there is nothing to resume from."""
        if self._info is None:
            raise errors.NotFound(
                "there is no checkpoint to resume from: test `if c:` first", reason="NO_CHECKPOINT"
            )
        return self._info

    @property
    def tag(self) -> str:
        return self.info.tag

    @property
    def step(self) -> Optional[int]:
        return self.info.step

    @property
    def sequence(self) -> int:
        return self.info.sequence

    @property
    def metrics(self) -> Dict[str, float]:
        return self.info.metrics

    @property
    def files(self) -> Tuple[str, ...]:
        """The names of all files, of all ranks, in order."""
        return self.info.files

    @property
    def passed_over(self) -> Tuple[CheckpointInfo, ...]:
        """Newer ones that are damaged, newest first; `damage` of each says how. This is offered in their
        place.
        """
        return self._passed_over

    def read(self, name: str, progress: Progress = False) -> bytes:
        """The bytes of one file. progress: as for load()."""
        with self._file(name, progress) as file:
            data = bytearray(file.size)
            file.readinto(data)
            return bytes(data)

    def read_ranges(self, ranges: Sequence[Range], into: Optional[Sequence[Any]] = None) -> List[Any]:
        """Slices of files: (name, offset, bytes) of each, into buffers of these sizes, or into fresh ones, which are
        returned, in that order.

        Of each file only the chunks that a slice touches are read, each once, in the order of the disk, and checked: what a
        load onto another number of ranks needs. Refused, before a byte of the file is read, where a slice reaches beyond it.
        """
        buffers = [bytearray(size) for _, _, size in ranges] if into is None else list(into)
        if len(buffers) != len(ranges):
            raise errors.invalid(f"{len(ranges)} ranges were asked for, and {len(buffers)} buffers given")
        read_ranges(ranges, buffers, self._file)
        return buffers

    def load(
        self,
        name: str,
        map_location: Any = "cpu",
        weights_only: bool = True,
        safe_globals: Sequence[Any] = (),
        into: Any = None,
        mmap: bool = False,
        progress: Progress = False,
    ) -> Any:
        """torch.load of one file, into memory of its own, or into=: a state with the same names, whose tensors are filled
        in place, on whatever device they are, without a second copy of them in memory; it is what is returned.

        mmap=True takes no memory and no time for a copy where the file is in the daemon's memory still: the tensors lie
        there, as with torch.load's mmap they lie in the file, for as long as this process likes, also when the checkpoint
        is closed or the daemon ends. What this process writes to them is its own. For a state that goes to another
        device, or is only looked at; the daemon has that memory again when this process's session ends. Where the daemon
        has not got the bytes, or too little memory beside them for a save, they are read as without mmap.

        Before anything of `into` is changed all names, shapes and types are compared: Refused names those that differ. Its
        values that are no tensors are set, too. Where a chunk turns out to be corrupt meanwhile, Corrupt says so, and `into`
        holds old and new bytes: load another checkpoint into it.

        progress=True shows how far it has come (with tqdm, where that is installed); a function is called with the bytes
        that are done and those in all.

        weights_only=True refuses classes that could run code; `safe_globals` lists those to allow, and
        weights_only=False allows everything, for files that you trust.
        """
        if mmap and into is not None:
            raise errors.invalid("into= fills memory that is there, mmap=True needs none: give one of them")
        with self._file(name, progress) as file:
            image = self._residents.map(name) if mmap and self._residents and str(map_location) == "cpu" else None
            if image is not None:
                mapped = over(self._unpickle(file, name, "meta", weights_only, safe_globals), image)
                if mapped is not None:
                    return mapped
            if into is None:
                return self._unpickle(file, name, map_location, weights_only, safe_globals)
            load_into(
                file,
                into,
                lambda location: self._unpickle(file, name, location, weights_only, safe_globals),
                lambda why: errors.Refused(
                    f"{name} of {self.tag} does not fit what it is to be loaded into: {why}",
                    reason="STATE_MISMATCH",
                    tag=self.tag,
                    path=name,
                ),
            )
            return into

    def _unpickle(
        self, file: VerifiedFile, name: str, map_location: Any, weights_only: bool, safe_globals: Sequence[Any]
    ) -> Any:
        import torch

        from ckptd import _scripts

        allowed: Any = (
            torch.serialization.safe_globals(list(safe_globals)) if safe_globals else contextlib.nullcontext()
        )

        def refuse(why: str, what_to_do: str) -> errors.Refused:
            return errors.Refused(
                f"{name} of {self.tag} holds what weights_only=True refuses ({why}): {what_to_do}load it with "
                "weights_only=False if you trust the file",
                reason="UNSAFE_GLOBALS",
                tag=self.tag,
                path=name,
            )

        file.seek(0)
        with file.buffered() as reader, allowed:
            if weights_only:
                reader = _scripts.checked(reader, lambda kind: refuse(kind, ""))
            try:
                return torch.load(reader, map_location=map_location, weights_only=weights_only)
            except pickle.UnpicklingError as error:
                if not weights_only or file.fault is not None:
                    raise
                why = str(error).splitlines()[0]
                raise refuse(why, "name its classes in safe_globals=[...], or ") from error

    def close(self) -> None:
        """Gives the checkpoint back to retention; one of run.resume() when every rank does so, see above."""
        reading, self._reading = self._reading, None
        try:
            if reading is not None:
                reading.finish()
        finally:
            self._give_back()

    def _give_back(self) -> None:
        local, self._local = self._local, None
        if local is not None:
            os.close(local.directory)
        self._residents = None
        lease, self._lease = self._lease, ""
        if lease and self._session is not None and self._session.alive():
            if self._telling is not None:
                self._telling.finish()
            try:
                request = messages.CloseCheckpointRequest(lease=lease)
                self._session.call(self._session.checkpoints.CloseCheckpoint, request, _RPC_SECONDS)
            except errors.CkptdError as error:
                _log.debug("ckptd: closing %s: %s", lease, error)  # It ends with the session anyway.
        self._session = None

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        if kind is not None and self._reading is not None:
            self._reading.fail(f"{kind.__name__}: {error}")
            self._reading = None
        self.close()

    def __repr__(self) -> str:
        return f"<ckptd.Checkpoint {self._info.tag}>" if self._info else "<ckptd.Checkpoint: none>"

    @contextlib.contextmanager
    def _file(self, name: str, progress: Progress = False) -> Iterator[VerifiedFile]:
        try:
            with self._open(name) as file, showing(progress, f"{self.tag}/{name}", file.size) as tell:
                for_watchers = self._telling.begin(file.size) if self._telling is not None else lambda done: None

                def came(done: int) -> None:
                    for_watchers(done)
                    tell(done)

                file.progress, file.background = came, self.background
                yield file
                tell(file.size)
        except errors.Corrupt as fault:
            if self._reading is not None:
                self._reading.found(fault)
            raise

    def _open(self, name: str) -> VerifiedFile:
        self._check_name(name)
        if self._session is not None and self._lease:
            if self._residents is None:
                self._residents = Residents(self._session, self._lease, self.info.bytes, self._threads)
            resident = self._residents.open(name, lambda: self._open_on_disk(name))
            if resident is not None:
                return resident
        return self._open_on_disk(name)

    def _check_name(self, name: str) -> None:
        if name not in self.files:
            some = ", ".join(self.files[:10]) + (", ..." if len(self.files) > 10 else "")
            raise errors.NotFound(
                f'{self.tag} has no file "{name}"; it has {some or "none"}',
                reason="UNKNOWN_FILE",
                tag=self.tag,
                path=name,
            )

    def _open_on_disk(self, name: str) -> VerifiedFile:
        if self._local is not None:
            record = self._local.records[name]
            try:
                descriptor = open_beneath(self._local.directory, name)
                return LocalFile(self.tag, record, self._local.chunk_bytes, descriptor, self._threads)
            except PermissionError:
                if self._session is None:
                    raise
            except OSError as error:
                if error.errno not in _NOT_THERE:
                    raise
                raise errors.Corrupt(
                    f"file {name} of checkpoint {self.tag} cannot be opened: {error.strerror}",
                    reason="CORRUPT_FILE",
                    tag=self.tag,
                    ranks=[record.rank],
                    path=name,
                ) from error
        if self._session is None:
            raise errors.NotFound(
                f"the checkpoint {self.tag} is closed", reason="UNKNOWN_LEASE", tag=self.tag
            )
        return RemoteFile(self.tag, name, self._sizes[name], self._session, self._lease)


def opened(root: Optional[int], session: Session, response: Any, threads: int, reading: Reading) -> Checkpoint:
    """What Resume or OpenCheckpoint answered. Where the files can be had, this process reads them itself,
    else the daemon does, also when the manifest is not any more what the daemon has just read.
    """
    info, local = info_of(response.checkpoint), None
    passed_over = tuple(info_of(checkpoint) for checkpoint in response.passed_over)
    _warn(passed_over, info.tag)
    if root is not None:
        with contextlib.suppress(OSError, errors.Corrupt):
            local = _open_local(os.open(info.tag, _DIRECTORY, dir_fd=root), info)
    sizes = {file.path: file.size_bytes for file in response.checkpoint.files}
    return Checkpoint(info, local, sizes, session, response.lease, threads, reading, passed_over)


def _warn(passed_over: Sequence[CheckpointInfo], tag: str) -> None:
    for passed in passed_over:
        _log.warning(
            "ckptd: checkpoint %s is damaged, %s is opened in its place: %s", passed.tag, tag, passed.damage
        )


def _open_local(directory: int, info: CheckpointInfo) -> Optional[_Local]:
    """None when the directory holds another checkpoint by now: the daemon still has the files of the one
    that is leased.
    """
    try:
        summary, records = read_manifest(directory, info.tag)
        if summary.sequence == info.sequence:
            directory, kept = -1, directory
            return _Local(kept, records, summary.chunk_bytes)
        return None
    finally:
        if directory >= 0:
            os.close(directory)


class Root:
    """A root, read without a daemon: no rank, no attempt, no lease. From open_root()."""

    def __init__(self, path: "Union[str, os.PathLike[str]]") -> None:
        self.path = os.path.abspath(os.fspath(path))
        if not os.path.isdir(self.path):
            raise errors.NotFound(f"the root {self.path} is not a directory", reason="UNKNOWN_RUN")

    def list(self) -> List[CheckpointInfo]:
        """Committed checkpoints, newest first. One whose manifest is damaged is left out, with a warning in
        the log; `damage` is set of one that a reader has found not to be what was saved.
        """
        found = []
        for _, name in self._summaries():
            try:
                with self.open(name) as checkpoint:
                    found.append(checkpoint.info)
            except errors.CkptdError as error:
                _log.warning("ckptd: %s", error)
        return found

    def latest(self) -> Optional[CheckpointInfo]:
        """The newest committed checkpoint that is not known to be damaged, or None. Corrupt when all are."""
        try:
            with self.open() as checkpoint:
                return checkpoint.info
        except errors.NotFound:
            return None

    def _summaries(self) -> "List[Tuple[int, str]]":
        """(sequence, tag) of each whose manifest begins well, newest first."""
        found = []
        for name in os.listdir(self.path):
            if name.startswith("."):
                continue
            try:
                directory = os.open(os.path.join(self.path, name), _DIRECTORY)
            except OSError:
                continue  # A file, a link: not ours.
            try:
                summary = read_summary(directory, os.path.join(self.path, name))
                if summary.tag == name:  # Else somebody has copied or renamed it: not what it says it is.
                    found.append((summary.sequence, name))
            except OSError:
                continue  # No manifest: not ours.
            except errors.CkptdError as error:
                _log.warning("ckptd: %s", error)
            finally:
                os.close(directory)
        return sorted(found, reverse=True)

    def open(self, tag: str = "latest", *, strict: bool = False, background: bool = False) -> Checkpoint:
        """One checkpoint for reading. NotFound when it is not there, Corrupt when its manifest is damaged.
        background: see Run.open().

        "latest" is the newest that is not known to be damaged; `passed_over` of the result names newer ones
        that are. strict=True: Corrupt, rather than a damaged one or an older one in its place.
        """
        checkpoint = self._choose(tag, strict)
        checkpoint.background = background
        return checkpoint

    def _choose(self, tag: str, strict: bool) -> Checkpoint:
        damages = read_damages(self.path)
        if tag != "latest":
            checkpoint = self._open(tag, damages)
            if strict and checkpoint.info.damage:
                checkpoint.close()
                raise _damaged(self.path, [checkpoint.info])
            return checkpoint
        passed: List[CheckpointInfo] = []
        for sequence, name in self._summaries():
            if strict and passed:
                break
            try:
                checkpoint = self._open(name, damages)
            except errors.Corrupt as error:
                passed.append(_unreadable(name, sequence, error))
                continue
            if not checkpoint.info.damage:
                _warn(passed, name)
                checkpoint._passed_over = tuple(passed)
                return checkpoint
            passed.append(checkpoint.info)
            checkpoint.close()
        if passed:
            raise _damaged(self.path, passed)
        raise self._missing(tag)

    def _missing(self, tag: str) -> errors.NotFound:
        return errors.NotFound(
            f"no checkpoint {tag} is committed in {self.path}", reason="NO_CHECKPOINT", tag=tag
        )

    def _open(self, name: str, damages: Mapping[int, Any]) -> Checkpoint:
        path = os.path.join(self.path, name)
        if os.path.basename(path) != name or name.startswith(".") or "\0" in name:
            raise self._missing(name)
        try:
            directory = os.open(path, _DIRECTORY)
        except OSError as error:
            raise self._missing(name) from error
        try:
            summary, records = read_manifest(directory, path)
        except OSError as error:
            os.close(directory)
            raise self._missing(name) from error
        except BaseException:
            os.close(directory)
            raise
        damage = damages.get(summary.sequence)
        said = damage.message if damage is not None and damage.tag == name else ""
        local = _Local(directory, records, summary.chunk_bytes)
        return Checkpoint(_info_of(summary, records, said), local, threads=_accel.default_threads(1))

    def __repr__(self) -> str:
        return f"<ckptd.Root {self.path}>"


def _unreadable(tag: str, sequence: int, error: errors.Corrupt) -> CheckpointInfo:
    return CheckpointInfo(tag, None, sequence, 0, 0, 0, {}, (), "committed", None, damage=str(error))


def _damaged(root: str, infos: Sequence[CheckpointInfo]) -> errors.Corrupt:
    words = "; ".join(f"{info.tag}: {info.damage}" for info in infos)
    return errors.Corrupt(
        f"in {root} what was asked for is damaged ({words}), and nothing is opened in its place",
        reason="CHECKPOINT_DAMAGED",
        tag=infos[0].tag,
    )


def _info_of(summary: Any, records: Dict[str, Any], damage: str) -> CheckpointInfo:
    return CheckpointInfo(
        tag=summary.tag,
        step=summary.step if summary.HasField("step") else None,
        sequence=summary.sequence,
        attempt=summary.attempt,
        world_size=summary.world_size,
        bytes=summary.size_bytes,
        metrics=dict(summary.metrics),
        files=tuple(records),
        level="committed",
        time=datetime.datetime.fromtimestamp(summary.commit_time_us / 1e6, datetime.timezone.utc),
        written_bytes=summary.size_bytes,
        damage=damage,
    )


def open_root(path: "Union[str, os.PathLike[str]]") -> Root:
    """The checkpoints of a root, read-only, without a daemon."""
    return Root(path)
