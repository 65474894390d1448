"""The check that a state which is saved has only finite numbers."""

from typing import Any, Iterator, List, NamedTuple, Tuple

from ckptd import errors
from ckptd._memory import native
from ckptd._memory.image import Image, PiecesImage
from ckptd._saving import file_values

ACTIONS = ("warn", "refuse", "suspect")
_MAX_NAMED = 5
_MAX_SUSPECT_BYTES = 300  # The longest reason that a daemon keeps with a suspect checkpoint.


class Finite:
    """A check of :meth:`Run.save`: the floating-point numbers of all tensors are finite.

    NaNs and infinities are counted while the bytes are copied. Tensors are found, and named, in dicts, lists and
    tuples of files that are saved as ``torch.save`` would save them; other files are not checked.

    Args:
        action (str): what to do if a number is not finite. ``"warn"`` saves all the same, with a
            :class:`NonFiniteWarning`; ``"refuse"`` ends the save on all ranks and raises :class:`NonFinite`;
            ``"suspect"`` saves with the warning, and marks the checkpoint: no job resumes from it unless asked
            to, retention counts it as none of those that it keeps, no pointer names it, and it does not
            replace a checkpoint of the same tag that is not suspect. Default: ``"warn"``
    """

    def __init__(self, action: str = "warn") -> None:
        if action not in ACTIONS:
            raise ValueError(f'action is "{action}"; it must be one of {", ".join(ACTIONS)}')
        self.action = action

    def __repr__(self) -> str:
        return f'ckptd.Finite(action="{self.action}")'


class NonFiniteTensor(NamedTuple):
    """A tensor in which numbers are not finite."""

    file: str
    name: str  # Its place in the file's object: "layers.0.weight".
    nans: int
    infinities: int
    numbers: int  # Elements of the tensor, of a DTensor those on this rank.

    def __str__(self) -> str:
        found = [f"{count} {what}" for count, what in ((self.nans, "NaN"), (self.infinities, "Inf")) if count]
        return f"{self.name} in {self.file} ({', '.join(found)} of {self.numbers})"


def find(file: str, value: Any, image: Image) -> List[NonFiniteTensor]:
    """Returns the tensors of a file, whose image has just been written, that have numbers which are not finite."""
    if isinstance(image, PiecesImage) and image.non_finite == 0:
        return []  # The copy has counted in every tensor.
    obj = value.obj if isinstance(value, file_values.Torch) else value
    found = []
    for name, tensor in _tensors(obj, ""):
        tensor_found = _count(file, name, tensor)
        if tensor_found.nans or tensor_found.infinities:
            found.append(tensor_found)
    return found


def act(check: Finite, tag: str, found: List[NonFiniteTensor]) -> str:
    """Does what the check says about these tensors of a save: NonFinite, a warning, or nothing if there are
    none. Returns why the save is suspect; empty: it is not.
    """
    if not found:
        return ""
    named = ", ".join(str(tensor) for tensor in found[:_MAX_NAMED])
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    message = f"{tag} has numbers that are not finite: {named}{more}"
    if check.action == "refuse":
        raise errors.NonFinite(
            f"{message}; the save was refused, older checkpoints stay", reason="NON_FINITE", tag=tag, tensors=tuple(found)
        )
    from ckptd._torch.writing.archive_writer import warn_caller

    is_suspect = check.action == "suspect"
    warn_caller(f"{message}; it is saved {'as suspect' if is_suspect else 'all the same'}", errors.NonFiniteWarning)
    return _first_bytes(f"numbers that are not finite: {named}{more}", _MAX_SUSPECT_BYTES) if is_suspect else ""


def _first_bytes(text: str, count: int) -> str:
    return text.encode(errors="replace")[:count].decode(errors="ignore")


def _tensors(obj: Any, name: str) -> Iterator[Tuple[str, Any]]:
    """Yields each floating-point tensor with its place."""
    if isinstance(obj, dict):
        for key, value in obj.items():
            yield from _tensors(value, f"{name}.{key}" if name else str(key))
    elif isinstance(obj, (list, tuple)):
        for index, value in enumerate(obj):
            yield from _tensors(value, f"{name}.{index}" if name else str(index))
    elif _is_floating(obj):
        yield name or "the tensor", obj


def _is_floating(obj: Any) -> bool:
    import torch

    return (
        isinstance(obj, torch.Tensor)
        and (obj.is_floating_point() or obj.is_complex())
        and obj.layout is torch.strided
        and obj.device.type != "meta"
    )


def _count(file: str, name: str, tensor: Any) -> NonFiniteTensor:
    import torch
    from ckptd._torch.writing.archive_writer import dtype_name

    numbers = tensor.detach()
    if hasattr(numbers, "to_local"):  # A DTensor, whose memory is that of its shard.
        numbers = numbers.to_local()
    # Another subclass may have no memory of its own.
    has_memory = type(numbers) is torch.Tensor and numbers.device.type == "cpu"
    if has_memory and dtype_name(numbers.dtype) in native.FLOAT_FORMATS:
        numbers = numbers.contiguous()
        nans, infinities = native.count_non_finite(dtype_name(numbers.dtype), numbers.data_ptr(), numbers.nbytes)
    else:
        nans, infinities = _count_by_torch(numbers)
    return NonFiniteTensor(file, name, nans, infinities, numbers.numel())


def _count_by_torch(tensor: Any) -> Tuple[int, int]:
    import torch

    with torch.no_grad():
        numbers = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        if numbers.element_size() == 1:  # torch compares no 8-bit numbers.
            numbers = numbers.to(torch.float32)
        if bool(numbers.isfinite().all()):
            return 0, 0
        return int(numbers.isnan().sum()), int(numbers.isinf().sum())
