"""The files of one rank's part of a save, and the record of a save."""

import dataclasses
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from ckptd._memory.image import Image
from ckptd._torch.writing.file_form import FileForm
from ckptd._torch.writing.tensor_file import Placed, TensorFile
from ckptd.dcp import _names


@dataclasses.dataclass
class Assignment:
    """The rank that writes a plan, the number of ranks, and the save in which it was made. Sent with the plan."""

    rank: int
    world_size: int
    save_id: str
    coordinator: str = ""  # The place of the coordinator's process, where that matters.


class Files(Dict[str, Any]):
    """This rank's files, which items() lays out while the run iterates over them: an error there ends the save on
    all ranks.
    """

    def __init__(self, plan: SavePlan, planner: SavePlanner) -> None:
        super().__init__()
        self._plan = plan
        self._planner = planner
        self.results: List[WriteResult] = []


class PlannedFiles(Files):
    """Files in DCP's own format.

    Attributes:
        places: the file of each result, and where it is there.
        forms: of the files.
    """

    def __init__(self, plan: SavePlan, planner: SavePlanner, file_count: Optional[int]) -> None:
        """file_count: None: one for each value."""
        super().__init__(plan, planner)
        self._file_count = file_count
        self.places: List[Tuple[str, Placed]] = []
        self.forms: List[PlannedForm] = []

    def items(self) -> Any:
        self.results.clear()
        self.places.clear()
        self.forms.clear()
        rank = self._plan.storage_data.rank
        for number, items in enumerate(self._buckets()):
            if items:
                name = _names.data_file(rank, number)
                yield name, self._lay_out(name, items)

    def _buckets(self) -> List[List[Any]]:
        if self._file_count is None:
            return [[item] for item in self._plan.items]
        return _names.split(self._plan.items, self._file_count)

    def _lay_out(self, name: str, items: List[Any]) -> Any:
        """Returns the image of a file: objects first, as in DCP, then tensors."""
        file, items = TensorFile(), sorted(items, key=_names.is_bytes, reverse=True)
        for item in items:
            data: Any = self._planner.resolve_data(item)
            placed = file.add_bytes(data.getbuffer()) if _names.is_bytes(item) else file.add_archive(data)
            info = _names.storage_info(name, placed.offset, placed.length, placed.elements)
            self.results.append(WriteResult(item.index, placed.length, info))
            self.places.append((name, placed))
        self.forms.append(PlannedForm(name, items, file.form()))
        return file.image()


class PlannedForm:
    """The form of one of PlannedFiles, and the items of the plan that it was made of."""

    def __init__(self, name: str, items: List[Any], form: Optional[FileForm]) -> None:
        self.name = name
        self._items = [(item if _names.is_bytes(item) else None, item.index.fqn) for item in items]
        self._form = form

    def image(self, planner: Any) -> Optional[Image]:
        """Returns the image of the file with the values that a DefaultSavePlanner has now; None if they must be laid out anew."""
        if self._form is None:
            return None
        state = planner.state_dict
        return self._form.image(
            [_tensor_of(state[name]) if item is None else planner.resolve_data(item).getbuffer() for item, name in self._items]
        )


def _tensor_of(value: Any) -> Any:
    """Returns this rank's part of a tensor."""
    return value.to_local() if type(value) is DTensor else value


class LazyFiles(Dict[str, Any]):
    """Files that a function makes while the run iterates over them."""

    def __init__(self, make: "Callable[[], Iterator[Tuple[str, Any]]]") -> None:
        super().__init__()
        self._make = make

    def items(self) -> Any:
        return self._make()


def storage_data_of(results: List[List[WriteResult]]) -> Dict[Any, Any]:
    """Returns the storage_data of the metadata, of the results of all ranks."""
    return {one.index: one.storage_data for of_rank in results for one in of_rank}


class SaveRecord:
    """The plan, files and results of a save, for later saves by the same plan."""

    plan: Optional[SavePlan] = None  # This rank's.
    files: Optional["Files"] = None  # This rank's.
    # The coordinator's:
    metadata: Optional[Metadata] = None
    results: List[List[WriteResult]] = []
    pickled: Optional[_names.MetadataPickle] = None
