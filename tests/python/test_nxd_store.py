"""What ranks tell each other by the process group's store."""

import threading
import types

import pytest
from ckptd._adapters import store as exchanges
from ckptd._membership import launch
from ckptd.nxd import _store
from ckptd.nxd._process import Process


class Store:
    """A store of a process group of `size` ranks, in this process. `gone`: its server has ended."""

    def __init__(self, monkeypatch, size):
        self.texts, self.gone, self.rank = {}, False, 0
        group = types.SimpleNamespace(get_rank=lambda: self.rank, get_world_size=lambda: size)
        monkeypatch.setattr(launch, "process_group", lambda: group)
        monkeypatch.setattr(exchanges, "_store", lambda: self)

    def _reach(self):
        if self.gone:
            raise RuntimeError("Connection reset by peer")

    def set(self, key, text):
        self._reach()
        self.texts[key] = text.encode()

    def add(self, key, number):
        self._reach()
        self.texts[key] = str(int(self.texts.get(key, "0")) + number)
        return int(self.texts[key])

    def get(self, key):
        self._reach()
        return self.texts[key]

    def check(self, keys):
        self._reach()
        return all(key in self.texts for key in keys)

    def wait(self, keys, timeout):
        if not self.check(keys):
            raise RuntimeError("wait timeout")


@pytest.fixture
def store(monkeypatch):
    return Store(monkeypatch, 3)


def late(number, what):
    return _store.LateRanks(number, what)._others()


def test_ranks_that_have_not_begun_and_that_save_something_else_are_told_apart(store):
    for rank, begun in enumerate(["2 b in /r", "1 a in /r", "2 c in /r"]):
        store.rank = rank
        exchanges.post("nxd/saving", begun)
    assert late(2, "b in /r") == ([1], ["rank 2 saves c in /r"])
    assert late(1, "a in /r") == ([], [])  # The others are ahead.


def test_log_says_nothing_where_no_rank_is_late(store, monkeypatch, caplog):
    monkeypatch.setattr(_store, "WARN_SECONDS", 0.0)
    for rank in range(3):
        store.rank = rank
        exchanges.post("nxd/saving", "1 a in /r")
    waiting = _store.LateRanks(1, "a in /r")
    with waiting:
        waiting._timer.join(10)
    assert caplog.text == ""


def test_store_that_has_gone_neither_ends_a_save_nor_hides_why_a_load_failed(store):
    store.gone = True
    begun = threading.active_count()
    with _store.LateRanks(1, "a in /r"):
        assert threading.active_count() == begun
    assert late(1, "a in /r") == ([], [])
    with pytest.raises(ArithmeticError), Process().loading():
        raise ArithmeticError("no state today")


def test_exchange_returns_the_texts_that_have_come(store, monkeypatch, caplog):
    monkeypatch.setattr(exchanges, "WARN_SECONDS", 0.0)
    store.rank = 2
    exchanges.give("x", "two")
    store.rank = 0
    assert exchanges.exchange("x", "zero", 0.001, "answer") == {0: "zero", 2: "two"}
    assert "waited 0 s for ranks 1 to answer" in caplog.text


def test_exchange_that_was_not_complete_goes_on_when_it_is_called_again(store, monkeypatch):
    monkeypatch.setattr(exchanges, "WARN_SECONDS", 0.0)
    assert exchanges.exchange("x", "zero", 0.001, "answer", [0, 2]) == {0: "zero"}
    store.rank = 2
    assert exchanges.exchange("x", "two", 0.001, "answer", [0, 2]) == {0: "zero", 2: "two"}
    store.rank = 0
    assert exchanges.exchange("x", "zero again", 0.001, "answer", [0, 2]) == {0: "zero", 2: "two"}


def test_last_rank_of_an_exchange_completes_its_texts_for_all(store):
    answers = []
    for store.rank in (0, 2):
        exchanges.give("x", str(store.rank), [0, 2], lambda found: {**found, 1: "of another"})
    for store.rank in (0, 2):
        answers.append(exchanges.exchange("x", "", 1, "answer", [0, 2]))
    assert answers == [{0: "0", 1: "of another", 2: "2"}] * 2
