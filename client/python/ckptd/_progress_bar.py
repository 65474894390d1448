"""Shows people how far a long operation has come: a tqdm bar, or a line in the log every few seconds without
tqdm.
"""

import contextlib
import logging
import time
from typing import Any, Callable, Iterator, Union

_log = logging.getLogger("ckptd")
_LINE_SECONDS = 5.0  # Between two lines in the log.

# Whether to show it, or a function of (bytes done, bytes in all).
Progress = Union[bool, Callable[[int, int], Any]]


@contextlib.contextmanager
def progress_bar(progress: Progress, what: str, total: int) -> "Iterator[Callable[[int], None]]":
    """Yields a function that shows how many of `total` bytes are done. Call it again and again."""
    if callable(progress):
        yield lambda done: progress(min(done, total), total)
    elif not progress:
        yield lambda done: None
    else:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            yield _LogLines(what, total)
            return
        with tqdm(desc=what, total=total, unit="B", unit_scale=True, unit_divisor=1024) as bar:
            yield lambda done: bar.update(min(done, total) - bar.n)


class _LogLines:
    """Logs the progress every few seconds."""

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
