"""A job on three nodes that loses a node in a save, the coordinator in a publication, etcd's leader in a resume, and then a node for
good. Checks what it computes and saves against the same job without interruptions. For tools/demo --nodes=3.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from cluster import GRACE_SECONDS, LEASE_SECONDS, Cluster
from places import SeparateHosts, why_no_namespaces
from shared_file_systems import LOCAL, NETWORK, chosen, sandbox

import ckptd
from examples.demo.claims import Claims
from harness import closing, temporary_folder, until

POOL_BYTES = 256 << 20
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 180  # Seconds for a launch, or what it does next, on a busy machine.


class Size(NamedTuple):
    """Of the job."""

    ranks_per_node: int
    width: int  # Of the model.
    layers: int


USUAL = Size(ranks_per_node=2, width=192, layers=6)
# Most of the demo's time is that of processes that import torch.
BRIEF = Size(ranks_per_node=1, width=64, layers=2)


class Job:
    """One start of the job: an agent of torchrun on each node, and a journal of each rank."""

    def __init__(
        self,
        folder: pathlib.Path,
        ranks_per_node: int,
        wrappers: Sequence[Sequence[str]],
        environments: Sequence[Dict[str, str]],
        arguments: Sequence[str],
    ):
        folder.mkdir()
        self.folder = folder
        self.world_size = ranks_per_node * len(wrappers)
        self.agents: List["subprocess.Popen[bytes]"] = []
        self.lost: List[int] = []
        for node, (wrapper, environment) in enumerate(zip(wrappers, environments)):
            launcher = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(wrappers)}", f"--nproc-per-node={ranks_per_node}"]
            meeting = ["--rdzv-backend=c10d", f"--rdzv-id={folder.name}", f"--rdzv-endpoint={environments[0]['ADDRESS']}:29400"]
            meeting += [f"--local-addr={environment['ADDRESS']}", f"--rdzv-conf=is_host={int(node == 0)}"]
            with open(folder / f"agent{node}.log", "wb") as log:
                self.agents.append(
                    subprocess.Popen(
                        [*wrapper, *launcher, *meeting, "-m", "recorded_fsdp", f"--journals={folder}", *arguments],
                        stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPOSITORY,
                        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environment},
                    )
                )

    def events(self, event: str) -> List[Dict[str, Any]]:
        """What all ranks have written of this kind, with their ranks."""
        found = []
        for rank in range(self.world_size):
            with contextlib.suppress(FileNotFoundError):
                for line in (self.folder / f"rank{rank}.jsonl").read_text().splitlines():
                    entry = {"rank": rank, **json.loads(line)}
                    found += [entry] if entry["event"] == event else []
        return found

    def wait(self) -> None:
        """Until all agents have ended well."""
        for agent in self.agents:
            assert agent.wait(PATIENCE) == 0, self.log()

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """As harness.until, but not once an agent has ended."""

        def seen() -> Any:
            ended = [agent.returncode for agent in self.agents if agent.poll()]
            assert not ended, f"agents have ended ({ended}) before {what}\n{self.log()}"
            return condition()

        return until(seen, what, PATIENCE)

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-4000:] for path in sorted(self.folder.glob("agent*.log")))

    def close(self) -> None:
        """Ends all agents, and with them their ranks."""
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()
        for agent in self.agents:
            try:
                agent.wait(30)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


class ThreeNodes:
    """The story, and what is claimed of it."""

    def __init__(self, folder: pathlib.Path, places: SeparateHosts, cluster: Cluster, size: Size) -> None:
        self.folder = folder
        self.size = size
        self.places = places
        self.cluster = cluster
        self.claims = Claims()
        self.jobs: List[Job] = []
        self.root = f"{cluster.shared}/gpt"

    def launch(self, steps: int, nodes: int = 3) -> Job:
        chosen_nodes = self.cluster.nodes[:nodes]
        environments = [
            {"CKPTD_ENDPOINT": node.endpoint, "ADDRESS": self.places.address(number), "GLOO_SOCKET_IFNAME": "eth0",
             "TP_SOCKET_IFNAME": "eth0", "CKPTD_JOB_ID": "gpt"}
            for number, node in enumerate(chosen_nodes)
        ]
        wrappers = [node.wrapper for node in chosen_nodes]
        arguments = [f"--root={self.root}", f"--steps={steps}", *self.model()]
        job = Job(self.folder / f"launch-{len(self.jobs) + 1}", self.size.ranks_per_node, wrappers, environments, arguments)
        self.jobs.append(job)
        return job

    def model(self) -> List[str]:
        return [f"--width={self.size.width}", f"--layers={self.size.layers}"]

    def committed(self) -> List[str]:
        with contextlib.suppress(ckptd.CkptdError, OSError):
            return [info.tag for info in ckptd.open_root(self.root).list()]
        return []

    def lose_a_node(self) -> None:
        ranks = 3 * self.size.ranks_per_node
        heading(f"{ranks} ranks on three nodes train with FSDP2 and save each step; the third node dies in the save of step 3")
        with closing(self.launch(steps=20)) as job:
            job.until(lambda: "step-2" in self.committed(), "the commit of step 2")
            job.until(lambda: any(entry["step"] == 3 for entry in job.events("saving")), "the save of step 3")
            self.places.kill(2)
            began = time.monotonic()
            self.cluster.nodes[2].wait()
            others = lambda: [entry for entry in job.events("failed") if entry["rank"] < 2 * self.size.ranks_per_node]  # noqa: E731
            until(lambda: others() or all(agent.poll() is not None for agent in job.agents[:2]) or "step-3" in self.committed(),
                  "the other nodes to hear of it", PATIENCE)
            seconds = time.monotonic() - began
            heard = sorted({re.sub(r"^\[\S*\] ", "", entry["text"]).partition(" [")[0] for entry in others()})
        newest = self.committed()[0]
        self.claims.check(
            "A node is killed in a save: the save is whole, or is not there",
            f"newest checkpoint {newest} after {seconds:.0f} s; ranks of the other nodes: {', '.join(heard) or 'ended by torchrun'}",
            newest in ("step-2", "step-3"),
        )
        self.places.boot(2, self.cluster.shared)
        self.cluster.nodes[2].start()
        self.cluster.wait_until_registered()
        self.verify("Every byte of what is there is as it was handed over (ckptctl verify)")

    def lose_the_coordinator(self) -> None:
        heading("The job starts again on three nodes; the coordinator's daemon dies at the rename that publishes a checkpoint")
        before = int(self.committed()[0].partition("-")[2])
        last = before + 5  # So that a save is left when the coordinator is found.
        with closing(self.launch(steps=last)) as job:
            job.until(lambda: any(entry["step"] == before + 1 for entry in job.events("saved")), "the first save")
            coordinator = self.cluster.coordinator()
            coordinator.killer.arm(rf"^renameat2? {re.escape(self.root)}/\.ckptd/shared/inflight/[^/]+ -> {re.escape(self.root)}/step-\d+$")
            job.until(lambda: coordinator.killer.hit, "the rename that publishes")
            coordinator.wait()
            killed = time.monotonic()
            tag = coordinator.killer.hit.rpartition("/")[2]
            until(lambda: tag in self.committed(), f"another node to publish {tag}", PATIENCE)
            seconds = time.monotonic() - killed
            coordinator.start()
            job.wait()
        self.check_resume(job, before)
        self.claims.check(
            "Another node publishes what the killed coordinator had decided",
            f"{tag} after {seconds:.1f} s (the lease is {LEASE_SECONDS} s)",
            tag in self.committed() or self.committed()[0] == f"step-{last}",
        )
        self.claims.check(
            "The same trainers go on, and save with the new coordinator",
            f"newest {self.committed()[0]}, coordinator {self.cluster.coordinator().name} after {coordinator.name}",
            self.committed()[0] == f"step-{last}" and self.cluster.coordinator() is not coordinator,
        )

    def lose_the_leader_of_etcd(self) -> None:
        heading("The job starts again; etcd's leader dies while the ranks resume")
        before = int(self.committed()[0].partition("-")[2])
        leader = self.cluster.etcd.leader()
        with closing(self.launch(steps=before + 1)) as job:
            job.until(lambda: job.events("ready"), "the first rank that resumes")
            self.cluster.etcd.kill(leader)
            in_time = not job.events("resumed")
            job.wait()
        self.check_resume(job, before)
        self.claims.check(
            "The death of etcd's leader in a resume costs the job nothing but time",
            f"member {leader} killed {'before' if in_time else 'after'} the first rank had resumed; newest {self.committed()[0]}",
            in_time and self.committed()[0] == f"step-{before + 1}",
        )
        self.cluster.etcd.start(leader)

    def shrink(self) -> None:
        heading(f"The third node is gone; {2 * self.size.ranks_per_node} ranks on two nodes go on")
        before = int(self.committed()[0].partition("-")[2])
        self.places.kill(2)
        self.cluster.nodes[2].wait()
        with closing(self.launch(steps=before + 2, nodes=2)) as job:
            job.wait()
        self.check_resume(job, before, same_shards=False)
        self.claims.check(
            "Two nodes save what three nodes saved before",
            f"newest {self.committed()[0]}, of {job.world_size} ranks",
            self.committed()[0] == f"step-{before + 2}",
        )
        self.verify("Every byte of all checkpoints is as it was handed over (ckptctl verify)")

    # ---- what is compared

    def check_resume(self, job: Job, before: int, same_shards: bool = True) -> None:
        """All ranks have gone on from the newest checkpoint, with the bytes that were saved."""
        resumed = {entry["rank"]: entry for entry in job.events("resumed")}
        steps = sorted({entry["step"] for entry in resumed.values()})
        held = steps == [before] and len(resumed) == job.world_size
        measured = f"{len(resumed)} ranks at step {steps}"
        if same_shards:
            saved = {entry["rank"]: entry["hash"] for other in self.jobs for entry in other.events("saving") if entry["step"] == before}
            equal = sum(saved[rank] == entry["hash"] for rank, entry in resumed.items())
            held = held and equal == job.world_size
            measured += f"; {equal} of {job.world_size} shards have the hash of before the save"
        self.claims.check(f"All ranks of {job.folder.name} go on from the newest checkpoint, step {before}", measured, held)

    def check_reference(self) -> None:
        heading("The same training again, uninterrupted, without ckptd, by DCP's own files")
        last_of_three = self.jobs[-2].events("end")[0]["step"]
        last = self.jobs[-1].events("end")[0]["step"]
        plain = self.folder / "plain"
        first = self.reference("reference-three", 3, f"--root={plain}", f"--steps={last_of_three}")
        load = f"--load={plain}/step-{last_of_three}"
        second = self.reference("reference-two", 2, f"--root={plain}", f"--steps={last}", load)
        expected: Dict[Tuple[str, int, int, int], str] = {}
        for job in (first, second):
            expected.update(outcomes_of(job))
        total = equal = 0
        for job in self.jobs:
            for key, value in outcomes_of(job).items():
                total += 1
                equal += expected.get(key) == value
        self.claims.check(
            "Losses and states of all ranks equal those of an uninterrupted run, digit for digit",
            f"{equal} of {total} losses and hashes, {len(self.jobs)} launches, "
            f"worlds of {first.world_size} and {second.world_size} ranks",
            total > 0 and equal == total,
        )
        course = [float.fromhex(entry["loss"]) for job in (first, second) for entry in job.events("step") if entry["rank"] == 0]
        self.claims.check("The model learns from real text", f"loss {course[0]:.3f} at first, {course[-1]:.3f} at last", course[-1] < course[0])

    def reference(self, name: str, nodes: int, *arguments: str) -> Job:
        """As many ranks as those nodes have, by one agent."""
        environment = {"ADDRESS": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
        words = [*arguments, *self.model(), "--without-ckptd"]
        with closing(Job(self.folder / name, nodes * self.size.ranks_per_node, [[]], [environment], words)) as job:
            job.wait()
        return job

    def verify(self, claim: str) -> None:
        done = self.cluster.nodes[0].ask("verify", self.root, check=False)
        lines = (done.stdout + done.stderr).strip().splitlines()
        self.claims.check(claim, lines[-1].strip().replace(self.root, "gpt"), done.returncode == 0)


def outcomes_of(job: Job) -> Dict[Tuple[str, int, int, int], str]:
    """Losses and hashes of a job's states, by kind, step, world size and rank."""
    found = {}
    for event, key in (("step", "loss"), ("saving", "hash")):
        for entry in job.events(event):
            found[(event, entry["step"], job.world_size, entry["rank"])] = entry[key]
    return found


def heading(text: str) -> None:
    print(f"\n== {text}", flush=True)


def tell(size: Size) -> int:
    """In the sandbox, or on a local folder."""
    began = time.monotonic()
    file_system = chosen()
    with temporary_folder() as folder, closing(SeparateHosts(file_system)) as places:
        with closing(Cluster(folder, places, killable=True, pool_bytes=POOL_BYTES)) as cluster:
            print(f"three nodes on {type(file_system).__name__ if file_system else 'one local folder'}, etcd with three members; "
                  f"leases of {LEASE_SECONDS} s, a grace of {GRACE_SECONDS} s", flush=True)
            demo = ThreeNodes(folder, places, cluster, size)
            try:
                demo.lose_a_node()
                demo.lose_the_coordinator()
                demo.lose_the_leader_of_etcd()
                demo.shrink()
                demo.check_reference()
            except BaseException:
                print(cluster.logs())
                raise
            heading(f"After {time.monotonic() - began:.0f} s")
            print(demo.claims.table())
            return 0 if demo.claims.held() else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/demo --nodes=3", description=__doc__)
    parser.add_argument("--nodes", type=int, choices=[3], required=True)
    parser.add_argument("--file-system", choices=[LOCAL, *NETWORK], help="default: glusterfs, or local where FUSE is not allowed")
    parser.add_argument("--brief", action="store_true", help="with one rank on each node, and a smaller model")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # The demo itself, in its sandbox.
    options = parser.parse_args()
    if options.here:
        return tell(BRIEF if options.brief else USUAL)
    why_no_network = sandbox.why_not("glusterfs")
    name = options.file_system or (LOCAL if why_no_network else "glusterfs")
    why_not = why_no_namespaces() or sandbox.why_not(name)
    if why_not:
        sys.exit(f"tools/demo --nodes=3: {why_not}")
    if not options.file_system and name == LOCAL:
        print(f"a bind mount of a local folder: {why_no_network}", flush=True)
    return tell_on(name, *(["--brief"] if options.brief else []))


def tell_on(name: str, *arguments: str) -> int:
    return sandbox.run_shown(name, [sys.executable, "-m", "three_nodes", "--nodes=3", "--here", *arguments])


if __name__ == "__main__":
    sys.exit(main())
