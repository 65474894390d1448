"""What this process knows between two calls: how it was configured, its runs, and the save that may still be under way."""

import atexit
import logging
import os
import tempfile
import threading
from typing import Any, Dict, NamedTuple, Optional, Tuple

import ckptd
from ckptd import errors
from ckptd._client import DEFAULT_ENDPOINT
from ckptd._late import Late
from ckptd.nxd import _parts, _topology
from ckptd.nxd._loading import Trust
from ckptd.nxd._sources import Classes
from ckptd.nxd._topology import Topology

_log = logging.getLogger("ckptd")
_SHARE_OF_MEMORY = 4  # A private daemon's pool is this machine's memory, divided by that.


class Settings(NamedTuple):
    """See configure()."""

    endpoint: Optional[str] = None
    topology: Optional[Topology] = None
    commit_timeout: float = 600.0
    timeout: float = 3600.0
    pool_bytes: Optional[int] = None
    safe_globals: Tuple[Any, ...] = ()
    weights_only: Optional[bool] = None

    def trust(self) -> Trust:
        """weights_only None: anything in user content and the scheduler's state, as NxD, and nowhere else."""
        states = Classes(self.safe_globals, self.weights_only is False)
        return Trust(states, Classes(self.safe_globals, self.weights_only is not True))


class Job:
    """One root, as this rank sees it."""

    def __init__(self, client: "ckptd.Client", root: str, topology: Topology, commit_timeout: float) -> None:
        self.topology = topology
        self.run = client.run(
            root, rank=topology.rank, world_size=topology.world_size, commit_timeout=commit_timeout
        )
        self.resumed = False  # Or begun without resuming: from then on the latest is that of now.


class Process:
    """Thread-safe, but one checkpoint at a time, as with NxD."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.settings = Settings()
        self._client: "Optional[ckptd.Client]" = None
        self._private: "Optional[ckptd.LocalDaemon]" = None
        self._topology: Optional[Topology] = None
        self._configured = 0  # How often.
        self._checked = False  # That no two ranks say that they are the same.
        self._jobs: Dict[str, Job] = {}
        self._pending: "Optional[ckptd.Save]" = None
        self._failed: Optional[errors.CkptdError] = None  # Not yet raised on all ranks.
        self._at_exit = False

    def configure(self, settings: Settings) -> None:
        with self._lock:
            self._settle()
            self.settings = settings
            self._topology = None
            self._configured += 1
            self._checked = False
            self._jobs = {}
            client, self._client = self._client, None
            if client is not None:
                client.close()
            private, self._private = self._private, None
            if private is not None:
                private.stop()

    def job(self, directory: "str | os.PathLike[str]") -> Job:
        """The run of a root; the daemon, the topology and the run are found at its first use."""
        root = os.path.abspath(os.fspath(directory))
        with self._lock:
            if root not in self._jobs:
                topology = self.topology()
                self._jobs[root] = Job(self._connected(), root, topology, self.settings.commit_timeout)
            return self._jobs[root]

    def topology(self) -> Topology:
        with self._lock:
            if self._topology is None:
                self._topology = _topology.complete(self.settings.topology)
            return self._topology

    def save(
        self, job: Job, tag: str, wanted: _parts.Wanted, kept: Optional[int], wait: bool
    ) -> None:
        """Stages this rank's part; wait: until the checkpoint is committed."""
        with self._lock:
            self._check_together(job)
            job.resumed = True
            job.run._num_kept_ckpts = kept
            late = Late()
            try:
                save = job.run.save(tag, files=_Files(job.topology, wanted, late), timeout=self.settings.commit_timeout)
            except errors.Refused:
                raise  # As on all ranks, now.
            except BaseException as error:
                if not wait:  # The other ranks may hear of it at their next call only: there they all do.
                    self._failed = error if isinstance(error, errors.CkptdError) else _failed_here(tag, error)
                raise
            finally:
                late.release()
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

    def finish(self) -> None:
        """Waits for the save that is under way. Raises when it, or the one before, has failed: on every rank alike."""
        with self._lock:
            self._settle()
            failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def settle(self) -> None:
        """Waits for the save that is under way; its failure is raised by finish()."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.wait("committed", self.settings.timeout)
        except errors.CkptdError as error:
            self._failed = error

    def _connected(self) -> "ckptd.Client":
        if self._client is None:
            endpoint = self.settings.endpoint
            if endpoint is None and not os.environ.get("CKPTD_ENDPOINT") and not _service_is_there():
                endpoint = self._start_private()
            self._client = ckptd.connect(endpoint)
        return self._client

    def _start_private(self) -> str:
        """The same for all ranks of this user on this machine."""
        folder = os.path.join(tempfile.gettempdir(), f"ckptd-nxd-{os.getuid()}")
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        pool = self.settings.pool_bytes or max(1 << 30, memory // _SHARE_OF_MEMORY)
        _log.info(
            "ckptd: neither $CKPTD_ENDPOINT nor a service: a private daemon is used, in %s, with a pool of %d MiB for the saves of "
            "all ranks; ckptd.nxd.configure() chooses another",
            folder,
            pool >> 20,
        )
        self._private = ckptd.LocalDaemon(folder, pool_bytes=pool).start()
        return self._private.endpoint

    def _end(self) -> None:
        """At the end of the process: what was sealed is finished by the daemon anyway; how, is said in the log."""
        with self._lock:
            self._settle()
            if self._failed is not None:
                _log.error("ckptd: the last save has failed: %s", self._failed)


def _failed_here(tag: str, error: BaseException) -> errors.CkptdError:
    why = f"the save of {tag} has failed on this rank: {type(error).__name__}: {error}"
    return errors.CheckpointFailed(why, reason="SAVE_ABORTED", tag=tag)


class _Files(Dict[str, Any]):
    """This rank's files. What goes wrong when they are put together ends the save on all ranks, for it does inside of save()."""

    def __init__(self, topology: Topology, wanted: _parts.Wanted, late: Late) -> None:
        super().__init__()
        self._arguments = (topology, wanted, late)

    def items(self) -> Any:
        return _parts.files(*self._arguments)


def _service_is_there() -> bool:
    return os.path.exists(DEFAULT_ENDPOINT.partition(":")[2])


process = Process()
