"""The clients of a run: a process for each rank of a launch, and one that looks and changes as operators do. Each records its calls.

The processes are forked from one that has imported ckptd already; each has its own connection to the daemon of its node.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import struct
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import ckptd
from ckptd._run_retention import RetainedRun
from run_history.model import KEPT
from run_history.recording import OK, Call

SAVE_SECONDS = 8  # For a save to begin. The nodes of a launch may be at different saves for so long.
COMMIT_SECONDS = 30
CONNECT_SECONDS = 30
MAX_SAVES = 2  # Of one rank at a time: the second one begins before the first is a checkpoint.
_PATIENCE = 90  # For all clients, after they should be done: what they wait for has deadlines of half a minute.


class PlannedSave(NamedTuple):
    step: int
    tag: str
    pause: float  # Seconds before it.


class Act(NamedTuple):
    """What an operator does."""

    name: str
    tag: str
    pause: float


class Period(NamedTuple):
    """From when until when a client starts calls, on the clock of all processes."""

    start: float
    end: float

    def wait(self) -> None:
        time.sleep(max(0.0, self.start - time.monotonic()))

    def is_over(self) -> bool:
        return time.monotonic() > self.end


class Place(NamedTuple):
    node: str
    endpoint: str


class Reporter:
    """Sends each call twice, when it starts and when it has ended, so that one that never ends is known."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def send(self, number: int, call: Call) -> None:
        with self._lock:
            self._connection.send((number, call))

    @contextlib.contextmanager
    def recorded(self, call: Call, run: Optional[ckptd.Run] = None) -> Iterator[Tuple[int, Call]]:
        """The block's error is the call's answer. `run`: in whose attempt it is made."""
        number = next(self._numbers)
        call.start = time.monotonic()
        self.send(number, call)
        try:
            yield number, call
            call.answer = call.answer or OK
        except ckptd.CkptdError as error:
            call.answer, call.error = error.reason, str(error)
        call.end = time.monotonic()
        call.attempt = run.attempt if run else 0
        self.send(number, call)


def _die_with_traceback(failure: threading.ExceptHookArgs) -> None:
    threading.__excepthook__(failure)
    os._exit(1)


def _prepare() -> None:
    threading.excepthook = _die_with_traceback
    logging.getLogger("ckptd").setLevel(logging.ERROR)  # That daemons are away is no news here.


def content(step: int, rank: int) -> bytes:
    return struct.pack("<HH", step, rank) * 1500


def _rank(
    connection: Connection, place: Place, root: str, launch: int, rank: int, world: int, period: Period, saves: Sequence[PlannedSave]
) -> None:
    """Resumes and saves, until another launch has taken over, nothing is left to save, or the time is over."""
    os.environ.update(CKPTD_LAUNCH_ID=f"launch-{launch}", CKPTD_JOB_ID="job")
    _prepare()
    reporter = Reporter(connection)
    named = f"launch {launch} rank {rank}"
    period.wait()
    try:
        client = ckptd.connect(place.endpoint, timeout=CONNECT_SECONDS)
        run = client.run(root, rank=rank, world_size=world, num_kept_ckpts=KEPT, commit_timeout=COMMIT_SECONDS, local_ranks=[rank])
    except ckptd.CkptdError:
        return  # It has not joined, so it has changed nothing.
    with reporter.recorded(Call(named, place.node, "resume", 0), run) as (_, call):
        with run.resume() as checkpoint:
            if checkpoint:
                assert bytes(checkpoint.read(f"rank{rank}.raw")) == content(checkpoint.step, rank), checkpoint.tag
            call.found = checkpoint.step if checkpoint else 0
    waiting: List[threading.Thread] = []
    for save in saves:
        time.sleep(save.pause)
        if call.answer == "FENCED" or period.is_over():
            break
        call = Call(named, place.node, "save", 0, step=save.step, tag=save.tag)
        waiting = [thread for thread in waiting if thread.is_alive()]
        if len(waiting) >= MAX_SAVES:
            waiting.pop(0).join()
        begun = threading.Event()
        waiting.append(threading.Thread(target=_save, args=(reporter, run, call, rank, begun)))
        waiting[-1].start()
        begun.wait()
    for thread in waiting:
        thread.join()
    client.close()


def _save(reporter: Reporter, run: ckptd.Run, call: Call, rank: int, begun: threading.Event) -> None:
    try:
        with reporter.recorded(call, run) as (number, _):
            files = {f"rank{rank}.raw": content(call.step, rank)}
            save = run.save(call.tag, step=call.step, files=files, timeout=SAVE_SECONDS)
            call.staged, call.attempt = time.monotonic(), run.attempt
            reporter.send(number, call)
            begun.set()
            save.wait("committed", COMMIT_SECONDS)
            assert save.level == "committed", save.level
    finally:
        begun.set()


def _operator(connection: Connection, places: Sequence[Place], root: str, period: Period, acts: Sequence[Sequence[Act]]) -> None:
    """Acts on all nodes at once."""
    _prepare()
    reporter = Reporter(connection)
    period.wait()
    threads = [threading.Thread(target=_act, args=(reporter, *each, root, period)) for each in zip(places, acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _act(reporter: Reporter, place: Place, acts: Sequence[Act], root: str, period: Period) -> None:
    try:
        client = ckptd.connect(place.endpoint, timeout=CONNECT_SECONDS)
    except ckptd.Unavailable:
        return
    run: Optional[RetainedRun] = None
    for act in acts:
        time.sleep(act.pause)
        if period.is_over():
            break
        if run is None:
            with contextlib.suppress(ckptd.CkptdError):
                run = RetainedRun(client.open(root)._access)
        else:
            ask(reporter, run, place.node, act)
    client.close()


def ask(reporter: Reporter, run: RetainedRun, node: str, act: Act) -> None:
    with reporter.recorded(Call("operator", node, act.name, 0, tag=act.tag)) as (_, call):
        call.found = ANSWERS[act.name](run, act.tag)


def listed(run: RetainedRun, tag: str = "") -> List[Tuple[Optional[int], str, bool]]:
    return [(info.step, info.tag, info.pinned) for info in run.list()]


def _latest(run: RetainedRun, tag: str) -> int:
    newest = run.latest()
    return newest.step or 0 if newest else 0


def _step_of(method: str) -> Callable[[RetainedRun, str], int]:
    return lambda run, tag: getattr(run, method)(tag).step


ANSWERS: Dict[str, Callable[[RetainedRun, str], Any]] = {
    "list": listed,
    "latest": _latest,
    "pin": _step_of("pin"),
    "unpin": _step_of("unpin"),
    "delete": _step_of("delete"),
}


class Clients:
    """The processes of several histories, which record until they end or are killed."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["ckptd", "run_history.clients"])
        self._open: Dict[Connection, int] = {}  # And the history that it belongs to.
        self._processes: List[Any] = []
        self.calls: Dict[Tuple[Connection, int], Call] = {}

    def start(self, history: int, target: Callable[..., None], *arguments: Any) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=target, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        self._open[ours] = history
        self._processes.append(process)

    def start_launch(self, history: int, places: Sequence[Place], root: str, launch: int, period: Period, saves: Sequence[PlannedSave]) -> None:
        for rank, place in enumerate(places):
            self.start(history, _rank, place, root, launch, rank, len(places), period, saves)

    def start_operator(self, history: int, places: Sequence[Place], root: str, period: Period, acts: Sequence[Sequence[Act]]) -> None:
        self.start(history, _operator, places, root, period, acts)

    def finish(self) -> Dict[int, List[Call]]:
        """Waits for all, and returns their calls by history. What still runs after its patience is killed."""
        histories: Dict[int, List[Call]] = {history: [] for history in self._open.values()}
        of_connection = dict(self._open)
        calls: Dict[Tuple[int, int], Tuple[int, Call]] = {}
        deadline = time.monotonic() + _PATIENCE
        while self._open and time.monotonic() < deadline:
            for connection in wait(list(self._open), max(0.0, deadline - time.monotonic())):
                assert isinstance(connection, Connection)
                try:
                    number, call = connection.recv()
                    calls[(id(connection), number)] = (of_connection[connection], call)
                except EOFError:
                    del self._open[connection]
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        ended = [process.exitcode for process in self._processes]
        assert not [code for code in ended if code not in (0, -9)], f"a client ended with an exception; exit codes {ended}"
        for history, call in calls.values():
            histories[history].append(call)
        self._open, self._processes = {}, []
        return histories
