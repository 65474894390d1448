"""PyTorch Distributed Checkpoint: values, names, and what a load into a state does."""

from __future__ import annotations

import os
import pathlib
import shutil
import warnings
from typing import Any, Callable

import torch
from conformance.case import FAILURE, bytes_of, case, expect, expect_same, flip_a_byte, in_a_child, kill, on_ranks, refused, train

AREA = "PyTorch Distributed Checkpoint"


@case(AREA, "dcp")
def dcp_every_dtype(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Tensors of every dtype come back bit by bit."""
    state = {}
    for name in "float64 float32 float16 bfloat16 float8_e4m3fn complex64 int64 int32 int16 int8 uint8 bool".split():
        dtype = getattr(torch, name)
        raw = torch.arange(64, dtype=torch.uint8)
        state[name] = raw % 2 == 0 if dtype == torch.bool else raw.view(dtype)
    writer.save(folder / "runs/step-1", state)
    got = reader.load(folder / "runs/step-1", {name: torch.zeros_like(tensor) for name, tensor in state.items()})
    expect_same(got, state)


@case(AREA, "dcp")
def dcp_shapes_and_strides(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Empty, scalar, transposed and sliced tensors come back, into targets with other strides too."""
    x = torch.arange(24.0).reshape(4, 6)
    state = {"empty": torch.empty(0, 3), "scalar": torch.tensor(2.5), "transposed": x.t(), "stepped": x[:, ::2]}
    writer.save(folder / "runs/step-1", state)
    target = {"empty": torch.ones(0, 3), "scalar": torch.tensor(0.0), "transposed": torch.zeros(6, 4), "stepped": torch.zeros(3, 4).t()}
    expect_same(reader.load(folder / "runs/step-1", target), state)


@case(AREA, "dcp")
def dcp_small_view_of_a_large_tensor(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A slice of a large tensor takes the room of the slice."""
    writer.save(folder / "runs/step-1", {"x": torch.randn(1_000_000)[:10]})
    expect(bytes_of(folder / "runs/step-1") < 100_000, "the whole tensor was written")


@case(AREA, "dcp")
def dcp_objects_beside_tensors(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Numbers, texts and nested containers beside tensors come back."""
    state = {"step": 7, "name": "run", "nested": {"lr": [0.1, 0.2], "empty": {}}, "w": torch.ones(2)}
    writer.save(folder / "runs/step-1", state)
    got = reader.load(folder / "runs/step-1", {"step": 0, "name": "", "nested": {"lr": [0.0, 0.0], "empty": {}}, "w": torch.zeros(2)})
    expect_same(got, state)


@case(AREA, "dcp")
def dcp_tied_parameters(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Tied parameters load into tied parameters."""
    weight = torch.randn(100, 10)
    writer.save(folder / "runs/step-1", {"a": weight, "b": weight})
    target = torch.zeros(100, 10)
    expect_same(reader.load(folder / "runs/step-1", {"a": target, "b": target})["a"], weight)


@case(AREA, "dcp", "pytorch/pytorch#144657")
def dcp_async_save_of_a_state_that_changes(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """An async save has the values of its call, whatever training does meanwhile."""
    state = {"w": torch.ones(2_000_000), "step": 1}
    saved = writer.async_save(folder / "runs/step-1", state)
    state["w"].fill_(2.0)
    saved.result(60)
    expect_same(reader.load(folder / "runs/step-1", {"w": torch.zeros(2_000_000), "step": 0}), {"w": torch.ones(2_000_000), "step": 1})


@case(AREA, "dcp")
def dcp_two_async_saves_at_once(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Two async saves, the second before the first has ended, are both whole."""
    saves = [writer.async_save(folder / f"runs/step-{i}", {"w": torch.full((500_000,), float(i))}) for i in (1, 2)]
    for each in saves:
        each.result(60)
    for i in (1, 2):
        expect_same(reader.load(folder / f"runs/step-{i}", {"w": torch.zeros(500_000)})["w"], torch.full((500_000,), float(i)))


@case(AREA, "dcp", "google/orbax#605")
def dcp_failure_of_an_async_save(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """An async save that fails says so to whoever asks for its result."""
    (folder / "runs").write_text("a file where the folder should be")
    with refused():
        writer.async_save(folder / "runs/step-1", {"w": torch.ones(10)}).result(60)


@case(AREA, "dcp")
def dcp_missing_key(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A load that asks for a key which was not saved is refused, and names it."""
    writer.save(folder / "runs/step-1", {"a": torch.ones(2)})
    try:
        reader.load(folder / "runs/step-1", {"a": torch.zeros(2), "missing.key": torch.zeros(2)})
    except FAILURE as error:
        expect("missing.key" in str(error), f"the error does not name the key: {error}")
    else:
        expect(False, "it was accepted without an error")


@case(AREA, "dcp")
def dcp_key_that_is_not_asked_for(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Keys that the state to load does not have are left out."""
    writer.save(folder / "runs/step-1", {"a": torch.ones(2), "b": torch.ones(3)})
    expect_same(reader.load(folder / "runs/step-1", {"a": torch.zeros(2)}), {"a": torch.ones(2)})


@case(AREA, "dcp", "pytorch/pytorch#126604")
def dcp_another_shape(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A load into a tensor of another shape is refused."""
    writer.save(folder / "runs/step-1", {"a": torch.ones(4, 4)})
    with refused():
        reader.load(folder / "runs/step-1", {"a": torch.zeros(8, 4)})


@case(AREA, "dcp")
def dcp_another_dtype(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A load into a tensor of another floating dtype converts, as copy_ does."""
    writer.save(folder / "runs/step-1", {"a": torch.tensor([1.5, 2.5])})
    expect_same(reader.load(folder / "runs/step-1", {"a": torch.zeros(2, dtype=torch.float64)})["a"], torch.tensor([1.5, 2.5], dtype=torch.float64))


@case(AREA, "dcp", "pytorch/pytorch#138575", "pytorch/torchtitan#647")
def dcp_load_keeps_the_objects_of_the_state(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A load fills the stateful objects of the state, and does not put others in their place."""

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def state_dict(self) -> Any:
            return {"count": self.count}

        def load_state_dict(self, state: Any) -> None:
            self.count = state["count"]

    saved, loaded = Counter(), Counter()
    saved.count = 5
    writer.save(folder / "runs/step-1", {"counter": saved})
    state = {"counter": loaded}
    reader.load(folder / "runs/step-1", state)
    expect(state["counter"] is loaded, "the state has another object now")
    expect(loaded.count == 5, f"the count is {loaded.count}")


@case(AREA, "dcp", "pytorch/torchtitan#4011")
def dcp_flipped_bit(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A bit that has flipped on the disk is found, and no other value is loaded."""
    writer.save(folder / "runs/step-1", {"w": torch.arange(50_000.0)})
    # Another process loads, so nothing is in memory: damage both the data that is read and its copy on disk.
    flip_a_byte(folder / "runs/step-1", torch.arange(50_000.0)[20_000:20_010].numpy().tobytes())
    shutil.copytree(folder / "runs/step-1", folder / "elsewhere/step-1")
    try:
        got = reader.load(folder / "elsewhere/step-1", {"w": torch.zeros(50_000)})
    except FAILURE:
        return
    expect_same(got["w"], torch.arange(50_000.0), "w")


@case(AREA, "dcp", "facebookresearch/metaseq#53")
def dcp_file_that_was_cut(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A file that was cut, or is empty, is refused."""
    writer.save(folder / "runs/step-1", {"w": torch.arange(50_000.0)})
    shutil.copytree(folder / "runs/step-1", folder / "elsewhere/step-1")
    data = max((folder / "elsewhere/step-1").glob("*.distcp"), key=lambda path: path.stat().st_size)
    os.truncate(data, data.stat().st_size // 2)
    with refused():
        reader.load(folder / "elsewhere/step-1", {"w": torch.zeros(50_000)})


@case(AREA, "dcp", "pytorch/torchtitan#315", "axolotl-ai-cloud/axolotl#554")
def dcp_without_metadata(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A folder whose .metadata is missing is refused, with the file named."""
    writer.save(folder / "runs/step-1", {"w": torch.ones(10)})
    shutil.copytree(folder / "runs/step-1", folder / "elsewhere/step-1")
    (folder / "elsewhere/step-1/.metadata").unlink()
    with refused():
        reader.load(folder / "elsewhere/step-1", {"w": torch.zeros(10)})


@case(AREA, "dcp", "meta-pytorch/tnt#559")
def dcp_folder_without_a_checkpoint_is_not_the_newest(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A folder with the highest step in which nothing was ever committed is not resumed from."""
    writer.save(folder / "runs/step-1", {"w": torch.ones(10)})
    (folder / "runs/step-2").mkdir()
    (folder / "runs/step-2/__0_0.distcp").write_bytes(b"half")
    newest = reader.newest(folder / "runs")
    expect(newest is not None and newest.name == "step-1", f"the newest is {newest and newest.name}")


@case(AREA, "dcp")
def dcp_saved_again_over_a_larger_one(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A smaller state that is saved to the same name leaves nothing of the larger one."""
    writer.save(folder / "runs/step-1", {"x": torch.ones(100_000)})
    writer.save(folder / "runs/step-1", {"x": torch.zeros(10)})
    expect_same(reader.load(folder / "runs/step-1", {"x": torch.ones(10)}), {"x": torch.zeros(10)})
    expect(bytes_of(folder / "runs/step-1") < 50_000, "bytes of the larger one are left")


@case(AREA, "dcp")
def dcp_load_of_some_tensors(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A tool loads one tensor of a large checkpoint without a model."""
    writer.save(folder / "runs/step-1", {"model": {"a": torch.ones(3), "b": torch.ones(300_000)}, "step": 9})
    expect_same(reader.load(folder / "runs/step-1", {"model": {"a": torch.zeros(3)}}), {"model": {"a": torch.ones(3)}})


@case(AREA, "dcp")
def dcp_to_torch_save_and_back(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """DCP's own converter to a file of torch.save reads the checkpoint."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    writer.save(folder / "runs/step-1", {"w": torch.arange(5.0)})
    dcp_to_torch_save(str(folder / "runs/step-1"), str(folder / "all.pt"))
    expect_same(torch.load(folder / "all.pt"), {"w": torch.arange(5.0)})


@case(AREA, "dcp")
def dcp_key_with_dots_and_slashes(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Keys with dots, slashes and other characters do not run into each other."""
    state = {"a": {"b": torch.tensor(1.0)}, "a/b": torch.tensor(3.0), "ключ": torch.tensor(4.0)}
    writer.save(folder / "runs/step-1", state)
    got = reader.load(folder / "runs/step-1", {"a": {"b": torch.tensor(0.0)}, "a/b": torch.tensor(0.0), "ключ": torch.tensor(0.0)})
    expect_same(got, state)


@case(AREA, "dcp")
def dcp_keys_that_flatten_to_one(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Two keys that the flattening of names makes one, "a.b" and "b" in "a", are refused or both kept."""
    state = {"a": {"b": torch.tensor(1.0)}, "a.b": torch.tensor(2.0)}
    try:
        writer.save(folder / "runs/step-1", state)
    except FAILURE:
        return
    got = reader.load(folder / "runs/step-1", {"a": {"b": torch.tensor(0.0)}, "a.b": torch.tensor(0.0)})
    expect_same(got, state)


@case(AREA, "dcp", "pytorch/pytorch#132628", "pytorch/pytorch#143828")
def dcp_optimizer_state(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Model and optimizer, by get_state_dict and set_state_dict, go on as they would have without a restore."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, 3)
    weights, state = get_state_dict(model, optimizer)
    writer.save(folder / "runs/step-3", {"model": weights, "optimizer": state})
    train(model, optimizer, 3)

    other = torch.nn.Linear(8, 8)
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=1.0)
    weights, state = get_state_dict(other, other_optimizer)
    got = reader.load(folder / "runs/step-3", {"model": weights, "optimizer": state})
    set_state_dict(other, other_optimizer, model_state_dict=got["model"], optim_state_dict=got["optimizer"])
    train(other, other_optimizer, 3)
    expect_same(dict(other.state_dict()), dict(model.state_dict()), "the model after three more steps")


@case(AREA, "dcp", "huggingface/accelerate#3971")
def dcp_optimizer_with_frozen_parameters(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The optimizer of a model with frozen layers comes back with the steps that it has counted."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def make() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        model[0].requires_grad_(False)
        return model, torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])

    model, optimizer = make()
    train(model, optimizer, 3)
    weights, state = get_state_dict(model, optimizer)
    writer.save(folder / "runs/step-3", {"model": weights, "optimizer": state})
    other, other_optimizer = make()
    weights, state = get_state_dict(other, other_optimizer)
    got = reader.load(folder / "runs/step-3", {"model": weights, "optimizer": state})
    set_state_dict(other, other_optimizer, model_state_dict=got["model"], optim_state_dict=got["optimizer"])
    expect_same(dict(other.state_dict()), dict(model.state_dict()))
    steps = {int(each["step"]) for each in other_optimizer.state.values()}
    expect(steps == {3}, f"the optimizer has counted {steps}")


@case(AREA, "dcp", "pytorch/pytorch#163548")
def dcp_ten_thousand_tensors(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A state of ten thousand small tensors is saved within the deadline and comes back whole."""
    state = {f"layer.{i}.bias": torch.full((3,), float(i)) for i in range(10_000)}
    writer.save(folder / "runs/step-1", state)
    got = reader.load(folder / "runs/step-1", {name: torch.zeros(3) for name in state})
    expect_same(got, state)


@case(AREA, "dcp", "pytorch/torchtitan#930")
def dcp_load_right_after_an_async_save(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A load of a name that is being saved gives the new state, or says that it is not there yet."""
    saved = writer.async_save(folder / "runs/step-1", {"w": torch.full((2_000_000,), 7.0)})
    try:
        got = reader.load(folder / "runs/step-1", {"w": torch.zeros(2_000_000)})
    except FAILURE:
        got = None
    saved.result(60)
    if got is not None:
        expect_same(got["w"], torch.full((2_000_000,), 7.0))


@case(AREA, "dcp", "NVIDIA/nvidia-resiliency-ext#376")
def dcp_async_save_of_objects_that_change(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """An async save has the lists and numbers of its call, too."""
    history = [1, 2, 3]
    saved = writer.async_save(folder / "runs/step-1", {"history": history, "w": torch.ones(500_000)})
    history.append(4)
    saved.result(60)
    got = reader.load(folder / "runs/step-1", {"history": [0, 0, 0], "w": torch.zeros(500_000)})
    expect_same(got["history"], [1, 2, 3], "history")


@case(AREA, "dcp")
def dcp_ten_async_saves_without_a_wait(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Ten async saves that nobody waits for are all whole in the end."""
    saves = [writer.async_save(folder / f"runs/step-{i}", {"w": torch.full((200_000,), float(i))}) for i in range(10)]
    for each in saves:
        each.result(60)
    for i in range(10):
        expect_same(reader.load(folder / f"runs/step-{i}", {"w": torch.ones(200_000)})["w"], torch.full((200_000,), float(i)))


@case(AREA, "dcp", "pytorch/pytorch#170163", "pytorch/pytorch#187996", "marin-community/marin#6774", crosswise=False)
def dcp_memory_after_many_async_saves(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Twenty async saves of 16 MB leave no more memory taken than a few of them need."""

    def resident() -> int:
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

    state = {"w": torch.ones(4_000_000)}
    for i in range(4):
        writer.async_save(folder / f"runs/step-{i}", state).result(60)
    before = resident()
    for i in range(4, 24):
        writer.async_save(folder / f"runs/step-{i}", state).result(60)
    grown = (resident() - before) >> 20
    expect(grown < 100, f"the process has grown by {grown} MiB")


@case(AREA, "dcp", "InternLM/xtuner#1859", crosswise=False)
def dcp_descriptors_after_many_saves(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """Twenty saves and loads leave no descriptors open."""
    state = {f"w{i}": torch.ones(100) for i in range(100)}
    for i in range(3):
        writer.async_save(folder / f"runs/step-{i}", state).result(60)
    before = len(os.listdir("/proc/self/fd"))
    for i in range(3, 23):
        writer.async_save(folder / f"runs/step-{i}", state).result(60)
        reader.load(folder / f"runs/step-{i}", {name: torch.zeros(100) for name in state})
    grown = len(os.listdir("/proc/self/fd")) - before
    expect(grown < 10, f"there are {grown} more descriptors")


@case(AREA, "dcp", "sgl-project/sglang#40723", "pytorch/pytorch#26009", crosswise=False)
def dcp_nothing_left_in_shared_memory(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A process that was killed in the middle of its saves leaves nothing in /dev/shm."""

    def work(ready: Callable[[], None]) -> None:
        library = type(writer)()
        for i in range(1000):
            library.async_save(folder / f"runs/step-{i}", {"w": torch.ones(4_000_000)})
            if i == 2:
                ready()

    before = set(os.listdir("/dev/shm"))
    kill(in_a_child(work))
    left = set(os.listdir("/dev/shm")) - before
    expect(not left, f"it has left {sorted(left)[:3]}")


@case(AREA, "dcp")
def dcp_without_a_tensor(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A state of objects alone, with None, bytes and an empty list, comes back."""
    state = {"step": 3, "nothing": None, "raw": b"\0\1", "list": []}
    writer.save(folder / "runs/step-1", state)
    expect_same(reader.load(folder / "runs/step-1", {"step": 0, "nothing": 1, "raw": b"", "list": []}), state)


@case(AREA, "dcp")
def dcp_partial_load(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A planner that allows partial loads leaves keys that were not saved as they are."""
    from torch.distributed.checkpoint import DefaultLoadPlanner

    writer.save(folder / "runs/step-1", {"a": torch.ones(2)})
    target = {"a": torch.zeros(2), "new": torch.full((2,), 5.0)}
    got = reader.load(folder / "runs/step-1", target, planner=DefaultLoadPlanner(allow_partial_load=True))
    expect_same(got, {"a": torch.ones(2), "new": torch.full((2,), 5.0)})


@case(AREA, "dcp")
def dcp_dtensor_to_a_plain_tensor(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A sharded tensor (DTensor) is loaded into a plain one, and the other way round."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    values = torch.arange(12.0).reshape(4, 3)
    writer.save(folder / "runs/step-1", {"w": distribute_tensor(values.clone(), mesh, [Shard(0)])})
    expect_same(reader.load(folder / "runs/step-1", {"w": torch.zeros(4, 3)})["w"], values)
    writer.save(folder / "runs/step-2", {"w": values})
    got = reader.load(folder / "runs/step-2", {"w": distribute_tensor(torch.zeros(4, 3), mesh, [Shard(1)])})
    expect_same(got["w"].full_tensor(), values)


@case(AREA, "dcp", crosswise=False)
def dcp_some_ranks_of_a_job(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """The ranks of a process group save and load without the others, to the folder of a run that all ranks save to."""

    def of_rank(rank: int) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
        group = dist.new_group([1, 2])
        library = type(writer)()
        library.save(folder / "runs/step-1", {f"of rank {rank}": torch.ones(3)}, no_dist=False)
        if rank in (1, 2):
            library.save(folder / "runs/step-2", {f"of rank {rank}": torch.full((3,), 1.0 * rank)}, no_dist=False, process_group=group)
            got = library.load(folder / "runs/step-2", {"of rank 2": torch.zeros(3)}, no_dist=False, process_group=group)
            expect_same(got, {"of rank 2": torch.full((3,), 2.0)})
        library.save(folder / "runs/step-3", {f"of rank {rank}": torch.ones(3)}, no_dist=False)
        dist.destroy_process_group()

    children = []
    for rank in range(3):
        child = os.fork()
        if child == 0:
            try:
                of_rank(rank)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    expect(not any(statuses), f"the ranks have ended with {statuses}")
    expect((folder / "runs/step-3").is_dir(), "the last save of all ranks is not there")


@case(AREA, "dcp")
def dcp_writer_and_reader_of_a_program(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A program may make the writer and the reader itself, with several threads, and call the functions of older releases."""
    import torch.distributed.checkpoint as dcp

    want = {"a": torch.arange(1000.0), "b": torch.ones(3, 4, dtype=torch.bfloat16)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for threads in (1, 2):
            path = folder / f"runs/step-{threads}"
            dcp.save_state_dict(state_dict=want, storage_writer=writer.writer(path, thread_count=threads), no_dist=True)
            got = {"a": torch.zeros(1000), "b": torch.zeros(3, 4, dtype=torch.bfloat16)}
            dcp.load_state_dict(state_dict=got, storage_reader=reader.reader(path), no_dist=True)
            expect_same(got, want)


@case(
    AREA, "dcp", crosswise=False,
    reason="its files are laid out before they are written, and an extension makes a stream of unknown size of each; the writer refuses "
    "`_extensions` when it is made, and names DCP's own, which still works after `install()`",
)  # fmt: skip
def dcp_extension_of_the_writer(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """An extension of the writer, such as one that compresses, is undone by the reader."""
    import torch.distributed.checkpoint as dcp
    from torch.testing._internal.distributed import checkpoint_utils

    path = folder / "runs/step-1"
    dcp.save({"a": torch.arange(100.0)}, storage_writer=writer.writer(path, _extensions=[checkpoint_utils.Rot13Example()]))
    got = {"a": torch.zeros(100)}
    dcp.load(got, storage_reader=reader.reader(path, _extension_registry=checkpoint_utils.get_test_extension_registry()))
    expect_same(got["a"], torch.arange(100.0))


@case(AREA, "dcp")
def dcp_sharded_tensor_onto_other_shards(writer: Any, reader: Any, folder: pathlib.Path) -> None:
    """A tensor that two ranks have in shards (ShardedTensor) is loaded into other shards: more, unequal, and of the other dimension."""

    def work(rank: int) -> None:
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed._shard import sharded_tensor
        from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata

        os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), CKPTD_LAUNCH_ID=str(folder))
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
        rows = [(0, 2, 0), (2, 1, 1), (3, 3, 0), (6, 4, 1)]
        unequal = [ShardMetadata([first, 0], [count, 20], f"rank:{of}") for first, count, of in rows]
        specs = [
            ChunkShardingSpec(0, ["rank:0", "rank:1"]),
            ChunkShardingSpec(0, ["rank:0", "rank:1", "rank:1", "rank:0"]),
            ChunkShardingSpec(1, ["rank:1", "rank:0"]),
            EnumerableShardingSpec(unequal),
        ]
        for number, saved in enumerate(specs):
            path = folder / f"runs/step-{number}"
            tensor = sharded_tensor.rand(saved, 10, 20)
            writer.choose()
            dcp.save({"a": tensor}, checkpoint_id=str(path))
            for loaded in specs:
                target = sharded_tensor.zeros(loaded, 10, 20)
                reader.choose()
                dcp.load({"a": target}, checkpoint_id=str(path))
                whole = [torch.zeros(10, 20) if rank == 0 else None for _ in range(2)]
                target.gather(out=whole[0])
                tensor.gather(out=whole[1])
                if rank == 0:
                    expect_same(*whole, f"the tensor of {saved} in {loaded}")

    on_ranks(2, work)
