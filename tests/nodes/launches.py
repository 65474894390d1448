"""The ranks of a launch that spans nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Dict, List, NamedTuple, Optional

from cluster import Node

from harness import Trainer


class Outcome(NamedTuple):
    """What a rank has heard of a save."""

    word: str  # The level, or the reason of the error.
    seconds: float  # From the beginning of its wait.
    message: str
    ranks: List[int]


class Launch:
    """Ranks in blocks of one size on the nodes. They have joined the run."""

    def __init__(
        self,
        launch_id: str,
        root: str,
        nodes: Sequence[Node],
        local_world_size: int = 2,
        keep: Optional[int] = None,
        upload: Optional[Dict[str, Any]] = None,
    ) -> None:
        """`keep`: how many checkpoints the saves of this launch leave; None: all. `upload`: arguments of a ckptd.Upload."""
        self.nodes = list(nodes)
        self.local_world_size = local_world_size
        world_size = local_world_size * len(nodes)
        self.ranks: List[Trainer] = []
        try:
            for rank in range(world_size):
                node = nodes[rank // local_world_size]
                environment = {
                    "CKPTD_LAUNCH_ID": launch_id,
                    "CKPTD_JOB_ID": "job",
                    "LOCAL_WORLD_SIZE": str(local_world_size),
                    "CKPTD_TEST_IMPORTS": "from rank_program import Rank",
                    "CKPTD_TEST_TORCH": "no",
                }
                self.ranks.append(Trainer(node.endpoint, environment, node.wrapper))
                self.ranks[-1].start(f"me = Rank({root!r}, {rank}, {world_size}, {keep}, {upload})")
            for trainer in self.ranks:
                trainer.result()
        except BaseException:
            self.close()
            raise

    def ranks_on(self, node: Node) -> List[int]:
        first = self.nodes.index(node) * self.local_world_size
        return list(range(first, first + self.local_world_size))

    def ranks_off(self, node: Node) -> List[int]:
        """The ranks on all other nodes."""
        return [rank for rank in range(len(self.ranks)) if rank not in self.ranks_on(node)]

    def start(self, code: str, ranks: Optional[Sequence[int]] = None) -> None:
        """Runs code on these ranks at once, by default on all; `results` waits for it."""
        for rank in self._chosen(ranks):
            self.ranks[rank].start(code)

    def results(self, ranks: Optional[Sequence[int]] = None, timeout: float = 60) -> List[Any]:
        deadline = time.monotonic() + timeout
        return [self.ranks[rank].result(max(0.0, deadline - time.monotonic())) for rank in self._chosen(ranks)]

    def do(self, code: str, ranks: Optional[Sequence[int]] = None) -> List[Any]:
        self.start(code, ranks)
        return self.results(ranks)

    def outcomes(self, ranks: Optional[Sequence[int]] = None, timeout: float = 60) -> Dict[int, Outcome]:
        """What these ranks hear of a save, by rank, when they were told to wait for its outcome."""
        chosen = self._chosen(ranks)
        return {rank: Outcome(*heard) for rank, heard in zip(chosen, self.results(chosen, timeout))}

    def save(self, tag: str, step: int) -> Dict[int, Outcome]:
        """A save of all ranks, until all have heard how it has ended."""
        self.start(f"me.save({tag!r}, {step})")
        return self.outcomes()

    def close(self) -> None:
        for trainer in self.ranks:
            trainer.close()

    def _chosen(self, ranks: Optional[Sequence[int]]) -> Sequence[int]:
        return range(len(self.ranks)) if ranks is None else ranks


def words(outcomes: Dict[int, Outcome]) -> "set[str]":
    return {outcome.word for outcome in outcomes.values()}


def assert_all_hear(outcomes: Dict[int, Outcome], word: str, ranks: List[int], seconds: float) -> None:
    """Each rank has heard of this end, by the fault of these ranks, within these seconds."""
    for rank, outcome in outcomes.items():
        assert (outcome.word, outcome.ranks) == (word, ranks), f"rank {rank}: {outcome}"
        assert outcome.seconds < seconds, f"rank {rank}: {outcome}"
