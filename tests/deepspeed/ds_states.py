"""What the rank processes of these tests run: small models, engines of DeepSpeed, and what can be compared of them."""

import hashlib
import importlib
import logging
import os
import pathlib
import random
import sys
import unittest.mock
import warnings

import numpy
import torch
import torch.distributed as dist

os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")
import deepspeed

import ckptd.deepspeed
from ckptd.deepspeed import CheckpointEngine

# An optional extension for communication, which would be compiled at the first use.
importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # Slow on a CPU, but it works.
deepspeed.utils.logger.setLevel(logging.ERROR)
for handler in deepspeed.utils.logger.handlers:
    handler.setStream(sys.stderr)  # transformers sets the level, too.
warnings.filterwarnings("ignore", message=".*is deprecated. Please use `torch.distributed.*")


def join(store, rank, world_size):
    """Makes the process group, which lasts as long as the process: DeepSpeed keeps what it derives from it."""
    for prefix in ("", "LOCAL_"):  # As torchrun; accelerate reads them.
        os.environ.update({f"{prefix}RANK": str(rank), f"{prefix}WORLD_SIZE": str(world_size)})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    os.environ["CKPTD_LAUNCH_ID"] = os.path.basename(store)
    where = {"init_method": f"file://{store}", "rank": rank, "world_size": world_size}
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, **where)


class Net(torch.nn.Module):
    """Odd sizes, a buffer, and on request a frozen and a tied weight."""

    def __init__(self, frozen=False, tied=False):
        super().__init__()
        self.inner = torch.nn.Linear(13, 29)
        self.frozen = torch.nn.Linear(29, 29)
        self.outer = torch.nn.Linear(29, 13)
        self.back = torch.nn.Linear(13, 29, bias=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.frozen.requires_grad_(not frozen)
        if tied:
            self.back.weight = self.inner.weight

    def forward(self, x):
        self.count += 1
        x = torch.tanh(self.frozen(torch.tanh(self.inner(x))))
        return self.outer(torch.tanh(self.back(self.outer(x))))


def config(stage, dtype="fp32", **more):
    made = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 7}},
    }
    if dtype == "bf16":
        made["bf16"] = {"enabled": True}
    if dtype == "fp16":
        made["fp16"] = {"enabled": True, "initial_scale_power": 4}
    for key, value in more.items():
        made[key] = {**made[key], **value} if isinstance(made.get(key), dict) else value
    return made


def engine(stage, dtype="fp32", groups=1, seed=0, frozen=False, tied=False, checkpoint_engine=None, **more):
    """Returns a new engine. seed: of its weights."""
    torch.manual_seed(seed)
    model = Net(frozen, tied)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    split = [{"params": parameters[number::groups], "lr": 1e-2 / (number + 1)} for number in range(groups)]
    made = initialize(model, split, config(stage, dtype, **more), checkpoint_engine)
    made.test_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    return made


def initialize(model, parameters, settings, checkpoint_engine):
    deepspeed.utils.groups.mpu = None  # What an engine of a pipeline before this one has left.
    made, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(parameters, lr=1e-2), config=settings)
    if checkpoint_engine is not None:
        made.checkpoint_engine = checkpoint_engine
    return made


def train(made, steps=1, seed=1):
    """Trains on batches that depend on the seed, the rank and the step alone. Returns the losses."""
    losses = []
    for _ in range(steps):
        generator = torch.Generator().manual_seed(1000 * seed + 10 * made.global_steps + dist.get_rank())
        loss = made(torch.randn(2, 13, generator=generator).to(made.test_dtype)).float().pow(2).mean()
        made.backward(loss)
        made.step()
        losses.append(loss.item())
    return losses


def state(made):
    """Returns a copy of what a checkpoint must bring back: weights, moments, schedule, steps, loss scale."""
    shard = made.optimizer.state_dict() if made.optimizer is not None else {}
    return copied(
        {
            "module": made.module.state_dict(),
            "partitions": [getattr(p, "ds_tensor", None) for p in made.module.parameters()],
            "optimizer": plain(shard),
            "scheduler": made.lr_scheduler.state_dict(),
            "steps": (made.global_steps, made.global_samples, made.skipped_steps),
        }
    )


def trained_tensors(made):
    """Returns the tensors that a step of training changes."""
    optimizer = made.optimizer
    found = [*made.module.parameters()]
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition"):
        found += getattr(optimizer, name, [])
    inner = getattr(optimizer, "optimizer", optimizer)
    found += [value for each in inner.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
    return [tensor.detach() for tensor in found]


def plain(value):
    """Returns a state with the attributes of objects of other classes in their places."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (torch.Tensor, int, float, str, type(None))):
        return value
    return plain(vars(value)) if hasattr(value, "__dict__") else repr(value)


def copied(value):
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(each) for each in value]
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def differences(one, other, where=""):
    """Returns where two states are not the same, bit for bit."""
    if isinstance(one, dict):
        if not isinstance(other, dict) or set(map(str, one)) != set(map(str, other)):
            return [f"{where}: other keys"]
        others = {str(key): value for key, value in other.items()}
        return [found for key in one for found in differences(one[key], others[str(key)], f"{where}.{key}")]
    if isinstance(one, (list, tuple)):
        if not isinstance(other, (list, tuple)) or len(one) != len(other):
            return [f"{where}: another length"]
        return [found for n, pair in enumerate(zip(one, other)) for found in differences(*pair, f"{where}[{n}]")]
    if isinstance(one, torch.Tensor):
        if not isinstance(other, torch.Tensor):
            return [f"{where}: a tensor and {other!r}"]
        same = one.shape == other.shape and one.dtype == other.dtype
        return [] if same and bits(one) == bits(other) else [f"{where}: {one} and {other}"]
    return [] if one == other or (one != one and other != other) else [f"{where}: {one!r} and {other!r}"]


def bits(tensor):
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def digests(made, with_buffers=True):
    """Returns what an engine has, in an order and a form that do not depend on the number of ranks. All ranks call it."""
    wrapped = made.optimizer.optimizer
    found = {"steps": sorted({float(each["step"]) for each in wrapped.state.values()})}
    found["groups"] = [{key: str(group[key]) for key in ("lr", "betas")} for group in wrapped.param_groups]
    found["scale"] = str(plain(getattr(made.optimizer, "loss_scaler", None)))
    states = whole_states_of_stage_3 if made.zero_optimization_stage() == 3 else whole_states_of_stages_1_and_2
    for name, state in states(made):
        found.update((f"{key} {name}", digest(tensor)) for key, tensor in state.items())
    found.update(digests_of_weights(made))
    if with_buffers:
        found.update((f"buffer {name}", digest(buffer)) for name, buffer in made.module.named_buffers())
    return found


def digests_of_weights(made):
    found = {}
    for name, parameter in made.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            found[f"weight {name}"] = digest(parameter)
    return found


def whole_states_of_stage_3(made):
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    for name, parameter in made.module.named_parameters():
        if parameter.requires_grad:
            moments = {key: safe_get_full_optimizer_state(parameter, key) for key in ("exp_avg", "exp_avg_sq")}
            yield name, {"fp32": safe_get_full_fp32_param(parameter), **moments}


def whole_states_of_stages_1_and_2(made):
    optimizer = made.optimizer
    if hasattr(optimizer, "bf16_groups"):  # BF16_Optimizer.
        groups, flats = optimizer.bf16_groups, optimizer.fp32_groups_flat_partition
    else:
        groups, flats = optimizer.round_robin_bit16_groups, optimizer.single_partition_of_fp32_groups
    for group, part in zip(groups, flats):
        parts = [None] * dist.get_world_size(group=optimizer.dp_process_group)
        state = optimizer.optimizer.state[part]
        own = [part.detach(), state["exp_avg"], state["exp_avg_sq"]]
        dist.all_gather_object(parts, own, group=optimizer.dp_process_group)
        whole = [torch.cat(each) for each in zip(*parts)]
        at = 0
        for parameter in group:
            cut = [flat[at : at + parameter.numel()] for flat in whole]
            at += parameter.numel()
            yield made.param_names[parameter], dict(zip(("fp32", "exp_avg", "exp_avg_sq"), cut))


def digest(tensor):
    return f"{list(tensor.shape)} {tensor.dtype} {hashlib.sha256(bits(tensor)).hexdigest()[:16]}"


def damage(path):
    """Changes the last byte of a file."""
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))


CLIENT_STATE = {
    "epoch": 3,
    "rng": random.Random(5).getstate(),
    "numpy": numpy.arange(4),
    "nested": {"tensor": torch.arange(5.0), "name": "x"},
}


def save_on_both_sides(root, make, train=train):
    """Saves the same state by ckptd and by DeepSpeed alone, and trains on at once. Returns the state.

    make: makes an engine, with the arguments seed and checkpoint_engine.
    """
    made = make()
    train(made, 2)
    before, stock = state(made), made.checkpoint_engine
    made.checkpoint_engine = CheckpointEngine()
    assert made.save_checkpoint(f"{root}/ours", client_state=CLIENT_STATE) is True
    made.checkpoint_engine = stock
    made.save_checkpoint(f"{root}/stock", client_state=CLIENT_STATE)
    train(made, 1)
    ckptd.deepspeed.run(f"{root}/ours")._wait_for_end("global_step2", 60)
    return before


def load_on_both_sides(root, wanted, make):
    """Loads what each side has saved with each side. Returns what is not as it was saved."""
    found = []
    for saver in ("ours", "stock"):
        for loader in ("ours", "stock"):
            made = make(seed=9, checkpoint_engine=CheckpointEngine() if loader == "ours" else None)
            path, client_state = made.load_checkpoint(f"{root}/{saver}")
            different = differences(wanted, state(made)) + client_differences(client_state)
            if not path or not path.startswith(f"{root}/{saver}/global_step2/"):
                different.append(f"path: {path}")
            found += [f"{saver} saved, {loader} loaded{words}" for words in different]
    return found


def client_differences(client_state):
    """Returns where a client state is not the one that was saved."""
    wanted, found = dict(CLIENT_STATE), {key: client_state.get(key) for key in CLIENT_STATE}
    same = numpy.array_equal(wanted.pop("numpy"), found.pop("numpy"))
    return differences(wanted, found, ".client_state") + ([] if same else [".client_state.numpy"])


def recovered_differently(root):
    """Returns where DeepSpeed's zero_to_fp32 and ckptd's give other weights of a checkpoint."""
    from deepspeed.utils import zero_to_fp32

    theirs = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(root)
    return differences(theirs, ckptd.deepspeed.get_fp32_state_dict_from_zero_checkpoint(root))


def converted_differently(root, tag):
    """Returns where DeepSpeed's ds_to_universal and ckptctl make other universal checkpoints of a tag."""
    from ckptd.deepspeed._convert_program import convert
    from deepspeed.checkpoint import ds_to_universal

    options = [f"--input_folder={root}/{tag}", "--inject_missing_state"]
    convert("ds-to-universal", [*options, f"--output_folder={root}/ours"])
    options += ["--num_extract_workers=1", "--num_merge_workers=1", f"--output_folder={root}/theirs"]
    with unittest.mock.patch.object(sys, "argv", ["ds_to_universal.py", *options]):
        ds_to_universal.main(ds_to_universal.parse_arguments())
    return differences(*[files_in(f"{root}/{side}") for side in ("theirs", "ours")])


def files_in(folder):
    """Returns what the files below a folder hold, by their names."""
    paths = [path for path in pathlib.Path(folder).rglob("*.pt") if path.is_file()]
    return {str(path.relative_to(folder)): plain(torch.load(path, weights_only=False)) for path in paths}


class MixtureNet(torch.nn.Module):
    """Two layers of experts, spread over `spread` ranks, and what all ranks have."""

    def __init__(self, spread):
        super().__init__()
        from deepspeed.moe.layer import MoE

        self.inner = torch.nn.Linear(13, 16)
        self.layers = torch.nn.ModuleList(
            MoE(16, torch.nn.Linear(16, 16), num_experts=4, ep_size=spread, use_rts=False, min_capacity=0)
            for _ in range(2)
        )
        self.outer = torch.nn.Linear(16, 13)

    def forward(self, x):
        x = self.inner(x)
        for layer in self.layers:
            x = layer(x)[0]
        return self.outer(x)


def mixture_engine(stage, seed=0, checkpoint_engine=None, spread=2, prepare=None, **more):
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

    torch.manual_seed(seed + dist.get_rank())
    model = MixtureNet(spread)
    if prepare is not None:
        prepare(model)
    groups = split([{"params": [each for each in model.parameters() if each.requires_grad], "name": "all"}])
    made = initialize(model, groups, config(stage, **more), checkpoint_engine)
    made.test_dtype = torch.float32
    return made


def autoep_engine(stage, seed=0, **more):
    """Returns an engine with a model of transformers whose experts DeepSpeed's AutoEP spreads over two ranks."""
    from transformers import MixtralConfig, MixtralForCausalLM
    from transformers.utils import output_capturing

    torch.manual_seed(seed)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2}
    model = MixtralForCausalLM(MixtralConfig(**sizes, **heads, max_position_embeddings=32))
    experts = {"enabled": True, "autoep_size": 2, "preset_model": "mixtral", "use_grouped_mm": False}
    adam = {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}}  # DeepSpeed makes the groups of its own.
    settings = config(stage, expert_parallel=experts, optimizer=adam, **more)
    deepspeed.utils.groups.mpu = None  # As in initialize().
    # DeepSpeed 0.19.8 asks this dict of transformers for an entry with a default, which its get() does not take.
    ask = lambda self, key, default=None: dict.get(self, str(type(key)), default)  # noqa: E731
    with unittest.mock.patch.object(output_capturing._CanRecordRegistry, "get", ask):
        return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)[0]


def train_tokens(made, steps):
    for step in range(steps):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        tokens = torch.randint(0, 32, (1, 8), generator=generator)
        made.backward(made(input_ids=tokens, labels=tokens).loss)
        made.step()


def pipeline_engine(stage, seed=0, checkpoint_engine=None, **more):
    """Returns an engine of two stages, whose first and last layer are tied."""
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    torch.manual_seed(seed)
    layers = [
        TiedLayerSpec("end", torch.nn.Linear, 13, 13),
        *[LayerSpec(torch.nn.Linear, 13, 13) for _ in range(3)],
        torch.tanh,
        TiedLayerSpec("end", torch.nn.Linear, 13, 13),
    ]
    model = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss)
    return initialize(model, model.parameters(), config(stage, **more), checkpoint_engine)


def train_pipeline(made, steps):
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        made.train_batch(iter([[torch.randn(2, 13, generator=generator)] * 2]))
