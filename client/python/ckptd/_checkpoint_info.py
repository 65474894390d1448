"""The description of a checkpoint, from the daemon's messages or from a manifest."""

import dataclasses
import datetime
from typing import Any, Dict, Optional, Tuple

from ckptd._wire.protocol import level_name, time_of


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint, as the daemon or a manifest describes it.

    Attributes:
        tag (str): its name, which is its directory's name in the root.
        step (int, optional): the step that it was saved with.
        sequence (int): its place in the only order that checkpoints of a run have.
        attempt (int): the launch of the job that saved it.
        world_size (int): how many ranks saved it.
        bytes (int): the size of its files, of all ranks.
        metrics (Dict[str, float]): the numbers that it was saved with.
        files (Tuple[str, ...]): the names of its files, of all ranks.
        level (str): see :attr:`Save.level`.
        time (datetime.datetime, optional): when it was committed, in UTC; when it was begun, if it is not
            committed.
        pinned (bool): retention never removes it.
        reason (str): why it failed; a reason of docs/protocol.md. Empty if it did not fail.
        error (str): the message that goes with ``reason``.
        missing_ranks (Tuple[int, ...]): the ranks that have not sealed their parts.
        written_bytes (int): how many bytes of it are on disk.
        damage (str): what was found if it is not what was saved; empty if no damage is known.
        suspect (str): why its trainer called it suspect when it saved it, see :class:`Finite`; empty if it did not.
        resident (bool): its bytes are in the daemon's memory, so that restoring it reads no disk.
        leases (int): how many readers have it open; retention does not remove it meanwhile.
    """

    tag: str
    step: Optional[int]
    sequence: int
    attempt: int
    world_size: int
    bytes: int
    metrics: Dict[str, float]
    files: Tuple[str, ...]
    level: str
    time: Optional[datetime.datetime]
    pinned: bool = False
    reason: str = ""
    error: str = ""
    missing_ranks: Tuple[int, ...] = ()
    written_bytes: int = 0
    damage: str = ""
    resident: bool = False
    leases: int = 0
    suspect: str = ""

    def __repr__(self) -> str:
        """Shows what differs from the defaults: a list of checkpoints is read in notebooks."""
        shown = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "time" and value is not None:
                shown.append(f"time={value:%Y-%m-%d %H:%M:%S} UTC")
            elif value not in (field.default, None, {}, ()):
                shown.append(f"{field.name}={value!r}")
        return f"CheckpointInfo({', '.join(shown)})"


def info_of_message(checkpoint: Any) -> CheckpointInfo:
    """Converts a types.Checkpoint."""
    return CheckpointInfo(
        tag=checkpoint.tag,
        step=checkpoint.step if checkpoint.HasField("step") else None,
        sequence=checkpoint.sequence,
        attempt=checkpoint.attempt,
        world_size=checkpoint.world_size,
        bytes=checkpoint.size_bytes,
        metrics=dict(checkpoint.metrics),
        files=tuple(file.path for file in checkpoint.files),
        level=level_name(checkpoint.level),
        time=time_of(checkpoint.commit_time) or time_of(checkpoint.create_time),
        pinned=checkpoint.pinned,
        reason=checkpoint.error.reason,
        error=checkpoint.error.message,
        missing_ranks=tuple(checkpoint.missing_ranks),
        written_bytes=checkpoint.written_bytes,
        damage=checkpoint.damage.message,
        resident=checkpoint.resident,
        leases=checkpoint.leases,
        suspect=checkpoint.suspect,
    )


def info_of_manifest(summary: Any, records: Dict[str, Any], damage: str) -> CheckpointInfo:
    """Converts a manifest: its storage.ManifestSummary, and its storage.FileRecord by path.

    damage: what is known of damage to it; empty for none.
    """
    return CheckpointInfo(
        tag=summary.tag,
        step=summary.step if summary.HasField("step") else None,
        sequence=summary.sequence,
        attempt=summary.attempt,
        world_size=summary.world_size,
        bytes=summary.size_bytes,
        metrics=dict(summary.metrics),
        files=tuple(records),
        level="committed",
        time=datetime.datetime.fromtimestamp(summary.commit_time_us / 1e6, datetime.timezone.utc),
        written_bytes=summary.size_bytes,
        damage=damage,
        suspect=summary.suspect,
    )


def info_of_unreadable(tag: str, sequence: int, damage: str) -> CheckpointInfo:
    """Describes a checkpoint whose manifest cannot be read beyond its tag and sequence."""
    return CheckpointInfo(tag, None, sequence, 0, 0, 0, {}, (), "committed", None, damage=damage)
