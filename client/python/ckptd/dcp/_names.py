"""The names of PyTorch's Distributed Checkpoint (DCP) that this package uses and that torch may change.

All private names of torch are here. Each is checked when it is first used; a name that is not as expected is
replaced, with a warning.
"""

import copy
import inspect
import pickle
import warnings
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch.distributed as dist
from torch.distributed.checkpoint import filesystem, planner, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from ckptd._adapters.ranks import is_distributed

METADATA_FILE = ".metadata"
FORMAT_VERSION = "1.0.0"  # The version that DCP writes into its metadata.


def metadata_file(rank: Optional[int] = None) -> str:
    """Returns the name of the metadata's file. rank: of a rank that has saved without collectives."""
    return METADATA_FILE if rank is None else f"__{rank}{METADATA_FILE}"


def data_file(rank: int, number: int) -> str:
    """Returns the name of a rank's file of data."""
    return f"__{rank}_{number}.distcp"


def storage_info(path: str, offset: int, length: int, elements: Optional[int]) -> Any:
    """Returns where a value is, as DCP's metadata says it.

    elements: where the bare elements begin in the file. It stands in an attribute that DCP passes on and does
    not read. None if they are not one piece.
    """
    info = filesystem._StorageInfo(path, offset, length)
    if elements is not None:
        info.elements = elements  # type: ignore[attr-defined]
    return info


def elements_of(info: Any) -> Optional[int]:
    """Returns where the bare elements begin in the file, if the metadata tells it."""
    found = getattr(info, "elements", None)
    return found if isinstance(found, int) else None


def is_of_ckptd(metadata: Metadata) -> bool:
    """Returns whether ckptd has written the files that the metadata describes. False if none holds a tensor."""
    return any(elements_of(info) is not None for info in (metadata.storage_data or {}).values())


class MetadataPickle:
    """Pickles metadata again and again with another storage_meta; the rest, which may be large, once."""

    def __init__(self, metadata: Metadata) -> None:
        bare = copy.copy(metadata)
        bare.storage_meta = None
        # Without STOP. Protocol 3 has no frames, whose lengths would say where the pickle ends.
        self._head = pickle.dumps(bare, 3)[:-1]

    def with_storage_meta(self, meta: StorageMeta) -> bytes:
        """Returns the pickled metadata."""
        attributes = pickle.dumps({"storage_meta": meta}, 3)[2:-1]  # Without PROTO and STOP.
        return self._head + attributes + pickle.BUILD + pickle.STOP


def split(items: Sequence[Any], count: int) -> List[List[Any]]:
    """Splits write items as DCP's writer does into `count` files; into one if this torch does it otherwise."""
    if count > 1:
        do_split: Any = getattr(filesystem, "_split_by_size_and_type", None)
        try:
            return [list(bucket) for bucket in do_split(count, list(items))]
        except (TypeError, AttributeError, ValueError):
            _warn("_split_by_size_and_type", "each rank writes one file, whatever thread_count is")
    return [list(items)]


def is_bytes(item: Any) -> bool:
    """Returns whether a write item holds a pickled object, and no tensor."""
    return bool(item.type == planner.WriteItemType.BYTE_IO)


# DCP's own functions, which install() replaces elsewhere.
stock_save = state_dict_saver.save
stock_async_save = state_dict_saver.async_save
stock_set_up: Any = getattr(state_dict_saver, "_storage_setup", None)


def save_state(state_dict: Any, writer: Any, planner: Any, process_group: Any, no_dist: bool) -> Any:
    """Saves as dcp.save() does, a state that holds no Stateful. Returns the metadata.

    dcp.save() calls a logger for each value of a state, to ask the Statefuls among them for theirs, and that takes as
    long as planning.
    """
    save: Any = getattr(state_dict_saver, "_save_state_dict", None)
    arguments = {"process_group": process_group, "no_dist": no_dist, "planner": planner}
    try:
        inspect.signature(save).bind(state_dict, storage_writer=writer, **arguments)
    except (TypeError, ValueError):
        _warn("_save_state_dict", "the first save of many values takes longer")
        save = stock_save
    return save(state_dict, storage_writer=writer, **arguments)


def async_save_arguments() -> Optional[Dict[str, Any]]:
    """Returns the arguments of the call of DCP's async_save() that this thread is in; None if it is not found.

    async_save() calls a stager's stage() with the state alone.
    """
    found = _locals_of(getattr(inspect.unwrap(stock_async_save), "__code__", None))
    wanted = ("checkpoint_id", "planner", "process_group", "async_checkpointer_type", "no_dist", "use_collectives")
    if all(name in found for name in wanted):
        return {name: found[name] for name in wanted}
    _warn("async_save", "the state is copied twice; call ckptd.dcp.async_save instead")
    return None


def planner_of_save() -> Any:
    """Returns the planner of the call of DCP's save() that this thread is in; None if it is not found.

    DCP gives a writer the planner only when it has finished the plan.
    """
    return _locals_of_save().get("planner")


def members_of_save(writer: Any) -> Tuple[int, ...]:
    """Returns members() of the call of DCP's save() that this thread is in; empty if it is not found, or has another writer.

    DCP does not tell a writer.
    """
    found = _locals_of_save()
    return _members_of_call(found) if found.get("storage_writer") is writer else ()


def state_of_save(writer: Any) -> Any:
    """Returns the state dict of the call of DCP's save() that this thread is in; empty as for members_of_save()."""
    found = _locals_of_save()
    return found.get("state_dict", {}) if found.get("storage_writer") is writer else {}


def members_of_load() -> Tuple[int, ...]:
    """Returns members() of the call of DCP's load() that this thread is in; empty if it is not found."""
    found = _locals_of_load()
    return _members_of_call(found) if found else ()


def _members_of_call(found: Dict[str, Any]) -> Tuple[int, ...]:
    return members(found.get("process_group"), bool(found.get("no_dist")))


def members(process_group: Any, no_dist: bool) -> Tuple[int, ...]:
    """Returns the ranks of the job that save or load together, ascending; empty: this one without the others."""
    if no_dist or not is_distributed() or process_group is dist.GroupMember.NON_GROUP_MEMBER:
        return ()
    return tuple(sorted(dist.get_process_group_ranks(process_group or dist.group.WORLD)))


def ranks_of(together: Tuple[int, ...]) -> Tuple[int, ...]:
    """Returns these members(), or nothing if they are all ranks of the job."""
    return together if together and len(together) < dist.get_world_size() else ()


def _locals_of_save() -> Dict[str, Any]:
    return _locals_of(getattr(getattr(state_dict_saver, "_save_state_dict", None), "__code__", None))


def _locals_of_load() -> Dict[str, Any]:
    return _locals_of(getattr(getattr(state_dict_loader, "_load_state_dict", None), "__code__", None))


def _locals_of(code: Any) -> Dict[str, Any]:
    """Returns the local variables of the innermost call of a function in this thread; none if there is no call."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame.f_locals if frame is not None else {}


def planner_of_load() -> Any:
    """Returns the planner of the call of DCP's load() that this thread is in; None if it is not found."""
    return _locals_of_load().get("planner")


def with_own_cache(planner_: Any) -> Any:
    """Returns a copy of a planner whose cached plans are not those of the planner."""
    key = getattr(planner_, "_cached_plans_key", None)
    if not isinstance(key, str):
        return planner_
    made = copy.copy(planner_)
    made._cached_plans_key = f"{key}, ckptd"
    return made


def references() -> List[Tuple[Any, str]]:
    """Returns (module, name) of each reference to what chooses DCP's reader or writer, to async_save, and of callers to
    save. The thread of DCP's own async_save refers to another save.
    """
    import torch.distributed.checkpoint as package
    from torch.distributed.checkpoint import _storage_utils

    setup = [(module, "_storage_setup") for module in (_storage_utils, state_dict_saver, state_dict_loader)]
    if not all(hasattr(module, name) for module, name in setup):
        _warn("_storage_setup", "install() has no effect; pass storage_writer= and storage_reader= instead")
        return []
    return [*setup, (package, "async_save"), (state_dict_saver, "async_save"), (package, "save")]


def _warn(name: str, then: str) -> None:
    warnings.warn(
        f"this version of torch has no {name} as ckptd expects it: {then}", RuntimeWarning, stacklevel=4
    )
