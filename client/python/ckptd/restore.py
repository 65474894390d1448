"""Restoring: committed checkpoints, opened for reading. Every chunk is verified against its CRC32C."""

import contextlib
import logging
import os
import pickle
import threading
import weakref
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from ckptd import errors
from ckptd._bucket_url import is_bucket_url
from ckptd._checkpoint_info import CheckpointInfo, info_of_message, info_of_unreadable
from ckptd._membership.membership import RPC_SECONDS
from ckptd._memory import native
from ckptd._paths import tag_text
from ckptd._progress_bar import Progress, progress_bar
from ckptd._reading.local_files import LocalFiles
from ckptd._reading.manifest import read_summary
from ckptd._reading.ranges import Range, read_ranges
from ckptd._reading.read_progress import ReadProgressReporter
from ckptd._reading.read_reports import ReadReporter
from ckptd._reading.resident_files import ResidentFiles
from ckptd._reading.verified_file import RemoteFile, VerifiedFile
from ckptd._roots.bucket.bucket import Bucket
from ckptd._roots.directory import Directory
from ckptd._roots.parallel import in_parallel
from ckptd._roots.place import CheckpointFiles, Place, no_checkpoint
from ckptd._session.session import Session
from ckptd._torch.reading.archive_records import Records, records_of, why_not_meta
from ckptd._torch.reading.load_into import load_into, try_meta
from ckptd._torch.reading.mapped_state import map_tensors
from ckptd._torch.reading.new_tensors import read_new_tensors
from ckptd._wire.protocol import messages

__all__ = ["Checkpoint", "Root", "open_root"]

_log = logging.getLogger("ckptd")
_VERIFIED_AT_ONCE = 32 << 20  # Bytes.
_opened: "weakref.WeakSet[Checkpoint]" = weakref.WeakSet()  # Those that the daemon has opened for this process.
_opened_lock = threading.Lock()
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Checkpoint:
    """A committed checkpoint that is open for reading; a context manager. Falsy if there is no checkpoint.

    From :meth:`Run.open`, :meth:`Run.resume`, :meth:`Run.restore` or :meth:`Root.open`. Use it from one
    thread at a time. While it is open, neither retention nor a new save of its tag removes it, unless it was
    opened without a daemon. Every byte that it returns was verified: ``Corrupt`` names the file and the chunk
    that is not what was saved. The process reports the damage to the daemon, which
    records it and offers an older checkpoint from then on.

    Leaving the ``with`` block of one from :meth:`Run.resume` waits until every rank has left its own, so that
    no rank trains on alone. It raises ``Corrupt`` if a rank has found damage, ``CheckpointFailed`` if a rank
    could not go on, and ``WaitTimeout`` with the ranks that are missing. Then call :meth:`Run.resume` again.

    Attributes:
        background (bool): read with idle priority, see :meth:`Run.open`. May be set between reads.
    """

    def __init__(
        self,
        info: Optional[CheckpointInfo],
        source: Optional[CheckpointFiles],
        sizes: Mapping[str, int] = MappingProxyType({}),
        session: Optional[Session] = None,
        lease: str = "",
        threads: int = 1,
        reporter: Optional[ReadReporter] = None,
        passed_over: Tuple[CheckpointInfo, ...] = (),
    ) -> None:
        self._info = info
        self._source = source
        self._sizes = sizes
        self._session = session
        self._lease = lease
        self._threads = threads
        self._reporter = reporter
        self._passed_over = passed_over
        self.background = False
        self._name = ""  # Its resource name, runs/ID/checkpoints/TAG; empty without a daemon.
        self._residents: Optional[ResidentFiles] = None  # None until the first file is opened.
        self._progress = ReadProgressReporter(session, lease) if session is not None and lease else None

    def __bool__(self) -> bool:
        return self._info is not None

    @property
    def info(self) -> CheckpointInfo:
        """The checkpoint's description. ``NotFound`` if there is nothing to resume from."""
        if self._info is None:
            raise errors.NotFound(
                "there is no checkpoint to resume from; test `if checkpoint:` first", reason="NO_CHECKPOINT"
            )
        return self._info

    @property
    def tag(self) -> str:
        """See :attr:`CheckpointInfo.tag`."""
        return self.info.tag

    @property
    def step(self) -> Optional[int]:
        """See :attr:`CheckpointInfo.step`."""
        return self.info.step

    @property
    def sequence(self) -> int:
        """See :attr:`CheckpointInfo.sequence`."""
        return self.info.sequence

    @property
    def metrics(self) -> Dict[str, float]:
        """See :attr:`CheckpointInfo.metrics`."""
        return self.info.metrics

    @property
    def files(self) -> Tuple[str, ...]:
        """The names of all files, of all ranks, in order."""
        return self.info.files

    @property
    def passed_over(self) -> Tuple[CheckpointInfo, ...]:
        """The newer checkpoints that are damaged or suspect, newest first. This one was opened in their place."""
        return self._passed_over

    def read(self, name: str, progress: Progress = False) -> bytes:
        """Reads one file.

        Args:
            name (str): the file.
            progress (bool or callable): as in :meth:`load`. Default: ``False``

        Raises:
            NotFound: the checkpoint has no such file.
            Corrupt: the file is not what was saved.
        """
        with self._file(name, progress) as file:
            data = bytearray(file.size)
            file.readinto(data)
            return bytes(data)

    def read_ranges(self, ranges: Sequence[Range], into: Optional[Sequence[Any]] = None) -> List[Any]:
        """Reads slices of files, as a load onto another number of ranks needs them.

        Only the chunks that a slice touches are read and verified, each once, in the order of the disk.

        Args:
            ranges (Sequence[Tuple[str, int, int]]): (file, offset, size) of each slice, in bytes.
            into (Sequence, optional): a writable buffer of the right size for each slice. Default: new ones

        Returns:
            List: the buffers, in the order of ``ranges``.

        Raises:
            Refused: a slice reaches beyond its file, or does not fit its buffer. No byte of that file was
                read.
            NotFound: the checkpoint has no such file.
            Corrupt: a chunk is not what was saved.
        """
        buffers = [bytearray(size) for _, _, size in ranges] if into is None else list(into)
        if len(buffers) != len(ranges):
            raise errors.invalid(f"{len(ranges)} ranges were asked for, and {len(buffers)} buffers were given")
        read_ranges(ranges, buffers, lambda name, size: self._file(name, wanted=size))
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
        """Loads one file as ``torch.load`` does, and verifies it.

        Args:
            name (str): the file.
            map_location: as in ``torch.load``. Default: ``"cpu"``
            weights_only (bool): refuse classes that could run code. ``False`` allows everything, for files
                that you trust. Default: ``True``
            safe_globals (Sequence): classes to allow with ``weights_only=True``.
            into (optional): a state with the same names, shapes and dtypes, whose tensors are filled in
                place, on whatever device they are, without a second copy in memory. Its values that are not
                tensors are set, too.
            mmap (bool): if the file is in the daemon's memory, map that memory instead of copying it. The
                tensors last as long as this process uses them, even after the checkpoint is closed or the
                daemon has ended, and what it writes to them is its own. The daemon can use the memory again
                when this process's session ends. If the daemon does not have the bytes, or could not admit a
                save beside them, they are read as without ``mmap``. Default: ``False``
            progress (bool or callable): ``True`` shows a tqdm bar, or lines in the log if tqdm is not
                installed; a function is called with (bytes done, bytes in all). Default: ``False``

        Returns:
            The loaded object, which is ``into`` if that was given.

        Raises:
            Refused: ``into`` does not fit, with the names that differ; nothing of it was changed. Or the file
                holds classes that are not allowed.
            NotFound: the checkpoint has no such file.
            Corrupt: the file is not what was saved. ``into`` may hold old and new bytes then: load another
                checkpoint into it.
        """
        if mmap and into is not None:
            raise errors.invalid("into= and mmap=True were given; into= copies and mmap=True does not, so give one of them")
        with self._file(name, progress) as file:

            def unpickle(location: Any, records: Optional[Records] = None) -> Any:
                return self._unpickle(file, name, location, weights_only, safe_globals, records)

            if into is not None:
                load_into(file, into, unpickle, lambda why: self._does_not_fit(name, why))
                return into
            state = None
            if mmap and str(map_location) == "cpu":
                state = self._load_mapped(file, name, unpickle)
            is_cpu, device = str(map_location) == "cpu", _device_of(map_location)
            if state is None and (is_cpu or device) and weights_only and not safe_globals:
                state = self._load_in_place(
                    file, unpickle, lambda saved, records: read_new_tensors(saved, file, records, device)
                )
            return state if state is not None else unpickle(map_location)

    def _does_not_fit(self, name: str, why: str) -> errors.Refused:
        return errors.Refused(
            f"{name} of {self.tag} does not fit the target of into=: {why}", reason="STATE_MISMATCH", tag=self.tag, path=name
        )

    def _load_mapped(self, file: VerifiedFile, name: str, load: "Callable[..., Any]") -> Any:
        """Loads a file into a mapping of the daemon's memory; None if it is not there, or may not be mapped."""
        image = self._residents.map(name) if self._residents else None
        if image is None:
            return None
        return self._load_in_place(file, load, lambda saved, records: map_tensors(saved, image, records))

    def _load_in_place(
        self, file: VerifiedFile, load: "Callable[..., Any]", place: "Callable[[Any, Records], Any]"
    ) -> Any:
        """Loads a file whose tensors place(state on the meta device, records) makes; None if it holds what only
        torch.load itself can make.
        """
        records = records_of(file)
        saved = try_meta(load, records) if records else None
        return place(saved, records) if saved is not None else None

    def _unpickle(
        self,
        file: VerifiedFile,
        name: str,
        map_location: Any,
        weights_only: bool,
        safe_globals: Sequence[Any],
        records: Optional[Records] = None,
    ) -> Any:
        """Returns the state of a file. records: to the meta device, by these records, and any exception may mean that
        the file must be loaded to the CPU.
        """
        import torch

        from ckptd._torch.reading import meta_load, script_check, unsafe_globals

        allowed: Any = (
            torch.serialization.safe_globals(list(safe_globals)) if safe_globals else contextlib.nullcontext()
        )

        def refuse(why: str, classes: Sequence[str] = ()) -> errors.Refused:
            allow = f"load({name!r}, safe_globals=[{', '.join(classes)}]), or " if classes else ""
            return errors.Refused(
                f"{name} of {self.tag} holds what weights_only=True refuses ({why}); if you trust the file, write {allow}"
                f"load({name!r}, weights_only=False)",
                reason="UNSAFE_GLOBALS",
                tag=self.tag,
                path=name,
                classes=why,
            )

        why = why_not_meta(file) if str(map_location) == "meta" and records is None else ""
        if why:
            raise errors.invalid(f"{name} of {self.tag} cannot be loaded to the meta device, because {why}: load it to the CPU")
        file.seek(0)  # A try on the meta device may have read from it.
        with file.buffered() as reader, allowed:
            if weights_only:
                reader = script_check.checked(reader, refuse)
                if records is not None:
                    try:
                        return meta_load.load_to_meta(reader, records)
                    except meta_load.TooLargeError as error:
                        raise errors.invalid(
                            f"{name} of {self.tag} is not loaded: {error}, so it was made to do harm or by a broken program"
                        ) from None
            try:
                return torch.load(reader, map_location=map_location, weights_only=weights_only)
            except pickle.UnpicklingError as error:
                if not weights_only or file.fault is not None:
                    raise
                classes = unsafe_globals.classes_in(reader, error)
                why = ", ".join(classes) or unsafe_globals.first_line(error)
                raise refuse(why, classes) from error

    def _tell_restore(self) -> None:
        """Has the daemon keep what is read as a restore in its history, however short it is."""
        if self._progress is not None:
            self._progress.always = True

    def _verify(self) -> None:
        """Reads every file once. Corrupt if a byte is not what was saved."""
        buffer = bytearray(_VERIFIED_AT_ONCE)
        for name in self.files:
            with self._file(name) as file:
                while file.readinto(buffer):
                    pass

    def close(self) -> None:
        """Closes the checkpoint, as leaving the ``with`` block does. May be called more than once."""
        reporter, self._reporter = self._reporter, None
        try:
            # It waits for the other ranks, and raises if one has failed. The lease ends in both cases.
            if reporter is not None:
                reporter.finish()
        finally:
            self._release()

    def _release(self) -> None:
        """Closes the files and ends the lease."""
        source, self._source = self._source, None
        if source is not None:
            source.close()
        self._residents = None
        lease, self._lease = self._lease, ""
        if lease and self._session is not None and self._session.alive():
            if self._progress is not None:
                self._progress.finish()
            try:
                request = messages.CloseCheckpointRequest(lease=lease)
                self._session.call(self._session.checkpoints.CloseCheckpoint, request, RPC_SECONDS)
            except errors.CkptdError as error:
                _log.debug("ckptd: closing %s: %s", lease, error)  # The lease ends with the session anyway.
        self._session = None

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        if kind is not None and self._reporter is not None:
            self._reporter.fail(f"{kind.__name__}: {error}")
            self._reporter = None  # close() must not wait for the other ranks: this failure ends their waiting.
        self.close()

    def __repr__(self) -> str:
        return f"<ckptd.Checkpoint {self._info.tag}>" if self._info else "<ckptd.Checkpoint: none>"

    @contextlib.contextmanager
    def _file(self, name: str, progress: Progress = False, wanted: Optional[int] = None) -> Iterator[VerifiedFile]:
        """Yields a file; shows and reports how far its reading has come, and reports damage.

        wanted: how many bytes of it are read; None: all.
        """
        try:
            with self._open(name) as file, progress_bar(progress, f"{self.tag}/{name}", file.size) as show:
                size = file.size if wanted is None else wanted
                report = self._progress.begin_file(size) if self._progress is not None else lambda done: None

                def advance(done: int) -> None:
                    report(done)
                    show(done)

                file.progress, file.background = advance, self.background
                yield file
                show(file.size)
                if self._progress is not None:
                    self._progress.end_file()
        except errors.Corrupt as fault:
            if self._reporter is not None:
                self._reporter.report_damage(fault)
            raise

    def _open(self, name: str) -> VerifiedFile:
        """Opens a file in the daemon's memory, or else where it lies."""
        self._check_name(name)
        if self._session is not None and self._lease:
            if self._residents is None:
                self._residents = ResidentFiles(self._session, self._lease, self.info.bytes, self._threads)
            resident = self._residents.open(name, lambda: self._open_at_source(name))
            if resident is not None:
                return resident
        return self._open_at_source(name)

    def _check_name(self, name: str) -> None:
        if name not in self.files:
            some = ", ".join(self.files[:10]) + (", ..." if len(self.files) > 10 else "")
            raise errors.NotFound(
                f'{self.tag} has no file "{name}"; it has {some or "none"}',
                reason="UNKNOWN_FILE",
                tag=self.tag,
                path=name,
            )

    def _open_at_source(self, name: str) -> VerifiedFile:
        """Opens a file where it lies, here or, where this process may not read it, by way of the daemon."""
        if self._source is not None:
            try:
                return self._source.open(name, self._threads)
            except PermissionError:
                if self._session is None:
                    raise
        if self._session is None:
            raise errors.NotFound(
                f"the checkpoint {self.tag} is closed", reason="UNKNOWN_LEASE", tag=self.tag
            )
        return RemoteFile(self.tag, name, self._sizes[name], self._session, self._lease)


def _device_of(map_location: Any) -> Any:
    """Returns the torch.device whose memory a file is to be read to straight; None if there is none."""
    if not str(map_location).startswith("cuda"):
        return None
    import torch

    device = torch.device(map_location)
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def opened_by_daemon(
    root: Optional[int], session: Session, response: Any, threads: int, reporter: ReadReporter
) -> Checkpoint:
    """Returns the checkpoint that Resume or OpenCheckpoint has opened.

    This process reads the files itself if it can open them. Otherwise the daemon reads them, also if the
    manifest is no longer the one that the daemon has just read.

    Args:
        root: descriptor of the root directory, or None.
        threads: that read and copy.
    """
    info, local = info_of_message(response.checkpoint), None
    passed_over = tuple(info_of_message(checkpoint) for checkpoint in response.passed_over)
    _warn_of_passed_over(passed_over, info.tag)
    if root is not None:
        with contextlib.suppress(OSError, errors.Corrupt):
            local = _open_local(os.open(info.tag, _DIRECTORY, dir_fd=root), info)
    sizes = {file.path: file.size_bytes for file in response.checkpoint.files}
    checkpoint = Checkpoint(info, local, sizes, session, response.lease, threads, reporter, passed_over)
    checkpoint._name = response.checkpoint.name
    with _opened_lock:
        _opened.add(checkpoint)
    return checkpoint


def is_open_here(name: str) -> bool:
    """Returns whether this process has a checkpoint of the daemon open. name: runs/ID/checkpoints/TAG."""
    with _opened_lock:
        return any(checkpoint._name == name and checkpoint._lease for checkpoint in _opened)


def _warn_of_passed_over(passed_over: Sequence[CheckpointInfo], tag: str) -> None:
    for passed in passed_over:
        what, why = ("damaged", passed.damage) if passed.damage else ("suspect", passed.suspect)
        _log.warning("ckptd: checkpoint %s is %s, and %s is opened in its place: %s", passed.tag, what, tag, why)


def _open_local(directory: int, info: CheckpointInfo) -> Optional[LocalFiles]:
    """Takes ownership of a checkpoint's directory. Returns None if it holds another checkpoint by now.

    The daemon still has the files of the one that is leased.
    """
    local = LocalFiles(directory, info.tag, info.tag)
    if local.summary.sequence == info.sequence:
        return local
    local.close()
    return None


class Root:
    """A root that is read without a daemon: no rank, no attempt, no lease. From :func:`open_root`.

    Without a lease, retention may remove a checkpoint, or a save replace it, while it is being read: ``NotFound``.

    Attributes:
        path (str): the absolute path of the root, or the URL of the bucket.
    """

    def __init__(self, path: "Union[str, os.PathLike[str]]") -> None:
        self._place: Place = Bucket(str(path)) if is_bucket_url(path) else Directory(path)
        self.path = self._place.name

    def list(self) -> List[CheckpointInfo]:
        """Returns the committed checkpoints, newest first.

        One whose manifest is damaged is left out, with a warning in the log. ``damage`` is set for one that a
        reader has found to be damaged.
        """
        tags = [tag for _, tag in self._summaries()]
        infos = in_parallel(tags, self._info_if_readable, self._place.readers)
        return [info for info in infos if info is not None]

    def _info_if_readable(self, tag: str) -> Optional[CheckpointInfo]:
        try:
            with self._open(tag) as checkpoint:
                return checkpoint.info
        except errors.CkptdError as error:
            if not _is_of_checkpoint(error):
                raise
            _log.warning("ckptd: %s", error)
            return None

    def latest(self) -> Optional[CheckpointInfo]:
        """Returns the newest committed checkpoint that is neither suspect nor known to be damaged, or None.

        Raises:
            Corrupt: all of them are damaged.
            Refused: all of them are suspect.
        """
        try:
            with self.open() as checkpoint:
                return checkpoint.info
        except errors.NotFound as error:
            if error.reason != "NO_CHECKPOINT":
                raise
            return None

    def _summaries(self, unreadable: Optional[List[CheckpointInfo]] = None) -> "List[Tuple[int, str]]":
        """See Place.summaries()."""
        return self._place.summaries(unreadable)

    def open(self, tag: "Union[str, int]" = "latest", *, strict: bool = False, background: bool = False) -> Checkpoint:
        """Opens a checkpoint for reading.

        Args:
            tag (str): the checkpoint, or a link to one; ``"latest"`` is the newest one that is neither suspect nor
                known to be damaged, and ``passed_over`` of the result names the newer ones that are. Default:
                ``"latest"``
            strict (bool): raise ``Corrupt`` rather than open a damaged checkpoint, or an older one in its
                place. Default: ``False``
            background (bool): read with idle priority, see :meth:`Run.open`; no-op for a bucket. Default: ``False``

        Returns:
            Checkpoint: a context manager.

        Raises:
            NotFound: there is no such checkpoint, or bucket.
            Corrupt: its manifest is damaged or missing, or see ``strict``; or every checkpoint is damaged.
            Refused: every checkpoint is suspect, and none was named. Or the bucket's server denies the request.
            Unavailable: the bucket's server does not answer.
        """
        checkpoint = self._choose(tag_text(tag), strict)
        checkpoint.background = background
        return checkpoint

    def _choose(self, tag: str, strict: bool) -> Checkpoint:
        if tag != "latest":
            checkpoint = self._open(tag)
            if strict and checkpoint.info.damage:
                checkpoint.close()
                raise _damaged(self.path, [checkpoint.info])
            return checkpoint
        passed: List[CheckpointInfo] = []
        unreadable: List[CheckpointInfo] = []
        for sequence, name in self._summaries(unreadable):
            if strict and any(each.damage for each in passed):
                break  # Any other would be an older one in the place of a damaged one.
            try:
                checkpoint = self._open(name)
            except errors.Corrupt as error:
                passed.append(info_of_unreadable(name, sequence, str(error)))
                continue
            except errors.NotFound as error:
                if error.reason != "NO_CHECKPOINT":
                    raise
                continue  # It was removed since the look at all of them.
            if not checkpoint.info.damage and not checkpoint.info.suspect:
                _warn_of_passed_over(passed, name)
                checkpoint._passed_over = tuple(passed)
                return checkpoint
            passed.append(checkpoint.info)
            checkpoint.close()
        damaged = [each for each in [*passed, *unreadable] if each.damage]
        if damaged:
            raise _damaged(self.path, damaged)
        if passed:
            raise _suspect(self.path, passed[0])
        raise no_checkpoint(tag, self.path)

    def _open(self, tag: str) -> Checkpoint:
        info, files = self._place.open(tag)
        return Checkpoint(info, files, threads=native.read_threads(1))

    def __repr__(self) -> str:
        return f"<ckptd.Root {self.path}>"


def _is_of_checkpoint(error: errors.CkptdError) -> bool:
    """Returns whether an error is of one checkpoint alone, and not of the place in which it lies."""
    return isinstance(error, errors.Corrupt) or error.reason in ("NO_CHECKPOINT", "NEWER_FORMAT")


def _damaged(root: str, infos: Sequence[CheckpointInfo]) -> errors.Corrupt:
    words = "; ".join(f"{info.tag}: {info.damage}" for info in infos)
    return errors.Corrupt(
        f"the checkpoint to open in {root} is damaged ({words}), and no other may be opened in its place",
        reason="CHECKPOINT_DAMAGED",
        tag=infos[0].tag,
    )


def _suspect(root: str, info: CheckpointInfo) -> errors.Refused:
    return errors.Refused(
        f"the newest checkpoint in {root}, {info.tag}, is suspect ({info.suspect}), and no other may be opened in "
        "its place; open it by its tag",
        reason="SUSPECT",
        tag=info.tag,
    )


def open_root(path: "Union[str, os.PathLike[str]]") -> Root:
    """Opens a root for reading without a daemon.

    Args:
        path (str or os.PathLike): the root, or ``s3://BUCKET/PREFIX``, which needs ``pip install ckptd[s3]``. Settings and
            credentials of a bucket have the names of AWS's tools (docs/buckets.md).

    Returns:
        Root: the root's checkpoints, read-only.

    Raises:
        NotFound: the path is not a directory.
        Refused: it is a URL that cannot be used.
        ImportError: what reads buckets is not installed.
    """
    return Root(path)


def has_pointer(path: str, name: str) -> bool:
    """Returns whether a committed checkpoint was saved with a pointer of a name (see :meth:`Run.save`).

    Args:
        path (str): the checkpoint's directory.

    Returns:
        bool: ``False`` also if its manifest is gone or damaged.
    """
    try:
        directory = os.open(path, _DIRECTORY)
    except OSError:
        return False
    try:
        return name in read_summary(directory, path).pointers
    except (OSError, errors.Corrupt):
        return False
    finally:
        os.close(directory)
