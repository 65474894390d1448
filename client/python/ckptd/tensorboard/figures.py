"""What TensorBoard shows of each entry of a run's history, with the names of the columns of `ckptctl history`."""

from typing import Any, List, Mapping, NamedTuple, Union

from ckptd._wire.protocol import level_name, messages, types


class Figure(NamedTuple):
    """A point of a plot, or a line of text, at a step."""

    tag: str
    value: Union[float, str]
    step: int
    time: float  # Unix time.


def figures_of(entry: Any, metrics: Mapping[str, float]) -> List[Figure]:
    """Returns the figures of a HistoryEntry; none of an eviction or a deletion.

    Args:
        metrics: those that the checkpoint was saved with, if it still exists.
    """
    values: "dict[str, Union[float, str]]" = {}
    if entry.kind == messages.HistoryEntry.SAVE and entry.level == types.COMMITTED:
        values = {
            "save/stall_seconds": entry.stall_seconds,
            **_if_known("save/copied_seconds", entry.staged_seconds),
            **_if_known("save/written_seconds", entry.written_seconds),
            **_if_known("save/published_seconds", entry.committed_seconds),
            "save/bytes": entry.size_bytes,
            **_rate("save/bytes_per_second", entry.size_bytes, entry.written_seconds),
            **_slowest("save/slowest_rank", entry),
            **{f"metrics/{name}": value for name, value in metrics.items()},
        }
    elif entry.kind == messages.HistoryEntry.SAVE:
        values = {"save/failures": _failure(level_name(entry.level).upper(), entry)}
    elif entry.kind == messages.HistoryEntry.RESTORE and entry.reason:
        values = {"restore/failures": _failure("FAILED", entry)}
    elif entry.kind == messages.HistoryEntry.RESTORE:
        values = {
            **_if_known("restore/seconds", entry.staged_seconds),
            **_if_known("restore/bytes", entry.read_bytes),
            **_rate("restore/bytes_per_second", entry.read_bytes, entry.staged_seconds),
            **_slowest("restore/slowest_rank", entry),
        }
    # A job that names no steps is plotted by the number of the save.
    step = entry.step if entry.HasField("step") else entry.sequence
    time = float(entry.time.seconds) + float(entry.time.nanos) / 1e9
    return [Figure(tag, value, step, time) for tag, value in values.items()]


def _if_known(tag: str, value: float) -> "dict[str, float]":
    return {tag: value} if value > 0 else {}


def _rate(tag: str, size_bytes: int, seconds: float) -> "dict[str, float]":
    return {tag: size_bytes / seconds} if size_bytes > 0 and seconds > 0 else {}


def _slowest(tag: str, entry: Any) -> "dict[str, int]":
    return {tag: entry.slowest_rank} if entry.HasField("slowest_rank") else {}


def _failure(outcome: str, entry: Any) -> str:
    return ": ".join(word for word in (f"{entry.tag} {outcome}", entry.reason, entry.message) if word)
