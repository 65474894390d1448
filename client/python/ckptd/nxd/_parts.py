"""What a rank contributes to a checkpoint: NxD's rule of who writes what."""

import warnings
from typing import AbstractSet, Any, Iterator, NamedTuple, Tuple

from ckptd import _torch_writer
from ckptd._late import Late
from ckptd._values import Torch
from ckptd.errors import UnsafeGlobalsWarning
from ckptd.nxd import _names, _pickles, _states
from ckptd.nxd._sources import Classes
from ckptd.nxd._topology import Topology

_MARKER = b"1"


class Wanted(NamedTuple):
    """The arguments of save_checkpoint() that say what goes into it."""

    model: Any = None
    optimizer: Any = None
    scheduler: Any = None
    user_content: Any = None
    use_xser: bool = False
    zero1_optimizer: bool = False
    avoid_saving_lower_precision_weights: bool = False
    classes: Classes = Classes()  # What load_checkpoint() of this process allows.


def check(topology: Topology, wanted: Wanted) -> None:
    """ValueError for what would lose data."""
    if wanted.optimizer is None or topology.cp_size == 1:
        return
    if _states.is_zero1(wanted.optimizer, wanted.zero1_optimizer):
        raise ValueError(
            f"cp_size is {topology.cp_size} with a ZeRO-1 optimizer: its state is sharded over the context-parallel ranks, too, and "
            "NxD's names of files cannot tell them apart, so all but one of them would be lost"
        )


def files(topology: Topology, wanted: Wanted, late: Late) -> "Iterator[Tuple[str, Any]]":
    """The names and values of this rank's files, largest kinds first. The values are to be copied before the caller goes on."""
    covered = None
    if wanted.optimizer is not None:
        state = _states.of_optimizer(wanted.optimizer)
        avoid = wanted.avoid_saving_lower_precision_weights and wanted.use_xser and topology.ep_size == 1
        if avoid and wanted.model is not None:
            covered = _states.covered_by_master_weights(wanted.model, wanted.optimizer, state)
        settled = _states.settled(state, late)
        if _states.is_zero1(wanted.optimizer, wanted.zero1_optimizer):
            yield from _state_files(_names.zero1(topology), settled, late, wanted, (0, 1))
        else:
            yield from _state_files(_names.optimizer(topology), settled, late, wanted, topology.replica)
    if wanted.model is not None:
        settled = _states.settled(_states.of_model(wanted.model), late)
        yield from _state_files(
            _names.model(topology), settled, late, wanted, topology.replica, covered or frozenset()
        )
    if topology.rank == 0:
        if wanted.scheduler is not None:
            yield _names.SCHEDULER, _anything(wanted.scheduler.state_dict())
        if wanted.user_content is not None:
            yield _names.USER_CONTENT, _anything(wanted.user_content)
        yield _names.BEGUN, _MARKER
        yield _names.DONE, _MARKER


def _state_files(
    name: str,
    settled: _states.Settled,
    late: Late,
    wanted: Wanted,
    replica: Tuple[int, int],
    left_out: AbstractSet[str] = frozenset(),
) -> "Iterator[Tuple[str, Any]]":
    number, count = replica
    if number == 0:
        _warn_of_others(name, settled.others, wanted.classes)
    if not wanted.use_xser:
        if number == 0:
            yield name, _torch(settled.state, late)
        return
    xser = _states.take_out(settled)
    if number == 0:
        yield name, _pickles.image_of_references(xser.references)
        yield _names.info(name), xser.info()
    for tid, writer in enumerate(_states.shares(xser.tensors, count)):
        if writer == number and xser.names[tid] not in left_out:
            yield _names.tensor(name, tid), _torch(xser.tensors[tid], late)


def _warn_of_others(name: str, found: AbstractSet[str], classes: Classes) -> None:
    allowed = {f"{kind.__module__}.{kind.__qualname__}" for kind in classes.more}
    if classes.anything or found <= allowed:
        return
    _torch_writer._warn(
        f"{name} is going to hold {', '.join(sorted(found - allowed))}, which load_checkpoint() refuses by default: allow it by "
        "ckptd.nxd.configure(safe_globals=[...]) or configure(weights_only=False), or save plain values instead",
        UnsafeGlobalsWarning,
    )


def _torch(value: Any, late: Late) -> Torch:
    made = Torch(value)
    made._late = late
    return made


def _anything(value: Any) -> bytes:
    """The file of what may hold any class: load_checkpoint() reads it with whatever it names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeGlobalsWarning)
        return b"".join(_torch_writer.image(value).stream())
