"""python -m ckptd: prints the version and where the programs are. With --local, serves a private daemon in a terminal."""

import argparse
import signal
import sys
from typing import Any

from ckptd import __version__, errors
from ckptd.local_daemon import LocalDaemon, find_program


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ckptd", description=__doc__)
    parser.add_argument("--version", action="version", version=f"ckptd {__version__}")
    parser.add_argument("--local", metavar="DIR", help="start or join the private daemon of this folder, and keep it until Ctrl-C")
    parser.add_argument("--pool", metavar="SIZE", default="1GiB", help="its memory for saves, such as 8GiB (default: 1GiB)")
    options = parser.parse_args()
    if options.local is not None:
        return _serve(options.local, options.pool)
    print(f"ckptd {__version__}")
    for program in ("ckptd", "ckptctl"):
        try:
            print(f"{program}: {find_program(program)}")
        except errors.CkptdError as error:
            print(f"{program}: {error}")


def _serve(folder: str, pool: str) -> None:
    """Keeps a private daemon until SIGINT or SIGTERM. Its other users keep it longer."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    # The thread that waits for them must not be interrupted by one that comes before it waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        daemon: Any = LocalDaemon(folder, pool_bytes=pool).start()
    except (errors.CkptdError, ValueError) as error:
        sys.exit(f"python -m ckptd: {error}")
    print(f"export CKPTD_ENDPOINT={daemon.endpoint}", flush=True)
    print(f"# The log is {daemon.log_path}. Ctrl-C leaves the daemon, which ends when nobody uses it.", flush=True)
    signal.sigwait(numbers)
    daemon.stop()


if __name__ == "__main__":
    main()
