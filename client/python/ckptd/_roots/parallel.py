"""Several requests at a time, by threads that end when their caller gives up."""

import queue
import threading
import time
from typing import Callable, List, Optional, Sequence, Tuple, TypeVar, Union

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_of_thread = threading.local()  # given_up: the threading.Event of in_parallel(), in its threads.


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
    given_up = threading.Event()
    waiting = iter(list(enumerate(items)))
    ended: "queue.SimpleQueue[Tuple[int, Union[_Result, BaseException]]]" = queue.SimpleQueue()
    lock = threading.Lock()

    def run() -> None:
        _of_thread.given_up = given_up
        while not given_up.is_set():
            with lock:
                number, item = next(waiting, (-1, None))
            if number < 0:
                return
            try:
                ended.put((number, work(item)))  # type: ignore[arg-type]
            except BaseException as error:
                return ended.put((number, error))

    pool = [threading.Thread(target=run, name="ckptd-bucket", daemon=True) for _ in range(min(threads, len(items)))]
    for thread in pool:
        thread.start()
    try:
        for _ in items:
            number, result = ended.get()
            if isinstance(result, BaseException):
                raise result
            results[number] = result
            done(result)
    finally:
        given_up.set()
        for thread in pool:
            thread.join()
    return results  # type: ignore[return-value]


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
