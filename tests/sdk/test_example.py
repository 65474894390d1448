"""examples/cpp, compiled outside the tree, with real daemons: it saves, waits and resumes, on one node and on two."""

from __future__ import annotations

import pathlib
import shutil
import struct
import subprocess
import threading
from typing import Any, Dict, List

import pytest
import sdk_programs

import ckptd
from harness import Daemon, ckptctl, tags, until_equal

BYTES = 8 << 20  # Of a rank's part.


def model_after(steps: int, numbers: int = 3) -> List[int]:
    """The first numbers of the example's model, computed once more here."""
    model = [0] * numbers
    for step in range(1, steps + 1):
        model = [(value * 6364136223846793005 + i + step) % 2**64 for i, value in enumerate(model)]
    return model


def saved_model(root: str, tag: str, rank: int = 0) -> List[int]:
    with ckptd.open_root(root).open(tag) as checkpoint:
        part = checkpoint.read(f"model_{rank}.bin")
    assert len(part) == BYTES
    return list(struct.unpack_from("<3Q", part))


def train(program: str, endpoint: str, root: str, steps: int, **launcher: str) -> List[str]:
    environment = sdk_programs.environment(**launcher)
    return sdk_programs.run(program, endpoint, root, str(steps), env=environment).splitlines()


def check_training(program: str, daemon: Daemon, root: str) -> None:
    first = train(program, daemon.endpoint, root, 2)
    assert [line.partition(":")[0] for line in first] == ["step 1", "step 2", "step_2 is committed"]
    second = train(program, daemon.endpoint, root, 4)
    assert second[0] == "resumed from step_2"
    assert second[-1] == "step_4 is committed"
    until_equal(lambda: tags(root), ["step_4", "step_3", "step_2"], "the three that it keeps")
    assert saved_model(root, "step_4") == model_after(4)
    assert ckptctl("verify", root).returncode == 0


def test_example_compiled_with_pkg_config_saves_and_resumes(example: str, daemon: Daemon, root: str) -> None:
    check_training(example, daemon, root)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_example_compiled_with_cmake_saves_and_resumes(
    tmp_path: pathlib.Path, daemon: Daemon, root: str
) -> None:
    check_training(sdk_programs.compile_with_cmake(tmp_path / "example"), daemon, root)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake_refuses_a_later_version_than_there_is(tmp_path: pathlib.Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(x CXX)\nfind_package(ckptd 999 REQUIRED)\n"
    )
    command = [
        "cmake",
        "-B",
        str(tmp_path / "b"),
        "-S",
        str(tmp_path),
        f"-DCMAKE_PREFIX_PATH={sdk_programs.SDK}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert "ckptd-config.cmake, version: " in done.stderr  # Among those that were not accepted.


def run_ranks(program: str, ranks: List[Dict[str, Any]], steps: int) -> List[List[str]]:
    """Runs the ranks at once; what each has printed."""
    outputs: List[List[str]] = [[] for _ in ranks]

    def work(number: int) -> None:
        outputs[number] = train(program, steps=steps, **ranks[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


def test_ranks_of_one_node_save_one_checkpoint(example: str, daemon: Daemon, root: str) -> None:
    ranks = [
        {"endpoint": daemon.endpoint, "root": root, "RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)
    ]
    assert [out[-1:] for out in run_ranks(example, ranks, 2)] == [["step_2 is committed"]] * 2
    assert [out[:1] for out in run_ranks(example, ranks, 3)] == [["resumed from step_2"]] * 2
    assert [saved_model(root, "step_3", rank) for rank in range(2)] == [model_after(3)] * 2


# Blocks, and ranks that alternate: the library names them, whatever they are.
@pytest.mark.parametrize("placed", [["0,1", "2,3"], ["0,2", "1,3"]])
def test_ranks_of_two_nodes_save_one_checkpoint(example: str, two_nodes: Any, placed: List[str]) -> None:
    def ranks(launch: str) -> List[Dict[str, Any]]:
        return [
            {
                "endpoint": node.endpoint,
                "root": two_nodes.root,
                "RANK": rank,
                "WORLD_SIZE": "4",
                "LOCAL_RANKS": local,
                "CKPTD_LAUNCH_ID": launch,
            }
            for node, local in zip(two_nodes.nodes, placed)
            for rank in local.split(",")
        ]

    assert [out[-1:] for out in run_ranks(example, ranks("one"), 2)] == [["step_2 is committed"]] * 4
    assert [out[:1] for out in run_ranks(example, ranks("two"), 3)] == [["resumed from step_2"]] * 4
    three = ["step_3", "step_2", "step_1"]
    until_equal(lambda: two_nodes.nodes[0].tags(two_nodes.root), three, "the commits")
    (newest, *_) = two_nodes.nodes[1].listed(two_nodes.root)
    assert newest["world_size"] == 4
    assert [saved_model(two_nodes.root, "step_3", rank) for rank in range(4)] == [model_after(3)] * 4


def test_ranks_of_two_nodes_need_a_launch_that_both_know(example: str, daemon: Daemon, root: str) -> None:
    launcher = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANKS": "0,1"}
    command = [example, daemon.endpoint, root, "1"]
    done = subprocess.run(
        command,
        env=sdk_programs.environment(**launcher),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "INVALID_ARGUMENT" in done.stderr
    assert "set launch_id, or CKPTD_LAUNCH_ID" in done.stderr


def test_local_ranks_must_have_the_rank_among_them(example: str, daemon: Daemon, root: str) -> None:
    launcher = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANKS": "1,0", "CKPTD_LAUNCH_ID": "one"}
    done = subprocess.run(
        [example, daemon.endpoint, root, "1"],
        env=sdk_programs.environment(**launcher),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (
        "local_ranks is 0,1; it must name each rank of this node once, rank 3 among them, of [0, 4)"
        in done.stderr
    )


def test_error_of_a_daemon_that_is_not_there_says_where(
    example: str, tmp_path: pathlib.Path, root: str
) -> None:
    command = [example, f"unix:{tmp_path}/none", root, "1"]
    done = subprocess.run(
        command, env=sdk_programs.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "UNAVAILABLE" in done.stderr and str(tmp_path) in done.stderr
