"""Saves a state by the plan of an earlier save while its form stays the same: without DCP's planning and its messages."""

import copy
import functools
import traceback
from collections import deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Tuple, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.storage import WriteResult

from ckptd._adapters.ranks import from_all_ranks, is_distributed
from ckptd.dcp import _names
from ckptd.dcp._files import PlannedFiles, SaveRecord, storage_data_of
from ckptd.dcp._form import StatePlanner, form_of

T = TypeVar("T")
_KEPT_PLANS = 2  # For jobs that save, for example, a model and its optimizer in turn.


class _Kept:
    """The plan of a save on this rank, kept for the next ones."""

    def __init__(self, form: Any, file_count: Any, record: SaveRecord) -> None:
        """form, file_count: what the plan and the places of the values depend on."""
        assert record.plan is not None and isinstance(record.files, PlannedFiles)  # The save has succeeded.
        self.form, self.file_count = form, file_count
        self.plan: SavePlan = record.plan
        self.places, self.forms = record.files.places, record.files.forms
        self.version = 0  # How often the places have changed on any rank.
        # The coordinator's:
        self.metadata, self.results, self.pickled = record.metadata, record.results, record.pickled

    @property
    def key(self) -> Tuple[str, int]:
        """Which save has made the plan, and which one the places: ranks with equal keys may save by what they keep."""
        return self.plan.storage_data.save_id, self.version


class _Offer(NamedTuple):
    """The message of a rank to the others before a save."""

    key: Optional[Tuple[str, int]]  # The key of the plan that fits this rank's state; None: no plan fits.
    results: Optional[List[WriteResult]]  # None: as in the last save by that plan.


_kept: Deque[_Kept] = deque(maxlen=_KEPT_PLANS)


def save(state_dict: Any, writer: Any, process_group: Any = None, no_dist: bool = False) -> Optional[Metadata]:
    """Saves with DCP's default planner; waits for what the writer waits for.

    Only the coordinator returns the metadata; the other ranks return None.

    Raises:
        CheckpointException: the save has failed.
    """
    together = _names.members(process_group, no_dist)
    writer.join(together)
    state = {key: _state_of(value) for key, value in state_dict.items()}
    again = _prepare(state, writer, process_group, no_dist)
    offers = _exchange(again.offer if again is not None else _Offer(None, None), process_group, no_dist)
    if again is not None and all(offer.key == again.offer.key for offer in offers):
        try:
            exchange = functools.partial(_exchange, process_group=process_group, no_dist=no_dist)
            return again.save(writer, offers, together, exchange)
        except Exception as error:  # The type of error that DCP raises.
            rank, _ = _place(process_group, no_dist)
            raise CheckpointException("save", {rank: (error, traceback.extract_tb(error.__traceback__))}) from error
    return _save_with_planning(state, writer, process_group, no_dist)


def _state_of(value: Any) -> Any:
    """Returns the value, or a Stateful's state. To ask a tensor whether it is one takes longer than to save it again."""
    return value.state_dict() if not isinstance(value, torch.Tensor) and isinstance(value, Stateful) else value


def _save_with_planning(state: Any, writer: Any, process_group: Any, no_dist: bool) -> Optional[Metadata]:
    planner, record = StatePlanner(), SaveRecord()
    together = _names.members(process_group, no_dist)
    writer.save_recorded(state, record, planner, process_group, not _is_distributed(process_group, no_dist), together)
    form = form_of(planner)
    if form is not None:
        _kept.appendleft(_Kept(form, writer.options.file_count, record))
    return record.metadata


class _Again:
    """A save by a kept plan, laid out on this rank."""

    def __init__(self, kept: _Kept, planner: StatePlanner) -> None:
        self._kept = kept
        self._places, self._forms = kept.places, kept.forms
        self.offer = _Offer(kept.key, None)
        images = {form.name: form.image(planner) for form in kept.forms}
        if None in images.values():
            self._lay_out(planner)
        else:
            self._images: Dict[str, Any] = dict(images)

    def _lay_out(self, planner: StatePlanner) -> None:
        files = PlannedFiles(self._kept.plan, planner, self._kept.file_count)
        self._images = dict(files.items())
        self._places, self._forms = files.places, files.forms
        if self._places != self._kept.places:
            self.offer = _Offer(self._kept.key, files.results)

    def save(self, writer: Any, offers: List[_Offer], members: Tuple[int, ...], exchange: Any) -> Optional[Metadata]:
        """Saves, when all ranks have agreed to it. members: those ranks of the job."""
        kept = self._kept
        if any(offer.results is not None for offer in offers):
            kept.version, kept.pickled = kept.version + 1, None
            kept.places, kept.forms = self._places, self._forms
            kept.results = [offer.results or before for offer, before in zip(offers, kept.results)]
        storage_meta = writer.save_again(kept.plan.storage_data, members, self._images, self._pickled_metadata, exchange)
        metadata = copy.copy(kept.metadata)
        if metadata is not None:
            metadata.storage_meta = storage_meta
        return metadata

    def _pickled_metadata(self) -> _names.MetadataPickle:
        """Returns the metadata of this save. Only the coordinator calls it."""
        kept = self._kept
        assert kept.metadata is not None
        if kept.pickled is None:
            kept.metadata = copy.copy(kept.metadata)
            kept.metadata.storage_data = storage_data_of(kept.results)
            kept.pickled = _names.MetadataPickle(kept.metadata)
        return kept.pickled


def _prepare(state: Any, writer: Any, process_group: Any, no_dist: bool) -> Optional[_Again]:
    """Returns the save by a plan that fits this rank's state; None if there is none, or if anything is unusual.

    An error here only means planning anew: what has raised it raises again there, and DCP reports that on all ranks.
    """
    try:
        planner = StatePlanner()
        place = _place(process_group, no_dist)
        planner.set_up_planner(state, None, place[0] == 0)
        form = form_of(planner)
        for kept in _kept:
            assignment = kept.plan.storage_data
            if (kept.form, kept.file_count, (assignment.rank, assignment.world_size)) == (form, writer.options.file_count, place):
                writer.check_overwrite()
                with torch.no_grad():  # A view that autograd knows takes longer than all the rest.
                    return _Again(kept, planner)
    except Exception:
        return None
    return None


def _is_distributed(process_group: Any, no_dist: bool) -> bool:
    """Returns whether there are other ranks. To one that is alone, DCP would send messages, too."""
    return not no_dist and is_distributed() and dist.get_world_size(process_group) != 1


def _place(process_group: Any, no_dist: bool) -> Tuple[int, int]:
    """Returns (rank, number of ranks)."""
    return (dist.get_rank(process_group), dist.get_world_size(process_group)) if _is_distributed(process_group, no_dist) else (0, 1)


def _exchange(message: T, process_group: Any, no_dist: bool) -> List[T]:
    """Returns the messages of all ranks."""
    return from_all_ranks(message, process_group) if _is_distributed(process_group, no_dist) else [message]
