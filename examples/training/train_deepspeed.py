"""Trains a small OPT of transformers with DeepSpeed, saves it through ckptd, and resumes where it was killed.

From the top of the repository, where deepspeed and transformers are installed:

    torchrun --nproc_per_node=2 -m examples.training.train_deepspeed --root=/data/ckpts --stage=3 --steps=100

Without the line `ckptd.deepspeed.install(...)` it runs with DeepSpeed's own checkpoint engine. At the end it exports the
model as `save_pretrained` of transformers does.
"""

from __future__ import annotations

import argparse
from typing import Any, Callable, Dict, List, Tuple

import ckptd.deepspeed
import deepspeed
import torch
import torch.distributed as dist
from transformers import OPTConfig, OPTForCausalLM

from examples.training.data import batch_at, load_corpus
from examples.training.train import SEED, set_deterministic

BATCH = 2
CONTEXT = 64


def small_opt() -> OPTForCausalLM:
    """An OPT of 200,000 weights over bytes; `OPTForCausalLM.from_pretrained("facebook/opt-13b")` is the real one."""
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=256,
            hidden_size=64,
            word_embed_proj_dim=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=256,
            max_position_embeddings=CONTEXT,
        )
    )


def settings(stage: int) -> Dict[str, Any]:
    """DeepSpeed's configuration."""
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
        "checkpoint": {"num_kept_ckpts": 3},
    }


def train(
    root: str, stage: int, steps: int, save_every: int, after_save: Callable[[int], None] = lambda step: None
) -> Tuple[Any, List[Tuple[int, float]]]:
    """Resumes, trains up to a step, and saves. Returns the engine, and (step, loss) of each step that it trained."""
    set_deterministic(SEED)
    ckptd.deepspeed.install()
    model = small_opt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings(stage))
    engine.load_checkpoint(root)  # Nothing at the first start.
    corpus, rank, losses = load_corpus(1 << 20), dist.get_rank(), []
    while engine.global_steps < steps:
        torch.manual_seed(SEED + engine.global_steps * dist.get_world_size() + rank)  # For the dropout.
        tokens, _ = batch_at(corpus, engine.global_steps, rank, BATCH, CONTEXT)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        losses.append((engine.global_steps, loss.item()))
        if engine.global_steps % save_every == 0:
            engine.save_checkpoint(root)  # Returns after one copy.
            after_save(engine.global_steps)
    return engine, losses


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small OPT with DeepSpeed, and saves it through ckptd.")
    parser.add_argument("--root", required=True, help="the folder for the checkpoints")
    parser.add_argument("--stage", type=int, default=3, help="the stage of ZeRO, 0 to 3")
    parser.add_argument("--steps", type=int, default=100, help="the step at which training ends")
    parser.add_argument("--save_every", type=int, default=10, help="steps between saves")
    options = parser.parse_args()
    deepspeed.init_distributed("gloo")
    engine, losses = train(options.root, options.stage, options.steps, options.save_every)
    for step, loss in losses:
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)
    export = ckptd.deepspeed.run(f"{options.root}-models")
    ckptd.deepspeed.save_pretrained(engine, export, f"step_{engine.global_steps}").wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
