"""The state that an adapter of another library keeps in this process: settings, runs, and saves in flight."""

import atexit
import logging
import os
import threading
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ckptd import errors
from ckptd._adapters import bucket, root_paths
from ckptd._adapters.node_client import NodeClient, call_in_child
from ckptd._membership.launch import checked_rank, find_rank, process_group
from ckptd._run_reader import RunReader
from ckptd._saving.save import Save
from ckptd._torch.reading.allowed_classes import Trust
from ckptd.restore import Checkpoint, open_root
from ckptd.run import Run
from ckptd.uploads import Upload

_log = logging.getLogger("ckptd")
ADMISSION_SECONDS = 120.0  # How long a save of an adapter waits for room by default; Run.save() waits 30 s.
MEET_SECONDS = 60.0  # How long a load waits for the other ranks before this one reads without knowing their nodes.
_LOOK_SECONDS = 1.0  # How often a wait for saves looks whether a daemon answers.
_NO_DAEMON_SECONDS = 120.0  # After so long without a daemon it ends: a service is back in seconds.


class Settings(NamedTuple):
    """The arguments of Process.configure()."""

    endpoint: Optional[str] = None
    commit_timeout: float = 600.0
    timeout: float = 3600.0
    pool_bytes: Optional[int] = None
    trust: Trust = Trust()
    upload: Optional[Upload] = None
    share_unchanged: bool = False


class Place(NamedTuple):
    """A checkpoint's directory, or its URL: a tag in a root."""

    root: str
    tag: str

    @property
    def path(self) -> str:
        return root_paths.join(self.root, self.tag)


def place_of(checkpoint_id: "str | os.PathLike[str]") -> Place:
    """Returns the place of a checkpoint id: the parent of the path is the root, its last component the tag."""
    text = os.fspath(checkpoint_id)
    if not root_paths.is_name(text):
        raise errors.invalid(
            f'the checkpoint id is "{text}", and ckptd saves to directories of this node and to buckets: give a path, '
            "s3://BUCKET/PREFIX/TAG, or ckptd://PATH to what takes URLs only"
        )
    return Place(*root_paths.split(text))


class _Joined(NamedTuple):
    group: Any  # The process group of the time, None without one: a new one is a new launch.
    rank: int
    world_size: int
    run: Run
    directory: Any  # The root's RootPath.identity().


class Process:
    """The state of this process. Thread-safe."""

    def __init__(self, name: str) -> None:
        """name: of the adapter's module in this package."""
        self._name = name
        self.settings = Settings()
        self._at_exit = False
        self._begin()
        call_in_child(self._begin)

    def _begin(self) -> None:
        """Begins with nothing joined and nothing in flight."""
        self._lock = threading.RLock()
        self._client = NodeClient(self._name, self.settings.endpoint, self.settings.pool_bytes)
        self._runs: Dict[str, _Joined] = {}
        self._in_flight: List[Tuple[Place, Save]] = []
        # The roots that have what was in the bucket when this launch began, and the process group of that time.
        self._fetched: Dict[str, Any] = {}
        # A process group, and the saves of each place by these of its ranks (empty: all).
        self._counted: Tuple[Any, Dict[Tuple[Place, Tuple[int, ...]], int]] = (None, {})

    def configure(
        self,
        endpoint: Optional[str] = None,
        *,
        commit_timeout: float = 600.0,
        timeout: float = 3600.0,
        pool_bytes: Optional[int] = None,
        weights_only: bool = True,
        safe_globals: Sequence[Any] = (),
        upload: Optional[Upload] = None,
        share_unchanged: bool = False,
    ) -> None:
        """Sets which daemon this process uses, and what files may hold. Call it on every rank, before the first save or load.

        A later call replaces all settings, after waiting for the saves that are in flight.

        Args:
            endpoint (str, optional): the daemon's endpoint. Default: ``$CKPTD_ENDPOINT``, else the node's
                service, else a private daemon that all ranks of this user on this machine share
            commit_timeout (float): seconds from a save's first rank to its last. Default: 600
            timeout (float): seconds to wait for the disk after that, also at the end of the process. Default: 3600
            pool_bytes (int, optional): the most memory of a private daemon, which takes it when saves need it. Default:
                a quarter of this machine's memory
            weights_only (bool): refuse files with classes that could run code when they are loaded: others than
                those that torch.load allows with ``weights_only=True``, numpy's, ``argparse.Namespace``, datetimes, and
                those of the library itself. ``False`` allows all, for files that you trust. Default: ``True``
            safe_globals (Sequence): classes to allow beside those, as ``torch.serialization.safe_globals``.
                Default: none
            upload (Upload, optional): the bucket to which the daemon copies the checkpoints, and from which this job goes
                on if the root has lost them, for a process that saves to one root. Default: none
            share_unchanged (bool): share files that have not changed since the newest checkpoint with it, as
                :meth:`ckptd.Client.run` does. Default: ``False``

        Raises:
            ValueError: a timeout is not more than 0 seconds.
        """
        errors.check_seconds(commit_timeout=commit_timeout, timeout=timeout)
        with self._lock:
            self.await_all(time.monotonic() + self.settings.timeout)
            trust = Trust(weights_only, tuple(safe_globals))
            self.settings = Settings(endpoint, commit_timeout, timeout, pool_bytes, trust, upload, share_unchanged)
            self._disconnect()
            self._fetched = {}
            self.announce()

    def close(self) -> None:
        """Disconnects, so that no thread and no private daemon is left, until the next use connects again.

        No-op while a save is in flight.
        """
        with self._lock:
            if all(has_ended(save) for _, save in self._in_flight):
                self._disconnect()

    def _disconnect(self) -> None:
        self._runs = {}
        self._client.close()
        self._client = NodeClient(self._name, self.settings.endpoint, self.settings.pool_bytes)

    def announce(self) -> None:
        """Tells the other ranks on which node this one is: those of a process group that save without it may need it."""
        self._client.announce()

    def meet(self, ranks: Tuple[int, ...], seconds: float) -> None:
        """Learns on which nodes ranks of the process group are (empty: all): each of them calls it, before it reads.

        If they cannot save together they read the disk, each for itself. seconds: to wait for the others.
        """
        try:
            self._client.meet(ranks, seconds)
        except errors.CkptdError as error:
            _log.info("ckptd: checkpoints are read without a daemon: %s", error)

    def join(self, root: str, ranks: Tuple[int, ...], seconds: float) -> Run:
        """Returns the run of a root that ranks of the process group (ascending; empty: all) save to together. Each of
        them calls it, before it copies anything.

        Raises:
            errors.CkptdError: they cannot, on all of them, with what to do.
        """
        root = _real_root(root)
        return self._client.join(root, ranks, seconds, lambda: self.run(root, *checked_rank()))

    def join_to_resume(self, root: str, ranks: Tuple[int, ...]) -> None:
        """Joins the run of a root in a bucket as join() does, before its ranks look for the checkpoint to go on from: then the
        daemon knows what they find damaged, and a save may replace that. No-op for a directory, and beside the job that runs
        in the root.
        """
        if root_paths.of(root).is_directory:
            return
        try:
            self.join(root, ranks, MEET_SECONDS)
        except errors.Refused as error:
            if error.reason != "RUN_IN_USE":
                raise
            _log.info("ckptd: %s is read without a daemon: %s", root, error)

    def run(self, root: str, rank: Optional[int] = None, world_size: Optional[int] = None) -> Run:
        """Returns the run of a root, joined at the first use. rank, world_size: by default those of the job."""
        group, root = self.group(), _real_root(root)
        there = root_paths.of(root)
        with self._lock:
            joined = self._runs.get(root)
            is_another = joined is None or joined.group is not group or joined.directory != there.identity()
            if joined is None or is_another or (rank, world_size) not in (
                (None, None),
                (joined.rank, joined.world_size),
            ):
                is_of_job = group is not None and checked_rank(rank, world_size) == checked_rank()
                run = self._client.connected().run(
                    root,
                    rank=rank,
                    world_size=world_size,
                    commit_timeout=self.settings.commit_timeout,
                    local_ranks=self._client.local_ranks() if is_of_job else None,
                    upload=self.settings.upload,
                    share_unchanged=self.settings.share_unchanged,
                )
                joined = self._runs[root] = _Joined(group, run.rank, run.world_size, run, there.identity())
            return joined.run

    def fetch(
        self, root: str, rank: Optional[int] = None, world_size: Optional[int] = None, *, timeout: Optional[float] = None
    ) -> None:
        """Brings the newest checkpoint of the bucket into a root, if it is newer than all there, before this process looks
        for one. Each rank that looks calls it, or one for all.

        No-op without ``configure(upload=)``, after the first time in a launch, and after a save.

        Args:
            rank, world_size: with which this process saves to the root. Default: those of the job
            timeout: seconds to wait. Default: that of the settings

        Raises:
            errors.CkptdError: see bucket.fetch_newest().
        """
        root, group = _real_root(root), self.group()
        with self._lock:
            # A group that was made since then is of the same launch.
            is_done = root in self._fetched and self._fetched[root] in (None, group)
        if is_done or not bucket.is_resumed_from(self.settings.upload):
            return
        bucket.fetch_newest(
            lambda: self.run(root, rank, world_size), self.settings.timeout if timeout is None else timeout
        )
        with self._lock:
            self._fetched[root] = group

    def group(self) -> Any:
        """Returns the default process group; None without one."""
        distributed = process_group()
        return distributed.group.WORLD if distributed is not None else None

    def open(self, place: Place, use_daemon: bool = True, as_rank: bool = True) -> Optional[Checkpoint]:
        """Opens a checkpoint to load it, after the saves of it that are in flight. Follows links.

        Args:
            as_rank: see run_to_read().

        Returns:
            None if ckptd has not committed it: nothing is there, or what another program has written.

        Raises:
            errors.Corrupt: ckptd has written it, and its manifest is damaged or missing.
        """
        self.await_place(place)
        real = _real(place)
        run = self.run_to_read(real.root, as_rank) if use_daemon else None
        opened = _open_with(run, real, self.settings.timeout) if run is not None else None
        if opened is not None:
            opened._tell_restore()
            return opened
        # The daemon knows only checkpoints that are in their own root under their own name, so look here, too.
        return open_root(real.root).open(real.tag) if root_paths.of(real.root).is_committed(real.tag) else None

    def run_to_read(self, root: str, as_rank: bool = True) -> Optional[RunReader]:
        """Returns what to read a root with; None to read without a daemon.

        as_rank: all ranks of the job save to the root.

        A process that is alone reads as no rank of the job, until it saves: it may be an evaluation beside a job that
        trains, or the parent of that job's ranks. The ranks of a launch join once they have met, so that what they read
        stays the newest; in a bucket only if their daemon has the root already, so that none takes it from another job.
        """
        group, there = self.group(), root_paths.of(root)
        with self._lock:
            joined = self._runs.get(there.real())
            is_joined = joined is not None and joined.group is group
        try:
            if not is_joined and not self._daemon_has(there):
                return None
            if is_joined or (as_rank and self._is_known_rank()):
                return self.run(root)
            with self._lock:
                return self._client.reader(there.real())
        except (errors.Refused, errors.Unavailable) as error:
            _log.info("ckptd: %s is read without a daemon: %s", root, error)
            return None

    def _daemon_has(self, there: root_paths.RootPath) -> bool:
        """Returns whether a daemon may know more of a root than lies there."""
        if there.is_directory:
            return self._client.finds_daemon() and there.is_of_ckptd()
        return self._client.serves(there.name)

    def _is_known_rank(self) -> bool:
        """Returns whether this process is one of several ranks whose nodes are known."""
        if find_rank()[1] == 1:
            return False
        return self.group() is None or self._client.knows_ranks()

    # ---- saves in flight

    def count(self, place: Place, ranks: Tuple[int, ...] = ()) -> int:
        """Counts a save of a place by some ranks of the process group (empty: all), which all of these do, also for one
        that fails before it begins.

        Returns its number among those of these ranks and the group.
        """
        group = self.group()
        with self._lock:
            if self._counted[0] is not group:
                self._counted = (group, {})
            counts = self._counted[1]
            counts[place, ranks] = counts.get((place, ranks), 0) + 1
            return counts[place, ranks]

    def add(self, place: Place, save: Save) -> None:
        """Remembers a save, which is waited for before it is loaded and at the end of the process."""
        with self._lock:
            self._in_flight = [(there, other) for there, other in self._in_flight if not has_ended(other)]
            self._in_flight.append((_real(place), save))
            self._fetched[_real_root(place.root)] = self.group()  # From now on this launch's own are the newest.
            if not self._at_exit:
                self._at_exit = True
                # After the client has registered its own end: handlers run in the reverse order.
                atexit.register(self._end)

    def add_failure(self, place: Place, error: BaseException) -> None:
        """Adds a failure to those of the root's run, unless it is there already."""
        with self._lock:
            joined = self._runs.get(_real_root(place.root))
        if joined is not None and not any(known.tag == place.tag for known in joined.run.failures()[-1:]):
            failed = errors.CheckpointFailed(f"{place.tag}: {error}", reason="SAVE_ABORTED", tag=place.tag)
            joined.run._membership.add_failure(failed)

    def delete(self, place: Place) -> bool:
        """Deletes a checkpoint that one rank saves. Returns False if something still needs it.

        Shortly after a commit everything is needed: the daemon deletes nothing before that commit's record is on disk.
        """
        try:
            self.run(place.root, 0, 1).delete(place.tag)
        except errors.NotFound:
            _log.debug("ckptd: %s is gone already", place.path)
        except errors.Refused as error:
            _log.info("ckptd: %s", error)
            return False
        return True

    def is_saving(self, root: str) -> bool:
        """Returns whether a save of a root has not ended."""
        root = _real_root(root)
        return any(there.root == root and not has_ended(save) for there, save in self._of_flight())

    def is_saving_to(self, place: Place) -> bool:
        """Returns whether a save of a place has not ended."""
        place = _real(place)
        return any(there == place and not has_ended(save) for there, save in self._of_flight())

    def await_place(self, place: Place) -> None:
        """Waits until the saves of a place have ended, one way or the other."""
        deadline, place = time.monotonic() + self.settings.timeout, _real(place)
        self.await_saves([save for there, save in self._of_flight() if there == place], deadline)

    def await_root(self, root: str) -> None:
        """Waits until the saves of a root have ended, one way or the other."""
        deadline, root = time.monotonic() + self.settings.timeout, _real_root(root)
        self.await_saves([save for there, save in self._of_flight() if there.root == root], deadline)

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until all saves of this process are committed. No-op if none is in flight.

        Args:
            timeout (float, optional): seconds to wait. Default: that of ``configure()``

        Raises:
            ckptd.CheckpointFailed: a save that was in flight did not become a checkpoint; the others are waited for.
            ckptd.WaitTimeout: a save goes on; the daemon commits it.
        """
        deadline = time.monotonic() + (self.settings.timeout if timeout is None else timeout)
        failed: Optional[errors.CkptdError] = None
        for _, save in self._of_flight():
            try:
                self._await_one(save, deadline)
            except errors.CkptdError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def await_all(self, deadline: float) -> None:
        """Waits until all saves of this process have ended, at most until a time.monotonic()."""
        self.await_saves([save for _, save in self._of_flight()], deadline)

    def _of_flight(self) -> List[Tuple[Place, Save]]:
        with self._lock:
            return list(self._in_flight)

    def await_saves(self, saves: Iterable[Save], deadline: float) -> None:
        """Waits until saves have ended, one way or the other, at most until a time.monotonic()."""
        for save in saves:
            try:
                self._await_one(save, deadline)
            except errors.WaitTimeout as error:
                _log.error("ckptd: %s", error)
            except errors.CkptdError as error:
                _log.debug("ckptd: %s", error)  # The caller of the save gets the same error.

    def _await_one(self, save: Save, deadline: float) -> None:
        """Waits until a save has ended. errors.WaitTimeout at the deadline, and after 120 s without a daemon.

        It waits in steps of a second: the wait for a save does not end when its daemon is gone for good.
        """
        begin = time.monotonic()
        while True:
            left = deadline - time.monotonic()
            try:
                save.wait("committed", max(0.0, min(left, _LOOK_SECONDS)))
                return
            except errors.WaitTimeout:
                away = self._client.seconds_without_daemon()
                if left > _LOOK_SECONDS and away < _NO_DAEMON_SECONDS:
                    continue
                why = f", and no daemon has answered for {away:.0f} s" if away else ""
                raise errors.WaitTimeout(
                    f"the save of {save.tag} is {save.level} and not committed after {time.monotonic() - begin:.0f} s{why}: nobody waits for it any "
                    "longer; a daemon that has it commits it",
                    reason="WAIT_TIMEOUT",
                    tag=save.tag,
                ) from None

    def _end(self) -> None:
        self.await_all(time.monotonic() + self.settings.timeout)


def _real(place: Place) -> Place:
    """Returns the place without links: two paths of one checkpoint give one place."""
    return Place(*root_paths.of(place.root).real_place(place.tag))


def _real_root(root: str) -> str:
    return root_paths.of(root).real()


def _open_with(run: RunReader, place: Place, timeout: float) -> Optional[Checkpoint]:
    try:
        return run.open(place.tag)
    except errors.NotFound:
        pass
    # An earlier launch may have sealed it, and the daemon is still writing.
    if not await_sealed(run, timeout, place.tag):
        return None
    try:
        return run.open(place.tag)
    except errors.NotFound:
        return None


def await_sealed(run: RunReader, timeout: float, tag: Optional[str] = None) -> bool:
    """Waits for the saves that all ranks had sealed: a rank for those of earlier launches, a process that only reads
    for all. Returns whether there was one.

    timeout: seconds to wait for each.
    tag: only those of this tag.
    """
    found = False
    attempt = run.attempt if isinstance(run, Run) else None
    for info in run.list(show_all=True):
        if info.level == "sealed" and (attempt is None or info.attempt < attempt) and tag in (None, info.tag):
            run._wait_for_end(info.tag, timeout)
            found = True
    return found


def has_ended(save: Save) -> bool:
    """Returns whether a save is committed, has failed, or has an end that cannot be known any more."""
    return save.level not in ("open", "staged", "sealed")
