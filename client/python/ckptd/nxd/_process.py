"""The state of this process between two calls: its settings, its runs, and the save that may still be in
flight.
"""

import atexit
import contextlib
import logging
import os
import threading
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple

import ckptd
from ckptd import errors
from ckptd._membership import launch
from ckptd._node_client import NodeClient
from ckptd._torch.deferred_tensors import DeferredTensors
from ckptd.nxd import _parts, _store, _topology
from ckptd.nxd._loading import AllowedClasses
from ckptd.nxd._sources import Classes
from ckptd.nxd._topology import Topology

_log = logging.getLogger("ckptd")


class Settings(NamedTuple):
    """The arguments of configure()."""

    endpoint: Optional[str] = None
    topology: Optional[Topology] = None
    commit_timeout: float = 600.0
    timeout: float = 3600.0
    pool_bytes: Optional[int] = None
    safe_globals: Tuple[Any, ...] = ()
    weights_only: Optional[bool] = None

    def allowed_classes(self) -> AllowedClasses:
        """Returns which classes files may hold.

        By default anything in user content and schedulers' states, as NxD.
        """
        states = Classes(self.safe_globals, self.weights_only is False)
        return AllowedClasses(states, Classes(self.safe_globals, self.weights_only is not True))


class Job:
    """One root in this process."""

    def __init__(self, client: "ckptd.Client", root: str, topology: Topology, commit_timeout: float) -> None:
        self.topology = topology
        self.run = client.run(
            root, rank=topology.rank, world_size=topology.world_size, commit_timeout=commit_timeout
        )
        # Or has saved without resuming. From then on "latest" is the newest one at each load.
        self.resumed = False


class Process:
    """The state of this process. Thread-safe; it saves one checkpoint at a time, as NxD does."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.settings = Settings()
        self._client = NodeClient("nxd")
        self._topology: Optional[Topology] = None
        self._configured = 0  # How often configure() was called.
        self._checked = False  # Whether the ranks have compared their coordinates.
        self._jobs: Dict[str, Job] = {}
        self._pending: "Optional[ckptd.Save]" = None
        self._failed: Optional[errors.CkptdError] = None  # To be raised by the next call, on every rank.
        self._at_exit = False
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
        """Returns the job of a root; connects to the daemon and joins the run at the first use."""
        root = os.path.abspath(os.fspath(directory))
        with self._lock:
            if root not in self._jobs:
                topology = self.topology()
                self._jobs[root] = Job(self._client.connected(), root, topology, self.settings.commit_timeout)
            return self._jobs[root]

    def topology(self) -> Topology:
        """Returns this rank's coordinates."""
        with self._lock:
            if self._topology is None:
                self._topology = _topology.complete(self.settings.topology)
            return self._topology

    def save(
        self, job: Job, tag: str, arguments: _parts.SaveArguments, kept: Optional[int], wait: bool
    ) -> None:
        """Saves this rank's part. wait: return when the checkpoint is committed, not when the part is staged."""
        with self._lock:
            self._check_together(job)
            job.resumed = True
            job.run._membership.num_kept_ckpts = kept
            deferred = DeferredTensors()
            try:
                save = job.run.save(tag, files=_Files(job.topology, arguments, deferred), timeout=self.settings.commit_timeout)
            except errors.Refused:
                raise  # On every rank, now.
            except BaseException as error:
                if not wait:  # Other ranks may hear of it at their next call only, so all raise it there.
                    self._failed = error if isinstance(error, errors.CkptdError) else _failed_here(tag, error)
                raise
            finally:
                deferred.release()
            if wait:
                save.wait("committed", self.settings.timeout)
                return
            self._pending = save
            if not self._at_exit:
                self._at_exit = True
                atexit.register(self._end)

    def _check_together(self, job: Job) -> None:
        if not self._checked and self.settings.topology is not None:
            name, seconds = str(self._configured), self.settings.commit_timeout
            _topology.check_together(job.topology, name, seconds)
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
            _store.post(name, f"{type(error).__name__}: {error}")
            raise
        seconds = self.settings.commit_timeout
        found = _store.exchange(name, "", seconds, "finish load_checkpoint()")
        if found is not None:
            _check_all_loaded(found, seconds)

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
    """Raises unless every rank has said "", which means that it has loaded its part."""
    failed = {rank: why for rank, why in found.items() if why}
    if failed:
        words = "; ".join(f"rank {rank}: {why}" for rank, why in failed.items())
        raise errors.CheckpointFailed(
            f"this rank has loaded its part of the checkpoint, but another one could not: {words}",
            reason="RESUME_FAILED",
            ranks=list(failed),
        )
    group = launch.process_group()
    missing = [rank for rank in range(int(group.get_world_size())) if rank not in found]
    if missing:
        raise errors.WaitTimeout(
            f"ranks {', '.join(map(str, missing))} have not finished load_checkpoint() after {seconds:g} s; every rank must call it",
            reason="RESUME_INCOMPLETE",
            ranks=missing,
        )


class _Files(Dict[str, Any]):
    """This rank's files, which are made while Run.save() iterates over them: an error there ends the save on
    all ranks.
    """

    def __init__(self, topology: Topology, arguments: _parts.SaveArguments, deferred: DeferredTensors) -> None:
        super().__init__()
        self._arguments = (topology, arguments, deferred)

    def items(self) -> Any:
        return _parts.files(*self._arguments)


process = Process()
