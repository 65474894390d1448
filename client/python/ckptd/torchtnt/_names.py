"""The names that TorchTNT gives to checkpoints: parsing them, and their order by progress."""

import functools
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

# The phases in the order of a name. A name of older releases has one number of steps, of no phase.
TRAIN, EVAL, PREDICT = "train", "eval", "predict"
_PHASES = (TRAIN, EVAL, PREDICT)
_METRIC = r"(?:_(\w+)=(-?\d+\.?\d*(?:e[+-]\d+)?))?"
_WITH_PHASES = re.compile(r"epoch_(\d+)" + "".join(rf"(?:_{phase}_step_(\d+))?" for phase in _PHASES) + _METRIC)
_WITHOUT_PHASES = re.compile(r"epoch_(\d+)_step_(\d+)" + _METRIC)


class Metric(NamedTuple):
    """A named value of a checkpoint."""

    name: str
    value: float


class Name(NamedTuple):
    """The parsed name of a checkpoint.

    ``epoch_1_train_step_10_eval_step_4_loss=0.5``: epochs and steps are those completed since training began.
    """

    epoch: int
    steps: Tuple[Tuple[str, int], ...]  # Phase and steps; the phase is empty in a name of older releases.
    metric: Optional[Metric] = None

    def __str__(self) -> str:
        steps = "".join(f"_{phase}_step_{count}" if phase else f"_step_{count}" for phase, count in self.steps)
        metric = f"_{self.metric.name}={self.metric.value}" if self.metric else ""
        return f"epoch_{self.epoch}{steps}{metric}"

    @property
    def of_phases(self) -> Dict[str, int]:
        """The steps of each phase."""
        return dict(self.steps)

    @property
    def has_phases(self) -> bool:
        """Whether the name has the phases of its steps; those of older releases do not."""
        return "" not in self.of_phases

    @property
    def has_model(self) -> bool:
        """Whether the checkpoint has the model: one that was saved by evaluate() or predict() has not."""
        return not self.has_phases or TRAIN in self.of_phases

    @property
    def step(self) -> int:
        """The steps of the first phase: those of training, if it was saved in training."""
        return self.steps[0][1]


def parse(text: str) -> Optional[Name]:
    """Parses a directory's name; None if it is not the name of a checkpoint."""
    found = _WITHOUT_PHASES.fullmatch(text)
    phases: Tuple[str, ...] = ("",)
    if found is None:
        found, phases = _WITH_PHASES.fullmatch(text), _PHASES
    if found is None:
        return None
    epoch, *counts, metric, value = found.groups()
    steps = tuple((phase, int(count)) for phase, count in zip(phases, counts) if count is not None)
    if not steps:
        return None
    return Name(int(epoch), steps, Metric(metric, float(value)) if metric else None)


def is_readable(metric: str) -> bool:
    """Returns whether parse() finds a metric of this name in the names of checkpoints, and a tag may have it."""
    name = Name(0, ((TRAIN, 1),), Metric(metric, 0.5))
    return metric.isascii() and parse(str(name)) == name


def is_newer(one: Name, other: Name) -> bool:
    """Returns whether a checkpoint is newer than another one, by the progress in their names."""
    if one.epoch != other.epoch:
        return one.epoch > other.epoch
    if one.has_phases != other.has_phases:
        totals = sum(one.of_phases.values()), sum(other.of_phases.values())
        return totals[0] > totals[1] if totals[0] != totals[1] else one.has_phases
    if (EVAL in one.of_phases) != (EVAL in other.of_phases):
        return EVAL in one.of_phases
    return _progress(one) > _progress(other)


def newest_first(names: List[Name]) -> List[Name]:
    """Returns names, the newest one first."""

    def compared(one: Name, other: Name) -> int:
        return is_newer(other, one) - is_newer(one, other)

    return sorted(names, key=functools.cmp_to_key(compared))


def best_first(names: List[Name], metric: str, mode: str) -> List[Name]:
    """Returns the names with a metric, the best one first; of equal values, the newer one is better."""
    sign = -1 if mode == "max" else 1
    rated = [(name.metric.value, name) for name in newest_first(names) if name.metric and name.metric.name == metric]
    return [name for _, name in sorted(rated, key=lambda each: sign * each[0])]


def _progress(name: Name) -> Tuple[int, ...]:
    """Returns the last criterion of is_newer(): the steps of the phases, those of the last phase first."""
    return tuple(name.of_phases.get(phase, 0) for phase in (*reversed(_PHASES), ""))
