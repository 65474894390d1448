"""The files that a rank contributes to a checkpoint, by NxD's rule of which rank writes what."""

import warnings
from typing import AbstractSet, Any, Iterator, NamedTuple, Optional, Tuple

from ckptd._saving.file_values import Torch
from ckptd._torch.writing import archive_writer
from ckptd._torch.writing.deferred_tensors import DeferredTensors
from ckptd.errors import UnsafeGlobalsWarning
from ckptd.nxd import _names, _pickles, _states
from ckptd.nxd._sources import Classes
from ckptd.nxd._topology import Topology

_MARKER = b"1"


class SaveArguments(NamedTuple):
    """The arguments of save_checkpoint() that determine the files."""

    model: Any = None
    optimizer: Any = None
    scheduler: Any = None
    user_content: Any = None
    use_xser: bool = False
    zero1_optimizer: bool = False
    avoid_saving_lower_precision_weights: bool = False
    classes: Classes = Classes()  # Those that load_checkpoint() allows in this process.


def check(topology: Topology, arguments: SaveArguments) -> None:
    """Raises ValueError for arguments with which data would be lost."""
    if arguments.optimizer is None or topology.cp_size == 1:
        return
    if _states.is_zero1(arguments.optimizer, arguments.zero1_optimizer):
        raise ValueError(
            f"cp_size is {topology.cp_size} with a ZeRO-1 optimizer: its state is sharded over the context-parallel ranks, too, and "
            "NxD's names of files do not distinguish them, so all shards but one would be lost"
        )


def files(
    topology: Topology, arguments: SaveArguments, deferred: DeferredTensors
) -> "Iterator[Tuple[str, Any]]":
    """Yields the names and values of this rank's files, the optimizer's first.

    Copy each value before the next one.
    """
    made = _plain_states(topology, arguments, deferred)
    deferred.sync()
    if made.optimizer is not None:
        zero1 = _states.is_zero1(arguments.optimizer, arguments.zero1_optimizer)
        name = _names.zero1(topology) if zero1 else _names.optimizer(topology)
        elsewhere = not zero1 and topology.ep_rank > 0 and bool(made.optimizer.experts)
        yield from _state_files(
            name, made.optimizer, deferred, arguments, (0, 1) if zero1 else topology.replica, shared_is_elsewhere=elsewhere
        )
    if made.model is not None:
        # Without any mark nothing tells what is an expert's own, so every rank writes everything.
        elsewhere = topology.ep_rank > 0 and bool(made.model.experts)
        yield from _state_files(
            _names.model(topology), made.model, deferred, arguments, topology.replica, made.covered, elsewhere
        )
    if topology.rank == 0:
        if arguments.scheduler is not None:
            yield _names.SCHEDULER, _any_classes(arguments.scheduler.state_dict())
        if arguments.user_content is not None:
            yield _names.USER_CONTENT, _any_classes(arguments.user_content)
        yield _names.BEGUN, _MARKER
        yield _names.DONE, _MARKER


def files_of_any_state(
    name: str, state: _states.PlainState, deferred: DeferredTensors, use_xser: bool
) -> "Iterator[Tuple[str, Any]]":
    """Yields the files of a state that may hold any class, with xser without a description of the tensors."""
    if not use_xser:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsafeGlobalsWarning)  # Loading allows them, as NxD's.
            laid_out = archive_writer.image(state.state, "compact", deferred)
        yield name, laid_out
        return
    xser = _states.to_xser(state)
    yield name, _pickles.image_of_references(xser.references)
    for tid, tensor in enumerate(xser.tensors):
        yield _names.tensor(name, tid), _torch(tensor, deferred)


class _PlainStates(NamedTuple):
    optimizer: Optional[_states.PlainState]
    model: Optional[_states.PlainState]
    covered: AbstractSet[str]  # Names of the model's tensors that the optimizer's master weights replace.


def _plain_states(topology: Topology, arguments: SaveArguments, deferred: DeferredTensors) -> _PlainStates:
    optimizer = model = None
    covered: AbstractSet[str] = frozenset()
    if arguments.optimizer is not None:
        state = _states.of_optimizer(arguments.optimizer)
        avoid = arguments.avoid_saving_lower_precision_weights and arguments.use_xser and topology.ep_size == 1
        if avoid and arguments.model is not None:
            covered = _states.covered_by_master_weights(arguments.model, arguments.optimizer, state) or covered
        optimizer = _states.to_plain(state, deferred)
        if topology.ep_size > 1:
            experts = _states.tensors_of_experts(arguments.optimizer, optimizer.state)
            optimizer = optimizer._replace(experts=optimizer.experts | experts)
    if arguments.model is not None:
        model = _states.to_plain(_states.of_model(arguments.model), deferred)
    return _PlainStates(optimizer, model, covered)


def _state_files(
    name: str,
    plain: _states.PlainState,
    deferred: DeferredTensors,
    arguments: SaveArguments,
    replica: Tuple[int, int],
    left_out: AbstractSet[str] = frozenset(),
    shared_is_elsewhere: bool = False,
) -> "Iterator[Tuple[str, Any]]":
    """Yields the files of one state.

    Args:
        replica: (index, count) of this rank among those that share the writing.
        left_out: with xser, names of tensors that no rank writes.
        shared_is_elsewhere: with xser, the first expert's rank writes the tensors that all experts share.
    """
    number, count = replica
    if number == 0:
        _warn_of_other_classes(name, plain.other_classes, arguments.classes)
    if not arguments.use_xser:
        if number == 0:
            yield name, _torch(plain.state, deferred)
        return
    xser = _states.to_xser(plain)
    if number == 0:
        yield name, _pickles.image_of_references(xser.references)
        yield _names.info(name), xser.info()
    for tid, writer in enumerate(_states.shares(xser.tensors, count)):
        elsewhere = shared_is_elsewhere and id(xser.tensors[tid]) not in xser.experts
        if writer == number and not elsewhere and xser.names[tid] not in left_out:
            yield _names.tensor(name, tid), _torch(xser.tensors[tid], deferred)


def _warn_of_other_classes(name: str, found: AbstractSet[str], classes: Classes) -> None:
    allowed = {f"{kind.__module__}.{kind.__qualname__}" for kind in classes.more}
    if classes.anything or found <= allowed:
        return
    archive_writer.warn_caller(
        f"{name} holds {', '.join(sorted(found - allowed))}, which load_checkpoint() refuses by default: allow it by "
        "ckptd.nxd.configure(safe_globals=[...]) or configure(weights_only=False), or save plain values instead",
        UnsafeGlobalsWarning,
    )


def _torch(value: Any, deferred: DeferredTensors) -> Torch:
    made = Torch(value)
    made._deferred = deferred
    return made


def _any_classes(value: Any) -> bytes:
    """Returns the file of a value that may hold any class, as load_checkpoint() allows there; without a
    warning.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeGlobalsWarning)
        return b"".join(archive_writer.image(value).stream())
