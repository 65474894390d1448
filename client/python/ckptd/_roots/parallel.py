"""Several requests at a time, by threads that end when their caller gives up."""

import queue
import threading
import time
from typing import Any, Callable, List, Optional, Sequence, Tuple, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_of_thread = threading.local()  # given_up: the threading.Event of _Pool, in its threads.


class GivenUp(Exception):
    """The caller of in_parallel() has an error, and no longer waits for the rest."""


def in_parallel(
    items: Sequence[_Item],
    work: Callable[[_Item], _Result],
    threads: int,
    done: Callable[[_Result], None] = lambda result: None,
) -> List[_Result]:
    """Calls work(item) for each item, several at a time. Returns the results in the order of the items.

    An error of `work` or `done`, or of a signal handler, is raised when no thread works any more: what they write to
    is the caller's again.

    Args:
        done: called in the caller's thread with each result, in the order in which they come.
    """
    results: List[Optional[_Result]] = [None] * len(items)
    if min(threads, len(items)) <= 1:
        for number, item in enumerate(items):
            results[number] = work(item)
            done(results[number])  # type: ignore[arg-type]
        return results  # type: ignore[return-value]
    pool = _Pool(items, work)
    try:
        pool.start(min(threads, len(items)))
        for _ in items:
            number, result, error = pool.ended.get()
            if error is not None:
                raise error
            results[number] = result
            done(result)
    finally:
        pool.end()
    return results  # type: ignore[return-value]


class _Pool:
    """The threads of one call of in_parallel()."""

    def __init__(self, items: Sequence[Any], work: Callable[[Any], Any]) -> None:
        self.ended: "queue.SimpleQueue[Tuple[int, Any, Optional[BaseException]]]" = queue.SimpleQueue()
        self._work = work
        self._given_up = threading.Event()
        self._changed = threading.Condition()  # Guards what follows.
        self._waiting = iter(list(enumerate(items)))
        self._working = 0

    def start(self, threads: int) -> None:
        for _ in range(threads):
            threading.Thread(target=self._run, name="ckptd-bucket", daemon=True).start()

    def end(self) -> None:
        """Returns when no thread works, and none will: they would write to memory that is no longer theirs.

        An interrupt waits for that, too. It may come at any time, also while a thread is being started.
        """
        interrupt: Optional[BaseException] = None
        while True:
            try:
                self._given_up.set()
                with self._changed:
                    self._changed.wait_for(lambda: self._working == 0)
                break
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _run(self) -> None:
        _of_thread.given_up = self._given_up
        while True:
            with self._changed:
                number, item = next(self._waiting, (-1, None))
                if number < 0 or self._given_up.is_set():
                    return
                self._working += 1
            try:
                self.ended.put((number, self._work(item), None))
            except BaseException as error:
                self.ended.put((number, None, error))
            finally:
                with self._changed:
                    self._working -= 1
                    self._changed.notify_all()


def check() -> None:
    """Raises GivenUp in a thread of in_parallel() whose caller has given up."""
    given_up: Optional[threading.Event] = getattr(_of_thread, "given_up", None)
    if given_up is not None and given_up.is_set():
        raise GivenUp()


def pause(seconds: float) -> None:
    """Sleeps. Raises as check(), as soon as the caller has given up."""
    given_up: Optional[threading.Event] = getattr(_of_thread, "given_up", None)
    if given_up is None:
        return time.sleep(seconds)
    if given_up.wait(seconds):
        raise GivenUp()
