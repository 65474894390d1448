"""Files that attack the unpickler are refused, whatever they hold, and nothing is changed."""

import io
import pickle
import struct
import tarfile
import zipfile

import ckptd
import nxd_job
import pytest
import torch
from ckptd._torch.reading import script_check
from ckptd.nxd import Topology, _loading, _pickles, _sources
from nxd_trees import load_rank, torch_save, xser_as_torch_xla
from checkpoint_files import saved, write_checkpoint

ALONE = Topology(rank=0, world_size=1)
OPTIM = "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt"
MODEL = "model/dp_rank_00_tp_rank_00_pp_rank_00.pt"


def archive(pickled, **more):
    """Returns a file that torch.load accepts as a checkpoint, with this pickle in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, data in {"data.pkl": pickled, "version": b"3\n", "byteorder": b"little", **more}.items():
            made.writestr(f"archive/{name}", data)
    return buffer.getvalue()


def script():
    return archive(pickle.dumps({}, 2), **{"constants.pkl": pickle.dumps((), 2)})


def tar():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        made.addfile(tarfile.TarInfo("storages"), io.BytesIO(b""))
    return buffer.getvalue()


def name(module, name):
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def text(value):
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


def pairs(**values):
    """Returns a pickled dict of these pickled values."""
    return pickle.MARK + b"".join(text(key) + value for key, value in values.items()) + pickle.DICT


def program(*operations):
    return pickle.PROTO + b"\x04" + b"".join(operations) + pickle.STOP


REFERENCE = name("torch_xla.utils.serialization", "TensorReference")
TENSOR = name("torch._utils", "_rebuild_tensor_v2")
NEW_REFERENCE = REFERENCE + pickle.EMPTY_TUPLE + pickle.NEWOBJ
STORAGE = (
    pickle.MARK + text("storage") + name("torch", "FloatStorage") + text("0") + text("cpu") + pickle.BININT1 + b"\x01"
    + pickle.TUPLE + pickle.BINPERSID
)
HOOKS = name("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
ONE = pickle.BININT1 + b"\x01" + pickle.TUPLE1
REST = pickle.BININT1 + b"\x00" + ONE + ONE + pickle.NEWFALSE  # Offset, shape, stride, requires_grad.
ARGUMENTS = pickle.MARK + STORAGE + REST + HOOKS + pickle.TUPLE
A_TENSOR = TENSOR + ARGUMENTS + pickle.REDUCE


def of_type(function, kind, state):
    return name("torch._tensor", "_rebuild_from_type_v2") + pickle.MARK + function + kind + ARGUMENTS + state + pickle.TUPLE + pickle.REDUCE


HOSTILE = {
    "a state for a class": (REFERENCE, pickle.NONE, pairs(tid=pickle.NONE), pickle.TUPLE2, pickle.BUILD),
    "a state for a function": (TENSOR, pickle.NONE, pairs(__defaults__=pickle.NONE), pickle.TUPLE2, pickle.BUILD),
    "a state for a storage's class": (
        name("torch.storage", "UntypedStorage"), pickle.NONE, pairs(tolist=pickle.NONE), pickle.TUPLE2, pickle.BUILD
    ),
    "a state for a tensor": (A_TENSOR, pairs(a=pickle.NONE), pickle.BUILD),
    "slots for a reference": (NEW_REFERENCE, pickle.NONE, pairs(tid=pickle.NONE), pickle.TUPLE2, pickle.BUILD),
    "a storage with an allocator of the file's": (
        name("torch.storage", "UntypedStorage"), pickle.EMPTY_TUPLE, pairs(allocator=pickle.BININT1 + b"\x08"),
        pickle.NEWOBJ_EX,
    ),
    "a storage that is called": (name("torch.storage", "UntypedStorage"), ONE, pickle.REDUCE),
    "a tensor that is called": (name("torch", "Tensor"), ONE, pickle.REDUCE),
    "a tensor that is made": (name("torch", "Tensor"), ONE, pickle.NEWOBJ),
    "a storage that is made the old way": (pickle.MARK, ONE, pickle.INST, b"torch.storage\nUntypedStorage\n"),
    "a storage that is made the other old way": (pickle.MARK, name("torch.storage", "UntypedStorage"), ONE, pickle.OBJ),
    "a codec": (name("_codecs", "encode"), text("x"), text("rot13"), pickle.TUPLE2, pickle.REDUCE),
    "a tensor with hooks": (
        TENSOR, pickle.MARK, STORAGE, REST, pairs(a=name("collections", "OrderedDict")), pickle.TUPLE, pickle.REDUCE
    ),
    "a tensor's own attribute": (of_type(TENSOR, name("torch", "Tensor"), pairs(data=A_TENSOR)),),
    "a tensor's hidden attribute": (of_type(TENSOR, name("torch", "Tensor"), pairs(_backward_hooks=pickle.NONE)),),
    "a tensor's class": (of_type(TENSOR, name("torch", "Tensor"), pairs(__class__=REFERENCE)),),
    "a tensor with slots": (
        of_type(TENSOR, name("torch", "Tensor"), pickle.NONE + pairs(data=A_TENSOR) + pickle.TUPLE2),
    ),
    "another function for a tensor": (of_type(name("collections", "OrderedDict"), name("torch", "Tensor"), pickle.NONE),),
    "another class for a tensor": (of_type(TENSOR, REFERENCE, pickle.NONE),),
    "a module behind a dot": (name("torch", "nn.functional"),),
    "a type": (name("torch", "Generator"),),
}
ONE_FLOAT = {"data/0": b"\0\0\0\0"}


def snapshot():
    kinds = (_pickles.TensorReference, torch.UntypedStorage, torch.Tensor)
    return [sorted(vars(kind)) for kind in kinds], torch._utils._rebuild_tensor_v2.__defaults__


@pytest.mark.parametrize("what", HOSTILE)
def test_unpickler_operations_on_other_objects_are_refused(tmp_path, what):
    before = snapshot()
    path = tmp_path / "t" / OPTIM
    path.parent.mkdir(parents=True)
    path.write_bytes(archive(program(*HOSTILE[what]), **ONE_FLOAT))
    with pytest.raises((ckptd.Refused, ckptd.Corrupt)) as caught:
        load_rank(tmp_path, "t", ALONE, optimizer={})
    assert caught.value.reason == "UNSAFE_GLOBALS" or isinstance(caught.value.__cause__, pickle.UnpicklingError)
    assert snapshot() == before


def test_unpickler_operations_on_objects_of_states_are_allowed(tmp_path):
    """Shows that the attacks above are refused for no other reason."""
    ordered = name("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    for operations in (
        (NEW_REFERENCE, pairs(tid=pickle.BININT1 + b"\x03"), pickle.BUILD),
        (ordered, pairs(_metadata=pickle.EMPTY_DICT), pickle.BUILD),
        (A_TENSOR,),
        (of_type(TENSOR, name("torch", "Tensor"), pairs(expert_model_parallel=pickle.NEWTRUE)),),
        (of_type(TENSOR, name("torch", "Tensor"), pairs(partition_dim=pickle.NONE) + pickle.EMPTY_DICT + pickle.TUPLE2),),
        (name("_codecs", "encode"), text("x"), text("latin1"), pickle.TUPLE2, pickle.REDUCE),
    ):
        data = archive(program(*operations), **ONE_FLOAT)
        assert _pickles.load(io.BytesIO(data), "f") is not None


MARKED = {"dense": torch.ones(2), "up": torch.full((3,), 2.0), "old": torch.nn.Parameter(torch.zeros(2))}
MARKED["up"].expert_model_parallel = True
MARKED["old"].expert_model_parallel = True


@pytest.mark.parametrize("use_xser", [False, True])
def test_expert_marks_pickled_with_the_tensors_are_read(tmp_path, use_xser):
    """NxD writes such tensors on the CPU, and ckptd 0.1.0 wrote them."""
    (xser_as_torch_xla if use_xser else torch_save)(tmp_path / "t", MODEL, dict(MARKED))
    target = {}
    load_rank(tmp_path, "t", ALONE, model=target)
    assert nxd_job.differences({k: v.detach() for k, v in target.items()}, {k: v.detach() for k, v in MARKED.items()}) == []
    assert target["up"].expert_model_parallel is target["old"].expert_model_parallel is True
    into = {key: torch.zeros(value.shape) for key, value in MARKED.items()}
    load_rank(tmp_path, "t", ALONE, model=into)
    assert torch.equal(into["up"], MARKED["up"].detach())


def test_expert_files_are_completed_from_the_first_expert(tmp_path):
    """xser of NxD: what all experts share is in the folder of the first expert-parallel rank alone."""
    world = [nxd_job.topology(rank, dp=2, ep=2) for rank in range(2)]
    for where in world:
        path = f"model/dp_rank_00_ep_rank_{where.ep_rank:02d}_tp_rank_00_pp_rank_00.pt"
        state = dict(nxd_job.Model(3, where).state_dict())
        xser_as_torch_xla(tmp_path / "t", path, state, shared=where.ep_rank == 0)
    for where in world:
        model = nxd_job.Model(0, where)
        load_rank(tmp_path, "t", where, model=model)
        assert nxd_job.model_differences(model, 3, where) == []


class Allowed:
    """A class that a user allows."""

    def __eq__(self, other):
        return type(other) is Allowed


class AllowedTensor(torch.Tensor):
    pass


def test_classes_that_the_user_allows_are_allowed_in_every_file(tmp_path):
    tensor = torch.ones(2).as_subclass(AllowedTensor)
    tensor.note = 3
    state = {"a": tensor, "b": Allowed()}
    torch_save(tmp_path, f"plain/{OPTIM}", state)
    xser_as_torch_xla(tmp_path / "xser", OPTIM, state)
    for tag in ("plain", "xser"):
        target = {}
        with pytest.raises(ckptd.Refused, match="Allowed"):
            load_rank(tmp_path, tag, ALONE, optimizer=target)
        for classes in (_sources.Classes(anything=True), _sources.Classes((Allowed, AllowedTensor))):
            load_rank(tmp_path, tag, ALONE, allowed=_loading.AllowedClasses(classes), optimizer=target)
            assert type(target["a"]) is AllowedTensor and target["a"].note == 3 and target["b"] == Allowed()
            target.clear()


# ---- archives that torch would run or unpack


@pytest.fixture
def seen(monkeypatch):
    """Records the calls of torch.jit.load."""
    calls = []
    monkeypatch.setattr(torch.jit, "load", lambda *args, **named: calls.append(args) or "ran")
    return calls


@pytest.mark.parametrize("make, kind", [(script, "a TorchScript archive"), (tar, "a tar archive")])
@pytest.mark.parametrize("file", [MODEL, f"{MODEL}.info.pt", f"{MODEL}.tensors/tensor_0.pt", OPTIM, "user_content.pt"])
def test_archives_that_torch_would_run_are_refused_in_every_file_of_nxd(tmp_path, seen, make, kind, file):
    xser_as_torch_xla(tmp_path / "t", MODEL, {"a": torch.ones(2)})
    torch_save(tmp_path, f"t/{OPTIM}", {})
    (tmp_path / "t" / file).write_bytes(make())
    allowed = _loading.AllowedClasses(others=_sources.Classes())
    with pytest.raises(ckptd.Refused, match=f"{file} of t holds {kind}") as caught:
        load_rank(tmp_path, "t", ALONE, allowed=allowed, model={"a": torch.zeros(2)}, optimizer={})
    assert caught.value.reason == "UNSAFE_GLOBALS" and not seen


@pytest.mark.parametrize("make, kind", [(script, "a TorchScript archive"), (tar, "a tar archive")])
def test_archives_that_torch_would_run_are_refused_in_committed_checkpoints(tmp_path, seen, make, kind):
    write_checkpoint(tmp_path, "t", 1, {"f.pt": make(), "good.pt": saved({"a": torch.ones(2)})})
    with ckptd.open_root(tmp_path).open("t") as checkpoint:
        for more in ({}, {"into": {"a": torch.zeros(2)}}, {"mmap": True}):
            with pytest.raises(ckptd.Refused, match=f"f.pt of t holds what weights_only=True refuses .{kind}") as caught:
                checkpoint.load("f.pt", **more)
            assert caught.value.reason == "UNSAFE_GLOBALS" and not seen
            checkpoint.load("good.pt", **more)
        if make is script:
            assert checkpoint.load("f.pt", weights_only=False) == "ran"  # The user trusts the file.


def test_archive_that_becomes_a_script_after_the_check_is_not_run():
    """Another process may write the file between two reads of it."""
    plain = saved({"a": 1})

    class Changing(io.BytesIO):
        def change(self):
            self.seek(0)
            self.truncate()
            self.write(script())
            self.seek(0)

    def refuse(kind):
        return ckptd.Refused(kind, reason="UNSAFE_GLOBALS")

    file = Changing(plain)
    checked = script_check.checked(file, refuse)
    file.change()
    with pytest.raises(ckptd.Refused, match="a TorchScript archive"):
        torch.load(checked, weights_only=False, pickle_module=pickle)


def test_safe_file_is_read_from_its_present_position():
    for data in (saved({"a": 1}), b"", b"PK", b"\0" * 2000, b"x" * 2000):
        file = io.BytesIO(b"before" + data)
        file.seek(6)
        if data.startswith(b"PK\x03\x04"):
            file = io.BytesIO(data)
        at = file.tell()
        assert script_check.checked(file, AssertionError).tell() == at
