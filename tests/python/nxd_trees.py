"""Checkpoints on disk in NxD's layout: written by ckptd.nxd's own rules, rank by rank but without a daemon,
or by torch alone as releases of NxD have written them.
"""

import contextlib
import os
import sys
import types

import torch
from ckptd._saving import file_values
from ckptd._torch.writing.deferred_tensors import DeferredTensors
from ckptd.nxd import _loading, _parts, _sources
from nxd_job import Far

__all__ = ["Far", "frameworks", "load_rank", "read_as_torch_xla", "save_rank", "torch_save", "write", "xser_as_torch_xla"]


def write(folder, name, value):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    assert not os.path.exists(path), f"two ranks have written {name}"
    image = file_values.image_of(name, value)
    with open(path, "wb") as file:
        for data in image.stream():
            file.write(data)


def save_rank(root, tag, topology, **wanted):
    """Writes one rank's files as save_checkpoint() would; returns their names."""
    names = []
    for name, value in _parts.files(topology, _parts.SaveArguments(**wanted), DeferredTensors()):
        write(os.path.join(root, tag), name, value)
        names.append(name)
    return names


def load_rank(root, tag, topology, allowed=None, **targets):
    return _loading.load(
        _sources.Foreign(str(root), tag), topology, _loading.LoadTargets(**targets), allowed or _loading.AllowedClasses()
    )


def torch_save(root, name, value):
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.save(value, path)


@contextlib.contextmanager
def frameworks():
    """Installs fakes of the modules whose classes NxD's files name."""
    reference = type("TensorReference", (), {"__init__": lambda self, tid: setattr(self, "tid", tid)})
    reference.__module__ = "torch_xla.utils.serialization"
    internal = type("_InternalTensorReference", (), {})
    internal.__module__ = "neuronx_distributed.trainer.checkpoint"
    made = {}
    for kind in (reference, internal):
        parts = kind.__module__.split(".")
        for end in range(1, len(parts) + 1):
            made.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        setattr(made[kind.__module__], kind.__name__, kind)
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        yield reference, internal
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def xser_as_torch_xla(root, name, state, info=True, list_bug=False, shared=True):
    """A state as torch_xla writes it, and NxD over it: references by tid, depth first. list_bug: tensors in
    lists as NxD leaves them; info=False: as releases up to 0.6.0; shared=False: without the files of what all
    experts share.
    """
    with frameworks() as (reference, internal):
        tensors = []

        def walk(value, in_list):
            if isinstance(value, torch.Tensor):
                tid = len(tensors)
                tensors.append((value, in_list))
                if in_list and list_bug:
                    left = internal()
                    left.tid, left.shape, left.dtype, left.expert_model_parallel = tid, value.shape, value.dtype, False
                    return left
                return reference(tid)
            if isinstance(value, dict):
                return {key: walk(item, in_list) for key, item in value.items()}
            if isinstance(value, list):
                return [walk(item, True) for item in value]
            return value

        torch_save(root, name, walk(state, False))
    for tid, (tensor, _) in enumerate(tensors):
        if shared or hasattr(tensor, "expert_model_parallel"):
            torch_save(root, f"{name}.tensors/tensor_{tid}.pt", tensor)
    if info:
        said = {
            tid: {"dtype": t.dtype, "shape": t.shape, "expert_model_parallel": hasattr(t, "expert_model_parallel")}
            for tid, (t, in_list) in enumerate(tensors)
            if not (in_list and list_bug)
        }
        torch_save(root, f"{name}.info.pt", said)


def read_as_torch_xla(root, name):
    """Loads an xser file as torch_xla's own loader does."""
    with frameworks() as (reference, _):
        state = torch.load(os.path.join(root, name), weights_only=False)

        def walk(value):
            if isinstance(value, reference):
                return torch.load(os.path.join(root, f"{name}.tensors/tensor_{value.tid}.pt"), weights_only=True)
            if isinstance(value, dict):
                return {key: walk(item) for key, item in value.items()}
            if isinstance(value, list):
                return [walk(item) for item in value]
            return value

        return walk(state)
