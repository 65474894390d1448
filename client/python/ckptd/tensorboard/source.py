"""The figures of one run, asked from the daemon."""

import os
from typing import Any, Iterator, List

from ckptd import errors
from ckptd._session.connection import Connection
from ckptd._wire.protocol import messages
from ckptd.tensorboard.figures import Figure, figures_of

_ANSWER_SECONDS = 10.0
_MOST_ENTRIES = 10_000  # The daemon keeps fewer.
_PAGE_SIZE = 1000  # Checkpoints in one answer of ListCheckpoints.


class FigureSource:
    """Asks for a run as an operator does: it attaches no root and is no rank."""

    def __init__(self, endpoint: str, run: str) -> None:
        """`run`: the root's directory, or runs/ID."""
        self._connection = Connection(endpoint, keeper=False, timeout=_ANSWER_SECONDS)
        self._run = run

    def figures(self) -> List[Figure]:
        """Returns all figures of the run's history, the oldest first. Raises Unavailable if no daemon answers, NotFound
        if there is no such run.
        """
        run = self._name()
        history = self._ask("admin", "GetHistory", messages.GetHistoryRequest(run=run, max_entries=_MOST_ENTRIES))
        metrics = {each.sequence: each.metrics for each in self._checkpoints(run)}
        return [
            figure
            for entry in reversed(history.entries)
            for figure in figures_of(entry, metrics.get(entry.sequence, {}))
        ]

    def close(self) -> None:
        self._connection.close()

    def _name(self) -> str:
        runs = self._ask("admin", "ListRuns", messages.ListRunsRequest()).runs
        for run in runs:
            if self._run in (run.name, run.path) or _is_same_directory(self._run, run.path):
                return str(run.name)
        known = ", ".join(run.path for run in runs) or "none"
        raise errors.NotFound(
            f"the daemon knows no run in {self._run}; it knows {known}; name the root's directory, or runs/ID",
            reason="UNKNOWN_RUN",
        )

    def _checkpoints(self, run: str) -> Iterator[Any]:
        request = messages.ListCheckpointsRequest(parent=run, page_size=_PAGE_SIZE, view=messages.FULL)
        while True:
            page = self._ask("checkpoints", "ListCheckpoints", request)
            yield from page.checkpoints
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _ask(self, service: str, method: str, request: Any) -> Any:
        """Asks once: the caller asks again later."""
        session = self._connection.session()
        return session.call(getattr(getattr(session, service), method), request, _ANSWER_SECONDS)


def _is_same_directory(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
