"""A hostile user for hostile.py: holds memory, and floods the daemon with sessions and calls, until it is killed. Prints a line
when each of its attacks has begun.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import threading
import time
from typing import Callable, List

import grpc
from ckptd.v1 import messages_pb2 as messages
from ckptd.v1 import types_pb2 as types

from bench.base.context import MIB
from bench.cases.rank import Rank

SECONDS = 1.0  # How long a save holds its memory, without a byte.


def hold_memory(options: argparse.Namespace, begun: Callable[[], None]) -> None:
    """Begins saves until the pool is full, lets others wait for them, aborts them and begins again."""
    rank = Rank(options, options.root / "memory")
    for number in itertools.count():
        keys = [types.SaveKey(run=rank.run, rank=0, tag=f"t{number}_{i}", ordinal=1) for i in range(options.memory // (4 * MIB))]
        calls = []
        for key in keys:
            begin = messages.BeginRequest(key=key, files=[messages.FileSpec(path="f", size_bytes=4 * MIB)])
            calls.append(rank.stub.Begin.future(begin, metadata=rank.metadata, timeout=SECONDS))
        begun()
        time.sleep(SECONDS)  # Holding on is the attack.
        for key, call in zip(keys, calls):
            call.cancel()
            ignored(lambda key=key: rank.stub.Abort(messages.AbortRequest(key=key), metadata=rank.metadata, timeout=5))


def open_sessions(options: argparse.Namespace, begun: Callable[[], None]) -> None:
    for number in itertools.count():
        ignored(lambda: Rank(options, options.root / f"root_{number % 16}").close())
        begun()


def list_checkpoints(options: argparse.Namespace, begun: Callable[[], None]) -> None:
    rank = Rank(options, options.root / "lists")
    request = messages.ListCheckpointsRequest(parent=rank.run, page_size=100)
    while True:
        ignored(lambda: rank.stub.ListCheckpoints(request, metadata=rank.metadata, timeout=5))
        begun()


def ignored(call: Callable[[], object]) -> None:
    """A refusal is what this user should get."""
    try:
        call()
    except grpc.RpcError:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--memory", type=int, required=True, help="bytes to hold")
    parser.add_argument("--uid", type=int, help="the user to become, after the imports: it may not be able to read the modules")
    options = parser.parse_args()
    if options.uid is not None:
        os.setgroups([])
        os.setgid(options.uid)
        os.setuid(options.uid)
    for name in ("memory", "lists", *(f"root_{i}" for i in range(16))):
        (options.root / name).mkdir()
    attacks: List[threading.Event] = []
    for attack in (hold_memory, open_sessions, list_checkpoints):
        attacks.append(threading.Event())
        threading.Thread(target=attack, args=(options, attacks[-1].set)).start()
    for begun in attacks:
        begun.wait()
    print("begun", flush=True)


if __name__ == "__main__":
    main()
