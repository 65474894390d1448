"""States of models, optimizers and schedulers, whoever made them: known by what they can do, not by their classes."""

from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Set, Tuple

import torch

from ckptd._into import unusual
from ckptd._late import Late, is_late
from ckptd.nxd._pickles import TensorReference


def of_model(model: Any) -> Any:
    """A dict as it is; a pipelined model's own part; else state_dict()."""
    if isinstance(model, dict):
        return model
    own = getattr(model, "local_state_dict", None)
    return own() if own is not None else model.state_dict()


def of_optimizer(optimizer: Any) -> Any:
    return optimizer if isinstance(optimizer, dict) else optimizer.state_dict()


def is_zero1(optimizer: Any, said: bool) -> bool:
    """Whether an optimizer's state is sharded over the data-parallel ranks. said: for a dict, which cannot tell."""
    if isinstance(optimizer, dict):
        return said
    config = getattr(optimizer, "nxd_config", None)
    if isinstance(config, dict):
        return bool((config.get("optimizer_config") or {}).get("zero_one_enabled", False))
    # torch's own ZeroRedundancyOptimizer is another one.
    return any(
        kind.__name__ == "NeuronZero1Optimizer"
        or (kind.__name__ == "ZeroRedundancyOptimizer" and kind.__module__.startswith("torch_xla"))
        for kind in type(optimizer).__mro__
    )


def parameters_of(optimizer: Any) -> "List[Any]":
    """An optimizer's parameters, in the order of its state's numbers; empty where it does not tell."""
    groups = None if isinstance(optimizer, dict) else getattr(optimizer, "param_groups", None)
    return [parameter for group in groups or () for parameter in group["params"]]


class Settled(NamedTuple):
    """A state as NxD writes it: plain dicts, lists for tuples, and tensors, those of far devices by stand-ins."""

    state: Any
    experts: FrozenSet[int]  # id() of each tensor in it that is one expert's. On the tensors, marks would be pickled with them.
    others: FrozenSet[str]  # Names of the classes in it that are neither tensors nor plain values.


def settled(state: Any, late: Late) -> Settled:
    """What is one object under two names stays one."""
    seen: Dict[int, Tuple[Any, Any]] = {}  # With the object itself, for another one may get a freed one's identity.
    experts: Set[int] = set()
    others: Set[str] = set()

    def make(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            made = late.stand_in(value) if is_late(value) else value.detach()
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
    return Settled(walked, frozenset(experts), frozenset(others))


_PLAIN = frozenset(
    (type(None), bool, int, float, complex, str, bytes, set, frozenset, torch.dtype, torch.device)
)  # What load_checkpoint() takes without being told.


class Xser(NamedTuple):
    """A state for several files."""

    references: Any  # It, with a TensorReference in the place of each tensor.
    tensors: List[Any]  # By tid: distinct tensors in the order in which one meets them.
    names: List[str]  # Of each, where it was met first; for the reader of messages.
    experts: FrozenSet[int]

    def info(self) -> Dict[int, Dict[str, Any]]:
        return {
            tid: {
                "dtype": tensor.dtype,
                "shape": torch.Size(tensor.shape),
                "expert_model_parallel": id(tensor) in self.experts,
            }
            for tid, tensor in enumerate(self.tensors)
        }


def take_out(settled: Settled) -> Xser:
    made = Xser(None, [], [], settled.experts)
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

    return made._replace(references=walk(settled.state, ""))


def bytes_of(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def shares(tensors: "List[Any]", count: int) -> List[int]:
    """Who of `count` replicas writes which tensor, so that each has about as many bytes. The same on every replica."""
    loads: List[Tuple[int, int]] = [(0, replica) for replica in range(count)]
    writers = [0] * len(tensors)
    for tid in sorted(range(len(tensors)), key=lambda tid: (-bytes_of(tensors[tid]), tid)):
        load, replica = min(loads)
        writers[tid] = replica
        loads[replica] = (load + bytes_of(tensors[tid]), replica)
    return writers


def covered_by_master_weights(model: Any, optimizer: Any, optimizer_state: Any) -> "Optional[Set[str]]":
    """The names in the model's state that come back from the optimizer's master weights: those of its parameters that it
    trains. None: it has no master weights, or nobody can tell which is which.
    """
    if not isinstance(optimizer_state, dict) or not optimizer_state.get("sharded_master_weights"):
        return None
    trained = {id(parameter) for parameter in parameters_of(optimizer)}
    named = getattr(model, "named_parameters", None)
    if named is None or not trained or hasattr(model, "local_state_dict"):
        return None
    return {name for name, parameter in named(remove_duplicate=False) if id(parameter) in trained}
