"""Serves the page, read only: on loopback to who has the token, or on a Unix socket to who may open it."""

import hmac
import http.server
import os
import socket
import socketserver
import stat
import time
import urllib.parse
from typing import Any, Dict, Optional, Tuple

from ckptd import errors
from ckptd.web import page
from ckptd.web.facts import FactSource, NoAnswerError

_COOKIE = "ckptd-web"
_REQUEST_SECONDS = 10.0  # A browser that sends its request more slowly is cut off.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
# Another name for this machine would let a page of another site read this one (DNS rebinding).
_HOSTS = ("127.0.0.1", "localhost", "[::1]")


class PageServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Answers GET and HEAD. Each request asks the daemon anew."""

    daemon_threads = True

    def __init__(self, source: FactSource, address: Any, token: str = "", family: int = socket.AF_INET) -> None:
        """`token` empty: whoever connects may read, which suits a Unix socket with its permissions."""
        self.source = source
        self.token = token
        self.address_family = family
        super().__init__(address, PageHandler)

    def server_bind(self) -> None:
        if self.address_family != socket.AF_UNIX:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()  # The base class would ask for a host's name.
        self.server_name, self.server_port = "localhost", 0


def serve_on_port(source: FactSource, port: int, token: str) -> PageServer:
    """`port` 0: any free one. Raises Refused if the port is taken."""
    try:
        return PageServer(source, ("127.0.0.1", port), token)
    except OSError as error:
        raise errors.invalid(f"port {port} of 127.0.0.1 cannot be used: {error.strerror}; choose another --port") from None


def serve_on_socket(source: FactSource, path: str) -> PageServer:
    """Only this user, and root, may connect. A socket that nobody listens on any more is replaced."""
    if os.path.lexists(path):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise errors.invalid(f"{path} exists and is no socket; choose another --socket")
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                raise errors.invalid(f"another process listens on {path}; choose another --socket")
        os.unlink(path)
    before = os.umask(0o177)
    try:
        return PageServer(source, path, family=socket.AF_UNIX)
    except OSError as error:
        raise errors.invalid(f"{path} cannot be made: {error.strerror}; choose another --socket") from None
    finally:
        os.umask(before)


class PageHandler(http.server.BaseHTTPRequestHandler):
    """One request."""

    server: PageServer
    server_version, sys_version = "ckptd", ""
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        if self.server.token:
            if not self._names_this_machine():
                return self._answer(421, "This page is for 127.0.0.1 and localhost only.\n")
            given = urllib.parse.parse_qs(url.query).get("token", [""])[0]
            if given and self._is_token(given):
                # The token leaves the address, and with it the history of the browser.
                cookie = f"{_COOKIE}={given}; HttpOnly; SameSite=Strict; Path=/"
                return self._answer(303, "", {"Location": url.path, "Set-Cookie": cookie})
            if not self._is_allowed():
                return self._answer(401, "Open the address that python -m ckptd.web has printed: it has the token.\n")
        status, text = self._page(url.path)
        self._answer(status, text, {"Content-Type": "text/html; charset=utf-8"})

    do_HEAD = do_GET

    def _page(self, path: str) -> Tuple[int, str]:
        name = path.strip("/")
        try:
            facts = self.server.source.ask(name or None)
        except NoAnswerError as error:
            return 503, page.no_daemon(self.server.source.endpoint, str(error))
        if not name:
            return 200, page.overview(facts, time.time())
        text = page.run_page(facts, name, time.time())
        if text is None:
            return 404, page.document("ckptd", '<section><p>There is no such run. <a href="/">All runs</a></p></section>')
        return 200, text

    def _names_this_machine(self) -> bool:
        host = self.headers.get("Host", "")
        return host.rsplit(":", 1)[0] in _HOSTS or host in _HOSTS

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _is_allowed(self) -> bool:
        kind, _, bearer = self.headers.get("Authorization", "").partition(" ")
        if kind == "Bearer" and self._is_token(bearer):
            return True
        cookies = (each.strip().partition("=") for each in self.headers.get("Cookie", "").split(";"))
        return any(name == _COOKIE and self._is_token(value) for name, _, value in cookies)

    def _answer(self, status: int, text: str, headers: Optional[Dict[str, str]] = None) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": "text/plain; charset=utf-8", **_HEADERS, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs nothing: the page refreshes itself all day."""

    def address_string(self) -> str:
        return "a client"
