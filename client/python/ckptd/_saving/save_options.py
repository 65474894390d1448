"""The options of one save."""

import dataclasses
import operator
from typing import Any, Dict, Literal, Mapping, Optional, Sequence, Tuple

from ckptd import errors
from ckptd._paths import check_text
from ckptd._saving.finite import Finite
from ckptd._wire.protocol import types

BusyPolicyName = Literal["wait", "skip", "supersede"]
StageName = Literal["blocking", "overlap"]
_BUSY_POLICIES = {"wait": types.WAIT, "skip": types.SKIP, "supersede": types.SUPERSEDE}


@dataclasses.dataclass(frozen=True)
class SaveOptions:
    """The options of a save, beside its files: arguments of Run.save(), which describes them."""

    tag: str
    step: Optional[int]
    metrics: Optional[Mapping[str, float]]
    pointers: Optional[Mapping[str, str]]
    busy: BusyPolicyName
    timeout: float  # Seconds to wait for the daemon.
    ranks: Optional[Sequence[int]]  # Those that save. None: all; in the result of checked(), empty: all.
    check: Optional[Finite]
    stage: StageName = "blocking"

    def checked(self, rank: int) -> "SaveOptions":
        """Returns them as the messages to the daemon hold them: copies, which the caller's changes do not reach.

        Raises:
            Refused, TypeError, ValueError: one of them is not acceptable, or `rank` is none of those that save.
        """
        check_text(self.tag, "tag", "INVALID_TAG")
        if self.busy not in _BUSY_POLICIES:
            raise ValueError(f'busy is "{self.busy}"; it must be "wait", "skip" or "supersede"')
        check_stage(self.stage)
        if self.check is not None and not isinstance(self.check, Finite):
            raise TypeError(f"check is {self.check!r}; it must be a ckptd.Finite(), or None")
        errors.check_seconds(timeout=self.timeout)
        ranks = tuple(sorted(set(self.ranks or ())))
        if self.ranks is not None and rank not in ranks:
            raise errors.invalid(
                f"this process is rank {rank}, and ranks is {list(self.ranks)}: only the ranks that it names call save"
            )
        return dataclasses.replace(
            self,
            step=_step(self.step),
            metrics={str(name): float(value) for name, value in (self.metrics or {}).items()},
            pointers=_contents(self.pointers),
            ranks=ranks,
        )

    @property
    def busy_policy(self) -> Any:
        """The types.BusyPolicy of the messages."""
        return _BUSY_POLICIES[self.busy]

    @property
    def overlaps(self) -> bool:
        """Whether devices may go on copying after the call."""
        return self.stage == "overlap"

    @property
    def contributors(self) -> Tuple[int, ...]:
        """The ranks that save, ascending once they are checked; empty: all."""
        return tuple(self.ranks or ())


def check_stage(stage: StageName) -> StageName:
    """Returns a stage. ValueError if there is none of this name."""
    if stage not in ("blocking", "overlap"):
        raise ValueError(f'stage is "{stage}"; it must be "blocking" or "overlap"')
    return stage


def _step(step: Any) -> Optional[int]:
    if step is None:
        return None
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(f"step is {step!r}; it must be an int, or None") from None


def _contents(pointers: Optional[Mapping[str, str]]) -> Dict[str, str]:
    contents = dict(pointers or {})
    for name, content in contents.items():
        if not isinstance(name, str) or not isinstance(content, str):
            raise TypeError(f"pointers has {name!r}: {content!r}; it maps names of files to their text")
    return contents
