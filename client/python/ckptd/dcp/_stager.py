"""The interface of DCP's own async_save() to a Writer: stage() does the whole save."""

import uuid
from typing import Any, Dict, Optional

from torch.distributed.checkpoint.staging import BlockingAsyncStager

from ckptd.dcp import _names
from ckptd.dcp._async import SaveFuture, save_async


class Stager:
    """An AsyncStager that saves. async_save() then saves a state of one name with the same Writer in its
    thread; the Writer knows the name and only waits for the commit.
    """

    _synchronize_after_execute = False

    def __init__(self) -> None:
        self._staged: Dict[str, SaveFuture] = {}

    @property
    def should_synchronize_after_execute(self) -> bool:
        """False: staging is done when :meth:`stage` returns."""
        return False

    def stage(self: Any, state_dict: Any) -> Any:
        """Saves the state. Returns what async_save() is to save: a name for what was saved.

        Raises:
            ValueError: async_save() was to use another process.
        """
        found = _names.async_save_arguments()
        if found is None:
            return BlockingAsyncStager().stage(state_dict)
        if getattr(found.pop("async_checkpointer_type"), "name", "") == "PROCESS":
            raise ValueError(
                "AsyncCheckpointerType.PROCESS cannot take a ckptd.dcp.Writer, and would have nothing to do: use "
                "AsyncCheckpointerType.THREAD, or call ckptd.dcp.install() or ckptd.dcp.async_save, which need neither"
            )
        if found["checkpoint_id"] is not None:
            self.reset(found["checkpoint_id"])
        found["planner"] = _names.with_own_cache(found["planner"])
        name = f"ckptd.staged.{uuid.uuid4()}"
        self._staged[name] = save_async(state_dict, self, **found)
        return {name: 0}

    def synchronize_staging(self) -> None:
        """No-op: staging is done when :meth:`stage` returns."""

    def close(self) -> None:
        """No-op: nothing is kept."""

    def _staged_of(self, state_dict: Any) -> Optional[SaveFuture]:
        """Returns the save that stage() has done, if a state is what stage() has returned for it; else None."""
        return self._staged.get(next(iter(state_dict)), None) if len(state_dict) == 1 else None

    def _staged_by(self, plan: Any) -> Optional[SaveFuture]:
        """Returns the save that stage() has done, if a plan is what async_save() makes of it; else None."""
        if len(plan.items) != 1:
            return None
        return self._staged.pop(str(plan.items[0].index.fqn), None)
