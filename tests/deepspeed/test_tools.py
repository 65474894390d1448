"""DeepSpeed's own tools read what ckptd has saved, and the way back."""

import os

import pytest
from job_nodes import ON_ONE_AND_TWO_NODES


def saved(pair, root, make):
    pair.do(f"made = {make}; states.train(made, 2)\nmade.checkpoint_engine = CheckpointEngine(wait='committed')")
    pair.do(f"made.save_checkpoint({root!r})")


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_weights_are_recovered_by_the_script_beside_the_checkpoints(pair, root, stage):
    saved(pair, root, f"states.engine({stage}, 'bf16')")
    assert os.access(f"{root}/zero_to_fp32.py", os.X_OK)
    loads = "import importlib.util\n"
    loads += f"spec = importlib.util.spec_from_file_location('script', {root + '/zero_to_fp32.py'!r})\n"
    loads += "script = importlib.util.module_from_spec(spec); spec.loader.exec_module(script)\n"
    found = f"found = script.get_fp32_state_dict_from_zero_checkpoint({root!r})\n"
    same = "from deepspeed.utils import safe_get_full_fp32_param as full\n"
    same += "states.differences({n: full(p) for n, p in made.module.named_parameters()}, {n: found[n] for n, _ in made.module.named_parameters()})"
    assert pair.do(loads + found + same) == [[], []]


def test_upstreams_functions_wait_for_the_save_before(new_ranks, root):
    pair = new_ranks(2)
    pair.do(
        "from deepspeed.utils import zero_to_fp32 as tool\n"
        "from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint as get\n"
        # As a program that has imported it by its name before install().
        "import types; sys.modules['program'] = program = types.ModuleType('program')\n"
        "program.get_fp32_state_dict_from_zero_checkpoint = get\n"
        "ckptd.deepspeed.install(); made = states.engine(1); states.train(made, 2)\n"
        "from deepspeed.utils import safe_get_full_fp32_param as full\n"
        "wanted = {n: full(p) for n, p in made.module.named_parameters()}"
    )
    for number, recover in enumerate(
        [
            "tool.get_fp32_state_dict_from_zero_checkpoint(path)",
            "program.get_fp32_state_dict_from_zero_checkpoint(path)",
            "dict(tool.load_state_dict_from_zero_checkpoint(states.Net(), path).named_parameters())",
            "(tool.convert_zero_checkpoint_to_fp32_state_dict(path, out), torch.load(out + '/pytorch_model.bin'))[1]",
        ]
    ):
        path = f"{root}/{chr(ord('a') + number)}"
        pair.do(f"path, out = {path!r}, {path!r} + f'-out-{{dist.get_rank()}}'; os.mkdir(path) if dist.get_rank() == 0 else None")
        # The save is sealed, and not yet committed, when save_checkpoint() returns.
        found = pair.do(f"made.save_checkpoint(path); found = {recover}; states.differences(wanted, {{n: found[n] for n in wanted}})")
        assert found == [[], []], recover


def test_recovery_scripts_are_written_only_where_they_are_missing_or_differ(pair, root):
    def written():
        return {name: os.stat(f"{root}/{name}").st_mtime_ns for name in os.listdir(root) if name.endswith(".py")}

    saved(pair, root, "states.engine(1)")
    first = written()
    pair.do(f"made.save_checkpoint({root!r}, 'a')")
    assert written() == first and "zero_to_fp32.py" in first
    with open(f"{root}/zero_to_fp32.py", "a") as file:
        file.write("changed")
    pair.do(f"made.save_checkpoint({root!r}, 'b')")
    with open(f"{root}/zero_to_fp32.py") as file:
        assert not file.read().endswith("changed")
    os.chmod(f"{root}/zero_to_torch.py", 0o644)
    os.unlink(f"{root}/zero_to_fp32.py")
    pair.do(f"made.save_checkpoint({root!r}, 'c')")
    assert all(os.access(f"{root}/{name}", os.X_OK) for name in first)


@pytest.mark.parametrize("stage", [1, 3])
def test_universal_checkpoint_of_deepspeeds_tool_loads_through_ckptd(pair, root, stage):
    saved(pair, root, f"states.engine({stage})")
    convert = (
        "from deepspeed.checkpoint import ds_to_universal as tool\n"
        f"sys.argv = ['tool', '--input_folder', '{root}/global_step2', '--output_folder', '{root}/universal',\n"
        "    '--num_extract_workers', '1', '--num_merge_workers', '1', '--inject_missing_state']\n"
        "tool.main(tool.parse_arguments())"
    )
    pair.processes[0].do(convert)
    pair.do(
        f"other = states.engine({stage}, seed=4, checkpoint={{'load_universal': True}}, checkpoint_engine=CheckpointEngine())\n"
        f"other.load_checkpoint({root!r})"
    )
    # DeepSpeed does not bring buffers back from it.
    weights = "lambda e: [full(p) for p in e.module.parameters()]"
    compared = f"from deepspeed.utils import safe_get_full_fp32_param as full\nw = {weights}; states.differences(w(made), w(other))"
    assert pair.do(compared) == [[], []]


@ON_ONE_AND_TWO_NODES
@pytest.mark.parametrize("stage", [2, 3])
def test_universal_checkpoint_is_made_where_deepspeed_is_to_load_one(pair, root, stage):
    load = (
        f"other = states.engine({stage}, seed=4, checkpoint={{'load_universal': True}}, checkpoint_engine=CheckpointEngine())\n"
        f"other.load_checkpoint({root!r}, 'a')[0]"
    )
    same = "states.differences(states.digests(made, False), states.digests(other, False))"
    pair.do(f"made = states.engine({stage}, checkpoint_engine=CheckpointEngine()); states.train(made)")
    for _ in range(2):  # The tag is saved again, and so it is converted again.
        pair.do(f"states.train(made); made.save_checkpoint({root!r}, 'a')")
        assert all(path.startswith(f"{root}/.ckptd-universal/a/") for path in pair.do(load))
        assert pair.do(same) == [[], []]
    made = os.stat(f"{root}/.ckptd-universal/a").st_ino
    pair.do(load)
    assert os.stat(f"{root}/.ckptd-universal/a").st_ino == made
    assert not os.path.exists(f"{root}/latest_universal")


@pytest.mark.parametrize(
    "make",
    [
        "states.engine(1, groups=2, tied=True)",
        "states.engine(1, 'bf16')",
        "states.engine(2, 'fp16', groups=2, frozen=True, tied=True)",
        "states.engine(3, 'bf16', groups=2, frozen=True, tied=True, zero_optimization={'sub_group_size': 150})",
    ],
)
def test_conversions_of_what_deepspeed_writes_equal_those_of_its_tools(pair, root, make):
    saved(pair, root, make)
    # Frozen weights at stage 1 are not here: DeepSpeed's zero_to_fp32 leaves them out.
    assert pair.processes[0].do(f"states.recovered_differently({root!r})") == []
    assert pair.processes[0].do(f"states.converted_differently({root!r}, 'global_step2')") == []


def test_job_goes_back_to_deepspeed_alone(pair, root):
    saved(pair, root, "states.engine(2)")
    pair.do(f"stock = states.engine(2, seed=3); stock.load_checkpoint({root!r})")
    assert pair.do("states.differences(states.state(made), states.state(stock))") == [[], []]
    pair.do(f"states.train(stock); stock.save_checkpoint({root!r})")
    # And once more to ckptd: `latest` decides, whoever has written it.
    pair.do(f"again = states.engine(2, seed=3, checkpoint_engine=CheckpointEngine()); again.load_checkpoint({root!r})")
    assert pair.do("again.global_steps") == [3, 3]
