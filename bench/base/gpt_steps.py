"""Training steps that keep one core busy."""

from __future__ import annotations

import time

import torch

from examples.training.model import VOCABULARY_SIZE, Gpt


class GptSteps:
    """Each call trains a GPT for one step, on one thread, and returns the seconds."""

    def __init__(self, model: Gpt, batch: int) -> None:
        torch.set_num_threads(1)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())
        self._tokens = torch.randint(VOCABULARY_SIZE, (batch, model.context))

    def __call__(self) -> float:
        start = time.perf_counter()
        self.model(self._tokens, self._tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start


def small_gpt_steps() -> GptSteps:
    """Steps of some tens of milliseconds, warmed up."""
    step = GptSteps(Gpt(width=256, layers=4, heads=4), batch=4)
    for _ in range(10):
        step()
    return step
