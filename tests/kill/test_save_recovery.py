"""Daemons are killed at random moments during overlapping saves, and the trainers live: they offer the saves that were lost
with a daemon to the next one, in order, and each save ends as every rank is told.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import os
import pathlib
import random
import time
from typing import Dict, List, Tuple

import pytest
from killable_daemon import TIMEOUT, KillableDaemon
from leftovers import wait_until_none_left
from save_record import SaveRecord, Version

import ckptd
from harness import closing

WORLD_SIZE = 2
SAVES_PER_ROUND = 3
ROUNDS = 40
KEEP = 3
COMMIT_TIMEOUT = 10.0
MAX_DELAY = 0.06  # Seconds: about as long as the saves of a round take.


class Rank:
    """A trainer that stages all saves of a round before it waits for any."""

    def __init__(self, endpoint: str, record: SaveRecord, rank: int) -> None:
        self.rank = rank
        self.record = record
        self.offers = 0
        self.client = ckptd.connect(endpoint)
        self.run = self.client.run(
            str(record.root), rank=rank, world_size=WORLD_SIZE, num_kept_ckpts=KEEP, commit_timeout=COMMIT_TIMEOUT
        )

    def save(self, versions: List[Version]) -> List[str]:
        """How each of them ended: "committed", or the reason of its failure."""
        staged: List[Tuple[Version, ckptd.Save]] = []
        for version in versions:
            files = {version.name(self.rank): version.data(self.rank)}
            try:
                staged.append((version, self.run.save(version.tag, files=files, timeout=COMMIT_TIMEOUT)))
            except ckptd.CheckpointFailed as error:
                self.record.failed(version, error.reason)
        ends = [self._end(version, save) for version, save in staged]
        committed = [version.sequence for version, end in zip(versions, ends) if end == "committed"]
        assert len(staged) < len(versions) or committed == sorted(committed), f"committed out of order: {committed}"
        return ends

    def _end(self, version: Version, save: ckptd.Save) -> str:
        try:
            save.wait("committed", TIMEOUT)
        except ckptd.CheckpointFailed as error:
            self.record.failed(version, error.reason)
            return error.reason
        finally:
            self.offers += save._state.is_recovered
        self.record.committed(version, save.sequence)
        return "committed"

    def close(self) -> None:
        self.client.close()


def kill_and_restart(daemon: KillableDaemon, chance: random.Random) -> None:
    time.sleep(chance.random() * MAX_DELAY)  # Deliberately a random moment, not an event.
    daemon.kill()
    while chance.random() < 0.3:  # Its successors are killed, too, some of them while saves are offered to them.
        with contextlib.suppress(AssertionError):
            daemon.start(must_serve=False)
        time.sleep(chance.random() * 5 * MAX_DELAY)
        daemon.kill()
    daemon.start()


@pytest.mark.parametrize("backend", ["threads", "io_uring"])
def test_saves_lost_with_killed_daemons_are_offered_in_order_and_end_as_every_rank_is_told(
    folder: pathlib.Path, backend: str
) -> None:
    seed = int(os.environ.get("CKPTD_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"seed {seed}")
    chance = random.Random(seed)
    (folder / "root").mkdir()
    record = SaveRecord(folder / "root", KEEP)
    ends: Dict[str, int] = collections.Counter()
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(closing(KillableDaemon(folder, backend)))
        daemon.start()
        ranks = [
            stack.enter_context(closing(Rank(daemon.endpoint, record, rank))) for rank in range(WORLD_SIZE)
        ]
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(WORLD_SIZE))
        for round_ in range(ROUNDS):
            tags = [f"t{(round_ * SAVES_PER_ROUND + i) % 7}" for i in range(SAVES_PER_ROUND)]
            versions = [record.begin(tag, WORLD_SIZE, chance.choice([0, 5000, 70_000, 300_000])) for tag in tags]
            saving = [pool.submit(rank.save, versions) for rank in ranks]
            kill_and_restart(daemon, chance)
            for done in saving:
                ends.update(done.result(3 * TIMEOUT))
            wait_until_none_left(record.root)
            record.check()
    offers = sum(rank.offers for rank in ranks)
    print(f"{backend}: {dict(ends)}, {offers} offered")
    assert offers > WORLD_SIZE, "too few saves were offered for this test to show anything"
    # Few are lost: those older than what the disk had already.
    assert ends["committed"] > 0.8 * sum(ends.values()), ends
    assert set(ends) <= {"committed", "STAGED_LOST"}, ends
