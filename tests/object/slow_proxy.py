"""A TCP relay to a server that a test closes, opens, and lets no more than so many bytes through."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Optional
from urllib.parse import urlsplit


class Proxy:
    """Relays connections to a server. endpoint: its own URL."""

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        assert parts.hostname is not None and parts.port is not None
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._is_open = True
        self._left: Optional[int] = None  # Bytes that may still go through; None: any number.
        self._is_upstream = True  # They are those to the server, and not those that it sends.
        self.stopped = threading.Event()  # They have gone.
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close_server(self) -> None:
        """From now on connections end at once."""
        with self._lock:
            self._is_open = False
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def open_server(self) -> None:
        """Relays again, without a bound."""
        with self._lock:
            self._is_open, self._left = True, None

    def stop_after(self, count: int, upstream: bool = True) -> None:
        """Lets `count` more bytes through to the server, or from it, and then nothing: connections hang."""
        self.stopped.clear()
        with self._lock:
            self._left, self._is_upstream = count, upstream

    def end(self) -> None:
        self._listener.close()
        self.close_server()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # end() closes the listener.
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            is_open = self._is_open
        if not is_open:
            return client.close()
        server = socket.create_connection(self._server)
        with self._lock:
            self._sockets += [client, server]
        threading.Thread(target=self._relay, args=(server, client, False), daemon=True).start()
        self._relay(client, server, True)

    def _relay(self, source: socket.socket, sink: socket.socket, is_upstream: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._may_pass(len(data), is_upstream):
                    self.stopped.set()
                    return  # The connection stays, and nothing comes through.
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _may_pass(self, count: int, is_upstream: bool) -> bool:
        with self._lock:
            if self._left is None or is_upstream != self._is_upstream:
                return True
            self._left -= count
            return self._left >= 0
