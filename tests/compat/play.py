"""Plays scenario.py to a daemon: once to record the answers, later to compare them."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import subprocess
import tempfile
from typing import Any, Dict, List, Tuple

import scenario
from transcript import Conversation, Names, Protocol, comparable, differences, wait_for_socket

NXD_DONE_TIME = 1_700_000_000  # Of the checkpoint of another program, in seconds since 1970.
RECORDED_PATH = "/recorded/root"  # Stands for the folder of then.
SESSION = {"min_version": 1, "max_version": 1, "client_name": "compat"}


def descriptors(protos: pathlib.Path) -> bytes:
    """A FileDescriptorSet of every .proto file, in the order that needs no later one."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "set")
        files = sorted(str(file.relative_to(protos)) for file in protos.rglob("*.proto"))
        command = ["protoc", f"-I{protos}", "--include_imports", f"--descriptor_set_out={out}", *files]
        subprocess.run(command, check=True)
        return out.read_bytes()


def make_root(root: pathlib.Path) -> None:
    """A root with a checkpoint of NeuronX Distributed in it."""
    tag = root / "nxd_7"
    (tag / "model").mkdir(parents=True)
    (tag / "model" / "dp_rank_00_tp_rank_00_pp_rank_00.pt").write_bytes(b"weights of another program")
    for name in ("checkpoint", "done"):
        (tag / name).write_bytes(b"")
        os.utime(tag / name, (NXD_DONE_TIME, NXD_DONE_TIME))


def simplified(name: str, answer: Any) -> Any:
    """Of an adoption only the outcome: how often it reports progress depends on the machine."""
    if name == "Admin.AdoptCheckpoints" and isinstance(answer, list):
        return answer[-1:]
    return answer


def groups(steps: List[scenario.Step]) -> List[List[scenario.Step]]:
    """Begins that follow each other are sent together: each waits for the sizes of all ranks."""
    found: List[List[scenario.Step]] = []
    for step in steps:
        if found and step[1] == "Checkpoints.Begin" == found[-1][-1][1]:
            found[-1].append(step)
        else:
            found.append([step])
    return found


def play(conversation: Conversation, path: str) -> List[Tuple[scenario.Step, Any, Any]]:
    """(step, request as sent, answer) of each step."""
    known: Dict[str, str] = {"$path": path}
    names = Names(known)
    leases = 0
    played = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for group in groups(scenario.steps()):
            sent = [(step, names.translate(step[2])) for step in group]
            answers = list(pool.map(lambda s: conversation.call(s[0][0], s[0][1], s[1]), sent))
            for (step, request), answer in zip(sent, answers):
                played.append((step, request, simplified(step[1], answer)))
                if isinstance(answer, dict):
                    if "root" in answer:
                        names.now["$root"] = answer["root"]
                    if step[1] == "Checkpoints.JoinRun":
                        names.now["$run"] = answer["run"]
                    if answer.get("lease"):
                        names.now[f"$lease{leases}"] = answer["lease"]
                        leases += 1
    return played


def converse(protocol: Protocol, endpoint: str) -> Conversation:
    socket = endpoint[len("unix:") :]
    wait_for_socket(socket)
    conversation = Conversation(protocol, socket)
    for number, session in enumerate(scenario.RANKS, 1):
        conversation.open_session(session, {**SESSION, "client_instance": f"{number:032x}"})
    return conversation


def record(protocol: Protocol, endpoint: str, path: str) -> Dict[str, Any]:
    """Leaves a save under way, of which one rank has not begun."""
    conversation = converse(protocol, endpoint)
    steps = [
        {"method": step[1], "request": request, "answer": answer}
        for step, request, answer in play(conversation, path)
    ]
    run = next(step["answer"]["run"] for step in steps if step["method"] == "Checkpoints.JoinRun")
    names = Names({"$run": run})
    for step in (scenario.begin("step-5", 0, step=5), scenario.write("step-5", 0)):
        conversation.call(step[0], step[1], names.translate(step[2]))
    conversation.close()
    return {"path": RECORDED_PATH, "steps": Names({path: RECORDED_PATH}).translate(steps)}


def compare(protocol: Protocol, endpoint: str, path: str, recorded: Dict[str, Any]) -> List[str]:
    """What a daemon answers otherwise than the one that was recorded."""
    conversation = converse(protocol, endpoint)
    names = Names({recorded["path"]: path})
    found: List[str] = []
    played = play(conversation, path)
    conversation.close()
    if len(played) != len(recorded["steps"]):
        return [f"{len(recorded['steps'])} steps were recorded, the scenario has {len(played)}"]
    for number, ((step, _, answer), then) in enumerate(zip(played, recorded["steps"])):
        place = f"step {number}, {step[1]}"
        names.learn(then["answer"], answer)
        wanted = comparable(names.translate(then["answer"]))
        found += [f"{place}{what}" for what in differences(wanted, comparable(answer))]
    return found
