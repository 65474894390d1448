"""A job on three nodes whose coordinator is killed in a save, at a system call, or hangs there, and what must hold then and
after it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator
from typing import List, NamedTuple, Optional, Tuple

from cluster import LOSS_SECONDS, PROMPT_SECONDS, Cluster, Node
from launches import Launch, assert_all_hear, words
from places import best_places
from rank_program import content

import ckptd
from harness import closing, temporary_folder, until

Checkpoint = Tuple[str, int]  # A tag, and the step that tells the bytes.
RANKS = range(6)
HANG_SECONDS = 60  # A coordinator gives its place up after that.
ALL_FILES = [f"rank{rank}.raw" for rank in RANKS]


def names_in(folder: pathlib.Path) -> List[str]:
    """None if it is no directory, or no longer."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(folder))
    return []


class Moment(NamedTuple):
    """A system call of a save that replaces a checkpoint, the only one of its root."""

    call: str  # A pattern of the call's description; OLD, NEW, IN_FLIGHT and ROOT stand for paths.
    shows: Optional[str]  # What the root shows then, of "new" and "old", the newest first; None: any of that.
    at: int = 1  # The number of the call among those that match.
    since: str = ""  # Count only calls that follow one that matches this pattern.

    def patterns(self, root: str, old: str, new: str) -> Tuple[str, str]:
        """`call` and `since`, for these tags."""
        paths = {
            "ROOT": re.escape(root),
            "OLD": re.escape(f"{root}/{old}"),
            "NEW": re.escape(f"{root}/{new}"),
            # The directory may have been made before the save had a name.
            "IN_FLIGHT": re.escape(f"{root}/.ckptd/shared/inflight") + "/[^/]+",
        }
        call, since = (re.sub("|".join(paths), lambda word: paths[word.group()], each) for each in (self.call, self.since))
        return call, since


class Job:
    """Launches one after another that save on one cluster. Retention keeps one checkpoint, which a pointer file names."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.root = pathlib.Path(cluster.root)
        self.tag = ""
        self.step = 0
        self.launches = 0
        self.launch = self._next_launch()
        try:
            self._save("step_1")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.launch.close()

    def save_and_kill(
        self, moment: Moment, replaces_tag: bool, seconds: float = LOSS_SECONDS, coordinators: int = 1
    ) -> List[str]:
        """A save of another tag than the last one, or of the same, that kills this many coordinators one after another, each
        at this moment. Then all that must hold; ranks of the other nodes hear within `seconds` that the save has committed.
        Returns the calls; none if the save ends without that call.
        """
        old = (self.tag, self.step)
        new = (self.tag if replaces_tag else f"step_{self.step + 1}", self.step + 1)
        self._begin(new[0])
        victims = self._kill_coordinators(moment, old[0], coordinators)
        calls = [node.killer.hit for node in victims]
        words_of = {"": [], "old": [old], "new": [new], "new old": [new, old]}
        possible = words_of.values() if moment.shows is None else [words_of[moment.shows]]
        assert self.shown() in possible, calls
        self._expect_committed(victims, seconds)
        self._expect_only(new)
        self._expect_next_launch_goes_on()
        return calls

    def save_and_hang(self, moment: Moment) -> None:
        """A save of another tag in which the file system of the coordinator hangs at this moment. The ranks of the other nodes
        hear that the save has committed when another one coordinates, those of its own node when it answers again. It goes on
        where it was then, in the place of nobody.
        """
        old, new = self.tag, f"step_{self.step + 1}"
        self._begin(new)
        call, since = moment.patterns(self.cluster.root, old, new)
        hanging = self.cluster.coordinator()
        hanging.killer.arm_to_hold(call, moment.at, since)
        self.launch.start("me.outcome()")
        until(lambda: hanging.killer.hit, f"the call {call}", PROMPT_SECONDS)
        try:
            heard = self.launch.outcomes(self.launch.ranks_off(hanging), HANG_SECONDS + PROMPT_SECONDS)
            assert_all_hear(heard, "committed", [], HANG_SECONDS + PROMPT_SECONDS)
            assert self.cluster.coordinator() is not hanging
        finally:
            hanging.killer.let_go()
        assert_all_hear(self.launch.outcomes(self.launch.ranks_on(hanging)), "committed", [], HANG_SECONDS + LOSS_SECONDS)
        self._expect_only((self.tag, self.step))
        assert f"no longer coordinates {self.root}" in hanging.log()
        self._expect_next_launch_goes_on()

    # ---- one save

    def _begin(self, tag: str) -> None:
        self.tag = tag
        self.step += 1
        self.launch.do(f"me.begin({tag!r}, {self.step}, pointers={{'latest': {tag!r}}})")

    def _kill_coordinators(self, moment: Moment, old: str, number: int) -> List[Node]:
        """Has all ranks seal, and returns when so many coordinators are dead, or when the save is over without that."""
        call, since = moment.patterns(self.cluster.root, old, self.tag)
        armed = [self.cluster.coordinator()]
        victims: List[Node] = []
        while len(victims) < number:
            for node in armed:
                node.killer.arm(call, moment.at, since=since)
            if not victims:
                self.launch.start("me.outcome()")
            until(lambda: any(node.killer.hit for node in armed) or self._is_over(), f"the call {call}", LOSS_SECONDS)
            for node in armed:
                node.killer.disarm()
            hit = [node for node in armed if node.killer.hit]
            assert hit or moment.shows is None, f"the save has ended without {call}"
            if not hit:
                break
            hit[0].wait()
            victims += hit
            armed = [node for node in self.cluster.nodes if node not in victims]  # One of them is the next coordinator.
        return victims

    def _is_over(self) -> bool:
        return self.left((self.tag, self.step)) == ""

    def _expect_committed(self, victims: List[Node], seconds: float) -> None:
        """All ranks hear that; those on the nodes of killed daemons when the next ones are there."""
        lost = [rank for node in victims for rank in self.launch.ranks_on(node)]
        others = [rank for rank in RANKS if rank not in lost]
        seconds *= max(1, len(victims))
        assert_all_hear(self.launch.outcomes(others, seconds + PROMPT_SECONDS), "committed", [], seconds)
        until(lambda: self.cluster.coordinator() not in victims, "another coordinator", LOSS_SECONDS)
        for node in victims:
            node.start()
        heard = self.launch.outcomes(lost)
        assert_all_hear(heard, "committed", [], LOSS_SECONDS * len(victims) + PROMPT_SECONDS)

    def _expect_only(self, checkpoint: Checkpoint) -> None:
        """The root has this checkpoint, whole, and nothing that is unfinished."""
        try:
            until(lambda: not self.left(checkpoint), "the end of what the next coordinator does", LOSS_SECONDS)
        except AssertionError:
            raise AssertionError(f"after {LOSS_SECONDS} s: {self.left(checkpoint)}") from None
        assert self.shown() == [checkpoint]
        for node in self.cluster.nodes:
            node.ask("verify", str(self.root))

    def _expect_next_launch_goes_on(self) -> None:
        self.cluster.wait_until_registered()
        self.launch.close()
        self.launch = self._next_launch()
        resumed = self.launch.do("me.resume()")
        assert resumed == [[self.tag, self.step, ALL_FILES]] * len(RANKS), resumed
        self._save(f"step_{self.step + 1}")

    # ---- what there is

    def shown(self) -> List[Checkpoint]:
        """What a reader without a daemon finds, the newest first. All of it is whole."""
        root = ckptd.open_root(self.root)
        found: List[Checkpoint] = []
        for info in root.list():
            assert info.step is not None
            with contextlib.suppress(ckptd.NotFound):  # Removed by now. A network file system may list it a little longer.
                with root.open(info.tag) as checkpoint:
                    assert sorted(checkpoint.files) == ALL_FILES
                    for rank, name in enumerate(ALL_FILES):
                        assert bytes(checkpoint.read(name)) == content(info.step, rank), (info.tag, info.step, name)
                found.append((info.tag, info.step))
        return found

    def left(self, checkpoint: Checkpoint) -> str:
        """What is still there, in words, or not yet, when this checkpoint is all that the root shall have."""
        shared = self.root / ".ckptd/shared"
        in_flight = names_in(shared / "inflight")
        # The coordinator makes the next one in advance.
        ahead = [name for name in in_flight if name.startswith("next.")]
        unused = [name for name in ahead if names_in(shared / "inflight" / name) == [".ckptd"]]
        found = [f"inflight/{name}" for name in in_flight if name not in unused[-1:]]
        found += [f"trash/{name}" for name in names_in(shared / "trash")]
        terms = [name for name in names_in(shared) if name.startswith("term.")]
        found += [f"one of {terms}"] if len(terms) > 1 else []
        found += [f"{term}/{name}" for term in terms for name in names_in(shared / term)]
        found += [tag for tag in os.listdir(self.root) if tag not in (".ckptd", "latest", checkpoint[0])]
        if found:
            return f"there is {found}"
        pointer = self.root / "latest"
        if not pointer.exists() or pointer.read_text() != checkpoint[0]:
            return "the pointer does not name it"
        shown = [(info.tag, info.step) for info in ckptd.open_root(self.root).list()]
        return "" if shown == [checkpoint] else f"the root has {shown}"

    def _next_launch(self) -> Launch:
        self.launches += 1
        return Launch(f"launch-{self.launches}", self.cluster.root, self.cluster.nodes, keep=1)

    def _save(self, tag: str) -> None:
        self._begin(tag)
        self.launch.start("me.outcome()")
        heard = self.launch.outcomes()
        assert words(heard) == {"committed"}, heard
        until(lambda: not self.left((tag, self.step)), "the end of the save before", LOSS_SECONDS)


@contextlib.contextmanager
def new_job() -> Iterator[Job]:
    """On a cluster of its own, where each node has a network and mounts of its own if this machine allows that."""
    with closing(best_places()) as places, temporary_folder() as folder, closing(Cluster(folder, places, killable=True)) as cluster:
        with closing(Job(cluster)) as job:
            yield job
