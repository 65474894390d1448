"""NxD's names of files, and what may be a name of a checkpoint. Every number has two digits at least."""

import re
from typing import Any, Optional

from ckptd.nxd._topology import Topology

BEGUN = "checkpoint"  # Markers; each holds "1".
DONE = "done"
SCHEDULER = "scheduler.pt"
USER_CONTENT = "user_content.pt"

_TAG = re.compile(r"[A-Za-z0-9_=+,@][A-Za-z0-9._=+,@-]{0,199}")


def _name(folder: str, dp: int, ep: Optional[int], topology: Topology) -> str:
    expert = f"_ep_rank_{ep:02d}" if ep is not None else ""
    return f"{folder}/dp_rank_{dp:02d}{expert}_tp_rank_{topology.tp_rank:02d}_pp_rank_{topology.pp_rank:02d}.pt"


def _expert(topology: Topology) -> Optional[int]:
    return topology.ep_rank if topology.ep_size > 1 else None


def model(topology: Topology) -> str:
    """All replicas have one file."""
    return _name("model", 0, _expert(topology), topology)


def optimizer(topology: Topology) -> str:
    """Without ZeRO-1: all replicas have one file."""
    return _name("optim", 0, _expert(topology), topology)


def zero1(topology: Topology, dp: Optional[int] = None) -> str:
    """With ZeRO-1: every rank has its own; dp: another rank's."""
    return _name("optim", topology.dp_rank if dp is None else dp, None, topology)


def zero1_probe() -> str:
    """The file that is there when an optimizer's state is that of ZeRO-1, and dp is more than 1."""
    return _name("optim", 1, None, Topology())


def info(name: str) -> str:
    """Of an xser file: what its tensors are."""
    return f"{name}.info.pt"


def tensors(name: str) -> str:
    """Of an xser file: the folder of its tensors."""
    return f"{name}.tensors"


def tensor(name: str, tid: int) -> str:
    """Of an xser file: that of one tensor."""
    return f"{name}.tensors/tensor_{tid}.pt"


def of_first_expert(name: str) -> str:
    """The same file of expert-parallel rank 0, which may have the tensors that all experts share."""
    return re.sub(r"_ep_rank_\d+_", "_ep_rank_00_", name)


def check_tag(tag: Any) -> None:
    """ValueError unless a checkpoint can have this name."""
    if not isinstance(tag, str):
        raise ValueError(f"tag is {tag!r}; it is a string")
    if not _TAG.fullmatch(tag) or tag == "latest":
        raise ValueError(
            f'tag is "{tag}"; it is one directory\'s name of 1 to 200 characters A-Z a-z 0-9 . _ = + , @ -, the first neither '
            '"." nor "-", and not "latest": a tag with a slash would be saved where no loader looks'
        )
