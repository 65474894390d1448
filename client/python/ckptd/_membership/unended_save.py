"""How a run's membership, its save recovery and its save watcher see a save that has not ended yet."""

import abc
from typing import Any, Iterable, Protocol

from ckptd._session.session import Session


class UnendedSave(abc.ABC):
    """A save that this rank has sealed, and whose end it does not know. Thread-safe."""

    tag: str
    number: int  # Its place in the order in which this rank began its saves, from 1.
    attempt: int
    key: Any  # types.SaveKey

    @property
    @abc.abstractmethod
    def level(self) -> int:
        """The types.Level that was known last."""

    @property
    @abc.abstractmethod
    def sequence(self) -> int:
        """The sequence that the daemon gave the save at Begin."""

    @property
    @abc.abstractmethod
    def daemon_instance(self) -> str:
        """The daemon that has the save, as far as this rank knows."""

    @abc.abstractmethod
    def assign_to(self, daemon_instance: str) -> None:
        """Records which daemon has the save from now on: that one is asked how it ends."""

    @abc.abstractmethod
    def has_ended(self) -> bool:
        """Returns whether the save is committed, has failed, or has an end that cannot be known any more."""

    @abc.abstractmethod
    def update(self, checkpoint: Any) -> bool:
        """Takes over what a daemon says of the save (a types.Checkpoint). Returns whether the save has ended."""

    @abc.abstractmethod
    def end_as_unknown(self, why: str, expected: bool = False) -> None:
        """Ends the save with an unknown result. expected: do not log it, because the user closed the client."""

    # ---- recovery, after the daemon that had the save has ended

    @abc.abstractmethod
    def is_recoverable(self) -> bool:
        """Returns whether the bytes that were sealed are all in this process's memory still."""

    @abc.abstractmethod
    def queue_recovery(self) -> None:
        """Hands the save to the run's SaveRecovery. No-op if it is there already."""


class JoinableRun(Protocol):
    """The interface of a membership to the SaveWatcher."""

    root: str

    def joined(self, timeout: float) -> object:
        """Joins the run in the present session."""


class Watcher(Protocol):
    """The interface of the client's SaveWatcher to a membership."""

    def remove_run(self, run: JoinableRun) -> None:
        """Does not join the run again in later sessions."""

    def follow(self, save: UnendedSave) -> None:
        """Tells the save its levels and its end, whether or not anybody waits for them."""


class Recovery(Protocol):
    """The interface of a run's SaveRecovery to a membership."""

    def add(self, saves: Iterable[Any]) -> None:
        """Queues saves that the present daemon may not have.

        Those that are queued already stay in their place.
        """

    def await_earlier(self, number: int, session: Session, timeout: float) -> None:
        """Blocks until a save with this number may begin without overtaking an earlier one."""
