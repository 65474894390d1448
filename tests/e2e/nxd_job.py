"""A small job in the form that NxD runs: a model part for each tp and pp rank, and an optimizer like NxD's
ZeRO-1 one. The expected state of a rank at a step is computed from its coordinates, never from what was
saved.
"""

import zlib

import torch
from ckptd.nxd import Topology

SHAPES = {
    "embed.weight": ((13, 6), torch.bfloat16),
    "layers.0.w": ((7, 5), torch.bfloat16),
    "layers.0.conv": ((5, 3, 2), torch.float32),
    "layers.0.row": ((1, 9), torch.float32),
    "layers.1.bias": ((3,), torch.float16),
    "layers.1.wide": ((64, 33), torch.float32),
    "layers.1.empty": ((0, 4), torch.float32),
}


EXPERTS = {"up": ((4, 3), torch.bfloat16), "down": ((2, 9), torch.float32)}  # Of each expert-parallel rank.


def values(shape, dtype, *key):
    """Returns values that depend only on the key, on every rank, and whose low bits arithmetic would lose."""
    generator = torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))
    made = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    if made.numel() > 2:
        made.view(-1)[0], made.view(-1)[1] = -0.0, float("nan")
    return made


def topology(rank, tp=1, pp=1, dp=1, strided=False, ep=1):
    """Returns coordinates in NxD's order, tp fastest. strided: like tp=4 on trn1, where neighbours are in one
    dp group.
    """
    if strided:
        return Topology(rank // dp, tp, 0, 1, rank % dp, dp)
    if ep > 1:
        where = rank // tp % dp
        return Topology(
            rank % tp, tp, rank // (tp * dp), pp, where, dp, 0, 1, where % ep, ep, where // ep, dp // ep
        )
    return Topology(rank % tp, tp, rank // (tp * dp), pp, rank // tp % dp, dp)


class Far(torch.Tensor):
    """A tensor on a device "xla" that can only be copied to the CPU."""

    copies = []  # Bytes of each copy.

    @staticmethod
    def __new__(cls, near):
        made = torch.Tensor._make_wrapper_subclass(cls, near.shape, dtype=near.dtype, device="xla")
        made.near = near
        return made

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].near)
        if function is torch.ops.aten._to_copy.default:
            cls.copies.append(args[0].nbytes)
            return args[0].near.clone()
        if function is torch.ops.aten.zero_.default:
            args[0].near.zero_()
            return args[0]
        raise NotImplementedError(f"{function} on a far tensor")


def far(state):
    """Returns the state on the device "xla", with its attributes."""
    if isinstance(state, torch.Tensor):
        made = Far(state.detach())
        made.__dict__.update({name: mark for name, mark in state.__dict__.items() if name == "expert_model_parallel"})
        return made
    if isinstance(state, dict):
        return {key: far(value) for key, value in state.items()}
    return state


class Experts(torch.nn.Module):
    """The experts of this expert-parallel rank, marked in states as NxD's own module marks them."""

    def __init__(self, step, where):
        super().__init__()
        for name, (shape, dtype) in EXPERTS.items():
            key = (step, where.tp_rank, where.pp_rank, where.ep_rank, name)
            self.register_parameter(name, torch.nn.Parameter(values(shape, dtype, *key)))

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in EXPERTS:
            destination[prefix + name].expert_model_parallel = True


class Model(torch.nn.Module):
    """The part of one (tp, pp) rank, with tied weights and buffers."""

    def __init__(self, step, where):
        super().__init__()
        for name, (shape, dtype) in SHAPES.items():
            owner = self
            for folder in name.split(".")[:-1]:
                if not hasattr(owner, folder):
                    owner.add_module(folder, torch.nn.Module())
                owner = getattr(owner, folder)
            owner.register_parameter(
                name.split(".")[-1], torch.nn.Parameter(values(shape, dtype, step, where.tp_rank, where.pp_rank, name))
            )
        self.head = torch.nn.Module()
        self.head.weight = self.embed.weight
        if where.ep_size > 1:
            self.experts = Experts(step, where)
        self.register_buffer("count", torch.tensor(step))
        self.register_buffer("scale", values((5,), torch.float32, step, where.tp_rank, where.pp_rank, "scale"))


def shard(full, dp_rank, dp_size):
    """NxD's rule, implemented independently: padded along dimension 0 to a multiple of dp, one piece per
    rank.
    """
    rows = full.shape[0]
    padded = torch.cat([full, torch.zeros((-rows) % dp_size, *full.shape[1:], dtype=full.dtype)])
    return padded.chunk(dp_size)[dp_rank].clone() if rows else padded.clone()


class NeuronZero1Optimizer:
    """What a checkpoint sees of NxD's optimizer: two groups of parameters, their state cut over the
    data-parallel ranks, and master weights that equal the parameters. trained: their names.
    """

    def __init__(self, model, step, where, trained=tuple(SHAPES)):
        half = len(trained) // 2
        self._groups = [trained[:half], trained[half:]]
        self.param_groups = [
            {**self._options(step, number), "params": [model.get_parameter(name) for name in names]}
            for number, names in enumerate(self._groups)
        ]
        self._where, self._names = where, trained
        self.state = self.expected(step)

    def _options(self, step, number):
        return {"lr": 0.1 * step + number, "betas": [0.9, 0.999]}

    def _piece(self, full):
        return shard(full, self._where.dp_rank, self._where.dp_size)

    def expected(self, step):
        where, groups, begin = self._where, [], 0
        for number, names in enumerate(self._groups):
            groups.append({**self._options(step, number), "params": list(range(begin, begin + len(names)))})
            begin += len(names)
        made = {"state": {}, "param_groups": groups, "base_state": {}, "shape_info": {}, "sharded_master_weights": {}}
        for number, name in enumerate(self._names):
            shape, dtype = SHAPES[name]
            key = (step, where.tp_rank, where.pp_rank, name)
            made["base_state"][number] = {
                "step": torch.tensor(float(step)),
                "exp_avg": self._piece(values(shape, torch.float32, *key, "exp_avg")),
                "exp_avg_sq": self._piece(values(shape, torch.float32, *key, "exp_avg_sq")),
            }
            made["shape_info"][number] = list(shape)
            made["sharded_master_weights"][number] = self._piece(values(shape, dtype, *key).float())
        if where.ep_size > 1:
            made["ep_param_id_offset"] = made["ep_base_state_offset"] = made["ep_shape_info_offset"] = len(self._names)
            for number, (name, (shape, _)) in enumerate(EXPERTS.items(), start=len(self._names)):
                key = (step, where.tp_rank, where.pp_rank, where.ep_rank, name)
                piece = shard(values(shape, torch.float32, *key, "exp_avg"), where.edp_rank, where.edp_size)
                piece.expert_model_parallel = True
                made["base_state"][number] = {"step": torch.tensor(float(step)), "exp_avg": piece}
                made["shape_info"][number] = list(shape)
        return made

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class Scheduler:
    def __init__(self, step):
        self.state = {"last_epoch": step, "base_lrs": (0.01, 0.02)}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def adamw(model, step):
    """Returns torch's optimizer with state, without a step that would change the parameters."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.numel()], lr=1e-3 * step)
    names = [name for name in SHAPES if SHAPES[name][0][0]]
    for parameter, name in zip(optimizer.param_groups[0]["params"], names):
        optimizer.state[parameter] = {
            "step": torch.tensor(float(step)),
            "exp_avg": values(parameter.shape, parameter.dtype, step, name, "avg"),
            "exp_avg_sq": values(parameter.shape, parameter.dtype, step, name, "sq"),
        }
    return optimizer


def differences(a, b, where=""):
    """Returns where two states differ in a bit, a type or a name."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return [f"{where}: {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"]
        bits = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        return [] if torch.equal(*bits) else [f"{where}: other bytes"]
    if isinstance(a, dict) and isinstance(b, dict):
        if list(a.keys()) != list(b.keys()):
            return [f"{where}: {list(a)} and {list(b)}"]
        return [d for key in a for d in differences(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and type(a) is type(b) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b)) for d in differences(x, y, f"{where}[{i}]")]
    return [] if type(a) is type(b) and a == b else [f"{where}: {a!r} and {b!r}"]


def model_differences(model, step, where):
    return differences(dict(model.state_dict()), dict(Model(step, where).state_dict()))


def optimizer_for(model, step, where, zero1):
    return NeuronZero1Optimizer(model, step, where) if zero1 else adamw(model, step)


def save(nxd, root, step, where, zero1, on_far=False, **more):
    """Saves, and overwrites everything that was saved as soon as the call returns. on_far: the states are on
    a device.
    """
    model, scheduler, content = Model(step, where), Scheduler(step), {"step": step, "seen": [step]}
    optimizer = optimizer_for(model, step, where, zero1)
    saved = [model, optimizer]
    if on_far:
        saved = [far(dict(model.state_dict())), far(optimizer.state_dict())]
        more["zero1_optimizer"] = zero1
    nxd.save_checkpoint(root, f"step_{step}", *saved, scheduler, content, **more)
    content["seen"].append("later")
    scheduler.state["last_epoch"] = "later"
    with torch.no_grad():
        for tensor in [*model.state_dict().values(), *_tensors(optimizer.state)]:
            tensor.zero_()


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value.values() for t in _tensors(item)] if isinstance(value, dict) else []


def loaded_wrong(nxd, root, step, where, zero1, tag=None):
    """Returns which parts of a checkpoint differ from what was saved."""
    model, scheduler = Model(0, where), Scheduler(0)
    optimizer = optimizer_for(model, 0, where, zero1)
    content = nxd.load_checkpoint(root, tag, model, optimizer, scheduler)
    wrong = model_differences(model, step, where)
    if zero1:
        wrong += differences(optimizer.state, optimizer.expected(step))
    else:
        expected = adamw(Model(step, where), step).state_dict()
        wrong += differences(optimizer.state_dict()["state"], expected["state"])
        wrong += differences(optimizer.param_groups[0]["lr"], 1e-3 * step)
    wrong += differences(scheduler.state, Scheduler(step).state)
    return wrong + differences(content, {"step": step, "seen": [step]})
