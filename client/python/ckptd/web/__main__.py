"""python -m ckptd.web: serves the status page of a daemon until Ctrl-C."""

import argparse
import os
import secrets
import sys
from typing import Optional, Sequence

from ckptd import errors
from ckptd.web.facts import FactSource
from ckptd.web.server import PageServer, serve_on_port, serve_on_socket

DEFAULT_ENDPOINT = "unix:/run/ckptd/ckptd.sock"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ckptd.web",
        description="Serves a page that shows a daemon, its runs and what has happened. It changes nothing, and shows "
        "the runs that this user may see.",
    )
    parser.add_argument(
        "--endpoint",
        default=os.environ.get("CKPTD_ENDPOINT") or DEFAULT_ENDPOINT,
        help=f"unix:/path/ckptd.sock; default: $CKPTD_ENDPOINT, or {DEFAULT_ENDPOINT}",
    )
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; default: any free one")
    parser.add_argument("--socket", help="serve on this Unix socket, for this user, and not on a port")
    parser.add_argument("--token-file", help="a file with the token of the address; default: a new one at each start")
    options = parser.parse_args(arguments)
    try:
        server = _server(options)
    except errors.CkptdError as error:
        print(f"ckptd.web: {error}", file=sys.stderr)
        return 2
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
        server.source.close()
        if options.socket:
            os.unlink(options.socket)
    return 0


def _server(options: argparse.Namespace) -> PageServer:
    if not options.endpoint.startswith("unix:"):
        raise errors.invalid(f"--endpoint is {options.endpoint!r}; name a Unix socket, unix:/path/ckptd.sock")
    source = FactSource(options.endpoint)
    if options.socket:
        server = serve_on_socket(source, options.socket)
        print(f"serving on {options.socket}", flush=True)
        return server
    token = _token(options.token_file)
    server = serve_on_port(source, options.port, token)
    # Whoever reads this line may read the page.
    print(f"http://127.0.0.1:{server.server_address[1]}/?token={token}", flush=True)
    return server


def _token(path: Optional[str]) -> str:
    if not path:
        return secrets.token_urlsafe(24)
    try:
        with open(path, encoding="utf-8") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.invalid(f"--token-file {path} cannot be read: {error}") from None
    if len(token) < 16 or not token.isascii() or not token.replace("-", "").replace("_", "").isalnum():
        raise errors.invalid(f"--token-file {path} needs a line of 16 or more letters, digits, - and _")
    return token


if __name__ == "__main__":
    sys.exit(main())
