"""What was acknowledged, written down outside of the daemon, and the invariant that a root is held to by it."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import threading
import time
from typing import Dict, List, Optional, Set, Tuple

import ckptd


@dataclasses.dataclass
class Version:
    """One save of a tag; a re-save is another one."""

    tag: str
    number: int
    world_size: int
    size: int
    sequence: int = 0  # As any rank heard it.
    committed: bool = False  # At least one rank was told so.
    failed: str = ""  # The reason that at least one rank was told.

    def name(self, rank: int) -> str:
        return f"r{rank}.bin"

    def data(self, rank: int) -> bytes:
        """Of no other save and no other rank; only rank 0's may be empty, so that no two checkpoints are alike."""
        return random.Random(f"{self.tag} {self.number} {rank}").randbytes(self.size + 17 * rank)


class Record:
    """Thread-safe."""

    def __init__(self, root: pathlib.Path, keep: Optional[int] = None) -> None:
        self.root = root
        self.keep = keep
        self._lock = threading.Lock()
        self._versions: Dict[str, List[Version]] = {}

    def begin(self, tag: str, world_size: int, size: int) -> Version:
        with self._lock:
            versions = self._versions.setdefault(tag, [])
            versions.append(Version(tag, len(versions) + 1, world_size, size))
            return versions[-1]

    def committed(self, version: Version, sequence: int) -> None:
        with self._lock:
            version.committed, version.sequence = True, sequence

    def failed(self, version: Version, reason: str) -> None:
        with self._lock:
            version.failed = version.failed or reason

    def latest(self) -> int:
        """The highest sequence that anybody was told is committed."""
        with self._lock:
            versions = [version for versions in self._versions.values() for version in versions]
        return max((version.sequence for version in versions if version.committed), default=0)

    def check(self) -> Set[Tuple[str, int]]:
        """The invariant, after recovery and with nothing under way; what is there, as (tag, number)."""
        deadline = time.monotonic() + 30
        while True:
            names = self._names()
            try:
                there, newest = self._look()
                changed = self._names() != names
            except ckptd.CkptdError:
                if self._names() == names:
                    raise
                changed = True
            if not changed:
                break
            # Retention goes on after the last acknowledgement, and has met us.
            assert time.monotonic() < deadline, "the root does not come to rest"
        assert newest >= self.latest(), f"latest went back: {newest}, and {self.latest()} was acknowledged"
        assert names - {".ckptd"} == set(there), f"in the root are {names}, of which {set(there)} are checkpoints"
        self._check_acknowledged(there)
        return {(version.tag, version.number) for version, _ in there.values()}

    def _names(self) -> Set[str]:
        return {path.name for path in self.root.iterdir()}

    def _look(self) -> Tuple[Dict[str, Tuple[Version, int]], int]:
        """What is there, and the newest sequence."""
        root = ckptd.open_root(str(self.root))
        found = root.list()  # Newest first.
        there = {info.tag: (self._whole(root, info), info.sequence) for info in found}
        return there, found[0].sequence if found else 0

    def _whole(self, root: ckptd.Root, info: ckptd.CheckpointInfo) -> Version:
        """Which save it is, byte for byte."""
        with root.open(info.tag) as checkpoint:
            read = {name: checkpoint.read(name) for name in checkpoint.files}
        for version in reversed(self._versions.get(info.tag, [])):  # Mostly the last.
            if read == {version.name(rank): version.data(rank) for rank in range(version.world_size)}:
                assert not version.failed, f"{info.tag} was reported {version.failed}, and is there"
                return version
        raise AssertionError(f"{info.tag} holds what nobody saved: { {name: len(data) for name, data in read.items()} }")

    def _check_acknowledged(self, there: Dict[str, Tuple[Version, int]]) -> None:
        sequences = sorted(sequence for _, sequence in there.values())
        for versions in self._versions.values():
            acknowledged = [version for version in versions if version.committed]
            for version in acknowledged:
                assert not version.failed, f"{version} was reported as both"
            if not acknowledged:
                continue
            newest = acknowledged[-1]
            if newest.tag in there:
                number = there[newest.tag][0].number
                assert number >= newest.number, f"{newest} was acknowledged, and {number} is there"
                continue
            newer = [sequence for sequence in sequences if sequence > newest.sequence]
            assert self.keep is not None and len(newer) >= self.keep, f"{newest} was acknowledged, and is gone"
        if self.keep is not None:
            committed = sum(any(v.committed for v in versions) for versions in self._versions.values())
            assert len(there) >= min(committed, self.keep), f"{self.keep} are kept, and {len(there)} are there"
