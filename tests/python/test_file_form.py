"""Files of tensors that are laid out once more by the form of an earlier one."""

from __future__ import annotations

import weakref
from typing import Any, List, Sequence

import pytest
import torch
from ckptd._torch.writing.tensor_file import TensorFile


def laid_out(values: Sequence[Any]) -> TensorFile:
    file = TensorFile()
    for value in values:
        file.add_archive(value) if isinstance(value, torch.Tensor) else file.add_bytes(value)
    return file


def content(image: Any) -> bytes:
    return b"".join(image.stream())


def values(seed: int) -> List[Any]:
    """Bytes, and tensors of which the last is tied to the first."""
    torch.manual_seed(seed)
    tensors = [torch.randn(3, 5), torch.randn(7).bfloat16(), torch.empty(0), torch.tensor(seed), torch.randn(2, requires_grad=True)]
    return [b"seed %d" % seed, b"", *tensors, tensors[0]]


def test_image_of_a_form_is_that_of_a_file_with_the_same_values() -> None:
    form = laid_out(values(1)).form()
    assert form is not None
    for seed in (2, 3):
        again = form.image(values(seed))
        assert again is not None
        assert content(again) == content(laid_out(values(seed)).image()) != content(laid_out(values(1)).image())


def changed(number: int, value: Any) -> List[Any]:
    found = values(4)
    found[number] = value
    return found


@pytest.mark.parametrize(
    "other",
    [
        changed(0, b"longer than before"),
        changed(2, torch.randn(3, 6)),
        changed(2, torch.randn(5, 3).t()),
        changed(2, torch._neg_view(torch.randn(3, 5))),
        changed(2, torch.nn.Buffer(torch.randn(3, 5))),
        changed(7, torch.randn(3, 5)),
        changed(3, values(4)[3].to("meta")),
    ],
    ids=["bytes", "size", "stride", "negative bit", "class", "not tied any more", "device"],
)
def test_values_of_another_form_have_no_image(other: List[Any]) -> None:
    form = laid_out(values(1)).form()
    assert form is not None
    assert form.image(other) is None


def test_tensors_that_are_newly_tied_have_no_image() -> None:
    form = laid_out([torch.zeros(3), torch.ones(3)]).form()
    assert form is not None
    tied = torch.zeros(3)
    assert form.image([tied, tied]) is None


@pytest.mark.parametrize(
    "value",
    [torch.randn(5, 3).t(), torch.randn(3).to_sparse(), torch.randn(4, dtype=torch.complex64).conj()],
    ids=["strided", "sparse", "conjugate"],
)
def test_file_with_more_than_bytes_in_memory_has_no_form(value: Any) -> None:
    assert laid_out([torch.zeros(2), value]).form() is None


def test_form_keeps_no_tensor() -> None:
    tensor = torch.zeros(3)
    seen, form = weakref.ref(tensor), laid_out([tensor]).form()
    del tensor
    assert form is not None and seen() is None
