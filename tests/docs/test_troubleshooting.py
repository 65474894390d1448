"""docs/troubleshooting.md is true: each of its situations is made here, and its commands print what it shows.

A line of the page stands for a line of the output if they are equal but for numbers, sizes, times, ids and
spaces. The page may leave out lines.
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import signal
import subprocess
import threading
from typing import Callable, Dict, Iterator, List, Tuple

import pytest
from ckptd.local_daemon import find_program
from harness import Daemon, Trainer, ckptctl, temporary_folder, until

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
SITUATIONS = dict(re.findall(r"<!-- situation: (\w+) -->\n```console\n(.*?)\n```", PAGE, re.DOTALL))
UNITS = r"(B|KiB|MiB|GiB|TiB|s|ms|min|h|d|%)"


def commands(situation: str) -> List[Tuple[List[str], List[str]]]:
    """(words of the command, lines that it prints)"""
    found: List[Tuple[List[str], List[str]]] = []
    for line in SITUATIONS[situation].splitlines():
        if line.startswith("$ "):
            found.append((shlex.split(line[2:]), []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def pattern(line: str) -> str:
    """A line without what differs from one machine and one moment to the next."""
    line = re.sub(r"0x[0-9a-f]+", "#", line)
    line = re.sub(r"runs/[0-9a-f]{16}", "runs/#", line)
    line = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "#", line)
    line = re.sub(rf"\b\d+(\.\d+)?( {UNITS}(?![\w/]))?", "#", line)
    line = re.sub(r"\b[KMG]i?B/s", "B/s", line)
    line = re.sub(r"#( #)+", "#", line)
    return re.sub(r"\s+", " ", line).strip()


class Place:
    """A private daemon, and a root that the page calls /data/ckpts."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.daemon = Daemon(str(folder / "d"), pool_bytes=96 << 20)
        self.root = folder / "ckpts"
        self.trainers: List[Trainer] = []

    def trainer(self, rank: int = 0, world_size: int = 1, options: str = "") -> Trainer:
        made = Trainer(self.daemon.endpoint, {"CKPTD_LAUNCH_ID": "a"})
        self.trainers.append(made)
        made.do(
            f"client = ckptd.connect()\n"
            f"run = client.run({str(self.root)!r}, rank={rank}, world_size={world_size}{options})"
        )
        return made

    def run(self, command: List[str]) -> "subprocess.CompletedProcess[str]":
        words = [word.replace("/data/ckpts", str(self.root)) for word in command]
        if words[0] == "ckptctl":
            return ckptctl(*words[1:], endpoint=self.daemon.endpoint, check=False)
        assert words[0] == "journalctl", words  # Its log is a file.
        wanted = words[words.index("--grep") + 1]
        lines = [line.partition("] ")[2] or line for line in self.daemon.log().splitlines() if wanted in line]
        return subprocess.CompletedProcess(words, 0, "\n".join(line[line.index(wanted) :] for line in lines), "")

    def check(self, situation: str) -> None:
        """Runs the commands of the page; their output must have its lines, in order."""
        for command, lines in commands(situation):
            done = self.run(command)
            printed = [pattern(line.replace(str(self.root), "/data/ckpts")) for line in done.stdout.splitlines()]
            at = 0
            for line in map(pattern, lines):
                assert line in printed[at:], f"{shlex.join(command)} prints no line {line!r}:\n" + "\n".join(
                    [*printed, done.stderr]
                )
                at = printed.index(line, at) + 1

    def close(self) -> None:
        for trainer in self.trainers:
            trainer.close()
        self.daemon.close()


@pytest.fixture
def place() -> Iterator[Place]:
    with temporary_folder() as folder:
        made = Place(folder)
        yield made
        made.close()


def failed(place: Place) -> None:
    ranks = [place.trainer(rank, 2, ", run_id='gpt', commit_timeout=1.0") for rank in (0, 1)]
    for rank, trainer in enumerate(ranks):
        trainer.start(f"run.save('step_1', step=1, files={{'r{rank}.bin': b'1234'}}).wait()")
    for trainer in ranks:
        trainer.result()
    ranks[1].start("part = run.begin('step_2', step=2)")
    ranks[0].start("run.save('step_2', step=2, files={'r0.bin': b'1234'})")
    for trainer in ranks:
        trainer.result()
    until(lambda: place.daemon.run_status(str(place.root)).last_failure.tag == "step_2", "the failure")


def slow(place: Place) -> None:
    ranks = [place.trainer(rank, 2, ", run_id='gpt'") for rank in (0, 1)]
    for rank, trainer in enumerate(ranks):
        trainer.start(f"run.save('step_1', step=1, files={{'r{rank}.bin': b'1234'}}).wait()")
    for trainer in ranks:
        trainer.result()


def pool(place: Place) -> None:
    place.trainer().do("part = run.begin('step_1', step=1)\npart.add('a.bin', bytes(60 << 20))")
    reader = Trainer(place.daemon.endpoint)
    place.trainers.append(reader)
    reader.do("client = ckptd.connect()")


def killed(place: Place) -> None:
    trainer = place.trainer()
    trainer.do("run.save('step_1', step=1, files={'a.bin': b'12345678'}).wait()")
    trainer.do("part = run.begin('step_2', step=2)\npart.add('a.bin', bytes(60 << 20))")
    place.daemon.kill()
    trainer.kill()
    place.daemon.restart()


def hangs(place: Place) -> None:
    first, second = place.trainer(0, 2), place.trainer(1, 2)
    first.start("part = run.begin('step_1', step=1)\npart.add('a.bin', b'1234')\npart.seal()")
    second.do("part = run.begin('step_1', step=1)")
    first.result()


def full(place: Place) -> None:
    disk, image = str(place.root), str(place.root) + ".img"
    with open(image, "wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    os.mkdir(disk)
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    error = place.trainer().fails("run.save('step_1', step=1, files={'a.bin': bytes(32 << 20)})")
    assert error.reason == "NO_SPACE"


def damaged(place: Place) -> None:
    place.trainer().do("run.save('step_1', step=1, files={'model.bin': bytes(1 << 20)}).wait()")
    path = place.root / "step_1" / "model.bin"
    with open(path, "r+b") as file:
        file.seek(1000)
        file.write(b"x")


MAKE: Dict[str, Callable[[Place], None]] = {
    make.__name__: make for make in (failed, slow, pool, killed, hangs, full, damaged)
}


def test_every_situation_of_the_page_is_made_here() -> None:
    assert sorted(SITUATIONS) == sorted(MAKE)


@pytest.mark.parametrize("situation", sorted(MAKE))
def test_commands_of_the_page_answer_as_it_says(place: Place, situation: str) -> None:
    if situation == "full" and os.geteuid() != 0:
        pytest.skip("mounts a loop image: needs root")
    try:
        MAKE[situation](place)
        place.check(situation)
    finally:
        if situation == "full":
            for trainer in place.trainers:
                trainer.close()
            place.daemon.close()
            subprocess.run(["umount", "-l", str(place.root)], check=False)


def test_damaged_checkpoint_is_known_after_verify_and_repaired_only_when_it_is_whole(place: Place) -> None:
    damaged(place)
    path = place.root / "step_1" / "model.bin"
    said = ckptctl("verify", str(place.root), endpoint=place.daemon.endpoint, check=False)
    assert said.returncode == 1 and "step_1: the daemon was told, and offers it no more" in said.stderr
    status = place.daemon.run_status(str(place.root))
    assert [checkpoint.tag for checkpoint in status.damaged] == ["step_1"]
    refused = ckptctl("repaired", f"{place.root}/step_1", endpoint=place.daemon.endpoint, check=False)
    assert refused.returncode == 1 and "step_1 is still damaged, and stays marked" in refused.stderr
    assert place.daemon.run_status(str(place.root)).damaged
    path.write_bytes(bytes(1 << 20))
    assert ckptctl("repaired", f"{place.root}/step_1", endpoint=place.daemon.endpoint).returncode == 0
    assert not place.daemon.run_status(str(place.root)).damaged


def test_misspelt_command_is_answered_with_the_one_that_was_meant(place: Place) -> None:
    wrong = ckptctl("lst", endpoint=place.daemon.endpoint, check=False)
    assert wrong.returncode == 2 and "did you mean list?" in wrong.stderr


def test_watch_names_the_root_of_each_save(place: Place) -> None:
    trainer = place.trainer()
    watch = subprocess.Popen(
        [find_program("ckptctl"), "watch", "--timeout=60"],
        stdout=subprocess.PIPE,
        env={**os.environ, "CKPTD_ENDPOINT": place.daemon.endpoint},
        text=True,
    )
    lines: List[str] = []
    assert watch.stdout is not None
    reader = threading.Thread(target=lambda: lines.extend(iter(watch.stdout.readline, "")))  # type: ignore[union-attr]
    reader.start()
    try:
        number = iter(range(1000))

        def saved() -> bool:  # The watch may begin after a save.
            trainer.do(f"run.save('step_{next(number)}', files={{'a.bin': b'x'}}).wait()")
            return any(f"  {place.root}  step_" in line and "COMMITTED" in line for line in list(lines))

        until(saved, "a line of a committed save with its root")
    finally:
        watch.send_signal(signal.SIGINT)
        watch.wait(20)
        reader.join(20)
