"""The test's own record of saves and what the ranks were told, and the invariant that a root must satisfy."""

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
    """One save of a tag. Saving the tag again makes another version."""

    tag: str
    number: int
    world_size: int
    size: int
    unchanged: int = 0  # Bytes of a second file of each rank, the same in all saves; 0: there is none.
    sequence: int = 0  # As a rank was told.
    committed: bool = False  # At least one rank was told that it is committed.
    failed: str = ""  # The reason, if at least one rank was told that it failed.

    def name(self, rank: int) -> str:
        return f"r{rank}.bin"

    def data(self, rank: int) -> bytes:
        """Unique to this save and rank. Only rank 0's may be empty, so that no two checkpoints are equal."""
        return random.Random(f"{self.tag} {self.number} {rank}").randbytes(self.size + 17 * rank)

    def files(self, rank: int) -> Dict[str, bytes]:
        files = {self.name(rank): self.data(rank)}
        if self.unchanged:
            files[f"same/r{rank}.bin"] = random.Random(f"unchanged {rank}").randbytes(self.unchanged)
        return files


class SaveRecord:
    """Every version of every tag in a root. Thread-safe."""

    def __init__(self, root: pathlib.Path, keep: Optional[int] = None, unchanged: int = 0) -> None:
        """keep: how many checkpoints retention keeps; None: all. unchanged: as in Version."""
        self.root = root
        self.keep = keep
        self.unchanged = unchanged
        self._lock = threading.Lock()
        self._versions: Dict[str, List[Version]] = {}

    def begin(self, tag: str, world_size: int, size: int) -> Version:
        with self._lock:
            versions = self._versions.setdefault(tag, [])
            versions.append(Version(tag, len(versions) + 1, world_size, size, self.unchanged))
            return versions[-1]

    def committed(self, version: Version, sequence: int) -> None:
        with self._lock:
            version.committed, version.sequence = True, sequence

    def failed(self, version: Version, reason: str) -> None:
        with self._lock:
            version.failed = version.failed or reason

    def latest(self) -> int:
        """The highest sequence that a rank was told is committed."""
        with self._lock:
            versions = [version for versions in self._versions.values() for version in versions]
        return max((version.sequence for version in versions if version.committed), default=0)

    def check(self) -> Set[Tuple[str, int]]:
        """Checks the invariant. Nothing may be in flight. Returns the checkpoints as {(tag, version number)}."""
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
            # Retention still evicts checkpoints after the last acknowledgement. Look again.
            assert time.monotonic() < deadline, "the root still changes after 30 s"
        assert newest >= self.latest(), f"latest is {newest}, older than the acknowledged {self.latest()}"
        assert names - {".ckptd"} == set(there), f"the root holds {names}, of which only {set(there)} are checkpoints"
        self._check_acknowledged(there)
        return {(version.tag, version.number) for version, _ in there.values()}

    def _names(self) -> Set[str]:
        return {path.name for path in self.root.iterdir()}

    def _look(self) -> Tuple[Dict[str, Tuple[Version, int]], int]:
        """The checkpoints by tag, with their sequences, and the newest sequence."""
        root = ckptd.open_root(str(self.root))
        found = root.list()  # Newest first.
        there = {info.tag: (self._version_of(root, info), info.sequence) for info in found}
        return there, found[0].sequence if found else 0

    def _version_of(self, root: ckptd.Root, info: ckptd.CheckpointInfo) -> Version:
        """The version that a checkpoint is, byte for byte."""
        with root.open(info.tag) as checkpoint:
            read = {name: checkpoint.read(name) for name in checkpoint.files}
        for version in reversed(self._versions.get(info.tag, [])):  # Usually the newest.
            ranks = range(version.world_size)
            if read == {name: data for rank in ranks for name, data in version.files(rank).items()}:
                assert not version.failed, f"{info.tag} was reported as failed ({version.failed}), but is in the root"
                return version
        raise AssertionError(f"{info.tag} equals no save: { {name: len(data) for name, data in read.items()} }")

    def _check_acknowledged(self, there: Dict[str, Tuple[Version, int]]) -> None:
        sequences = sorted(sequence for _, sequence in there.values())
        for versions in self._versions.values():
            acknowledged = [version for version in versions if version.committed]
            for version in acknowledged:
                assert not version.failed, f"{version} was reported as committed and as failed"
            if not acknowledged:
                continue
            newest = acknowledged[-1]
            if newest.tag in there:
                number = there[newest.tag][0].number
                assert number >= newest.number, f"{newest} was acknowledged, but the root has version {number}"
                continue
            newer = [sequence for sequence in sequences if sequence > newest.sequence]
            assert self.keep is not None and len(newer) >= self.keep, f"{newest} was acknowledged, but is not in the root"
        if self.keep is not None:
            committed = sum(any(v.committed for v in versions) for versions in self._versions.values())
            assert len(there) >= min(committed, self.keep), f"retention keeps {self.keep}, but the root has {len(there)}"
