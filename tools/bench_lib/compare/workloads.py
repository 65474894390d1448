"""What is saved: the state of a GPT that trains, and one in the shape of MLPerf Storage's Llama3 8B."""

from __future__ import annotations

import abc
from typing import Dict, List

import torch
from contenders.contender import Files
from contenders.tensors import tensors_of
from demo_lib.model import Gpt

from bench_lib import state
from bench_lib.stepper import Steps


class Workload(abc.ABC):
    """Of one rank: a state of its own, and steps that keep its core busy."""

    steps: Steps
    quiet_steps: int  # Before each save: some seconds in all of a job.

    @abc.abstractmethod
    def files(self) -> Files:
        """As a trainer makes it for each save."""

    def change(self) -> None:
        """What a save holds is not what the last one held: here the steps see to it."""
        return


class GptState(Workload):
    """Modules and AdamW of a GPT: what is saved is what trains."""

    quiet_steps = 6

    def __init__(self, rank: int, quick: bool) -> None:
        self._rank = rank
        self.steps = Steps(Gpt(width=256, layers=4) if quick else Gpt(), batch=2)
        self.steps()  # AdamW has a state from the first step on.

    def files(self) -> Files:
        model, optimizer = self.steps.model.state_dict(), self.steps.optimizer.state_dict()
        return {f"model_{self._rank}.pt": model, f"optimizer_{self._rank}.pt": optimizer}


class LlamaState(Workload):
    """A rank's share of Llama3 8B as MLPerf Storage saves it (ZeRO-3 over 8 ranks, 14 bytes a parameter: half-precision
    parameters in one file; their single-precision copy and two moments in another, six times as large), with every
    dimension divided: by 8 it is an eighth of such a share, 1.64 GiB. Beside it a small GPT trains.
    """

    quiet_steps = 20

    def __init__(self, rank: int, quick: bool) -> None:
        self.steps = Steps(Gpt(width=256, layers=4, heads=4), batch=4)
        shapes = llama_shapes(64 if quick else 8)
        model = {name: state.random_tensor(shape, torch.bfloat16) for name, shape in shapes.items()}
        optimizer = {
            key: {name: state.random_tensor(shape) for name, shape in shapes.items()}
            for key in ("master", "exp_avg", "exp_avg_sq")
        }
        self._files = {
            f"model_{rank}.pt": model,
            f"optimizer_{rank}.pt": {"state": optimizer, "param_groups": [{"lr": 3e-4}]},
        }

    def files(self) -> Files:
        return self._files

    def change(self) -> None:
        state.change(tensors_of(self._files))


def llama_shapes(divisor: int) -> Dict[str, List[int]]:
    """The parameters of Llama3 8B with every dimension divided."""
    width, keys, inner, words = (size // divisor for size in (4096, 1024, 14336, 128256))
    layer = {
        "norm1": [width], "query": [width, width], "key": [keys, width], "value": [keys, width],
        "output": [width, width], "norm2": [width], "gate": [inner, width], "up": [inner, width],
        "down": [width, inner],
    }  # fmt: skip
    layers = {f"layer{i}.{name}": shape for i in range(32) for name, shape in layer.items()}
    return {"tokens": [words, width], **layers, "norm": [width], "head": [words, width]}


KINDS = {"gpt": GptState, "llama": LlamaState}
