"""The content of the ranks' files of ZeRO's state in a checkpoint, without the tensors' bytes."""

import re
from typing import Any, Dict, List, Mapping, Sequence

import torch

from ckptd.deepspeed._resharding.layout import Copy
from ckptd.deepspeed._saved_parts import Files, Reading

_RANK = re.compile(r"zero_pp_rank_\d+_")
STATE = "optimizer_state_dict"  # The key of the state in the optimizer's files.


def file_of_rank(name: str, rank: int) -> str:
    """Returns what a rank's file is called, when that of another rank is called `name`."""
    return _RANK.sub(f"zero_pp_rank_{rank}_", name, count=1)


def count_ranks(name: str, names: Sequence[str]) -> int:
    """Returns how many ranks have saved, if a rank's file is called `name`."""
    count = 0
    while file_of_rank(name, count) in names:
        count += 1
    return count


class Shards:
    """The files of one kind of all data-parallel ranks, each loaded when it is asked for."""

    def __init__(self, files: Files, name: str) -> None:
        """name: of a rank's file."""
        self._files, self._name = files, name
        self._loaded: Dict[int, Any] = {}

    def file(self, rank: int) -> str:
        """Returns the name of a rank's file."""
        return file_of_rank(self._name, rank)

    def __getitem__(self, rank: int) -> Any:
        if rank not in self._loaded:
            self._loaded[rank] = self._files.load(self.file(rank), "meta")
        return self._loaded[rank]


def numbers_of_elements(shapes: Sequence[Mapping[str, torch.Size]]) -> List[Dict[str, int]]:
    """Returns the elements of each parameter of `param_shapes`."""
    return [{name: shape.numel() for name, shape in group.items()} for group in shapes]


class Cut(Reading):
    """This rank's flat tensors, cut out of those of the ranks that saved."""

    def __init__(self, files: Files, shards: Shards, plan: Sequence[Copy]) -> None:
        super().__init__(files)
        self._shards, self._plan = shards, plan

    def fill(self, flats: List[torch.Tensor], saved: Any) -> List[torch.Tensor]:
        """Has run() fill this rank's flat tensors, and returns them. saved: returns those of a rank that saved."""
        for copy in self._plan:
            name = self._shards.file(copy.rank)
            self.add(name, saved(copy.rank)[copy.flat], copy.at, copy.length, flats[copy.to_flat], copy.to_at)
        return flats

    def states(self, sizes: Sequence[int], saved: Any, before: Sequence[int], like: Sequence[int]) -> List[Dict[str, Any]]:
        """Returns the optimizer's state of each flat tensor.

        Args:
            saved: returns the state of each flat tensor of a rank that saved.
            before: the size of each saved flat tensor, in elements.
            like: of each flat tensor, the number of the saved one from which it has what is not as large, such as ``step``.
        """
        first, name = saved(0), self._shards.file(0)
        made = [
            {
                key: torch.zeros(size, dtype=each.dtype) if _is_flat(each, before[old]) else self.whole(name, each)
                for key, each in first[old].items()
            }
            for size, old in zip(sizes, like)
        ]
        for copy in self._plan:
            state = saved(copy.rank)[copy.flat]
            for key in [key for key, each in state.items() if _is_flat(each, before[copy.flat])]:
                target = made[copy.to_flat][key]
                self.add(self._shards.file(copy.rank), state[key], copy.at, copy.length, target, copy.to_at)
        return made


def _is_flat(value: Any, size: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 1 and value.numel() == size
