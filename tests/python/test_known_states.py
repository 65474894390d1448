"""A state of the same form as an earlier one is not pickled again, and one of another form is."""

from __future__ import annotations

import collections
import gc
import io
import weakref
from typing import Any, Callable, Dict

import pytest
import torch
from ckptd._torch.writing import known_states
from ckptd._torch.writing.state_form import form_of
from ckptd._torch.writing.state_pickler import pickle_state


@pytest.fixture(autouse=True)
def pickled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lists the states that were pickled."""
    found = []

    def count(state: Any, compact: bool) -> Any:
        found.append(state)
        return pickle_state(state, compact)

    monkeypatch.setattr(known_states, "pickle_state", count)
    known_states._known.clear()
    return found


def many(seed: int = 0, count: int = 20) -> Dict[str, Any]:
    torch.manual_seed(seed)
    return {f"layer.{i}.weight": torch.randn(30, 20) for i in range(count)}


MEMORY = torch.randn(100_000)


def at_same_places(count: int = 20) -> Dict[str, Any]:
    """New tensors over the same memory each time, as state_dict() makes them."""
    return {f"layer.{i}.weight": MEMORY[i * 600 : (i + 1) * 600].view(30, 20) for i in range(count)}


def model_state() -> Any:
    return MODEL.state_dict()


MODEL = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(20)))


@pytest.mark.parametrize("make", [at_same_places, model_state])
def test_same_form_is_pickled_once(pickled: Any, make: Callable[[], Any]) -> None:
    first = known_states.pickle_known(make(), True)
    second = known_states.pickle_known(make(), True)
    fresh = pickle_state(make(), True)
    assert len(pickled) == 1
    assert second.pickled == first.pickled == fresh.pickled and second.globals == fresh.globals
    describe = [
        [(record.storage._cdata, record.begin, record.end, record.dtype) for record in one.records]
        for one in (first, second, fresh)
    ]
    assert describe[0] == describe[1] == describe[2]


def _tie(state: Dict[str, Any]) -> None:
    state["layer.0.weight"] = state["layer.1.weight"]


def _tie_by_view(state: Dict[str, Any]) -> None:
    state["layer.0.weight"] = state["layer.1.weight"].view(30, 20)


CHANGES = {
    "another name": lambda state: state.update(new=state.pop("layer.0.weight")),
    "another order": lambda state: state.update({"layer.0.weight": state.pop("layer.0.weight")}),
    "another value": lambda state: state.update(step=8),
    "a bool for an int": lambda state: state.update(step=True),
    "a minus zero": lambda state: state.update(lr=-0.0),
    "another list": lambda state: state.update(groups=[1, 3]),
    "a tuple for a list": lambda state: state.update(groups=(1, 2)),
    "requires_grad": lambda state: state["layer.0.weight"].requires_grad_(),
    "another stride": lambda state: state.update({"layer.0.weight": state["layer.0.weight"].t()}),
    "another dtype": lambda state: state.update({"layer.0.weight": torch.ones(30, 20, dtype=torch.int32)}),
    "the same tensor twice": _tie,
    "two tensors over the same bytes": _tie_by_view,
    "an attribute of the dict": lambda state: setattr(state, "_metadata", {"version": 2}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_form_is_pickled_anew(pickled: Any, change: Callable[[Any], Any]) -> None:
    def make() -> Any:
        state = collections.OrderedDict(at_same_places(), step=1, lr=0.0, groups=[1, 2])
        state._metadata = {"version": 1}  # type: ignore[attr-defined]
        return state

    known_states.pickle_known(make(), True)
    state = make()
    change(state)
    made = known_states.pickle_known(state, True)
    assert len(pickled) == 2
    assert made.pickled == pickle_state(state, True).pickled


def test_kept_pickle_depends_on_what_is_compacted(pickled: Any) -> None:
    state = at_same_places()
    compact, whole = known_states.pickle_known(state, True), known_states.pickle_known(state, False)
    assert len(pickled) == 2 and len(compact.records) == 1 and compact.records[0].end < whole.records[0].end


class Strange:
    pass


@pytest.mark.parametrize(
    "value",
    [
        Strange(),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2).to_sparse(),
        torch.ones(2, dtype=torch.complex64).conj(),
        {1.5: "a key that is no simple one"},
        {1, 2},
    ],
    ids=lambda value: type(value).__name__,
)
def test_unusual_states_have_no_form(value: Any) -> None:
    assert form_of({"x": value}) is None


def test_containers_that_occur_twice_have_no_form() -> None:
    shared = [1]
    assert form_of([shared, shared]) is None
    shared.append(shared)  # type: ignore[arg-type]
    assert form_of(shared) is None


def test_kept_pickles_keep_no_tensor_alive(pickled: Any) -> None:
    state = many()
    storage = weakref.ref(state["layer.0.weight"])
    known_states.pickle_known(state, True)
    del state
    pickled.clear()
    gc.collect()
    assert storage() is None


def test_few_pickles_are_kept(pickled: Any) -> None:
    for count in range(20, 40):
        known_states.pickle_known(at_same_places(count), True)
    assert len(known_states._known) == known_states._KEPT


def test_saved_bytes_are_those_of_the_new_state() -> None:
    from ckptd._torch.writing import archive_writer

    for value in (1.0, 2.0):
        MEMORY.fill_(value)
        data = b"".join(archive_writer.image(at_same_places()).stream())
        back = torch.load(io.BytesIO(data), weights_only=True)
        assert all(torch.equal(tensor, torch.full((30, 20), value)) for tensor in back.values())
