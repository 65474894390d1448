"""Loads the targets of load_checkpoint() from one checkpoint."""

import inspect
import logging
from typing import Any, Dict, List, NamedTuple, Optional

import torch

from ckptd import errors
from ckptd._torch.reading import key_prefix
from ckptd._torch.reading.allowed_classes import plain_classes
from ckptd._torch.reading.load_into import LoadPlan
from ckptd.nxd import _device, _names, _reshard, _states, _xser
from ckptd.nxd._sources import Classes, Source
from ckptd.nxd._topology import Topology

_log = logging.getLogger("ckptd")


class LoadTargets(NamedTuple):
    """The arguments of load_checkpoint() that it fills."""

    model: Any = None
    optimizer: Any = None
    scheduler: Any = None
    strict: bool = True


class AllowedClasses(NamedTuple):
    """The classes that files may hold."""

    states: Classes = Classes()
    others: Classes = Classes(tuple(plain_classes()))  # Those in user content and in the states of schedulers.


def check(targets: LoadTargets) -> None:
    """Raises RuntimeError, in NxD's words, for an object that nothing can be loaded into."""
    for name, target in (("model", targets.model), ("optimizer", targets.optimizer)):
        if target is not None and not isinstance(target, dict) and not hasattr(target, "load_state_dict"):
            raise RuntimeError(
                f"Error: invalid {name} object {type(target).__name__}: it is neither a dict nor has it load_state_dict()"
            )


def load(source: Source, topology: Topology, targets: LoadTargets, allowed: AllowedClasses) -> Any:
    """Fills the targets. Returns the user content, or None."""
    for name in _needed(source, topology, targets):
        source.check(name)  # Before any target is changed.
    waiting: Dict[int, Any] = {}
    if targets.model is not None:
        waiting = _load_model(source, topology, targets, allowed.states)
    if targets.optimizer is not None:
        _load_optimizer(source, topology, targets.optimizer, allowed.states)
    if waiting:
        weights = _reshard.master_weights(source, topology, sorted(waiting), allowed.states)
        with torch.no_grad():
            for number, parameter in waiting.items():
                parameter.copy_(weights[number])
    if targets.scheduler is not None:
        targets.scheduler.load_state_dict(source.load(_names.SCHEDULER, allowed.others))
    if _names.USER_CONTENT in source.names:
        return source.load(_names.USER_CONTENT, allowed.others)
    return None


def _needed(source: Source, topology: Topology, targets: LoadTargets) -> List[str]:
    names = []
    if targets.model is not None:
        names.append(_names.model(topology))
    if targets.optimizer is not None:
        zero1 = _states.is_zero1(targets.optimizer, _names.zero1_probe() in source.names)
        names.append(_names.zero1(topology, 0) if zero1 else _names.optimizer(topology))
    if targets.scheduler is not None:
        names.append(_names.SCHEDULER)
    return names


# ---- the model


def _load_model(source: Source, topology: Topology, targets: LoadTargets, classes: Classes) -> Dict[int, Any]:
    """Fills the model.

    Returns the parameters that are saved as master weights only, by their numbers in the optimizer.
    """
    name = _names.model(topology)
    model = targets.model
    into = _own_tensors(model)  # None: load_state_dict() may do more than fill them, and gets the whole state.
    if not _xser.is_xser(source, name):
        if into is None or not source.load_into(name, into, classes):
            _put(model, source.load(name, classes), targets.strict)
        return {}
    references = source.load(name, classes)
    if into is not None and _load_each(source, name, references, into, classes):
        return {}
    state = _xser.resolve_from(source, name, references, classes, _device.for_model(model))
    missing = _xser.absent(state)
    if not missing:
        _put(model, state, targets.strict)
        return {}
    absent = [key for key, value in state.items() if isinstance(value, _xser.Absent)]
    # The optimizer has only tensors that have a name in the model: otherwise raise for the file that is missing.
    if targets.optimizer is None or len(absent) < len(missing):
        source.check(missing[0])
    waiting = _in_the_optimizer(source, topology, targets, absent)
    here = _states.of_model(model)
    if targets.strict:
        _check_keys(source, state, here)
    for key in absent:  # They keep their values until the master weights are read.
        if key in here:
            state[key] = here[key]
        else:
            del state[key]
    _put(model, state, targets.strict)
    return waiting


def _in_the_optimizer(
    source: Source, topology: Topology, targets: LoadTargets, absent: "List[str]"
) -> Dict[int, Any]:
    """Returns the parameters of these names, by their numbers in the optimizer.

    Refused if a weight is missing there, too. A buffer that is missing keeps its value, because NxD does not
    save buffers then.
    """
    numbers = {
        id(parameter): number for number, parameter in enumerate(_states.parameters_of(targets.optimizer))
    }
    if not isinstance(targets.model, torch.nn.Module) or not numbers or topology.ep_size > 1:
        raise errors.Refused(
            f"the weights {_some(absent)} of {source.tag} were saved only as the optimizer's master weights: load them into a "
            "module together with its optimizer, and without expert parallelism, which is the only way to tell them apart",
            reason="STATE_MISMATCH",
            tag=source.tag,
        )
    named = _states.named_parameters(targets.model)
    nowhere = [name for name in absent if name not in named or id(named[name]) not in numbers]
    weights = [name for name in nowhere if name in named]
    if weights and targets.strict:
        raise errors.Refused(
            f"the weights {_some(weights)} of {source.tag} are missing: its model was saved only as the optimizer's master weights, "
            "and this optimizer does not have them; load the others with strict=False",
            reason="STATE_MISMATCH",
            tag=source.tag,
        )
    if nowhere:
        _log.warning(
            "ckptd: %s of %s are neither in the model's files nor among the master weights, so they keep their values",
            _some(nowhere),
            source.tag,
        )
    return {numbers[id(named[name])]: named[name] for name in absent if name not in nowhere}


def _some(names: "List[str]") -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _check_keys(source: Source, saved: Any, here: Any) -> None:
    differing = sorted(map(str, saved.keys() ^ here.keys()))
    if differing:
        hint = key_prefix.difference(saved, here)
        raise errors.Refused(
            f"the model of {source.tag} and the model to fill differ in {', '.join(differing[:8])}{f'; {hint}' if hint else ''}",
            reason="STATE_MISMATCH",
            tag=source.tag,
        )


def _put(target: Any, state: Any, strict: bool) -> None:
    if isinstance(target, dict):
        _fill(target, state)
    elif isinstance(target, torch.nn.Module):
        target.load_state_dict(state, strict=strict)
    else:  # Another object may not know the argument, and NxD does not give it.
        target.load_state_dict(state)


def _fill(target: Dict[Any, Any], state: Any) -> None:
    """Fills a dict: in place if it matches the saved state, else by replacing its values."""
    plan = LoadPlan(state, target)
    if plan.differences:
        target.update(state)
    else:
        plan.copy()


def _own_tensors(model: Any) -> "Optional[Dict[str, Any]]":
    """Returns the tensors that load_state_dict() would fill, or None if it may do more than fill them."""
    if isinstance(model, dict):
        return model if all(type(value) is torch.Tensor for value in model.values()) and model else None
    if not isinstance(model, torch.nn.Module) or hasattr(model, "local_state_dict"):
        return None
    if type(model).load_state_dict is not torch.nn.Module.load_state_dict:
        return None
    for module in model.modules():
        if any(getattr(module, hooks, None) for hooks in _HOOKS) or not _loads_plainly(module):
            return None
    state = model.state_dict()
    return dict(state) if all(isinstance(value, torch.Tensor) for value in state.values()) else None


_HOOKS = (
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
)


def _loads_plainly(module: Any) -> bool:
    """Returns whether a module loads its state as torch's own modules do."""
    loader = inspect.getmodule(type(module)._load_from_state_dict)
    return loader is not None and (
        loader.__name__ == "torch.nn" or loader.__name__.startswith("torch.nn.modules.")
    )


def _load_each(
    source: Source, name: str, references: Any, into: "Dict[str, Any]", classes: Classes
) -> bool:
    """Fills tensor by tensor in place.

    Returns False, with nothing changed, if the tensors do not match or are not known.
    """
    info_name = _names.info(name)
    if (
        info_name not in source.names
        or not isinstance(references, dict)
        or references.keys() != into.keys()
    ):
        return False
    info = source.load(info_name, classes)
    files = _xser.TensorFiles(source, name, references, classes)
    for key, reference in references.items():
        known = info.get(getattr(reference, "tid", None))
        target = into[key]
        if (
            known is None
            or list(known["shape"]) != list(target.shape)
            or known["dtype"] != target.dtype
            or not files.of(reference.tid)
        ):
            return False
    for key, reference in references.items():
        path = files.of(reference.tid)
        if not source.load_into(path, into[key], classes):
            with torch.no_grad():
                into[key].copy_(source.load(path, classes))
    return True


# ---- the optimizer


def _load_optimizer(source: Source, topology: Topology, optimizer: Any, classes: Classes) -> None:
    probe = _names.zero1_probe() in source.names
    zero1 = _states.is_zero1(optimizer, probe)
    if zero1:
        if topology.cp_size > 1:
            raise ValueError(
                f"cp_size is {topology.cp_size} with a ZeRO-1 optimizer: the state of all but one context-parallel rank was lost when "
                "it was saved, because NxD's names of files do not distinguish them"
            )
        state = _reshard.load(source, topology, classes, _device.for_optimizer(optimizer))
    else:
        if probe:
            raise errors.Refused(
                f"the optimizer's state of {source.tag} is sharded (ZeRO-1), but this optimizer is not: load it into a ZeRO-1 optimizer",
                reason="STATE_MISMATCH",
                tag=source.tag,
            )
        state = _xser.load(source, _names.optimizer(topology), classes, _device.for_optimizer(optimizer))
    missing = _xser.absent(state)
    if missing:
        source.check(missing[0])
    if isinstance(optimizer, dict):
        _fill(optimizer, state)
    else:
        optimizer.load_state_dict(state)
