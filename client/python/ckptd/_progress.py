"""How far something long has come, for people: a bar where tqdm is there, else a line in the log now and then."""

import contextlib
import logging
import time
from typing import Any, Callable, Iterator, Union

_log = logging.getLogger("ckptd")
_LINE_SECONDS = 5.0

Progress = Union[bool, Callable[[int, int], Any]]  # Or a function of (bytes done, bytes in all).


@contextlib.contextmanager
def showing(progress: Progress, what: str, total: int) -> "Iterator[Callable[[int], None]]":
    """A function that is to be told how many of `total` bytes are done, again and again."""
    if callable(progress):
        yield lambda done: progress(min(done, total), total)
    elif not progress:
        yield lambda done: None
    else:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            yield _Lines(what, total)
            return
        with tqdm(desc=what, total=total, unit="B", unit_scale=True, unit_divisor=1024) as bar:
            yield lambda done: bar.update(min(done, total) - bar.n)


class _Lines:
    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._begin = self._last = time.monotonic()

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if done <= 0 or now - self._last < _LINE_SECONDS:
            return
        self._last = now
        rate = done / (now - self._begin)
        _log.info(
            "ckptd: %s: %.1f of %.1f GB, %.2f GB/s, %.0f s left",
            self._what,
            done / 1e9,
            self._total / 1e9,
            rate / 1e9,
            max(0, self._total - done) / rate,
        )
