"""What is wrong, and what to do about it; and what a job loses if it dies now."""

import dataclasses
from typing import Any, List, Optional

from ckptd._wire.protocol import level_name, types
from ckptd.web.text import counted, in_bytes, in_seconds, unix

_SLOW_SAVE_SECONDS = 60.0  # A save without all ranks for longer than this is worth a look.


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something to look at."""

    what: str
    next_step: str
    urgent: bool = True


def problems(status: Any, now: float) -> List[Problem]:
    """The problems of the daemon, of its runs and of its cluster, urgent ones first."""
    found = _of_daemon(status)
    for run in status.runs:
        found += of_run(run, now)
    if status.HasField("cluster"):
        found += _of_cluster(status.cluster)
    return sorted(found, key=lambda problem: not problem.urgent)


def _of_daemon(status: Any) -> List[Problem]:
    if status.draining:
        return [Problem("The daemon is ending: it takes no new saves.", "Start the next one if you did not mean that.")]
    if status.HasField("drain"):
        drain = status.drain
        return [
            Problem(
                f"uid {drain.uid} has drained the daemon: it takes no new saves"
                + (f" ({drain.message})." if drain.message else "."),
                "Restart it now: nothing is lost." if drain.drained else "ckptctl drain shows what it waits for.",
                urgent=False,
            )
        ]
    return []


def of_run(run: Any, now: float) -> List[Problem]:
    """The problems of one run."""
    found: List[Problem] = []
    if run.degraded:
        found.append(Problem(f"The file system of {run.path} does not answer.", "Look at the disk or the file server."))
    if run.read_only:
        found.append(
            Problem(
                f"{run.path} takes no saves: a sync of a directory failed.",
                "Look at the kernel's log and the disk. The daemon scans the root again by itself.",
            )
        )
    for damaged in run.damaged:
        found.append(
            Problem(
                f"{damaged.tag} of {run.path} is damaged: {damaged.damage.message}",
                f"ckptctl verify {run.path}/{damaged.tag}",
            )
        )
    failure = run.last_failure
    if run.HasField("last_failure") and not _is_past(run, failure):
        found.append(
            Problem(
                f"The last save of {run.path}, {failure.tag}, {level_name(failure.level)}: "
                f"{failure.error.message or failure.error.reason}",
                f"ckptctl why {run.path}/{failure.tag}",
                urgent=failure.level in (types.FAILED, types.INDETERMINATE),
            )
        )
    for save in run.in_flight:
        age = now - unix(save.create_time)
        if save.missing_ranks and age > _SLOW_SAVE_SECONDS:
            ranks = ", ".join(map(str, save.missing_ranks))
            found.append(
                Problem(
                    f"{save.tag} of {run.path} waits for ranks {ranks} for {in_seconds(age)}.",
                    "Look at the log and the stack of these ranks.",
                )
            )
    if run.HasField("latest") and run.HasField("probe") and 0 < run.probe.free_bytes < 2 * run.latest.size_bytes:
        found.append(
            Problem(
                f"The disk of {run.path} has {in_bytes(run.probe.free_bytes)} free, less than two checkpoints.",
                f"Free room, or keep fewer: ckptctl retention {run.path}",
            )
        )
    found += [Problem(f"{run.path}: {warning}", f"ckptctl doctor {run.path}", False) for warning in run.probe.warnings]
    return found


def _is_past(run: Any, failure: Any) -> bool:
    return run.HasField("latest") and unix(run.latest.commit_time) > unix(failure.create_time)


def _of_cluster(cluster: Any) -> List[Problem]:
    found: List[Problem] = []
    if not cluster.registered:
        why = cluster.error.message or "no try has ended yet"
        found.append(Problem(f"{cluster.node} is not registered in etcd: {why}", "Look at etcd and the network."))
    if cluster.HasField("nodes_error"):
        found.append(Problem(f"The nodes are not followed now: {cluster.nodes_error.message}", "Look at etcd.", False))
    away = [member for member in cluster.etcd_members if member.HasField("answers") and not member.answers]
    for member in away:
        found.append(
            Problem(f"etcd's member {member.endpoint} does not answer: {member.error}", "Look at that member.", False)
        )
    for run in cluster.shared_runs:
        if not run.coordinator:
            found.append(
                Problem(f"{run.root} has no coordinator: nothing is saved there.", "Look at etcd and the run's nodes.")
            )
    return found


@dataclasses.dataclass(frozen=True)
class Loss:
    """What is lost if a job dies now."""

    resumes_at: str  # "step 1200 (step_1200)".
    seconds: Optional[float]  # Of training; None: all of it.

    def words(self) -> str:
        if self.seconds is None:
            return "begins anew"
        return f"resumes at {self.resumes_at} and loses {in_seconds(self.seconds)}"


def loss_of_job(run: Any, now: float) -> Loss:
    """If the trainers died now: what all ranks have sealed is published."""
    sealed = [save for save in run.in_flight if save.level == types.SEALED and not save.suspect]
    if sealed:
        return _loss(max(sealed, key=lambda save: save.sequence), now)
    return loss_of_machine(run, now)


def loss_of_machine(run: Any, now: float) -> Loss:
    """If the machine died now: what is on disk counts."""
    return _loss(run.latest, now) if run.HasField("latest") else Loss("", None)


def _loss(checkpoint: Any, now: float) -> Loss:
    name = f"step {checkpoint.step} ({checkpoint.tag})" if checkpoint.HasField("step") else checkpoint.tag
    return Loss(name, max(0.0, now - unix(checkpoint.create_time)))


def summary(found: List[Problem]) -> str:
    """One sentence for the top of the page and its title."""
    urgent = sum(problem.urgent for problem in found)
    if urgent:
        return f"{counted(urgent, 'problem')} to look at"
    return f"All is well, with {counted(len(found), 'remark')}" if found else "All is well"
