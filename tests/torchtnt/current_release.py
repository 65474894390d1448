"""Stand-ins for what TorchTNT's source has today and its release 0.2.4 on PyPI has not, which has the same number.

Importing this before ckptd.torchtnt puts them in the place of 0.2.4's. They have the signatures of the source, and none
of its code; the loops that call the callbacks are those of 0.2.4.
"""

import abc
import dataclasses
from typing import Any, Iterable, List, Optional, Union

import torchtnt.framework.callbacks.base_checkpointer as base_checkpointer
import torchtnt.framework.callbacks.checkpointer_types as checkpointer_types
from torchtnt.framework.callback import Callback


@dataclasses.dataclass
class RestoreOptions:
    restore_modules: bool = True
    restore_train_progress: bool = True
    restore_eval_progress: bool = True
    restore_predict_progress: bool = True
    restore_optimizers: bool = True
    restore_lr_schedulers: bool = True
    strict: bool = True
    init_optim_states: bool = True


@dataclasses.dataclass
class KnobOptions:
    max_per_rank_io_concurrency: Optional[int] = None
    enable_storage_optimization: bool = True


class Manager:
    """Knows a directory, and removes nothing in it."""

    def __init__(self, dirpath: str) -> None:
        self.dirpath = dirpath


class BaseCheckpointer(Callback, metaclass=abc.ABCMeta):
    metadata_fnames: List[str] = []

    def __init__(
        self,
        dirpath: str,
        *,
        save_every_n_train_steps: Optional[int] = None,
        save_every_n_epochs: Optional[int] = None,
        save_every_n_eval_epochs: Optional[int] = None,
        save_every_n_eval_steps: Optional[int] = None,
        save_every_n_predict_steps: Optional[int] = None,
        keep_last_n_checkpoints: Optional[int] = None,
        best_checkpoint_config: Any = None,
        process_group: Any = None,
    ) -> None:
        assert keep_last_n_checkpoints is None, "TorchTNT would remove checkpoints"
        self._best_checkpoint_config = best_checkpoint_config
        self._process_group = process_group
        self._checkpoint_manager = Manager(dirpath)

    @property
    def dirpath(self) -> str:
        return self._checkpoint_manager.dirpath

    @abc.abstractmethod
    def _checkpoint_impl(self, state: Any, unit: Any, *, checkpoint_id: str, hook: str) -> bool: ...

    @staticmethod
    @abc.abstractmethod
    def restore(
        path: str,
        unit: Any,
        *,
        train_dataloader: Optional[Iterable[Any]] = None,
        process_group: Any = None,
        restore_options: Any = None,
        **kwargs: Any,
    ) -> None: ...

    @staticmethod
    def restore_with_id(checkpoint_id: Union[int, str], unit: Any, **kwargs: Any) -> None:
        raise NotImplementedError


base_checkpointer.BaseCheckpointer = BaseCheckpointer
checkpointer_types.RestoreOptions = RestoreOptions
checkpointer_types.KnobOptions = KnobOptions
