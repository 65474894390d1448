"""examples/two_nodes: the configuration is one, and the processes of both nodes are of one launch."""

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


def arguments_of_torchrun(tmp_path: pathlib.Path, **environment: str) -> List[str]:
    """What launch.sh gives it, on each node."""
    program = tmp_path / "torchrun"
    program.write_text(RECORDER)
    program.chmod(0o755)
    done = subprocess.run(
        [str(EXAMPLE / "launch.sh"), "gpu1:29500", "gpt-1", "--root=/shared/ckpts/gpt"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **environment},
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


def test_torchrun_takes_what_launch_sh_gives_it(tmp_path: pathlib.Path) -> None:
    from torch.distributed.run import get_args_parser

    parsed = get_args_parser().parse_args(arguments_of_torchrun(tmp_path))
    assert (parsed.nnodes, parsed.rdzv_endpoint, parsed.rdzv_id) == ("2", "gpu1:29500", "gpt-1")
    assert (parsed.module, parsed.training_script) == (True, "examples.training.train")
    assert parsed.training_script_args == ["--root=/shared/ckpts/gpt"]
    more = get_args_parser().parse_args(arguments_of_torchrun(tmp_path, NODES="3", RANKS="8"))
    assert (more.nnodes, more.nproc_per_node) == ("3", "8")


def test_processes_of_both_nodes_are_of_one_launch() -> None:
    launches = [launch_of_rank(2, 4, rank) for rank in (0, 3)]
    assert launches[0]["launch_id"] == launches[1]["launch_id"] == "elastic-gpt-1-0"
    assert [launch["local_world_size"] for launch in launches] == [2, 2]
