"""clone_tensors_for_torch_save(), in this process: it needs no DeepSpeed."""

import collections
import io

import torch

from ckptd.deepspeed import clone_tensors_for_torch_save


def saved_bytes(value):
    file = io.BytesIO()
    torch.save(value, file)
    return len(file.getvalue())


def test_views_of_a_buffer_are_copied_alone_and_tied_tensors_stay_tied():
    buffer = torch.arange(100_000.0)
    state = collections.OrderedDict(
        a=buffer[10:20], again=buffer[10:20], b=buffer.view(100, 1000)[:, :3], whole=[(buffer[:5].requires_grad_(),), 7], none=torch.empty(0)
    )
    lean = clone_tensors_for_torch_save(state)
    assert type(lean) is collections.OrderedDict and lean["whole"][1] == 7 and isinstance(lean["whole"][0], tuple)
    assert all(torch.equal(lean[name], state[name]) for name in ("a", "again", "b", "none"))
    assert lean["a"].data_ptr() == lean["again"].data_ptr() != state["a"].data_ptr()
    assert not lean["whole"][0][0].requires_grad
    assert saved_bytes(lean) < 6000 < saved_bytes(dict(state))


def test_result_is_that_of_deepspeed(pair):
    assert pair.do(
        "from deepspeed.checkpoint.utils import clone_tensors_for_torch_save as theirs\n"
        "state = {'a': [torch.arange(9.0)[2:4], (torch.ones(2, 3).t(), 'x')], 'b': torch.zeros((), dtype=torch.int64)}\n"
        "states.differences(ckptd.deepspeed.clone_tensors_for_torch_save(state), theirs(state))"
    ) == [[], []]
