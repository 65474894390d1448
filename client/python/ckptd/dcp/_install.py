"""Makes plain dcp.save, dcp.async_save and dcp.load go through ckptd."""

import os
from typing import Any, Dict

from ckptd._adapters import root_paths
from ckptd._patches import Patches
from ckptd.dcp import _names, _sync
from ckptd.dcp._async import SaveFuture, save_async
from ckptd.dcp._process import place_of, process
from ckptd.dcp._reader import Reader
from ckptd.dcp._writer import Writer

_patches = Patches()
_options: Dict[str, Any] = {}  # Arguments of the Writers that are made for paths.

configure = process.configure  # See Process.configure.


def install(**options: Any) -> None:
    """Makes ``dcp.save``, ``dcp.async_save`` and ``dcp.load`` of a path save and load through ckptd.

    So do calls with ``s3://BUCKET/PREFIX/TAG``; what DCP itself has saved there is left to DCP's reader. Calls that name a
    ``storage_writer``, a ``storage_reader`` or another URL stay as they are. Every rank calls it. A later call replaces the
    options.

    Args:
        options: those of :class:`Writer`, such as ``num_kept_ckpts=3``.

    Raises:
        TypeError, ValueError: Writer does not accept an option.
    """
    Writer("/checked/now", **options)
    _options.clear()
    _options.update(options)
    if not _patches:
        for module, name in _names.references():
            _patches.replace(module, name, _REPLACEMENTS[name])
    process.announce()


def uninstall() -> None:
    """Undoes :func:`install`. No-op if it was not called."""
    _patches.restore()


def async_save(
    state_dict: Any,
    *,
    checkpoint_id: "str | os.PathLike[str] | None" = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
    **others: Any,
) -> Any:
    """``dcp.async_save`` through ckptd. Returns when this rank's part is sealed, after one copy.

    It plans, copies and hands over on the calling thread, and needs no thread, no process and no stager
    afterwards: ``async_checkpointer_type`` and ``async_stager`` are accepted and not used. If all ranks are
    killed then, the daemon commits the checkpoint. A call that names another writer or a URL but that of a bucket goes to
    DCP.

    Returns:
        SaveFuture: the metadata, once the checkpoint is committed. A failure that no call has asked for is logged
        as a warning.
    """
    writer = storage_writer
    if writer is None and _is_ours(checkpoint_id):
        writer = Writer(checkpoint_id, **_options)  # type: ignore[arg-type]
    arguments = {
        "checkpoint_id": checkpoint_id,
        "planner": planner,
        "process_group": process_group,
        "no_dist": no_dist,
        "use_collectives": use_collectives,
    }
    if not isinstance(writer, Writer):
        return _names.stock_async_save(state_dict, storage_writer=writer, **arguments, **others)
    saved: SaveFuture = save_async(state_dict, writer, **arguments)
    return saved


def _save(
    state_dict: Any,
    *positional: Any,
    checkpoint_id: "str | os.PathLike[str] | None" = None,
    storage_writer: Any = None,
    **others: Any,
) -> Any:
    """Stands for dcp.save."""
    writer = storage_writer
    if writer is None and _is_ours(checkpoint_id):
        writer = Writer(checkpoint_id, **_options)  # type: ignore[arg-type]
    if isinstance(writer, Writer) and writer.options.wait == "committed" and not positional:
        return _sync.save(state_dict, writer, checkpoint_id, **others)
    return _names.stock_save(state_dict, *positional, checkpoint_id=checkpoint_id, storage_writer=writer, **others)


def _set_up(storage: Any, checkpoint_id: Any, reader: bool = False) -> Any:
    """Stands for DCP's function that chooses the reader or writer of a call."""
    if not storage and _is_ours(checkpoint_id) and not (reader and _is_of_dcp_in_bucket(checkpoint_id)):
        storage = Reader(checkpoint_id) if reader else Writer(checkpoint_id, **_options)
    return _names.stock_set_up(storage, checkpoint_id, reader)


def _is_ours(checkpoint_id: Any) -> bool:
    return bool(checkpoint_id) and root_paths.is_name(checkpoint_id)


def _is_of_dcp_in_bucket(checkpoint_id: Any) -> bool:
    """Returns whether DCP itself must read what lies at a URL, because ckptd has not saved it."""
    place = place_of(checkpoint_id)
    there = root_paths.of(place.root)
    return not there.is_directory and not process.is_saving_to(place) and there.is_of_others(place.tag)


_REPLACEMENTS = {"save": _save, "async_save": async_save, "_storage_setup": _set_up}
