"""Pickles of the last states, for states of the same form: only the tensors' bytes differ."""

import collections
import threading
from typing import Any, List, NamedTuple, Optional, Set, Tuple

from ckptd._torch.gpu.devices import devices
from ckptd._torch.writing.state_form import StateForm, form_of
from ckptd._torch.writing.state_pickler import PickledState, Record, pickle_state

_KEPT = 8
_LEAST_TENSORS = 16  # With fewer of them pickling is as fast.

_lock = threading.Lock()
_known: "collections.OrderedDict[Any, _Known]" = collections.OrderedDict()


class _Known(NamedTuple):
    pickled: bytes
    # (number of a tensor with the storage, begin, end, dtype) of each record: no storage, whose memory it would keep.
    records: List[Tuple[int, int, int, Any]]
    globals: Set[Any]


def pickle_known(state: Any, compact: bool) -> PickledState:
    """Returns pickle_state(state, compact), from an earlier state of the same form if there was one.

    The two may differ in which of several equal strings or tuples are one object.
    """
    form = form_of(state)
    if form is None or len(form.tensors) < _LEAST_TENSORS:
        return pickle_state(state, compact)
    key = compact, form.key
    with _lock:
        known = _known.get(key)
        if known is not None:
            _known.move_to_end(key)
    if known is not None:
        return _restored(known, form)
    made = pickle_state(state, compact)
    known = _known_of(made, form)
    if known is not None:
        with _lock:
            _known[key] = known
            while len(_known) > _KEPT:
                _known.popitem(last=False)
    return made


def _known_of(made: PickledState, form: StateForm) -> Optional[_Known]:
    numbers = {tensor.untyped_storage()._cdata: number for number, tensor in enumerate(form.tensors)}
    records = [
        (numbers.get(record.storage._cdata, -1), record.begin, record.end, record.dtype) for record in made.records
    ]
    if any(number < 0 for number, _, _, _ in records):
        return None
    return _Known(made.pickled, records, made.globals)


def _restored(known: _Known, form: StateForm) -> PickledState:
    records = [Record(form.storages[number], begin, end, dtype) for number, begin, end, dtype in known.records]
    has_stand_in = devices().in_cpu_memory
    on_device = [tensor for tensor in form.tensors if not tensor.is_cpu or has_stand_in]
    return PickledState(known.pickled, records, known.globals, on_device)
