"""Keeps the messages between ranks short while a job saves the same state again and again."""

import uuid
from typing import Any, Dict, List, NamedTuple, Optional

from ckptd import errors


class _Sent(NamedTuple):
    """What a rank tells the coordinator of what it has written."""

    rank: int
    tag: str
    results: Optional[List[Any]]  # WriteResults; None: those that had this tag.


class RepeatedSave:
    """What this rank has sent and received in the last save of a state. Only a save that succeeded counts.

    Used by one thread at a time.
    """

    def __init__(self, key: str) -> None:
        """key: the same for all saves of the state by the same ranks."""
        self.key = key
        self.clear()

    def clear(self) -> None:
        """Forgets everything: the next messages are complete."""
        self._sent: Optional[_Sent] = None
        self._received: Dict[int, _Sent] = {}
        self._next_sent: Optional[_Sent] = None
        self._next_received: Dict[int, _Sent] = {}

    def outgoing(self, rank: int, results: List[Any]) -> List[Any]:
        """Returns what to send in the place of results."""
        before = self._sent
        if before is not None and before.results == results:
            self._next_sent = before
            return [before._replace(results=None)]
        self._next_sent = _Sent(rank, str(uuid.uuid4()), results)
        return [self._next_sent]

    def incoming(self, messages: List[List[Any]]) -> List[List[Any]]:
        """Returns the results of all ranks.

        Raises:
            errors.CheckpointFailed: this rank does not have what another one refers to.
        """
        found = []
        for (sent,) in messages:
            if sent.results is None:
                known = self._received.get(sent.rank)
                if known is None or known.tag != sent.tag:
                    raise errors.CheckpointFailed(
                        f"rank {sent.rank} has written the same as in its last save, which this rank does not know: the "
                        "earlier save has failed here; save again",
                        reason="SAVE_ABORTED",
                        ranks=[sent.rank],
                    )
                sent = known
            self._next_received[sent.rank] = sent
            found.append(sent.results)
        return found

    def confirm(self) -> None:
        """Takes over the messages of a save that has succeeded."""
        self._sent, self._received = self._next_sent, self._next_received
        self._next_sent, self._next_received = None, {}
