"""Daemons that are killed at random under saves that overlap, with trainers that live: what one took along is offered to the
next, in order, and what comes of it agrees with what each rank was told.
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
from firing import PATIENCE, Daemon, await_nothing_left, closing
from record import Record, Version

import ckptd

WORLD_SIZE = 2
AT_ONCE = 3  # Saves of a round.
ROUNDS = 40
KEEP = 3
COMMIT = 10.0
LONGEST_DELAY = 0.06  # Seconds: about as long as the saves of a round take.


class Rank:
    """A trainer that stages all saves of a round before it waits for any."""

    def __init__(self, endpoint: str, record: Record, rank: int) -> None:
        self.rank = rank
        self.record = record
        self.offers = 0
        self.client = ckptd.connect(endpoint)
        self.run = self.client.run(
            str(record.root), rank=rank, world_size=WORLD_SIZE, num_kept_ckpts=KEEP, commit_timeout=COMMIT
        )

    def save(self, versions: List[Version]) -> List[str]:
        """What became of each."""
        staged: List[Tuple[Version, ckptd.Save]] = []
        for version in versions:
            files = {version.name(self.rank): version.data(self.rank)}
            try:
                staged.append((version, self.run.save(version.tag, files=files, timeout=COMMIT)))
            except ckptd.CheckpointFailed as error:
                self.record.failed(version, error.reason)
        ends = [self._end(version, save) for version, save in staged]
        committed = [version.sequence for version, end in zip(versions, ends) if end == "committed"]
        assert len(staged) < len(versions) or committed == sorted(committed), f"one overtook another: {committed}"
        return ends

    def _end(self, version: Version, save: ckptd.Save) -> str:
        try:
            save.wait("committed", PATIENCE)
        except ckptd.CheckpointFailed as error:
            self.record.failed(version, error.reason)
            return error.reason
        finally:
            self.offers += isinstance(save, ckptd.Part) and save._offered
        self.record.committed(version, save.sequence)
        return "committed"

    def close(self) -> None:
        self.client.close()


def strike(daemon: Daemon, chance: random.Random) -> None:
    time.sleep(chance.random() * LONGEST_DELAY)  # A random moment, and not an event, is what this is about.
    daemon.kill()
    while chance.random() < 0.3:  # Its successors are no better off, nor are the offers to them.
        with contextlib.suppress(AssertionError):
            daemon.start(must=False)
        time.sleep(chance.random() * 5 * LONGEST_DELAY)
        daemon.kill()
    daemon.start()


@pytest.mark.parametrize("backend", ["threads", "io_uring"])
def test_saves_that_daemons_took_along_are_offered_in_order_and_end_as_every_rank_was_told(
    folder: pathlib.Path, backend: str
) -> None:
    seed = int(os.environ.get("CKPTD_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"seed {seed}")
    chance = random.Random(seed)
    (folder / "root").mkdir()
    record = Record(folder / "root", KEEP)
    ends: Dict[str, int] = collections.Counter()
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(closing(Daemon(folder, backend)))
        daemon.start()
        ranks = [
            stack.enter_context(closing(Rank(daemon.endpoint, record, rank))) for rank in range(WORLD_SIZE)
        ]
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(WORLD_SIZE))
        for round_ in range(ROUNDS):
            tags = [f"t{(round_ * AT_ONCE + i) % 7}" for i in range(AT_ONCE)]
            versions = [record.begin(tag, WORLD_SIZE, chance.choice([0, 5000, 70_000, 300_000])) for tag in tags]
            saving = [pool.submit(rank.save, versions) for rank in ranks]
            strike(daemon, chance)
            for done in saving:
                ends.update(done.result(3 * PATIENCE))
            await_nothing_left(record.root)
            record.check()
    offers = sum(rank.offers for rank in ranks)
    print(f"{backend}: {dict(ends)}, {offers} offered")
    assert offers > WORLD_SIZE, "the daemons were too quick for this test to say anything"
    # Few are lost: those that would overtake what the disk had already.
    assert ends["committed"] > 0.8 * sum(ends.values()), ends
    assert set(ends) <= {"committed", "STAGED_LOST"}, ends
