"""The states that are saved: that of a GPT that trains, and one in the shape of MLPerf Storage's Llama3 8B."""

from __future__ import annotations

import abc
from typing import Dict, List

import torch

from bench.base import training_state
from bench.base.gpt_steps import GptSteps
from bench.base.tensors import tensors_of
from bench.contenders.contender import Files
from examples.training.model import Gpt


class Workload(abc.ABC):
    """One rank's state, and training steps that keep its core busy."""

    steps: GptSteps
    quiet_steps: int  # Before each save. In a whole job they take some seconds.

    @abc.abstractmethod
    def files(self) -> Files:
        """The files of a save, as a trainer makes them each time."""

    def change(self) -> None:
        """Changes the state, so that no two saves are equal. By default the training steps do that."""
        return


class GptState(Workload):
    """The parameters and AdamW's state of the GPT that trains."""

    quiet_steps = 6

    def __init__(self, rank: int, quick: bool) -> None:
        self._rank = rank
        self.steps = GptSteps(Gpt(width=256, layers=4) if quick else Gpt(), batch=2)
        self.steps()  # AdamW makes its state in the first step.

    def files(self) -> Files:
        model, optimizer = self.steps.model.state_dict(), self.steps.optimizer.state_dict()
        return {f"model_{self._rank}.pt": model, f"optimizer_{self._rank}.pt": optimizer}


class LlamaState(Workload):
    """A rank's share of Llama3 8B as MLPerf Storage saves it (ZeRO-3 over 8 ranks, 14 bytes a parameter: half-precision
    parameters in one file; their single-precision copy and two moments in another, six times as large), with every
    dimension divided: by 8 it is an eighth of such a share, 1.64 GiB. A small GPT trains at the same time.
    """

    quiet_steps = 20

    def __init__(self, rank: int, quick: bool) -> None:
        self.steps = GptSteps(Gpt(width=256, layers=4, heads=4), batch=4)
        shapes = llama_shapes(64 if quick else 8)
        model = {name: training_state.random_tensor(shape, torch.bfloat16) for name, shape in shapes.items()}
        optimizer = {
            key: {name: training_state.random_tensor(shape) for name, shape in shapes.items()}
            for key in ("master", "exp_avg", "exp_avg_sq")
        }
        self._files = {
            f"model_{rank}.pt": model,
            f"optimizer_{rank}.pt": {"state": optimizer, "param_groups": [{"lr": 3e-4}]},
        }

    def files(self) -> Files:
        return self._files

    def change(self) -> None:
        training_state.change(tensors_of(self._files))


class ManyTensors(Workload):
    """Small tensors, as of a model with many experts or adapters, whose number is what a save costs. A small GPT
    trains at the same time.
    """

    quiet_steps = 20

    def __init__(self, rank: int, quick: bool) -> None:
        self.steps = GptSteps(Gpt(width=256, layers=4, heads=4), batch=4)
        count = 500 if quick else 10_000
        tensors = {f"experts.{i}.weight": training_state.random_tensor([16, 16]) for i in range(count)}
        self._files = {f"model_{rank}.pt": tensors}

    def files(self) -> Files:
        return self._files

    def change(self) -> None:
        training_state.change(tensors_of(self._files))


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


WORKLOADS = {"gpt": GptState, "llama": LlamaState, "many": ManyTensors}
