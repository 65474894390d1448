"""python -m ckptd.tensorboard: writes the history of a run for TensorBoard."""

import argparse
import os
import signal
import sys
import threading
from typing import Optional, Sequence

from ckptd import errors
from ckptd.tensorboard.events import EventFolder
from ckptd.tensorboard.source import FigureSource

DEFAULT_ENDPOINT = "unix:/run/ckptd/ckptd.sock"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ckptd.tensorboard",
        description="Writes what `ckptctl history` shows of a run as scalars by step: stall, times, size, rate and slowest "
        "rank of saves and restores, the metrics of checkpoints that still exist, and failures as text. What the folder "
        "has is not written again.",
    )
    parser.add_argument("root", metavar="ROOT", help="the root's directory, or runs/ID")
    parser.add_argument("--logdir", required=True, help="a folder of its own for the event files; made if missing")
    parser.add_argument("--follow", action="store_true", help="go on with what happens, until Ctrl-C or SIGTERM")
    parser.add_argument("--interval", type=float, default=10.0, metavar="SECONDS", help="between two looks; default: 10")
    parser.add_argument(
        "--endpoint",
        default=os.environ.get("CKPTD_ENDPOINT") or DEFAULT_ENDPOINT,
        help=f"unix:/path/ckptd.sock; default: $CKPTD_ENDPOINT, or {DEFAULT_ENDPOINT}",
    )
    options = parser.parse_args(arguments)
    try:
        if not 0 < options.interval <= threading.TIMEOUT_MAX:
            raise errors.invalid(f"--interval is {options.interval:g}; it must be more than 0 seconds")
        source = FigureSource(options.endpoint, options.root)
        try:
            _write(source, options)
        finally:
            source.close()
    except (errors.CkptdError, ImportError) as error:
        print(f"ckptd.tensorboard: {error}", file=sys.stderr)
        return 2
    return 0


def _write(source: FigureSource, options: argparse.Namespace) -> None:
    figures = source.figures()
    folder = EventFolder(options.logdir)
    try:
        count = folder.add(figures)
        print(f"wrote {count} new of {len(figures)} figures to {options.logdir}", flush=True)
        if options.follow:
            _follow(source, folder, options.interval)
    finally:
        folder.close()


def _follow(source: FigureSource, folder: EventFolder, interval: float) -> None:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    was_away = False
    while not ended.wait(interval):
        try:
            folder.add(source.figures())
            was_away = False
        except errors.CkptdError as error:  # A daemon that restarts has the history again.
            if not was_away:
                print(f"ckptd.tensorboard: {error}; looking again every {interval:g} s", file=sys.stderr, flush=True)
            was_away = True


if __name__ == "__main__":
    sys.exit(main())
