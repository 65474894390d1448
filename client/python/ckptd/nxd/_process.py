"""The state of this process between two calls: its settings, its runs, and the save that may still be in
flight.
"""

import atexit
import contextlib
import dataclasses
import logging
import os
import threading
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Optional, Tuple

import ckptd
from ckptd import errors
from ckptd._adapters import bucket, root_paths, store
from ckptd._adapters.node_client import NodeClient, call_in_child
from ckptd._adapters.removal import await_removal
from ckptd._membership import launch
from ckptd._paths import step_of
from ckptd._run_reader import RunReader
from ckptd._torch.reading.allowed_classes import plain_classes
from ckptd._torch.writing.deferred_tensors import DeferredTensors
from ckptd.nxd import _store, _topology
from ckptd.nxd._loading import AllowedClasses
from ckptd.nxd._sources import Classes
from ckptd.nxd._topology import Topology
from ckptd.restore import Checkpoint, open_root
from ckptd.retention import Keep
from ckptd.run import Run
from ckptd.uploads import Upload

_log = logging.getLogger("ckptd")


# Makes the names and values of this rank's files, one after the other.
MakeFiles = Callable[[DeferredTensors], Iterator[Tuple[str, Any]]]


class Settings(NamedTuple):
    """The arguments of configure()."""

    endpoint: Optional[str] = None
    topology: Optional[Topology] = None
    commit_timeout: float = 600.0
    timeout: float = 3600.0
    pool_bytes: Optional[int] = None
    safe_globals: Tuple[Any, ...] = ()
    weights_only: Optional[bool] = None
    upload: Optional[Upload] = None
    share_unchanged: bool = False

    def allowed_classes(self) -> AllowedClasses:
        """Returns which classes files may hold: by default none that could run code."""
        anything = self.weights_only is False
        others = Classes((*self.safe_globals, *plain_classes()), anything)
        return AllowedClasses(Classes(self.safe_globals, anything), others)


class Job:
    """One root in this process."""

    def __init__(self, run: Run, topology: Topology) -> None:
        self.topology = topology
        self.run = run
        # Or has saved without resuming. From then on "latest" is the newest one at each load.
        self.resumed = False


class Process:
    """The state of this process. Thread-safe; it saves one checkpoint at a time, as NxD does."""

    def __init__(self) -> None:
        self.settings = Settings()
        self._configured = 0  # How often configure() was called.
        self._at_exit = False
        self._begin_alone()
        call_in_child(self._begin_alone)

    def _begin_alone(self) -> None:
        """Begins with nothing joined and nothing in flight."""
        self._lock = threading.RLock()
        self._client = NodeClient("nxd", self.settings.endpoint, self.settings.pool_bytes)
        self._topology: Optional[Topology] = None
        self._checked = False  # Whether the ranks have compared their coordinates.
        self._jobs: Dict[str, Job] = {}
        self._pending: "Optional[ckptd.Save]" = None
        self._failed: Optional[errors.CkptdError] = None  # The next call raises it, on every rank.
        self._saves = 0  # How many saves this rank has begun.
        self._loads = 0  # How often load_checkpoint() was called.

    def configure(self, settings: Settings) -> None:
        """Replaces the settings; closes what was opened with the old ones."""
        with self._lock:
            self._await_pending()
            self.settings = settings
            self._topology = None
            self._configured += 1
            self._checked = False
            self._jobs = {}
            self._client.close()
            self._client = NodeClient("nxd", settings.endpoint, settings.pool_bytes)

    def job(self, directory: "str | os.PathLike[str]") -> Job:
        """Returns the job of a root; connects to the daemon and joins the run at the first use. Every rank calls it."""
        root = root_paths.name_of(directory)
        with self._lock:
            self._check_together()
            if root not in self._jobs:
                seconds = self.settings.commit_timeout
                has_met = self._client.knows_ranks() and self._speaks_with_all()
                run = self._client.join(root, (), seconds, lambda: self._join(root)) if has_met else self._join(root)
                self._jobs[root] = Job(run, self.topology())
            return self._jobs[root]

    def _join(self, root: str) -> Run:
        topology = self.topology()
        return self._client.connected().run(
            root,
            rank=topology.rank,
            world_size=topology.world_size,
            commit_timeout=self.settings.commit_timeout,
            local_ranks=self._client.local_ranks() if self._speaks_with_all() else None,
            upload=self.settings.upload,
            share_unchanged=self.settings.share_unchanged,
        )

    def is_resumed_from_bucket(self) -> bool:
        """Returns whether a root may lack what its bucket has."""
        return bucket.is_resumed_from(self.settings.upload)

    def fetch(self, root: str) -> None:
        """Brings the newest checkpoint of the bucket into a root, if it is newer than all there, before this rank looks for
        one. The other ranks may not call this. No-op without a bucket.
        """
        with self._lock:
            job = self._jobs.get(root)
        if self.is_resumed_from_bucket() and (job is None or not job.resumed):
            bucket.fetch_newest(lambda: job.run if job is not None else self._join(root), self.settings.timeout)

    def reader(self, root: str) -> Optional[RunReader]:
        """Returns what to look at a root with; None: the daemon has nothing of it that is under way."""
        with self._lock:
            job = self._jobs.get(root)
            return job.run if job is not None else self._client.reader(root)

    def open(self, root: str, tag: str) -> Checkpoint:
        """Opens what ckptd has committed at a tag, which may be a link; also what the daemon does not list, such as a
        renamed checkpoint.
        """
        root, tag = root_paths.of(root).real_place(tag)
        run = self._run_to_open(root)
        if run is None:
            return open_root(root).open(tag)
        try:
            opened = run.open(tag)
        except errors.NotFound:
            return open_root(root).open(tag)
        opened._tell_restore()
        return opened

    def _run_to_open(self, root: str) -> Optional[Run]:
        """Returns what opens a checkpoint by its tag; None: no daemon. In a bucket it is none before this process has saved or
        resumed there: it may be an evaluation.
        """
        if root_paths.of(root).is_directory:
            return self.job(root).run
        with self._lock:
            self._check_together()
            job = self._jobs.get(root)
        return job.run if job is not None else None

    def topology(self) -> Topology:
        """Returns this rank's coordinates."""
        with self._lock:
            if self._topology is None:
                self._topology = _topology.complete(self.settings.topology)
            return self._topology

    def save(
        self,
        job: Job,
        tag: str,
        files: MakeFiles,
        keep: Optional[Keep],
        metrics: Optional[Mapping[str, float]],
        wait: bool,
    ) -> None:
        """Saves this rank's part.

        wait: return when the checkpoint is committed and older ones are removed, not when the part is staged.
        """
        with self._lock:
            job.resumed = True
            job.run.retention = keep
            self._saves += 1
            late = _store.LateRanks(self._saves, f"{tag} in {job.run.root}")
            with late if self._speaks_with_all() else contextlib.nullcontext():
                save = self._begin(job, tag, files, metrics, wait)
                if wait:
                    save.wait("committed", self.settings.timeout)
            if wait:
                if keep is not None:
                    await_removal(job.run)
                return
            self._pending = save
            if not self._at_exit:
                self._at_exit = True
                atexit.register(self._end)

    def _begin(
        self, job: Job, tag: str, files: MakeFiles, metrics: Optional[Mapping[str, float]], wait: bool
    ) -> "ckptd.Save":
        """Begins, copies and seals this rank's part."""
        deferred = DeferredTensors()
        try:
            return job.run.save(
                tag,
                files=_Files(files, deferred),
                step=step_of(tag),
                metrics=metrics,
                timeout=self.settings.commit_timeout,
            )
        except errors.Refused:
            raise  # On every rank, now.
        except BaseException as error:
            if not wait:  # Other ranks may get it only at their next call, so all raise it there.
                self._failed = error if isinstance(error, errors.CkptdError) else _failed_here(tag, error)
            raise
        finally:
            deferred.release()

    def _speaks_with_all(self) -> bool:
        """Returns whether the process group's ranks are the job's, so that they can tell each other."""
        group, topology = launch.process_group(), self.settings.topology
        if group is None or topology is None or topology.rank is None:
            return group is not None
        return (topology.rank, topology.world_size) == (group.get_rank(), group.get_world_size())

    def _check_together(self) -> None:
        """Raises an error, on every rank, if two have the same coordinates or cannot save together.

        Once after each configure(). No-op without a process group.
        """
        if self._checked or not self._speaks_with_all():
            return
        coordinates = repr(dataclasses.replace(self.topology(), rank=None, world_size=None))
        seconds, what = self.settings.commit_timeout, "make their first call of ckptd.nxd"
        found = store.exchange(f"nxd/rank/{self._configured}", coordinates, seconds, what)
        if len(found) == (self.topology().world_size or 1):
            # Otherwise the save or the load will name the ranks that are missing.
            _topology.check_distinct(found)
            self._client.meet((), seconds)
        self._checked = True

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Ends on all ranks together, as NxD's load_checkpoint() does. Needs a process group.

        If one rank fails, the others raise CheckpointFailed, so that none goes on alone.
        """
        with self._lock:
            self._loads += 1
            name = f"load/{self._loads}"
        try:
            yield
        except BaseException as error:
            if self._speaks_with_all():
                with contextlib.suppress(RuntimeError):  # The store has gone: `error` says more.
                    store.give(f"nxd/{name}", f"{type(error).__name__}: {error}")
            raise
        if self._speaks_with_all():
            seconds = self.settings.commit_timeout
            _check_all_loaded(store.exchange(f"nxd/{name}", "", seconds, "finish load_checkpoint()"), seconds)

    def finish(self) -> None:
        """Waits for the save in flight. Raises its error, or that of the one before, on every rank."""
        with self._lock:
            self._await_pending()
            failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def await_pending(self) -> None:
        """Waits for the save in flight. finish() raises its error later."""
        with self._lock:
            self._await_pending()

    def _await_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.wait("committed", self.settings.timeout)
        except errors.CkptdError as error:
            self._failed = error

    def _end(self) -> None:
        """Logs how the last save ended, at the end of the process."""
        with self._lock:
            self._await_pending()
            if self._failed is not None:
                _log.error("ckptd: the last save has failed: %s", self._failed)


def _failed_here(tag: str, error: BaseException) -> errors.CkptdError:
    why = f"the save of {tag} has failed on this rank: {type(error).__name__}: {error}"
    return errors.CheckpointFailed(why, reason="SAVE_ABORTED", tag=tag)


def _check_all_loaded(found: Dict[int, str], seconds: float) -> None:
    """Raises unless every rank has posted "", which means that it has loaded its part."""
    failed = {rank: why for rank, why in found.items() if why}
    if failed:
        words = "; ".join(f"rank {rank}: {why}" for rank, why in failed.items())
        raise errors.CheckpointFailed(
            f"this rank has loaded its part of the checkpoint, but another one could not: {words}",
            reason="RESUME_FAILED",
            ranks=list(failed),
        )
    missing = [rank for rank in range(int(launch.process_group().get_world_size())) if rank not in found]
    if missing:
        raise errors.WaitTimeout(
            f"ranks {store.words_of(missing)} have not finished load_checkpoint() after {seconds:g} s; every rank must call it",
            reason="RESUME_INCOMPLETE",
            ranks=missing,
        )


class _Files(Dict[str, Any]):
    """This rank's files, which are made while Run.save() iterates over them: an error there ends the save on
    all ranks.
    """

    def __init__(self, make: MakeFiles, deferred: DeferredTensors) -> None:
        super().__init__()
        self._make = make
        self._deferred = deferred

    def items(self) -> Any:
        return self._make(self._deferred)


process = Process()
