"""A StorageReader of DCP that reads through ckptd."""

import functools
import io
import os
from typing import Any, Dict, List, Optional

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ckptd import errors
from ckptd._adapters import root_paths
from ckptd._checkpoint_paths import is_in_root, manifest_missing, warn_unverified
from ckptd._paths import open_regular
from ckptd._torch.reading import key_prefix
from ckptd.dcp import _directory, _names
from ckptd.dcp._hugging_face import safetensors
from ckptd.dcp._metadata import CheckedPlanner, check_object, load_metadata
from ckptd.dcp._process import MEET_SECONDS, Place, place_of, process
from ckptd.dcp._slices import SliceReader
from ckptd._roots.place import no_checkpoint
from ckptd.restore import Checkpoint


class Reader(StorageReader):
    """Loads a checkpoint through ckptd: ``dcp.load(state, storage_reader=Reader("/ckpts/step-10"))``.

    It reads only the bytes that this rank's plan needs, from the daemon's memory where they still are, and
    verifies every one. It waits for a save of this checkpoint that is in flight. The path may have links. What
    DCP's own writer has written it reads as DCP does, unverified, with a warning in the log. It reads both
    formats: DCP's own, and safetensors files.

    Args:
        path (str or os.PathLike): the checkpoint's directory, or ``s3://BUCKET/PREFIX/TAG``, which is read without a daemon
            if this process does not save there, and needs ``pip install ckptd[s3]``. ``checkpoint_id`` of the call replaces it.
        thread_count (int): as of DCP's ``HuggingFaceStorageReader``, which it is given to for safetensors files that ckptd has
            not written. Default: 1
        daemon (bool): ``False`` reads the disk, without a daemon. Default: ``True``

    Objects beside tensors, and the metadata, may hold no class that could run code, unless
    :func:`ckptd.dcp.configure` allows it.

    Raises:
        ckptd.Refused: an object holds a class that is not allowed.
        ckptd.Corrupt: bytes are not those that were saved, and what the load was to fill may be half filled; or
            ckptd has written the checkpoint, and its manifest is missing.
    """

    def __init__(self, path: "str | os.PathLike[str]", _extension_registry: Any = None, *, thread_count: int = 1, daemon: bool = True) -> None:
        super().__init__()
        self._place = place_of(path)
        self._registry = _extension_registry
        self._thread_count = thread_count
        self._use_daemon = daemon
        self._checkpoint: Optional[Checkpoint] = None
        self._stock: Optional[FileSystemReader] = None  # Reads checkpoints of DCP's own writer.
        self._metadata: Optional[Metadata] = None
        self._failed: Optional[errors.CkptdError] = None  # The error of read_metadata(), which set_up_storage_reader() raises.

    def reset(self, checkpoint_id: "str | os.PathLike[str] | None" = None) -> None:
        """Begins another load; of ``checkpoint_id``, if that is given."""
        if checkpoint_id:
            self._place = place_of(checkpoint_id)
        self._close()

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Opens the checkpoint and reads its metadata; that of one rank, if ``rank`` is given."""
        if self._failed is not None and "rank" in kwargs:
            # dcp.load() tries this next, and would raise an AssertionError if it failed, too.
            # set_up_storage_reader(), which it calls then, raises the error itself.
            return Metadata({})
        try:
            return self._open_and_read(*args, **kwargs)
        except errors.CkptdError as error:
            if error.reason != "UNKNOWN_FILE":  # Otherwise each rank may have metadata of its own.
                self._failed = error
            raise

    def _open_and_read(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._checkpoint is None and self._stock is None:
            together = _names.members_of_load()
            if len(together) > 1 and self._use_daemon:
                process.meet(together, MEET_SECONDS)
            there = root_paths.of(self._place.root)
            if self._use_daemon and there.is_directory and not there.exists(self._place.tag):
                process.fetch(self._place.root)
            self._checkpoint = process.open(self._place, self._use_daemon)
            if self._checkpoint is None and not there.is_directory:
                raise _not_in_bucket(there, self._place)
            if self._checkpoint is None:
                path = _directory.readable(self._place)
                warn_unverified(path)
                self._stock = self._stock_reader(path)
        if self._checkpoint is None:
            assert self._stock is not None
            metadata = self._read_stock_metadata(*args, **kwargs)
            if is_in_root(self._place.path) and _names.is_of_ckptd(metadata):
                raise manifest_missing(self._place.path)
            return metadata
        metadata = self._read_metadata(self._checkpoint, _names.metadata_file(kwargs.get("rank")))
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = StorageMeta()
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Takes over the metadata. Raises what read_metadata() has raised, if it failed."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        _check_prefix(_names.planner_of_load(), metadata, self._place)
        self._metadata = metadata
        if self._stock is not None:
            self._stock.set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        """Returns the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Reads what the plan needs into the planner's tensors, and closes the checkpoint."""
        try:
            if self._stock is not None:
                checked: Any = CheckedPlanner(planner, self._place.path)
                return self._stock.read_data(plan, checked)
            assert self._checkpoint is not None and self._metadata is not None  # read_metadata() came before.
            self._read(self._checkpoint, self._metadata, plan.items, planner)
        finally:
            self._close()
        done: "Future[None]" = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: "str | os.PathLike[str]") -> bool:
        """Returns whether it is a path, or the URL of a bucket."""
        return root_paths.is_name(checkpoint_id)

    @property
    def checkpoint_id(self) -> str:
        """The absolute path, or the URL, of the checkpoint."""
        return self._place.path

    def _stock_reader(self, path: str) -> FileSystemReader:
        if _directory.is_of_hugging_face(path):
            from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

            return HuggingFaceStorageReader(path, self._thread_count)
        return FileSystemReader(path, self._registry)

    def _read_metadata(self, checkpoint: Checkpoint, name: str) -> Metadata:
        if name not in checkpoint.files and any(file.endswith(safetensors.SUFFIX) for file in checkpoint.files):
            return safetensors.read_metadata(checkpoint)
        return load_metadata(checkpoint.read(name), f"{name} of {checkpoint.tag}")

    def _read_stock_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Reads the metadata of DCP's own writer as its reader does, which would load any class."""
        assert self._stock is not None
        path = os.path.join(str(self._stock.path), _names.metadata_file(kwargs.get("rank")))
        if type(self._stock) is not FileSystemReader:
            return self._stock.read_metadata(*args, **kwargs)  # It reads the headers of safetensors files.
        with open(path, "rb", opener=open_regular) as file:
            metadata = load_metadata(file, path)
        meta = getattr(metadata, "storage_meta", None) or StorageMeta()
        meta.load_id = getattr(self._stock, "load_id", None)
        metadata.storage_meta = meta
        return metadata

    def _read(
        self, checkpoint: Checkpoint, metadata: Metadata, items: List[ReadItem], planner: LoadPlanner
    ) -> None:
        slices = SliceReader(checkpoint, metadata)
        for item in items:
            if item.type == LoadItemType.BYTE_IO:
                slices.add_bytes(item, functools.partial(_load_bytes, planner, item, checkpoint.tag))
            else:
                target = planner.resolve_tensor(item).detach()
                slices.add_tensor(item, target, functools.partial(planner.commit_tensor, item, target))
        slices.read()

    def _close(self) -> None:
        checkpoint, self._checkpoint, self._stock, self._metadata = self._checkpoint, None, None, None
        self._failed = None
        if checkpoint is not None:
            checkpoint.close()

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError("a ckptd.dcp.Reader cannot go to another process: make one there")

    def __repr__(self) -> str:
        return f"<ckptd.dcp.Reader {self._place.path}>"


def _not_in_bucket(there: root_paths.RootPath, place: Place) -> errors.CkptdError:
    """Returns the error for a checkpoint that ckptd has not committed in a bucket."""
    if not there.is_of_others(place.tag):
        return no_checkpoint(place.tag, place.root)
    return errors.NotFound(
        f"ckptd has not saved what is at {place.path}, and reads there only what it has saved: give DCP's own reader, such as "
        "FsspecReader, as storage_reader=",
        reason="NO_CHECKPOINT",
        tag=place.tag,
    )


def _check_prefix(planner: Any, metadata: Metadata, place: Place) -> None:
    """Raises errors.Refused if DCP's own planner is about to miss names that were saved with another prefix alone."""
    if type(planner) is not DefaultLoadPlanner or planner.allow_partial_load:
        return
    saved, wanted = metadata.state_dict_metadata, planner.state_dict
    if set(wanted) <= set(saved):
        return
    folders = {name.partition(".")[0] for name in wanted}  # Such as "model": the optimizer's names may not be asked for.
    beside = [name for name in saved if name.partition(".")[0] in folders]
    hint = key_prefix.difference(saved, wanted) or key_prefix.difference(beside, wanted)
    if hint:
        missing = next(name for name in wanted if name not in saved)
        raise errors.Refused(
            f"Missing key in checkpoint state_dict: {missing}. {place.path}: {hint}", reason="STATE_MISMATCH", tag=place.tag
        )


def _load_bytes(planner: LoadPlanner, item: ReadItem, tag: str, data: bytes) -> None:
    check_object(data, f"{item.storage_index.fqn} of {tag}")
    planner.load_bytes(item, io.BytesIO(data))
