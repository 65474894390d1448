"""A run of one job as a sequential program sees it: its checkpoints, the saves under way, and what each call may answer.

What docs/design.md leaves open is open here: a checkpoint that retention may remove, or that a save under way replaces, may be
shown or not.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple, Optional, Tuple

KEPT = 2  # How many checkpoints the retention policy of all saves keeps.


class Checkpoint(NamedTuple):
    step: int  # Each save of a history has its own.
    tag: str
    pinned: bool = False
    removable: bool = False  # Retention may have removed it.


class Save(NamedTuple):
    step: int
    tag: str
    attempt: int


class Run(NamedTuple):
    """The state."""

    checkpoints: Tuple[Checkpoint, ...] = ()  # The oldest first.
    saves: Tuple[Save, ...] = ()  # That have begun and not ended, in the order of their sequences.
    attempt: int = 0  # Older ones are fenced off.

    def find(self, tag: str) -> Optional[Checkpoint]:
        return next((each for each in self.checkpoints if each.tag == tag), None)

    def may_hide(self, checkpoint: Checkpoint) -> bool:
        """Whether a listing may lack it: retention removes it, or a save replaces it."""
        return checkpoint.removable or any(save.tag == checkpoint.tag for save in self.saves)

    def fenced(self, attempt: int) -> Run:
        """After an act of this attempt."""
        return self._replace(attempt=attempt, saves=tuple(save for save in self.saves if save.attempt >= attempt))

    def after_retention(self) -> Run:
        old = len(self.checkpoints) - KEPT
        marked = (
            each._replace(removable=each.removable or (place < old and not each.pinned))
            for place, each in enumerate(self.checkpoints)
        )
        return self._replace(checkpoints=tuple(marked))

    def with_pin(self, tag: str, pinned: bool) -> Run:
        changed = (each._replace(pinned=pinned, removable=False) if each.tag == tag else each for each in self.checkpoints)
        return self._replace(checkpoints=tuple(changed))


@dataclasses.dataclass(frozen=True)
class Begun:
    """A save got its sequence. One of an attempt that is fenced off is as good as none."""

    reads_only: ClassVar[bool] = False
    save: Save

    def apply(self, run: Run) -> Optional[Run]:
        return run._replace(saves=(*run.saves, self.save)) if self.save.attempt >= run.attempt else run


@dataclasses.dataclass(frozen=True)
class Committed:
    """A save became a checkpoint: after all older saves of the run have ended, and in the place of that of its tag."""

    reads_only: ClassVar[bool] = False
    save: Save

    def apply(self, run: Run) -> Optional[Run]:
        replaced = run.find(self.save.tag)
        if self.save not in run.saves or (replaced and replaced.pinned):
            return None
        kept = tuple(each for each in run.checkpoints if each is not replaced)
        younger = run.saves[run.saves.index(self.save) + 1 :]
        published = run._replace(checkpoints=(*kept, Checkpoint(self.save.step, self.save.tag)), saves=younger)
        return published.fenced(self.save.attempt).after_retention()


@dataclasses.dataclass(frozen=True)
class Failed:
    """A rank heard that the save has failed: it never becomes a checkpoint."""

    reads_only: ClassVar[bool] = False
    save: Save

    def apply(self, run: Run) -> Optional[Run]:
        return run._replace(saves=tuple(each for each in run.saves if each != self.save))


@dataclasses.dataclass(frozen=True)
class CommittedAndFailed:
    """Ranks of one save heard different ends."""

    reads_only: ClassVar[bool] = False
    save: Save

    def apply(self, run: Run) -> Optional[Run]:
        return None


@dataclasses.dataclass(frozen=True)
class Resumed:
    """An attempt resumed from the newest checkpoint, and fenced the older ones off. `steps`: what its ranks got, without repeats."""

    reads_only: ClassVar[bool] = False
    attempt: int
    steps: Tuple[int, ...]  # 0: there was none.

    def apply(self, run: Run) -> Optional[Run]:
        newest = run.checkpoints[-1].step if run.checkpoints else 0
        return run.fenced(self.attempt) if self.steps == (newest,) and self.attempt >= run.attempt else None


@dataclasses.dataclass(frozen=True)
class ResumeFailed:
    """An attempt that may have acted, without an answer."""

    reads_only: ClassVar[bool] = False
    attempt: int

    def apply(self, run: Run) -> Optional[Run]:
        return run.fenced(self.attempt) if self.attempt >= run.attempt else run


@dataclasses.dataclass(frozen=True)
class Listed:
    """`list()`: (step, tag), the newest first."""

    reads_only: ClassVar[bool] = True
    shown: Tuple[Tuple[int, str], ...]

    def apply(self, run: Run) -> Optional[Run]:
        left = list(self.shown)
        for checkpoint in reversed(run.checkpoints):
            if left and left[0] == checkpoint[:2]:
                left.pop(0)
            elif not run.may_hide(checkpoint):
                return None
        return None if left else run


@dataclasses.dataclass(frozen=True)
class PinsListed:
    """Which checkpoints `list()` showed as pinned: (step, tag, pinned). Its node learns of pins earlier than of checkpoints, so the
    moment of the one and of the other may differ.
    """

    reads_only: ClassVar[bool] = True
    shown: Tuple[Tuple[int, str, bool], ...]

    def apply(self, run: Run) -> Optional[Run]:
        pins = {(each.step, each.tag): each.pinned for each in run.checkpoints}
        return run if all(pins.get((step, tag), pinned) == pinned for step, tag, pinned in self.shown) else None


@dataclasses.dataclass(frozen=True)
class Latest:
    """`latest()`: the step of the newest checkpoint; 0: there is none."""

    reads_only: ClassVar[bool] = True
    step: int

    def apply(self, run: Run) -> Optional[Run]:
        for checkpoint in reversed(run.checkpoints):
            if checkpoint.step == self.step:
                return run
            if not run.may_hide(checkpoint):
                return None
        return None if self.step else run


@dataclasses.dataclass(frozen=True)
class Missing:
    """A call was told that there is no checkpoint of this tag."""

    reads_only: ClassVar[bool] = True
    tag: str

    def apply(self, run: Run) -> Optional[Run]:
        checkpoint = run.find(self.tag)
        return run if checkpoint is None or run.may_hide(checkpoint) else None


@dataclasses.dataclass(frozen=True)
class Pinned:
    """`pin()` or `unpin()` of a checkpoint that is there; or `unpin()` of one that is gone, of which its node had not heard. `step`: of the
    one that was answered; 0: any.
    """

    reads_only: ClassVar[bool] = False
    tag: str
    pinned: bool
    step: int

    def apply(self, run: Run) -> Optional[Run]:
        checkpoint = run.find(self.tag)
        if checkpoint is None or self.step not in (0, checkpoint.step):
            return run if self.step and not self.pinned else None
        changed = run.with_pin(self.tag, self.pinned)
        return changed if self.pinned else changed.after_retention()


@dataclasses.dataclass(frozen=True)
class Deleted:
    """`delete()` of a checkpoint that is neither pinned nor the newest; or of one that a save has replaced meanwhile. `step` as above."""

    reads_only: ClassVar[bool] = False
    tag: str
    step: int

    def apply(self, run: Run) -> Optional[Run]:
        checkpoint = run.find(self.tag)
        if checkpoint is None or self.step not in (0, checkpoint.step):
            return run
        if checkpoint.pinned or checkpoint is run.checkpoints[-1]:
            return None
        return run._replace(checkpoints=tuple(each for each in run.checkpoints if each is not checkpoint))


@dataclasses.dataclass(frozen=True)
class Kept:
    """`delete()` was refused because the checkpoint is pinned or the newest, or a launch resumes from it."""

    reads_only: ClassVar[bool] = True
    tag: str

    def apply(self, run: Run) -> Optional[Run]:
        return run if run.find(self.tag) else None


@dataclasses.dataclass(frozen=True)
class Damaged:
    """A call reported damage, and nothing has damaged the root."""

    reads_only: ClassVar[bool] = False
    what: str

    def apply(self, run: Run) -> Optional[Run]:
        return None
