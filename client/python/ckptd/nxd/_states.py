"""States of models and optimizers, recognised by their methods and not by their classes."""

from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Set, Tuple

import torch

from ckptd._torch.reading.load_into import unusual
from ckptd._torch.writing.deferred_tensors import DeferredTensors, must_defer
from ckptd.nxd._pickles import TensorReference


def of_model(model: Any) -> Any:
    """Returns the state of a model: a dict itself, a pipelined model's own part, else state_dict()."""
    if isinstance(model, dict):
        return model
    own = getattr(model, "local_state_dict", None)
    return own() if own is not None else model.state_dict()


def of_optimizer(optimizer: Any) -> Any:
    """Returns the state of an optimizer: a dict itself, else state_dict()."""
    return optimizer if isinstance(optimizer, dict) else optimizer.state_dict()


def is_zero1(optimizer: Any, default: bool) -> bool:
    """Returns whether an optimizer's state is sharded over the data-parallel ranks. default: the answer
    for a dict, which does not tell.
    """
    if isinstance(optimizer, dict):
        return default
    config = getattr(optimizer, "nxd_config", None)
    if isinstance(config, dict):
        return bool((config.get("optimizer_config") or {}).get("zero_one_enabled", False))
    # torch has a ZeroRedundancyOptimizer, too, which is not ZeRO-1 as NxD saves it.
    return any(
        kind.__name__ == "NeuronZero1Optimizer"
        or (kind.__name__ == "ZeroRedundancyOptimizer" and kind.__module__.startswith("torch_xla"))
        for kind in type(optimizer).__mro__
    )


def named_parameters(model: Any) -> Dict[str, Any]:
    """Returns a model's parameters by their names in of_model(), tied ones by each of their names; of a pipelined model, those
    of its own part. NxD's pipelined model does not take the arguments of torch's method.
    """
    named = getattr(model, "local_named_parameters", None) or model.named_parameters
    try:
        return dict(named(remove_duplicate=False))
    except TypeError:
        return dict(named())


def tensors_of_experts(optimizer: Any, plain: Any) -> FrozenSet[int]:
    """Returns id() of each tensor in the state of an optimizer that belongs to a parameter of one expert.

    The mark is on the parameters alone: moments do not inherit it. Empty for a dict.

    Args:
        plain: the optimizer's state, as to_plain() has made it.
    """
    of_parameters = plain.get("state") if isinstance(plain, dict) else None
    found: List[Any] = []
    for number, parameter in enumerate(parameters_of(optimizer)):
        if getattr(parameter, "expert_model_parallel", False) and isinstance(of_parameters, dict):
            state = of_parameters.get(number)
            found += [value for value in state.values() if isinstance(value, torch.Tensor)] if isinstance(state, dict) else []
    return frozenset(map(id, found))


def parameters_of(optimizer: Any) -> "List[Any]":
    """Returns an optimizer's parameters in the order of the numbers in its state; empty if it has no
    param_groups.
    """
    groups = None if isinstance(optimizer, dict) else getattr(optimizer, "param_groups", None)
    return [parameter for group in groups or () for parameter in group["params"]]


class PlainState(NamedTuple):
    """A state as NxD writes it: plain dicts, lists in the place of tuples, and tensors or their placeholders."""

    state: Any
    # id() of each tensor that belongs to one expert. An attribute of the tensor would be pickled.
    experts: FrozenSet[int]
    other_classes: FrozenSet[str]  # Names of the classes in it that are neither tensors nor plain values.


def to_plain(state: Any, deferred: DeferredTensors) -> PlainState:
    """Converts a state. An object that occurs twice stays one object."""
    # id() -> (object, result). The object is kept, because a new one may get its id.
    seen: Dict[int, Tuple[Any, Any]] = {}
    experts: Set[int] = set()
    others: Set[str] = set()

    def make(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            made = deferred.placeholder_for(value) if must_defer(value) else value.detach()
            if getattr(value, "expert_model_parallel", False):
                experts.add(id(made))
            if unusual(made):
                others.add(unusual(made))
            return made
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        return [walk(item) for item in value]

    def walk(value: Any) -> Any:
        if not isinstance(value, (torch.Tensor, dict, list, tuple)):
            if type(value) not in _PLAIN:
                others.add(f"{type(value).__module__}.{type(value).__qualname__}")
            return value
        if id(value) not in seen:
            seen[id(value)] = value, make(value)
        return seen[id(value)][1]

    walked = walk(state)
    return PlainState(walked, frozenset(experts), frozenset(others))


def to_bfloat16(state: Any) -> Any:
    """Returns a state with its float32 tensors as bfloat16. A tensor that occurs twice stays one object."""
    seen: Dict[int, Any] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.dtype != torch.float32:
                return value
            if id(value) not in seen:
                seen[id(value)] = _cast(value)
            return seen[id(value)]
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        return type(value)(walk(item) for item in value) if type(value) in (list, tuple) else value

    return walk(state)


def _cast(tensor: Any) -> Any:
    made = tensor.detach().to(torch.bfloat16)
    if getattr(tensor, "expert_model_parallel", False):
        made.expert_model_parallel = True
    return made


_PLAIN = frozenset(
    (type(None), bool, int, float, complex, str, bytes, set, frozenset, torch.dtype, torch.device)
)  # The classes that load_checkpoint() allows by default.


class XserState(NamedTuple):
    """A state for several files, as torch_xla's xser writes it: one file for each tensor."""

    references: Any  # The state with a TensorReference in the place of each tensor.
    tensors: List[Any]  # The distinct tensors, in the order in which they occur; the index is the tid.
    names: List[str]  # For each tensor, its first place in the state.
    experts: FrozenSet[int]

    def info(self) -> Dict[int, Dict[str, Any]]:
        """Returns the description of each tensor, by tid, as NxD writes it."""
        return {
            tid: {
                "dtype": tensor.dtype,
                "shape": torch.Size(tensor.shape),
                "expert_model_parallel": id(tensor) in self.experts,
            }
            for tid, tensor in enumerate(self.tensors)
        }


def to_xser(plain: PlainState) -> XserState:
    """Takes the tensors out of a state."""
    made = XserState(None, [], [], plain.experts)
    tids: Dict[int, int] = {}
    containers: Dict[int, Any] = {}

    def reference(tensor: Any, where: str) -> TensorReference:
        if id(tensor) not in tids:
            tids[id(tensor)] = len(made.tensors)
            made.tensors.append(tensor)
            made.names.append(where)
        return TensorReference(tids[id(tensor)])

    def walk(value: Any, where: str) -> Any:
        if isinstance(value, torch.Tensor):
            return reference(value, where)
        if not isinstance(value, (dict, list)):
            return value
        if id(value) not in containers:
            if isinstance(value, dict):
                below = {key: walk(item, f"{where}.{key}" if where else str(key)) for key, item in value.items()}
                containers[id(value)] = below
            else:
                containers[id(value)] = [walk(item, f"{where}[{number}]") for number, item in enumerate(value)]
        return containers[id(value)]

    return made._replace(references=walk(plain.state, ""))


def bytes_of(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def shares(tensors: "List[Any]", count: int) -> List[int]:
    """Returns which of `count` replicas writes each tensor, so that all write about as many bytes.

    Deterministic.
    """
    loads: List[Tuple[int, int]] = [(0, replica) for replica in range(count)]
    writers = [0] * len(tensors)
    for tid in sorted(range(len(tensors)), key=lambda tid: (-bytes_of(tensors[tid]), tid)):
        load, replica = min(loads)
        writers[tid] = replica
        loads[replica] = (load + bytes_of(tensors[tid]), replica)
    return writers


def covered_by_master_weights(model: Any, optimizer: Any, optimizer_state: Any) -> "Optional[Set[str]]":
    """Returns the names in the model's state that can be loaded from the optimizer's master weights.

    They are those of the parameters that the optimizer trains. None if it has no master weights, or they
    cannot be matched to names.
    """
    if not isinstance(optimizer_state, dict) or not optimizer_state.get("sharded_master_weights"):
        return None
    trained = {id(parameter) for parameter in parameters_of(optimizer)}
    if not hasattr(model, "named_parameters") or not trained or hasattr(model, "local_state_dict"):
        return None
    return {name for name, parameter in named_parameters(model).items() if id(parameter) in trained}
