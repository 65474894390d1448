"""Kills a training job and its daemon, deletes its checkpoints, lets the job resume, and checks the claims of README.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Iterator, List

import ckptd

from bench.base import limits, machine
from bench.base.job import Job
from bench.contenders import catalog
from examples.demo import bucket, save_costs
from examples.demo.claims import Claims
from examples.demo.observer import SEALED, Observer
from examples.training.data import corpus_files, load_corpus
from examples.training.model import Gpt

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
RANKS = 2

SAVE_EVERY = 3
STEPS = 2 * SAVE_EVERY + 1  # Of one launch: two saves, and a step after them.
TRIES = 5  # To kill at the right moment.
POOL = 3 << 30
DISK = 10 << 30  # Free bytes that the demo needs.
SAVE_BYTES = 762 << 20  # Of all ranks, about.
SAMPLE_BYTES = 128 << 20  # To find out how fast the disk is.
USUAL_DISK = 7.0  # Seconds for a save, up to which the deadlines are as written here; those of a slower disk are longer.
DISK_TIMES = 1.25  # Of a plain write: where the disk is the limit, nobody is sooner.
ROUNDS = 4  # Of the comparison; the first is not counted.


class Demo:
    def __init__(self, folder: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.root = folder / "checkpoints"
        self.root.mkdir()
        self.disk = limits.time_direct_write(folder, SAMPLE_BYTES) * SAVE_BYTES / SAMPLE_BYTES  # Seconds for a save.
        self.patience = max(1.0, self.disk / USUAL_DISK)
        self.claims = Claims()
        self.stack = stack
        self.base = 0  # The step of the newest committed checkpoint.
        self.jobs: List[Job] = []  # All launches of the job that trains with ckptd.
        self.daemon_folder = self.new_daemon_folder()
        stack.callback(self.wait_for_daemon_end)
        self.start_daemon()

    # ---- the daemon ----

    def new_daemon_folder(self) -> str:
        # Outside of `folder`: a socket's path must be short.
        return self.stack.enter_context(tempfile.TemporaryDirectory(prefix="ckptd-demo-"))

    def start_daemon(self) -> None:
        daemon = self.stack.enter_context(ckptd.LocalDaemon(self.daemon_folder, pool_bytes=POOL))
        self.endpoint: str = daemon.endpoint
        self.pid = machine.listener_pid(self.endpoint[len("unix:") :])
        self.observer = Observer(self.endpoint)
        self.stack.callback(self.observer.close)

    def end_daemon(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        machine.wait_until(lambda: not machine.process_runs(self.pid), "the killed daemon to be gone", 30)

    def wait_for_daemon_end(self) -> None:
        machine.wait_until(
            lambda: not machine.process_runs(self.pid), "the daemon to end after its last user left", 60
        )

    def wait_for_pool(self) -> None:
        """Waits until the pool is faulted in. In a real job that happens while the ranks start."""

        def ready() -> bool:
            pool = self.observer.pool()
            faulted_in = pool.ready_bytes + pool.used_bytes + pool.lent_bytes + pool.resident_bytes
            return bool(faulted_in >= pool.total_bytes)

        machine.wait_until(ready, "the daemon to fault in its pool", 60)

    def ckptctl(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = dict(os.environ, CKPTD_ENDPOINT=self.endpoint)
        return subprocess.run(
            [machine.program("ckptctl"), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    # ---- the job ----

    def launch(self, *more: str) -> Job:
        arguments = ["--root", str(self.root), "--endpoint", self.endpoint, *more]
        arguments += ["--steps", str(STEPS), "--save_every", str(SAVE_EVERY)]
        job = Job(
            "examples.demo.recorded_training", self.folder, f"launch_{len(self.jobs) + 1}", arguments, RANKS
        )
        self.jobs.append(job)
        return job

    def kill_trainers(self) -> None:
        heading(
            f"Training on {RANKS} ranks, a save every {SAVE_EVERY} steps; SIGKILL to all ranks after the last seal"
        )
        for attempt in range(1, TRIES + 1):
            # Not during the very first save, so that there is an older checkpoint to fall back to.
            step = self.base + SAVE_EVERY * (2 if self.base == 0 else 1)
            tag = f"step_{step}"
            with self.launch() as job:
                in_time = self.observer.wait(job, tag, lambda c: bool(c.level >= SEALED), "sealed", 120 * self.patience)
                job.kill()
                killed = time.monotonic()
                left = self.observer.in_flight(tag)
            # After the block every trainer is dead and reaped.
            self.wait_until_latest(tag)
            seconds = time.monotonic() - killed
            self.base = step
            part = left.written_bytes / left.size_bytes if in_time and left else 1.0
            print(
                f"  try {attempt}: {tag} sealed, trainers killed, {part:.0%} of it on disk at that moment",
                flush=True,
            )
            if part < 0.5:
                break
        self.claims.check(
            "All trainers are killed while less than half of a sealed checkpoint is on disk",
            f"{part:.0%} of {tag} on disk; try {attempt} of {TRIES}",
            part < 0.5,
        )
        if part < 0.5:
            self.claims.check(
                "The daemon publishes it without the trainers",
                f"{tag} committed within {seconds:.2f} s after the kill",
                True,
            )
        verified = self.ckptctl("verify", str(self.root / tag))
        self.claims.check(
            "Every byte of it is as it was handed over (ckptctl verify)",
            self.shown(verified),
            verified.returncode == 0,
        )

    def wait_until_latest(self, tag: str) -> None:
        machine.wait_until(
            lambda: self.observer.latest() == tag, f"the daemon to publish {tag}", 60 * self.patience, interval=0.005
        )

    def kill_daemon(self) -> None:
        heading(
            "The job restarts; then SIGKILL to the daemon while it writes, and a new daemon for the same root"
        )
        for attempt in range(1, TRIES + 1):
            before, tag = f"step_{self.base}", f"step_{self.base + SAVE_EVERY}"
            with self.launch() as job:
                part = self.kill_daemon_during(job, tag)
                job.wait(180 * self.patience)
            if attempt == 1:
                self.check_resume(job, before, self.base, "")
            self.base += STEPS // SAVE_EVERY * SAVE_EVERY
            if 0 < part < 1:
                break
            print(f"  try {attempt}: {tag} was on disk before the kill", flush=True)
        measured = f"{part:.0%} of {tag} written; try {attempt} of {TRIES}"
        if self.claims.check("The daemon is killed during a write", measured, 0 < part < 1):
            self.check_after_daemon(job, tag)

    def kill_daemon_during(self, job: Job, tag: str) -> float:
        """Kills the daemon and starts another. Returns the share of `tag` that was written then; 1 if it was not killed."""
        seen = 1.0

        def writing(checkpoint: Any) -> bool:
            nonlocal seen
            seen = checkpoint.written_bytes / max(1, checkpoint.size_bytes)
            return bool(checkpoint.level >= SEALED and 0 < seen < 1)

        if not self.observer.wait(job, tag, writing, "partly on disk", 120 * self.patience):
            return 1.0
        self.end_daemon()
        self.start_daemon()
        print(
            f"  killed; the new daemon's latest: {self.observer.latest()}; the trainers continue", flush=True
        )
        return seen

    def shown(self, verified: "subprocess.CompletedProcess[str]") -> str:
        return last_line(verified).replace(str(self.root), self.root.name)

    def check_resume(self, job: Job, before: str, base: int, how: str) -> None:
        restart = f"restart {how}".strip()
        saved = [self.hash_before(before, rank) for rank in range(RANKS)]
        resumed = [job.events(rank, "resumed")[:1] for rank in range(RANKS)]
        first = [job.events(rank, "step")[0]["step"] for rank in range(RANKS)]
        self.claims.check(
            f"The first step after the {restart} is the one after the committed one, on every rank",
            f"committed {before}; first steps {first}",
            first == [base + 1] * RANKS,
        )
        hashes = [entries[0]["hash"] if entries else "nothing resumed" for entries in resumed]
        measured = ", ".join(f"rank {r}: {h[:12]}" for r, h in enumerate(hashes))
        self.claims.check(
            f"After the {restart} model, optimizer and generator have the hashes of before the save",
            measured,
            hashes == saved,
        )

    def hash_before(self, tag: str, rank: int) -> str:
        """The hash of a rank's state before it saved `tag`, from its journal."""
        entries = [e for job in self.jobs for e in job.events(rank, "saving") if e["tag"] == tag]
        return str(entries[-1]["hash"])

    def check_after_daemon(self, job: Job, tag: str) -> None:
        listed = {c["tag"] for c in json.loads(self.ckptctl("list", "--output=json").stdout)["checkpoints"]}
        verified = self.ckptctl("verify", str(self.root))
        whole = {path.parent.parent.name for path in self.root.glob("*/.ckptd/manifest")}
        self.claims.check(
            "The new daemon lists what ckptctl verify finds whole, and nothing else",
            f"{', '.join(sorted(listed))}; {self.shown(verified)}",
            verified.returncode == 0 and listed == whole,
        )
        heard = [
            e["tag"]
            for rank in range(RANKS)
            for e in job.events(rank, "failed") + job.events(rank, "committed")
        ]
        ends = {
            e.get("reason", "COMMITTED")
            for rank in range(RANKS)
            for e in job.events(rank, "failed")
            if e["tag"] == tag
        }
        self.claims.check(
            "Every rank is told how the interrupted save ended, in agreement with the disk",
            f"{tag}: {', '.join(sorted(ends)) or 'COMMITTED'}",
            heard.count(tag) == RANKS and bool(ends) != (tag in listed),
        )
        later = f"step_{self.base}"
        self.claims.check(
            "The same trainers continue, and the new daemon commits their next save",
            later,
            self.observer.latest() == later,
        )

    def lose_disk(self) -> None:
        heading("The node is lost with its disk; the job goes on from the bucket on an empty one")
        objects = self.folder / "bucket"
        objects.mkdir()
        with bucket.serve(objects) as environment:
            os.environ.update(environment)  # The next daemons upload and fetch with it.
            self.end_daemon()
            self.start_daemon()
            self.train_with_bucket(self.launch("--upload", bucket.URL))
            tag = f"step_{self.base}"
            self.end_daemon()
            shutil.rmtree(self.root)
            self.root.mkdir()
            self.daemon_folder = self.new_daemon_folder()
            self.start_daemon()
            print(f"  {tag} uploaded; daemon killed, checkpoints deleted", flush=True)
            job = self.launch("--upload", bucket.URL)
            base = self.base
            self.train_with_bucket(job)
            self.check_resume(job, tag, base, "with an empty disk")

    def train_with_bucket(self, job: Job) -> None:
        with job:
            job.wait(300 * self.patience)
        self.base += STEPS // SAVE_EVERY * SAVE_EVERY

    # ---- comparisons ----

    def check_reference(self) -> None:
        heading(f"The same training again, uninterrupted and without ckptd, for {self.base + 1} steps")
        arguments = ["--steps", str(self.base + 1), "--save_every", str(SAVE_EVERY)]
        with Job("examples.demo.recorded_training", self.folder, "reference", arguments, RANKS) as reference:
            reference.wait(300)
        equal = {"step": 0, "saving": 0}
        total = dict(equal)
        for rank in range(RANKS):
            losses = {e["step"]: e["loss"] for e in reference.events(rank, "step")}
            states = {e["step"]: e["hash"] for e in reference.events(rank, "hash")}
            for job in self.jobs:
                for event, key, expected in (("step", "loss", losses), ("saving", "hash", states)):
                    for entry in job.events(rank, event):
                        total[event] += 1
                        equal[event] += expected[entry["step"]] == entry[key]
        self.claims.check(
            "Losses and states equal those of an uninterrupted run, digit for digit",
            f"{equal['step']} of {total['step']} losses, {equal['saving']} of {total['saving']} hashes, "
            f"{len(self.jobs)} launches",
            equal == total and total["step"] > 0,
        )
        course = [float.fromhex(e["loss"]) for e in reference.events(0, "step")]
        parameters = sum(p.numel() for p in Gpt().parameters())
        self.claims.check(
            "A GPT of at least 30 M parameters learns from real text",
            f"{parameters / 1e6:.1f} M; loss {course[0]:.2f} at first, {min(course):.2f} at best",
            parameters >= 30e6 and min(course) < course[0],
        )

    def check_costs(self) -> str:
        heading(
            "What a save costs training, compared with torch.save + fsync and with dcp.async_save in its best settings"
        )
        print(f"about {save_costs.expected_seconds(self.disk, ROUNDS):.0f} s on this disk, if the cores are idle", flush=True)
        folder = self.folder / "others"
        folder.mkdir()
        self.wait_for_pool()
        arguments = ["--root", str(self.folder / "compared"), "--endpoint", self.endpoint]
        arguments += ["--folder", str(folder), "--rounds", str(ROUNDS)]
        (self.folder / "compared").mkdir()
        with Job("examples.demo.save_costs", self.folder, "save_costs", arguments, RANKS) as job:
            job.wait(400 * self.patience)
        figures, copy, size = save_costs.collect(job, RANKS)
        table = save_costs.table(figures, copy, size, RANKS)
        print(table, flush=True)
        disk = save_costs.disk_seconds(job, RANKS)
        for key, claim in (
            ("stall", "A save stalls training for less time than torch.save + fsync"),
            ("durable", f"A save is durable sooner than with the others, or within {DISK_TIMES} times what the disk takes"),
            ("lost", "A save costs less training time than torch.save + fsync and dcp.async_save, or no more than can be measured"),
        ):
            medians = {name: statistics.median(values[key]) for name, values in figures.items()}
            ours = medians.pop(catalog.CKPTD)
            best = catalog.TORCH_SAVE_SYNCED if key == "stall" else min(medians, key=medians.__getitem__)
            rival = medians[best]
            measured = f"{ours:.3f} s; the others {rival:.3f} s at best"
            held = ours < rival
            if key == "durable":
                measured += f"; a plain write to the disk {disk:.3f} s"
                held = held or ours < DISK_TIMES * disk
            elif key == "lost":
                error = save_costs.measurement_error(figures[catalog.CKPTD][key], figures[best][key])
                measured += f"; measured to within {error:.3f} s"
                held = ours <= rival + error
            self.claims.check(claim, measured, held)
        return table

    def check_without_ckptd(self) -> None:
        heading("A process that cannot import ckptd")
        tag = self.observer.latest()
        line = f'torch.load("{self.root / tag}/model_0.pt", map_location="cpu")'
        print(f"  {line}", flush=True)
        code = [
            f"import sys; sys.modules['ckptd'] = None; sys.path.insert(0, {str(REPOSITORY)!r})",
            "import torch; from bench.base.tensors import digest",
            f"model = {line}",
            f"rest = {line.replace('model_0', 'optimizer_0')}",
            "print(digest({'model_0.pt': model, 'optimizer_0.pt': rest}))",
        ]
        child = subprocess.run(
            [sys.executable, "-I", "-c", "\n".join(code)], capture_output=True, text=True, timeout=120
        )
        expected = self.hash_before(tag, 0)
        self.claims.check(
            "torch.load reads a checkpoint without ckptd, and gets the state that was saved",
            f"{tag}: {last_line(child)[:12]}, before the save {expected[:12]}",
            child.returncode == 0 and child.stdout.strip() == expected,
        )
        print(tree(self.root / tag))


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    lines = (done.stdout + ("" if done.returncode == 0 else done.stderr)).strip().splitlines()
    return lines[-1].strip() if lines else f"exit status {done.returncode}"


def heading(words: str) -> None:
    print(f"\n== {words}", flush=True)


def tree(folder: pathlib.Path) -> str:
    lines = [f"  {folder.name}/"]
    for path in sorted(folder.rglob("*")):
        name = "  " * (len(path.relative_to(folder).parts) + 1) + path.name
        lines.append(f"{name + '/' if path.is_dir() else f'{name:<30}{path.stat().st_size:>12,} bytes'}")
    return "\n".join(lines)


@contextlib.contextmanager
def temporary_folder(parent: pathlib.Path, keep: bool) -> Iterator[pathlib.Path]:
    parent.mkdir(parents=True, exist_ok=True)
    machine.require_disk(parent, DISK)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
            with contextlib.suppress(OSError):
                parent.rmdir()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/demo", description=__doc__)
    parser.add_argument(
        "--dir",
        type=pathlib.Path,
        default=REPOSITORY / ".demo",
        help="the folder to work in, on a disk; default %(default)s",
    )
    parser.add_argument("--keep", action="store_true", help="keep the checkpoints, journals and logs")
    options = parser.parse_args()

    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder(options.dir.resolve(), options.keep))
        print(
            f"text: {len(load_corpus()) / 1e6:.1f} MB of {len(corpus_files())} files of this machine; "
            f"checkpoints: {folder}"
        )
        demo = Demo(folder, stack)
        minutes = (220 + 10 * demo.disk + save_costs.expected_seconds(demo.disk, ROUNDS)) / 60
        print(f"the disk writes {SAVE_BYTES / demo.disk / 1e9:.2f} GB/s; the demo takes about {minutes:.0f} minutes here", flush=True)
        demo.wait_for_pool()
        demo.kill_trainers()
        demo.kill_daemon()
        demo.lose_disk()
        demo.check_reference()
        demo.check_without_ckptd()
        costs = demo.check_costs()
        heading("ckptctl status")
        print(demo.ckptctl("status").stdout)
        heading(f"After {time.monotonic() - start:.0f} s")
        print(costs)
        print(demo.claims.table())
    return 0 if demo.claims.held() else 1


if __name__ == "__main__":
    sys.exit(main())
