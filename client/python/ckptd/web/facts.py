"""What the page shows, asked from the daemon: its status, and the history of each run."""

import dataclasses
from typing import Any, Dict, List, Optional

import grpc

from ckptd._wire.protocol import messages, services

_ANSWER_SECONDS = 5.0
_MOST_ENTRIES = 500  # Of one run; the page plots them.
_MOST_RUNS = 50  # Whose history an answer has.


@dataclasses.dataclass
class Facts:
    """What a daemon knows at one moment."""

    status: Any  # A ckptd.v1.Status.
    histories: Dict[str, List[Any]]  # By the run's name: HistoryEntry messages, newest first.
    history_errors: Dict[str, str]  # By the run's name: why there is none.
    # By the run's name: how often to save, for people. Empty: not known.
    advice: Dict[str, str] = dataclasses.field(default_factory=dict)


class NoAnswerError(Exception):
    """The daemon did not answer; the text says why."""


class FactSource:
    """Asks one daemon. It sees the runs that the user of this process may see. Thread-safe."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._channel = grpc.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)])
        self._admin = services.AdminStub(self._channel)

    def ask(self, run: Optional[str] = None) -> Facts:
        """Asks for the status, and for the history of all runs or of one. Raises NoAnswerError."""
        try:
            status = self._admin.GetStatus(messages.GetStatusRequest(), timeout=_ANSWER_SECONDS)
        except grpc.RpcError as error:
            raise NoAnswerError(_words(error)) from None
        facts = Facts(status, {}, {})
        names = [each.name for each in status.runs if run in (None, each.name)]
        for name in names[:_MOST_RUNS]:
            request = messages.GetHistoryRequest(run=name, max_entries=_MOST_ENTRIES)
            try:
                answer = self._admin.GetHistory(request, timeout=_ANSWER_SECONDS)
            except grpc.RpcError as error:
                facts.history_errors[name] = _words(error)
                continue
            facts.histories[name] = list(answer.entries)
            facts.advice[name] = answer.outlook.advice
        return facts

    def close(self) -> None:
        self._channel.close()


def _words(error: grpc.RpcError) -> str:
    code, details = error.code(), error.details()
    return f"{code.name}: {details}" if details else str(code.name)
