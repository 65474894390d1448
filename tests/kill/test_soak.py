"""A short run of tools/soak. Each run has its own seed, which $CKPTD_SEED sets."""

from __future__ import annotations

import os

import pytest
from soak import soak

CYCLES = 100


@pytest.mark.parametrize("backend", ["threads", "io_uring"])
def test_random_kills_of_daemon_and_trainers_leave_what_was_acknowledged_and_nothing_else(backend: str) -> None:
    seed = int(os.environ.get("CKPTD_SEED") or int.from_bytes(os.urandom(4), "little"))
    soak(seed, backend, lambda done: done < CYCLES, print)
