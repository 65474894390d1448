"""examples/two_nodes: the configuration is one, and both nodes' processes are of one launch."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Dict, List

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/two_nodes"
# Stands for torchrun: its arguments, one a line.
RECORDER = '#!/bin/sh\nprintf "%s\\n" "$@"\n'


def arguments_on(node: int, tmp_path: pathlib.Path) -> List[str]:
    """What launch.sh gives torchrun on this node."""
    program = tmp_path / "torchrun"
    program.write_text(RECORDER)
    program.chmod(0o755)
    done = subprocess.run(
        [str(EXAMPLE / "launch.sh"), str(node), "gpu1", "29500", "gpt-1", "--root=/shared/ckpts/gpt"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def launch_of_rank(local_world_size: int, world_size: int, rank: int) -> Dict[str, object]:
    """What the client sends of a process that torchrun has started so."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "CKPTD", "OMPI"))}
    environment.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(local_world_size),
        TORCHELASTIC_RUN_ID="gpt-1",
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_ERROR_FILE=f"/tmp/of_this_node_alone/{rank}/error.json",
    )
    code = "import json; from ckptd._membership import launch; print(json.dumps(launch.find_launch()._asdict()))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    answer: Dict[str, object] = json.loads(done.stdout)
    return answer


def test_configuration_of_two_nodes_is_accepted(tmp_path: pathlib.Path) -> None:
    program = os.path.join(os.path.dirname(sys.executable), "ckptd")
    shared = tmp_path.resolve() / "shared"
    shared.mkdir()
    file = tmp_path / "ckptd.txtpb"
    file.write_text((EXAMPLE / "ckptd.txtpb").read_text().replace("/shared/ckpts", str(shared)))
    run = subprocess.run(
        [program, "--check_config", f"--config={file}"], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "ok\n", "")


def test_both_nodes_start_one_job(tmp_path: pathlib.Path) -> None:
    first, second = (arguments_on(node, tmp_path) for node in (0, 1))
    assert [argument for argument in first if argument not in second] == ["--node-rank=0"]
    assert [argument for argument in second if argument not in first] == ["--node-rank=1"]
    assert "--rdzv-id=gpt-1" in first
    assert first[-3:] == ["-m", "examples.training.train", "--root=/shared/ckpts/gpt"]


def test_torchrun_takes_these_arguments(tmp_path: pathlib.Path) -> None:
    from torch.distributed.run import get_args_parser

    parsed = get_args_parser().parse_args(arguments_on(1, tmp_path))
    assert (parsed.nnodes, parsed.node_rank, parsed.rdzv_id) == ("2", 1, "gpt-1")
    assert (parsed.training_script, parsed.training_script_args) == (
        "examples.training.train",
        ["--root=/shared/ckpts/gpt"],
    )


def test_processes_of_both_nodes_are_of_one_launch() -> None:
    launches = [launch_of_rank(2, 4, rank) for rank in (0, 3)]
    assert launches[0]["launch_id"] == launches[1]["launch_id"] == "elastic-gpt-1-0"
    assert [launch["local_world_size"] for launch in launches] == [2, 2]
