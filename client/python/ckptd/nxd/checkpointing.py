"""NxD's older functions, neuronx_distributed.parallel_layers.checkpointing, through ckptd.

    from ckptd.nxd import checkpointing

    checkpointing.save({"model": model.state_dict(), "step": step}, f"/data/ckpts/step_{step}", save_xser=True)
    left = checkpointing.load("/data/ckpts/step_100", model_or_optimizer=model, load_xser=True)

NxD's strategy for Lightning uses them; :func:`ckptd.nxd.install` makes it use these.
"""

import os
from typing import Any, Iterator, Optional, Tuple, Union

import torch

from ckptd._adapters import root_paths
from ckptd._torch.writing.deferred_tensors import DeferredTensors
from ckptd.nxd import _device, _install, _names, _parts, _states, _xser
from ckptd.nxd._errors import NoTag
from ckptd.nxd._process import process
from ckptd.nxd._sources import Classes, Committed, Foreign, Source
from ckptd.nxd._topology import Topology

__all__ = ["load", "save"]

_Path = Union[str, "os.PathLike[str]"]


def save(
    checkpoint: Any,
    output_dir: _Path,
    save_serially: bool = True,
    save_xser: bool = False,
    down_cast_bf16: bool = False,
    master_dp_only: bool = True,
) -> None:
    """Saves a state. Every rank calls it with the same arguments, and returns when all parts are durable.

    Args:
        checkpoint (dict): the state.
        output_dir (str or os.PathLike): its directory, or ``s3://BUCKET/PREFIX/TAG``. The last component is the
            checkpoint's name in ckptd, and the rest is the root.
        save_serially (bool): accepted for compatibility and ignored.
        save_xser (bool): a file for each tensor, as in NxD. Default: ``False``
        down_cast_bf16 (bool): save float32 as bfloat16. Default: ``False``
        master_dp_only (bool): data-parallel rank 0 alone saves; ``False`` if the state is sharded over the
            data-parallel ranks. Default: ``True``

    Raises:
        ValueError: the names of files cannot tell the parts of this job's ranks apart, or the directory's
            name is no name of a checkpoint.
        ckptd.CkptdError: the save was refused or has failed.
    """
    root, tag = root_paths.split(output_dir, "directory")
    _names.check_tag(tag)
    topology = process.topology()
    _check_names_suffice(topology, master_dp_only)

    def files(deferred: DeferredTensors) -> "Iterator[Tuple[str, Any]]":
        state = _states.to_plain(_states.to_bfloat16(checkpoint) if down_cast_bf16 else checkpoint, deferred)
        deferred.sync()
        if not master_dp_only or topology.replica[0] == 0:
            yield from _parts.files_of_any_state(_name(topology, save_xser, master_dp_only), state, deferred, save_xser)

    process.finish()
    process.save(process.job(root), tag, files, keep=None, metrics=None, wait=True)


def load(
    chkpt_path: _Path,
    model: Any = None,
    model_or_optimizer: Any = None,
    model_key: Optional[str] = "model",
    load_xser: bool = False,
    sharded: bool = True,
    strict: bool = True,
    master_dp_only: bool = True,
    weights_only: bool = False,
) -> Any:
    """Loads a state that :func:`save` or NxD has saved. Every rank calls it with the same arguments.

    Args:
        chkpt_path (str or os.PathLike): its directory, or its URL.
        model: an older name of ``model_or_optimizer``.
        model_or_optimizer (optional): what to fill.
        model_key (str, optional): the part of the state to fill it from; ``None``: the whole state. Default:
            ``"model"``
        load_xser (bool): as it was saved. Default: ``False``
        sharded (bool): ``False`` loads one file with the whole model by NxD itself. Default: ``True``
        strict (bool): as in ``load_state_dict``. Default: ``True``
        master_dp_only (bool): as it was saved. Default: ``True``
        weights_only (bool): refuse classes that states of models and optimizers do not need. ``False`` allows those
            that user content may hold, too, see :func:`ckptd.nxd.configure`. Default: ``False``

    Returns:
        The state, without what ``model_or_optimizer`` was filled from.

    Raises:
        ckptd.nxd.NoTag: there is no such directory; it is a FileNotFoundError, too.
        ckptd.nxd.NoFile: this rank's part was not saved; it is a FileNotFoundError, too.
        ckptd.CkptdError: the state is damaged, or holds what is not allowed.
    """
    target = model_or_optimizer if model is None else model
    if not sharded:
        return _install.original("parallel_layers.checkpointing", "load")(
            chkpt_path, None, target, model_key, load_xser, False, strict, master_dp_only, weights_only
        )
    root, tag = root_paths.split(chkpt_path, "directory")
    allowed = process.settings.allowed_classes()
    with process.loading():
        process.await_pending()
        state = _load(root, tag, target, load_xser, master_dp_only, allowed.states if weights_only else allowed.others)
        return state if target is None else _fill(target, state, model_key, strict)


def _load(root: str, tag: str, target: Any, load_xser: bool, master_dp_only: bool, classes: Classes) -> Any:
    there = root_paths.of(root)
    if not there.exists(tag):
        process.fetch(root)
    if not there.is_committed(tag):
        if not there.is_of_others(tag):
            raise NoTag(f"there is no checkpoint {root_paths.join(root, tag)}", reason="NO_CHECKPOINT", tag=tag)
        return _load_from(Foreign(root, tag), target, load_xser, master_dp_only, classes)
    with process.open(root, tag) as checkpoint:
        return _load_from(Committed(checkpoint), target, load_xser, master_dp_only, classes)


def _load_from(source: Source, target: Any, load_xser: bool, master_dp_only: bool, classes: Classes) -> Any:
    name = _name(process.topology(), load_xser, master_dp_only)
    if not load_xser:
        return source.load(name, classes)
    device = _device.for_optimizer(target) if isinstance(target, torch.optim.Optimizer) else _device.for_model(target)
    state = _xser.load(source, name, classes, device)
    for missing in _xser.absent(state):
        source.check(missing)
    return state


def _fill(target: Any, state: Any, model_key: Optional[str], strict: bool) -> Any:
    part = state if model_key is None else state.pop(model_key)
    if isinstance(target, torch.optim.Optimizer):
        target.load_state_dict(part)
    else:
        target.load_state_dict(part, strict=strict)
    return None if model_key is None else state


def _name(topology: Topology, xser: bool, master_dp_only: bool) -> str:
    folder = _names.older(topology, None if master_dp_only else topology.dp_rank)
    return folder if xser else f"{folder}/checkpoint.pt"


def _check_names_suffice(topology: Topology, master_dp_only: bool) -> None:
    """Raises ValueError if two ranks with different parts have one name of a file."""
    for kind, size, matters in (("cp", topology.cp_size, not master_dp_only), ("ep", topology.ep_size, master_dp_only)):
        if size > 1 and matters:
            raise ValueError(
                f"{kind}_size is {size}, and NxD's older names of files do not distinguish such ranks with "
                f"master_dp_only={master_dp_only}, so all parts but one would be lost: save by ckptd.nxd.save_checkpoint()"
            )
