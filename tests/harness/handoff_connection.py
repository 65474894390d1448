"""A client of the hand-off socket that sends any frame, without the checks of the package's own client."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Sequence
from typing import Any, List, Optional, Tuple

from ckptd.v1 import handoff_pb2 as handoff

TIMEOUT = 20.0


class HandoffConnection:
    """One connection to a daemon's hand-off socket."""

    def __init__(self, endpoint: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(TIMEOUT)
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                self.socket.connect(endpoint[len("unix:") :] + ".handoff")
                break
            except BlockingIOError:
                # The backlog is full. The kernel does not tell when it has room again.
                assert time.monotonic() < deadline, "the daemon accepts no connection"
                time.sleep(0.005)
        self.asked = 0

    def ask(self, descriptors: Sequence[int] = (), **request: Any) -> Tuple[Any, List[int]]:
        """The answer, and the descriptors that came with it."""
        self.asked += 1
        frame = handoff.HandoffRequest(id=self.asked, **request).SerializeToString()
        socket.send_fds(self.socket, [frame], list(descriptors))
        data, received, _, _ = socket.recv_fds(self.socket, 1 << 16, 64)
        answer = handoff.HandoffResponse.FromString(data)
        assert data and answer.id == self.asked
        return answer, received

    def hello(self, instance: Optional[str] = None, keeper: bool = False) -> Any:
        """Opens a session. A keeper's keeps a private daemon alive."""
        hello = handoff.Hello(
            min_version=1, max_version=1, client_instance=instance or uuid.uuid4().hex, keeper=keeper
        )
        return self.ask(hello=hello)[0]

    def goodbye(self) -> None:
        """Ends the session; the daemon closes the connection."""
        self.ask(goodbye=handoff.Goodbye())

    def close(self) -> None:
        self.socket.close()
