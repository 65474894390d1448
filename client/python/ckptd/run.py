"""Runs: a job's series of checkpoints, as one of its ranks sees it."""

import concurrent.futures
import logging
import os
import threading
from types import MappingProxyType
from typing import Any, Callable, List, Literal, Mapping, Optional, Sequence, TypeVar, Union

from ckptd import errors
from ckptd._checkpoint_info import CheckpointInfo, info_of_message
from ckptd._membership.launch import find_launch
from ckptd._membership.membership import RPC_SECONDS, Joined, JoinOptions, Membership
from ckptd._memory import native
from ckptd._paths import root_name, tag_text
from ckptd._reading.read_reports import ResumeReporter
from ckptd._run_reader import WAIT_GRACE_SECONDS
from ckptd._run_retention import RetainedRun
from ckptd._saving import file_values
from ckptd._saving.finite import Finite
from ckptd._saving.part import Part
from ckptd._saving.part_files import part_file
from ckptd._saving.save import Save
from ckptd._saving.save_options import BusyPolicyName, SaveOptions, StageName
from ckptd._saving.save_recovery import SaveRecovery
from ckptd._saving.save_watcher import SaveWatcher
from ckptd._saving.upload import PartUpload
from ckptd._session.connection import Connection
from ckptd._wire.protocol import messages, set_duration
from ckptd.restore import Checkpoint
from ckptd.retention import Keep

__all__ = ["CheckpointInfo", "Run"]

T = TypeVar("T")
_log = logging.getLogger("ckptd")
_PREFETCH_SECONDS = 60.0
_SLOWEST_BUCKET = 1e6  # Bytes per second.


class Run(RetainedRun):
    """A job's series of checkpoints in one root, as one of its ranks sees it. From :meth:`Client.run`.

    Thread-safe. Calls that need the daemon wait while it restarts.

    Attributes:
        root (str): the absolute path of the root, or its URL.
        rank (int): this process's rank.
        world_size (int): the number of ranks.
    """

    def __init__(
        self,
        connection: Connection,
        watcher: SaveWatcher,
        root: "Union[str, os.PathLike[str]]",
        rank: Optional[int],
        world_size: Optional[int],
        options: JoinOptions,
        keep_alive: object,
        local_ranks: Optional[Sequence[int]] = None,
    ) -> None:
        connection.check_usable()
        self.root = root_name(root)
        launch = find_launch(rank, world_size, local_ranks)
        self.rank = launch.rank
        self.world_size = launch.world_size
        ranks = launch.local_world_size or launch.world_size
        membership = Membership(
            connection,
            self.root,
            launch,
            SaveRecovery(on_progress=watcher.wake),
            watcher,
            options,
            copy_threads=native.save_threads(ranks),
            read_threads=native.read_threads(ranks),
            keep_alive=keep_alive,
        )
        super().__init__(membership)
        self._membership = membership
        membership.join_when_free()
        watcher.add_run(membership)

    @property
    def attempt(self) -> int:
        """Which launch of the job this is, as the daemon numbers them."""
        present = self._membership.present
        return present.attempt if present is not None else 0

    @property
    def run_id(self) -> str:
        """The id of the root's run."""
        present = self._membership.present
        return present.run_id if present is not None else ""

    # ---- saving

    @property
    def retention(self) -> Optional[Keep]:
        """The retention policy that this rank's saves ask for. Assign another one for the next saves: the first
        of them that commits puts it in force. None: this rank asks for none.
        """
        return self._membership.keep

    @retention.setter
    def retention(self, keep: Optional[Keep]) -> None:
        self._membership.keep = keep

    def save(
        self,
        tag: Union[str, int],
        *,
        files: Mapping[str, Any],
        step: Optional[int] = None,
        metrics: Optional[Mapping[str, float]] = None,
        pointers: Optional[Mapping[str, str]] = None,
        busy: BusyPolicyName = "wait",
        timeout: float = 30.0,
        views: "Literal['compact', 'keep']" = "compact",
        ranks: Optional[Sequence[int]] = None,
        check: Optional[Finite] = None,
        stage: StageName = "blocking",
    ) -> Save:
        """Saves this rank's part of a checkpoint. Returns when its bytes are staged, after one copy of them.

        Every rank calls it with the same tag and step; a rank that contributes nothing passes ``files={}``,
        unless the ranks that call it name themselves: ``if run.rank == 0: run.save(..., ranks=[0])``.
        From then on the values may change: the checkpoint becomes durable without them, even if every rank is
        killed.

        Args:
            tag (str or int): the checkpoint's name, and the name of its directory in the root.
            files (Mapping[str, Any]): name -> value. A value is bytes-like, a :class:`File`, a
                :class:`Torch`, or any object under a name that ends in ``.pt``, ``.pth``, ``.bin`` or
                ``.ckpt``, which is saved as ``torch.save`` would save it. A name belongs to one rank.
            step (int, optional): a label.
            metrics (Mapping[str, float], optional): numbers to keep with the checkpoint.
            pointers (Mapping[str, str], optional): name -> text of files in the root itself that name this
                checkpoint for other programs, as DeepSpeed's ``latest`` does: ``pointers={"latest": tag}``.
                They are written after the commit; of several checkpoints that name one, the newest counts. At
                most 8, together 1024 bytes. Ranks may repeat them, but must not differ. A pointer is
                rewritten when a daemon starts, and retention does not remove the checkpoint that it names.
            busy (str): what to do while there is no room: ``"wait"``, up to ``timeout``; ``"skip"``, which
                gives this save up, also when the file system, or etcd, has not answered for 3 s; or ``"supersede"``, which ends the older save that not all ranks have
                sealed. The level of a save that ended like that is ``"skipped"`` or ``"superseded"``.
                Default: ``"wait"``
            timeout (float): seconds to wait for the daemon, in all: for room, and while it restarts or does not answer.
                The call ends 1 second later at the latest. Its own work does not count: the copy takes as long as it
                takes. Default: 30
            views (str): ``"compact"`` drops the parts of storages that no tensor uses; ``"keep"`` saves
                storages whole, as ``torch.save`` does. Default: ``"compact"``
            ranks (Sequence[int], optional): the ranks that save; only they call it, all with the same
                ``ranks``. Default: all ranks
            check (Finite, optional): look for NaNs and infinities, and what to do if there are any. Default:
                ``None``, no check
            stage (str): what the call waits for, of tensors on a GPU. ``"blocking"``: their bytes are staged.
                ``"overlap"``: their copies are queued on a stream of their own, behind the work that computes
                them. They go on beside the next forward and backward pass, and ``optimizer.step()`` waits for
                them on the device. Any other change of the state must come after :meth:`Save.staged`: a change
                that torch counts and that comes earlier fails the save. Default: ``"blocking"``

        Returns:
            Save: the save, which goes on by itself.

        Raises:
            Busy: there was no room in time.
            NoSpace: the disk, or the daemon's pool, is too small for the checkpoint.
            Refused: an argument is not acceptable.
            NonFinite: ``check`` refuses the state.
            Fenced: a newer attempt of the run has begun.
            FileConflict: another rank saves a file of the same name.
            CheckpointFailed: another rank has ended the save.
            TypeError: a value has no form as a file.
            Unavailable: no daemon answered in time.
        """
        if views not in file_values.VIEWS:
            raise ValueError(f'views is "{views}"; it must be "compact" or "keep"')
        options = SaveOptions(tag_text(tag), step, metrics, pointers, busy, timeout, ranks, check, stage).checked(self.rank)
        _check_files(files)
        upload = PartUpload(self._membership, options, growing=False)
        with upload.abort_on_error():
            upload.save([part_file(name, value, check, views) for name, value in files.items()])
        return Save(upload.state)

    def begin(
        self,
        tag: Union[str, int],
        *,
        files: Mapping[str, Any] = MappingProxyType({}),
        step: Optional[int] = None,
        metrics: Optional[Mapping[str, float]] = None,
        pointers: Optional[Mapping[str, str]] = None,
        busy: BusyPolicyName = "wait",
        timeout: float = 30.0,
        ranks: Optional[Sequence[int]] = None,
        check: Optional[Finite] = None,
        stage: StageName = "blocking",
    ) -> Part:
        """Begins a part that is filled file by file.

            with run.begin("step_200", step=200) as part:
                part.add("a.pt", obj)

        Arguments and errors are those of :meth:`save`. ``files`` are the files that are there already: the
        daemon admits the save with their sizes, and they are copied before the call returns. ``timeout``
        counts for each :meth:`Part.add` anew.

        Returns:
            Part: a context manager that seals the part at its end.
        """
        options = SaveOptions(tag_text(tag), step, metrics, pointers, busy, timeout, ranks, check, stage).checked(self.rank)
        _check_files(files)
        upload = PartUpload(self._membership, options, growing=True)
        with upload.abort_on_error():
            upload.begin([part_file(name, value, check) for name, value in files.items()])
        return Part(upload)

    def failures(self) -> List[errors.CkptdError]:
        """Returns the errors of saves of this rank that did not become checkpoints, oldest first; the last
        100.

        They are what :meth:`save` and :meth:`begin` raised, and what :meth:`Save.wait` raises or would have
        raised. Skipped saves are not among them.
        """
        return self._membership.failures()

    # ---- restoring

    def resume(
        self,
        timeout: float = 60.0,
        *,
        strict: bool = False,
        allow_suspect: bool = False,
        finish_timeout: float = 600.0,
    ) -> Checkpoint:
        """Opens the checkpoint that this attempt resumes from: the same one on every rank.

        It is the newest one that is neither suspect nor known to be damaged; ``passed_over`` of the result
        names newer ones that are. Earlier attempts are fenced off. What they had sealed is waited for until it
        is published or has failed.

        Leaving the result's ``with`` block waits until every rank has left its own. If a rank has found
        damage, it raises ``Corrupt`` on all ranks, and the next call gives all of them the next older
        checkpoint. :meth:`restore` does that by itself.

        Args:
            timeout (float): seconds to wait for what earlier attempts had sealed, and for a newer checkpoint of the
                bucket (:class:`Upload`), whose fetch goes on after the timeout. Default: 60
            strict (bool): raise ``Corrupt`` rather than open an older checkpoint in the place of a damaged
                one. Default: ``False``
            allow_suspect (bool): do not pass over a checkpoint because :class:`Finite` marked it as suspect.
                All ranks give the same. Default: ``False``
            finish_timeout (float): seconds to wait for the other ranks at the end of the ``with`` block.
                Default: 600

        Returns:
            Checkpoint: a context manager; falsy if there is no checkpoint.

        Raises:
            Corrupt: every checkpoint is damaged. Training starts from nothing only in an empty root.
            Refused: every checkpoint is suspect, or the ranks differ in ``allow_suspect``; or the bucket's checkpoint
                could not be fetched (``RESTORE_FAILED``).
            Fenced: a newer attempt of the run has begun.
            WaitTimeout: an earlier attempt's save was not finished, or the bucket's checkpoint not fetched, in time.
            Unavailable: no daemon answered in time.
        """

        joined, response = self._ask_resume(timeout, strict, allow_suspect)
        if not response.HasField("checkpoint"):
            return Checkpoint(None, None)
        info = info_of_message(response.checkpoint)
        if self._membership.directory.is_bucket:
            self._read_into_memory(joined, info)
        return self._opened(joined, response, ResumeReporter(self._membership, info, finish_timeout))

    def _read_into_memory(self, joined: Joined, info: CheckpointInfo) -> None:
        """Has the daemon read a checkpoint from the bucket once for all ranks, by several requests at a time.

        Best effort: without memory for it each rank has the daemon read what it loads.
        """
        request = messages.PrefetchRequest(name=f"{joined.run}/checkpoints/{info.tag}")
        try:
            joined.session.call(joined.session.admin.Prefetch, request, _PREFETCH_SECONDS + info.bytes / _SLOWEST_BUCKET)
        except errors.CkptdError as error:
            _log.info("ckptd: %s of %s is read piece by piece: %s", info.tag, self.root, error)

    def _ask_resume(self, timeout: float, strict: bool, allow_suspect: bool) -> Any:
        """Returns (joined, the daemon's answer to Resume)."""

        def ask(joined: Joined) -> Any:
            request = messages.ResumeRequest(run=joined.run, rank=self.rank, strict=strict, allow_suspect=allow_suspect)
            set_duration(request.timeout, timeout)
            return joined, joined.session.call(
                joined.session.checkpoints.Resume, request, timeout + WAIT_GRACE_SECONDS
            )

        return self._membership.ask(ask, timeout)

    def _fetch_newest(self, timeout: float) -> None:
        """Has the daemon bring the newest checkpoint of the bucket into the root, if that is newer than all there.

        For adapters, whose libraries choose and read a checkpoint by themselves: no rank waits for another one.
        Arguments and errors are those of :meth:`resume`.
        """
        joined, response = self._ask_resume(timeout, strict=False, allow_suspect=False)
        if response.lease:
            request = messages.CloseCheckpointRequest(lease=response.lease)
            joined.session.call(joined.session.checkpoints.CloseCheckpoint, request, RPC_SECONDS)

    def restore(
        self,
        load: "Callable[[Checkpoint], T]",
        timeout: float = 60.0,
        *,
        strict: bool = False,
        allow_suspect: bool = False,
        finish_timeout: float = 600.0,
    ) -> T:
        """Loads the same checkpoint on every rank. If one rank finds it damaged, all of them load the next
        older one.

            state = run.restore(lambda c: c.load("model.pt") if c else None)

        Every rank calls it. ``load`` may be called several times, and must not use what an earlier call has
        loaded.

        Args:
            load (Callable[[Checkpoint], T]): loads this rank's state; the checkpoint is falsy if there is
                none.
            timeout, strict, allow_suspect, finish_timeout: as in :meth:`resume`.

        Returns:
            T: what the last call of ``load`` returned.

        Raises:
            Corrupt: every checkpoint is damaged.
            CheckpointFailed: another rank could not load the checkpoint.
            WaitTimeout: another rank did not load it in time, or an earlier attempt's save was not finished
                in time.
            Fenced: a newer attempt of the run has begun.
            Unavailable: no daemon answered in time.
        """
        _check_load(load)
        before = None
        while True:
            checkpoint = self.resume(
                timeout, strict=strict, allow_suspect=allow_suspect, finish_timeout=finish_timeout
            )
            if not checkpoint:
                return load(checkpoint)
            try:
                with checkpoint:
                    loaded = load(checkpoint)
                return loaded
            except errors.Corrupt as error:
                # Offered again: the Corrupt was of another checkpoint that `load` has read, or the report of the
                # damage has not reached the daemon. Another try would end the same way.
                if before is not None and checkpoint.sequence >= before:
                    raise
                before = checkpoint.sequence
                _log.warning("ckptd: loading the next older checkpoint: %s", error)

    def prefetch(self, tag: str = "latest", timeout: float = 600.0) -> "concurrent.futures.Future[CheckpointInfo]":
        """Has the daemon read a checkpoint into its memory while this process does something else. Returns at
        once.

        One rank of a node does it for all. :meth:`resume` and :meth:`open` read the checkpoint from memory
        then, and wait for it while it is being read.

        Args:
            tag (str): the checkpoint. Default: ``"latest"``
            timeout (float): seconds that reading may take. Default: 600

        Returns:
            Future[CheckpointInfo]: the checkpoint, when it is in memory. Waiting for it is optional. It
            raises ``Refused`` if there is too little memory for it beside a save, and ``Corrupt`` if it is
            damaged; then readers read the disk.
        """
        joined = self._membership.joined()
        request = messages.PrefetchRequest(name=f"{joined.run}/checkpoints/{tag}")
        result: "concurrent.futures.Future[CheckpointInfo]" = concurrent.futures.Future()

        def ask() -> None:
            try:
                answer = joined.session.call(joined.session.admin.Prefetch, request, timeout)
                result.set_result(info_of_message(answer))
            except Exception as error:
                _log.info("ckptd: prefetching %s of %s failed: %s", tag, self.root, error)
                result.set_exception(error)

        threading.Thread(target=ask, name="ckptd-prefetch", daemon=True).start()
        return result

    def __repr__(self) -> str:
        return f"<ckptd.Run {self.root} rank={self.rank}/{self.world_size} attempt={self.attempt}>"


def _check_files(files: Any) -> None:
    # Not only a dict: what has items() may make its values one after the other.
    if not hasattr(files, "items"):
        raise TypeError(f"files is {files!r}; it must be a dict of names and values, such as {{\"model.pt\": model.state_dict()}}")


def _check_load(load: Any) -> None:
    # A module can be called, too.
    if hasattr(load, "load_state_dict") or not callable(load):
        raise TypeError(
            f"load is a {type(load).__name__}; it must be a function that loads from a checkpoint, such as "
            "lambda c: c and model.load_state_dict(c.load(\"model.pt\"))"
        )
