"""Which parts of a unit a checkpoint has, and which of them are restored."""

import dataclasses
from typing import Any, Dict, Iterable, List, Mapping, Optional

from torch.distributed.checkpoint.state_dict import _init_optim_state
from torch.optim import Optimizer
from torchtnt.framework.callbacks import checkpointer_types
from torchtnt.framework.state import EntryPoint
from torchtnt.utils.stateful import MultiStateful, Stateful

from ckptd.torchtnt._names import EVAL, PREDICT, TRAIN, Name

_KEY = "app_state"
_STEP_HOOKS = {"on_train_step_end": TRAIN, "on_eval_step_end": EVAL, "on_predict_step_end": PREDICT}
TRAINING = (EntryPoint.TRAIN, EntryPoint.FIT)


@dataclasses.dataclass
class RestoreOptions(checkpointer_types.RestoreOptions):
    """TorchTNT's RestoreOptions, with the fields that its release 0.2.4 does not have.

    Args:
        restore_modules (bool): whether to restore the modules. Default: ``True``
        restore_predict_progress (bool): whether to restore the progress of prediction. Default: ``True``
        init_optim_states (bool): whether to give an optimizer that has not stepped its states before they are
            loaded. Without it what it creates at its first step is not restored. Default: ``True``
    """

    restore_modules: bool = True
    restore_predict_progress: bool = True
    init_optim_states: bool = True


def to_save(state: Any, unit: Any, hook: str) -> Dict[str, Any]:
    """Returns what a checkpoint has, for dcp.save()."""
    app_state = _of(unit)
    if state.entry_point not in TRAINING:  # The model does not change.
        _remove(app_state, unit.tracked_modules(), unit.tracked_optimizers(), unit.tracked_lr_schedulers())
    for phase in _phases_in_progress(state, unit, hook):
        loader = getattr(state, f"{phase}_state").dataloader
        if isinstance(loader, Stateful):
            app_state[_loader_key(phase)] = loader
    return {_KEY: MultiStateful(app_state)}


def to_restore(unit: Any, options: Any, name: Optional[Name]) -> Dict[str, Any]:
    """Returns what to restore of a unit, without data loaders. name: the checkpoint's, if it has one of TorchTNT.

    Initializes the states of optimizers, whose tensors are loaded in place.
    """
    has_model = name is None or name.has_model
    app_state = _of(unit)
    for phase in (TRAIN, EVAL, PREDICT):
        if not getattr(options, f"restore_{phase}_progress", True):
            _remove(app_state, [f"{phase}_progress"])
    if not (has_model and getattr(options, "restore_modules", True)):
        _remove(app_state, unit.tracked_modules())
    if not (has_model and options.restore_optimizers):
        _remove(app_state, unit.tracked_optimizers())
    if not (has_model and options.restore_lr_schedulers):
        _remove(app_state, unit.tracked_lr_schedulers())
    if getattr(options, "init_optim_states", True):
        for part in [app_state[key] for key in unit.tracked_optimizers() if key in app_state]:
            _initialize(getattr(part, "optimizer", part))  # The optimizers of FSDP modules are in wrappers.
    return app_state


def wrapped(app_state: Dict[str, Any]) -> Dict[str, Any]:
    """Returns what dcp.load() fills."""
    return {_KEY: MultiStateful(app_state)}


def add_loaders(
    app_state: Dict[str, Any], loaders: Mapping[str, Any], keys: Iterable[str], warn: Any
) -> None:
    """Adds those data loaders to what is restored that the checkpoint has, and that can be restored.

    Args:
        loaders: by phase.
        keys: those of the checkpoint's metadata.
        warn: is called with a message for each one that is not restored.
    """
    saved = {key.split(".")[1] for key in keys if key.startswith(f"{_KEY}.")}
    for phase, loader in loaders.items():
        key = _loader_key(phase)
        if not isinstance(loader, Stateful):
            warn(f"{key} is not restored: it has no state_dict() and load_state_dict()")
        elif key not in saved:
            warn(f"{key} is not restored: the checkpoint has no state of it")
        else:
            app_state[key] = loader


def _of(unit: Any) -> Dict[str, Any]:
    # Optimizers of FSDP modules in wrappers that gather and scatter their states.
    return {**unit.app_state(), **unit._construct_tracked_optimizers()}


def _remove(app_state: Dict[str, Any], *names: Iterable[str]) -> None:
    for each in names:
        for name in each:
            app_state.pop(name, None)


def _phases_in_progress(state: Any, unit: Any, hook: str) -> List[str]:
    """Returns the phases whose data loaders are in the middle of their data."""
    found = []
    if state.entry_point in TRAINING and unit.train_progress.num_steps_completed_in_epoch > 0:
        found.append(TRAIN)
    phase = _STEP_HOOKS.get(hook)
    if hook == "on_eval_epoch_end" and state.entry_point == EntryPoint.FIT:
        phase = EVAL
    if phase not in (None, TRAIN):
        found.append(phase)
    return found


def _initialize(optimizer: Optimizer) -> None:
    """Creates the states of an optimizer that has none. It changes neither parameters nor gradients."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters]
    optimizer.zero_grad(set_to_none=True)  # Beside gradients, the next call does nothing.
    _init_optim_state(optimizer)
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient


def _loader_key(phase: str) -> str:
    return f"{phase}_dataloader"
