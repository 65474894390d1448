"""How a process finds out which rank of which launch it is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any, Dict, List
from unittest import mock

import pytest
from ckptd import errors
from ckptd._membership.launch import find_launch

# Variables of a launcher that may be running these tests.
_LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "SLURM_",
    "OMPI_",
    "PMI",
    "MV2_",
    "MPI_",
    "TORCHELASTIC_",
    "CKPTD_LAUNCH_ID",
)

_TWO_NODES = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


def ask(environment: Dict[str, str], **arguments: Any) -> List[Any]:
    """Returns the launch, or the refusal."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    with mock.patch.dict(os.environ, {**clean, **environment}, clear=True):
        try:
            return list(find_launch(**arguments))
        except errors.CkptdError as error:
            return [type(error).__name__, error.reason, str(error)]


_ASK = "import json; from ckptd._membership.launch import find_launch; print(json.dumps(find_launch()))"


def asked_elsewhere(code: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Asks in another process, whose parent is not this one."""
    wrapped = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {code!r}, *sys.argv[1:]]).returncode)"
    command = [sys.executable, "-c", wrapped, *arguments]
    return subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)


def answer_of(process: "subprocess.Popen[str]") -> List[Any]:
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0
    return list(json.loads(output.splitlines()[-1]))


def test_process_without_a_launcher_is_rank_0_of_1() -> None:
    assert ask({})[:3] == [0, 1, 0]


def test_the_environment_of_a_launcher_counts() -> None:
    assert ask({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"})[:3] == [3, 8, 0]


def test_arguments_override_the_environment() -> None:
    assert ask({"RANK": "3", "WORLD_SIZE": "8"}, rank=1, world_size=2)[:2] == [1, 2]


def test_launch_that_spans_nodes_is_reported() -> None:
    assert ask({**_TWO_NODES, "CKPTD_LAUNCH_ID": "a"})[2] == 4


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"])
def test_mpirun_says_how_many_ranks_are_on_this_node(variable: str) -> None:
    eight = {"RANK": "3", "WORLD_SIZE": "8", "CKPTD_LAUNCH_ID": "a"}
    assert ask({**eight, variable: "4"})[2] == 4
    assert ask({**eight, variable: "8"})[2] == 0
    assert ask({**eight, variable: "4", "LOCAL_WORLD_SIZE": "2"})[2] == 2
    assert ask({**eight, variable: "4"}, rank=0, world_size=1)[2] == 0


def test_srun_on_several_nodes_that_does_not_say_how_many_ranks_are_on_this_one_is_refused_at_once() -> None:
    step = {"RANK": "3", "WORLD_SIZE": "8", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
    kind, reason, text = ask({**step, "SLURM_STEP_NUM_NODES": "2"})
    assert (kind, reason) == ("Refused", "INVALID_ARGUMENT")
    assert "8 ranks on 2 nodes" in text and "set LOCAL_WORLD_SIZE" in text
    assert ask({**step, "SLURM_STEP_NUM_NODES": "2", "LOCAL_WORLD_SIZE": "4"})[2] == 4
    assert ask({**step, "SLURM_STEP_NUM_NODES": "1"})[2] == 0
    # A run of this process alone.
    assert ask({**step, "SLURM_STEP_NUM_NODES": "2"}, rank=0, world_size=1)[2] == 0


def test_srun_lists_the_ranks_of_this_node_in_any_distribution() -> None:
    step = {"RANK": "3", "WORLD_SIZE": "5", "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_NUM_NODES": "2"}
    step.update({"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_GTIDS": "1,3"})
    answer = ask(step)
    assert (answer[2], answer[5]) == (2, (1, 3))
    assert ask({**step, "SLURM_GTIDS": "0,1,2,3,4"})[2] == 0
    assert ask(step, rank=0, world_size=1)[2] == 0  # A run of this process alone.


def test_nodes_of_torchrun_have_blocks_of_different_sizes() -> None:
    launch = {"TORCHELASTIC_RUN_ID": "job-7", "RANK": "4", "WORLD_SIZE": "5"}
    answer = ask({**launch, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert (answer[2], answer[5]) == (2, (3, 4))
    assert ask({**launch, "LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "5"})[2] == 0


@pytest.mark.parametrize("ranks, problem", [([0, 1], "rank 2 among them"), ([2, 7], "of [0, 4)"), ([-1, 2], "of [0, 4)")])
def test_local_ranks_that_do_not_fit_are_refused(ranks: List[int], problem: str) -> None:
    arguments: Dict[str, Any] = {"rank": 2, "world_size": 4, "local_ranks": ranks}
    kind, reason, text = ask({"CKPTD_LAUNCH_ID": "a"}, **arguments)
    assert (kind, reason) == ("Refused", "INVALID_ARGUMENT") and problem in text and str(ranks) in text
    arguments["local_ranks"] = [3, 2]
    assert ask({"CKPTD_LAUNCH_ID": "a"}, **arguments)[5] == (2, 3)


@pytest.mark.parametrize(
    "environment",
    [
        {"CKPTD_LAUNCH_ID": "job-7-try-2"},
        {"TORCHELASTIC_RUN_ID": "job-7", "TORCHELASTIC_RESTART_COUNT": "1"},
        {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"},
    ],
)
def test_launch_id_of_several_nodes_has_nothing_of_one_node(environment: Dict[str, str]) -> None:
    one = {"TORCHELASTIC_ERROR_FILE": "/tmp/agent_a/x/error.json", "MASTER_PORT": "1"}
    other = {"TORCHELASTIC_ERROR_FILE": "/tmp/agent_b/x/error.json", "MASTER_PORT": "1"}
    first, second = (ask({**_TWO_NODES, **environment, **of_node}) for of_node in (one, other))
    assert first[3] == second[3] and len(first[3]) > 3


@pytest.mark.parametrize("environment", [{}, {"TORCHELASTIC_RUN_ID": "none"}])
def test_launch_on_several_nodes_that_nothing_identifies_is_refused(environment: Dict[str, str]) -> None:
    kind, reason, text = ask({**_TWO_NODES, **environment})
    assert (kind, reason) == ("Refused", "INVALID_ARGUMENT")
    assert "CKPTD_LAUNCH_ID" in text and "--rdzv-id" in text


def test_single_rank_run_inside_a_larger_launch_does_not_span_nodes() -> None:
    assert ask({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, rank=0, world_size=1)[:3] == [
        0,
        1,
        0,
    ]


@pytest.mark.parametrize(
    "variable", ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"]
)
def test_unknown_rank_is_refused_if_the_launcher_started_several_processes(variable: str) -> None:
    kind, reason, text = ask({variable: "2"})
    assert (kind, reason) == ("Refused", "INVALID_ARGUMENT")
    assert variable in text and "rank=" in text
    assert ask({variable: "1"})[:2] == [0, 1]
    assert ask({variable: "2"}, rank=1, world_size=2)[:2] == [1, 2]


@pytest.mark.parametrize(
    "environment, arguments, named",
    [
        ({"RANK": "1"}, {}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "1"}, {}, "RANK"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, {}, "one"),
        ({}, {"rank": 1}, "world_size"),
        ({}, {"world_size": 2}, "rank"),
        ({}, {"rank": 2, "world_size": 2}, "rank is 2"),
        ({}, {"rank": -1, "world_size": 2}, "rank is -1"),
        ({}, {"rank": 0, "world_size": 0}, "world_size is 0"),
    ],
)
def test_incomplete_or_invalid_rank_is_refused(
    environment: Dict[str, str], arguments: Dict[str, int], named: str
) -> None:
    kind, reason, text = ask(environment, **arguments)
    assert (kind, reason) == ("Refused", "INVALID_ARGUMENT")
    assert named in text


def launch(environment: Dict[str, str], **arguments: Any) -> str:
    answer = ask(environment, **arguments)
    assert len(answer) == 6, answer
    assert 1 <= len(answer[3]) <= 500
    assert 1 <= len(answer[4]) <= 500
    return str(answer[3])


def test_processes_of_one_parent_are_one_launch_and_those_of_another_are_not() -> None:
    of_two = {"RANK": "0", "WORLD_SIZE": "2"}
    siblings = [
        subprocess.Popen([sys.executable, "-c", _ASK], env={**os.environ, **of_two}, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    first, second = [answer_of(process)[3] for process in siblings]
    assert first == second
    assert answer_of(asked_elsewhere(_ASK, **of_two))[3] != first
    assert launch(of_two) != first  # Its parent is this process's parent.


def test_single_rank_without_a_launcher_is_a_launch_of_its_own_of_its_parents_job() -> None:
    siblings = [
        subprocess.Popen([sys.executable, "-c", _ASK], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    first, second = [answer_of(process) for process in siblings]
    assert first[3] != second[3]
    assert first[4] == second[4]
    assert launch({}) == launch({}), "a process stays the same launch"


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_a/none_b/attempt_2/0/error.json",
    "WORLD_SIZE": "2",
}


def test_workers_of_one_torchrun_are_one_launch_whoever_their_parent_is() -> None:
    other = {
        **TORCHRUN,
        "RANK": "1",
        "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_a/none_b/attempt_2/1/error.json",
    }
    assert launch({**TORCHRUN, "RANK": "0"}) == launch(other)


def test_a_restart_by_torchrun_is_another_launch() -> None:
    restarted = {
        **TORCHRUN,
        "RANK": "0",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_a/none_b/attempt_3/0/error.json",
    }
    assert launch({**TORCHRUN, "RANK": "0"}) != launch(restarted)


def test_another_torchrun_with_a_lower_restart_count_is_another_launch() -> None:
    files = [
        "/tmp/torchelastic_a/none_b/attempt_0/0/error.json",
        "/tmp/torchelastic_c/none_d/attempt_0/0/error.json",
    ]
    first, second = [
        launch({**TORCHRUN, "RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_ERROR_FILE": file})
        for file in files
    ]
    assert first != second


def test_steps_of_slurm_are_launches() -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "RANK": "0", "WORLD_SIZE": "2"}
    assert launch(step) == launch({**step, "RANK": "1"})
    assert launch(step) != launch({**step, "SLURM_STEP_ID": "1"})
    assert launch(step) != launch({**step, "SLURM_RESTART_COUNT": "1"})


def job(environment: Dict[str, str]) -> str:
    return str(ask(environment)[4])


def test_restarts_of_one_job_have_one_job_id() -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "RANK": "0", "WORLD_SIZE": "2"}
    assert job(step) == job({**step, "SLURM_STEP_ID": "1", "SLURM_RESTART_COUNT": "1"})
    assert job(step) != job({**step, "SLURM_JOB_ID": "8"})
    torchrun = {**TORCHRUN, "RANK": "0"}
    assert job(torchrun) == job({**torchrun, "TORCHELASTIC_RESTART_COUNT": "3"})  # The agent is the parent of both.
    assert job({"CKPTD_JOB_ID": "mine", **torchrun}) == "env-mine"


def test_launch_id_from_the_environment_is_used() -> None:
    assert launch({"CKPTD_LAUNCH_ID": "mine"}) == "env-mine"
    assert len(launch({"CKPTD_LAUNCH_ID": "x" * 1000})) == 500


_GROUP = f"""
import sys, torch.distributed as dist
address, rank, size = sys.argv[1:]
dist.init_process_group("gloo", init_method=address, rank=int(rank), world_size=int(size))
{_ASK}
dist.barrier()
"""


@pytest.mark.parametrize("store", ["file", "tcp"])
def test_process_group_gives_the_rank_and_its_store_the_launch_id(
    store: str, tmp_path: Any
) -> None:
    launches = []
    for attempt in range(2):
        address = (
            f"file://{tmp_path}/store_{attempt}" if store == "file" else f"tcp://127.0.0.1:{free_port()}"
        )
        # Each has another parent and a wrong environment, which must not count.
        ranks = [
            asked_elsewhere(_GROUP, address, str(rank), "2", RANK="77", WORLD_SIZE="99") for rank in range(2)
        ]
        answers = [answer_of(rank) for rank in ranks]
        assert [answer[:2] for answer in answers] == [[0, 2], [1, 2]]
        assert answers[0][3] == answers[1][3]
        launches.append(answers[0][3])
    assert launches[0] != launches[1]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
