"""Loads ZeRO-1 state with another number of data-parallel ranks than it was saved with.

NxD pads a parameter's state and its master weights with zeros along dimension 0 to a multiple of dp, and cuts
them into dp equal pieces. So rank r has the rows [r x n, (r + 1) x n), with n = ceil(rows / dp), and rows
beyond `rows` are zeros. A rank reads the old pieces that its own overlap, one at a time; no rank holds the
whole state.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch

from ckptd import errors
from ckptd.nxd import _device, _names, _xser
from ckptd.nxd._errors import NoFile
from ckptd.nxd._pickles import TensorReference
from ckptd.nxd._sources import Classes, Source
from ckptd.nxd._topology import Topology

_SHARDED = ("base_state", "sharded_master_weights")


def saved_by(source: Source, topology: Topology) -> int:
    """Returns how many data-parallel ranks have saved the state of this tp and pp rank."""
    count = 0
    while _names.zero1(topology, count) in source.names:
        count += 1
    return count


def load(source: Source, topology: Topology, classes: Classes, device: Any = None) -> Any:
    """Returns this rank's state, whatever the number of ranks that saved it.

    device: where the tensors of xser files go, if not to the host.
    """
    before = saved_by(source, topology)
    if before == 0:
        source.check(_names.zero1(topology, 0))
    if before == topology.dp_size:
        return _xser.load(source, _names.zero1(topology), classes, device)
    if topology.ep_size > 1:
        raise errors.Refused(
            f"the ZeRO-1 state of {source.tag} was saved by dp {before} and is loaded by dp {topology.dp_size} with expert "
            "parallelism, which is not supported while loading: convert it first (ckptctl convert nxd-zero)",
            reason="STATE_MISMATCH",
            tag=source.tag,
        )
    state = _Reshard(source, topology, before, classes).run()
    if _xser.is_xser(source, _names.zero1(topology, 0)):
        _device.place_all(state, device)
    return state


class _Reshard:
    """Cuts one rank's state out of the pieces of another number of ranks."""

    def __init__(self, source: Source, topology: Topology, before: int, classes: Classes) -> None:
        self._source = source
        self._topology = topology
        self._before = before
        self._classes = classes
        info = _names.info(_names.zero1(topology, 0))
        self._info: Dict[int, Any] = source.load(info, classes) if info in source.names else {}
        # (path in the state, this rank's piece, rows of the whole)
        self._targets: List[Tuple[Tuple[Any, ...], Any, int]] = []

    def run(self) -> Any:
        first = self._references(0)
        shapes = first.get("shape_info") if isinstance(first, dict) else None
        if not isinstance(shapes, dict) or not isinstance(first.get("base_state"), dict):
            raise self._refused("it has no shape_info and base_state, which ZeRO-1 state has")
        self._shapes = shapes
        state = {}
        for part, value in first.items():
            if part in _SHARDED:
                state[part] = {
                    number: self._prepare((part, number), item, shapes.get(number)) for number, item in value.items()
                }
            else:
                state[part] = self._whole(0, value)  # The same on every rank.
        for old in range(self._before):
            wanted = [target for target in self._targets if self._overlap(target[2], old)[0]]
            if wanted:
                references = first if old == 0 else self._references(old)
                for where, piece, rows in wanted:
                    self._copy(references, old, where, piece, rows)
        return state

    def _references(self, old: int) -> Any:
        return self._source.load(_names.zero1(self._topology, old), self._classes)

    def _whole(self, old: int, value: Any) -> Any:
        whole = _xser.resolve_from(self._source, _names.zero1(self._topology, old), value, self._classes)
        missing = _xser.absent(whole)
        if missing:
            self._source.check(missing[0])
        return whole

    def _prepare(self, where: Tuple[Any, ...], value: Any, shape: Any) -> Any:
        """Returns this rank's counterpart of the first old rank's `value`, with empty pieces to fill."""
        if isinstance(value, dict):
            return {key: self._prepare((*where, key), item, shape) for key, item in value.items()}
        there = self._described(value)
        if there is None or not there[0] or where[-1] == "step":
            return self._whole(0, value)
        saved, dtype = there
        if not shape:
            raise self._refused(f"{_path_text(where)} has the shape {saved}, and shape_info does not have it")
        rows, rest = int(shape[0]), list(shape[1:])
        if saved != [_piece_rows(rows, self._before), *rest]:
            raise self._refused(
                f"{_path_text(where)} has the shape {saved}, but a piece of {list(shape)} has {[_piece_rows(rows, self._before), *rest]}"
            )
        piece = torch.zeros([_piece_rows(rows, self._topology.dp_size), *rest], dtype=dtype)
        self._targets.append((where, piece, rows))
        return piece

    def _described(self, value: Any) -> "Optional[Tuple[List[int], Any]]":
        """Returns (shape, dtype) of a tensor of the first old rank, from its description or else by reading
        it.
        """
        if isinstance(value, TensorReference):
            known = self._info.get(value.tid)
            if known is not None:
                return list(known["shape"]), known["dtype"]
            value = self._whole(0, value)
        return (list(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None

    def _overlap(self, rows: int, old: int) -> Tuple[int, int, int]:
        """Returns (number of shared rows, the first one in this rank's piece, the first one in the old
        piece).
        """
        mine, theirs = _piece_rows(rows, self._topology.dp_size), _piece_rows(rows, self._before)
        begin = max(self._topology.dp_rank * mine, old * theirs)
        end = min((self._topology.dp_rank + 1) * mine, (old + 1) * theirs, rows)
        return max(0, end - begin), begin - self._topology.dp_rank * mine, begin - old * theirs

    def _copy(self, references: Any, old: int, where: Tuple[Any, ...], piece: Any, rows: int) -> None:
        value = references
        for key in where:
            value = value[key]
        if isinstance(value, TensorReference):
            value = self._whole(old, value)
        count, to, of = self._overlap(rows, old)
        if list(value.shape) != [_piece_rows(rows, self._before), *piece.shape[1:]] or value.dtype != piece.dtype:
            raise self._refused(f"{_path_text(where)} of data-parallel rank {old} differs in shape or dtype from that of rank 0")
        piece[to : to + count] = value[of : of + count]

    def _refused(self, why: str) -> errors.Refused:
        return errors.Refused(
            f"the ZeRO-1 state of {self._source.tag} was saved by dp {self._before} and cannot be cut for dp "
            f"{self._topology.dp_size}: {why}",
            reason="STATE_MISMATCH",
            tag=self._source.tag,
        )


def _piece_rows(rows: int, count: int) -> int:
    return -(-rows // count)


def _path_text(where: Tuple[Any, ...]) -> str:
    return ".".join(map(str, where))


def master_weights(source: Source, topology: Topology, numbers: "List[int]", classes: Classes) -> Dict[int, Any]:
    """Returns whole parameters by number, joined from the master weights of all data-parallel ranks."""
    pieces: Dict[int, List[Any]] = {number: [] for number in numbers}
    shapes: Dict[int, Any] = {}
    for old in range(saved_by(source, topology)):
        name = _names.zero1(topology, old)
        state = source.load(name, classes)
        shapes = state.get("shape_info") or {}
        for number in numbers:
            weights = (state.get("sharded_master_weights") or {}).get(number)
            if weights is None:
                raise NoFile(
                    f"{source.tag} has the weights of parameter {number} neither in the model's files nor as master weights "
                    f"in {name}",
                    reason="UNKNOWN_FILE",
                    tag=source.tag,
                    path=name,
                )
            pieces[number].append(_xser.resolve_from(source, name, weights, classes))
            for missing in _xser.absent(pieces[number][-1:]):
                source.check(missing)
    return {number: _joined(pieces[number], shapes.get(number)) for number in numbers}


def _joined(pieces: "List[Any]", shape: Any) -> Any:
    if not shape:  # Without a dimension it is the same on every rank.
        return pieces[0]
    return torch.cat(pieces)[: int(shape[0])]
