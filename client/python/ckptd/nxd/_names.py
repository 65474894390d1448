"""NxD's names of files, in which every number has at least two digits, and the rule for names of checkpoints."""

import re
from typing import Any, Optional, Tuple

from ckptd._adapters import root_paths
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
    """Returns the model's file, one for all replicas."""
    return _name("model", 0, _expert(topology), topology)


def optimizer(topology: Topology) -> str:
    """Returns the optimizer's file without ZeRO-1, one for all replicas."""
    return _name("optim", 0, _expert(topology), topology)


def zero1(topology: Topology, dp: Optional[int] = None) -> str:
    """Returns the optimizer's file with ZeRO-1, one for each rank. dp: of another data-parallel rank."""
    return _name("optim", topology.dp_rank if dp is None else dp, None, topology)


def zero1_probe() -> str:
    """Returns the file that exists exactly if the optimizer's state is sharded by ZeRO-1 and dp is more than
    1.
    """
    return _name("optim", 1, None, Topology())


def info(name: str) -> str:
    """Returns the file that describes the tensors of an xser file."""
    return f"{name}.info.pt"


def tensors(name: str) -> str:
    """Returns the folder of the tensors of an xser file."""
    return f"{name}.tensors"


def tensor(name: str, tid: int) -> str:
    """Returns the file of one tensor of an xser file."""
    return f"{name}.tensors/tensor_{tid}.pt"


def of_first_expert(name: str) -> str:
    """Returns the same file of expert-parallel rank 0, which may have the tensors that all experts share."""
    return re.sub(r"_ep_rank_\d+_", "_ep_rank_00_", name)


def older(topology: Topology, dp: Optional[int]) -> str:
    """Returns the folder of this rank's part by NxD's older functions. dp: None if it is one for all replicas."""
    replica = f"_dp_rank_{dp:02d}" if dp is not None else ""
    return f"tp_rank_{topology.tp_rank:02d}_pp_rank_{topology.pp_rank:02d}{replica}"


def split_tag(root: str, tag: Any) -> Tuple[str, str]:
    """Returns the folder and the name of a checkpoint to load.

    NxD has saved tags of any characters, even with a slash, and loads them all by name.
    """
    if not isinstance(tag, str):
        raise ValueError(f"tag is {tag!r}; it must be a string")
    return root_paths.split(root_paths.join(root, tag), "checkpoint")


def check_tag(tag: Any) -> None:
    """Raises ValueError unless a new checkpoint can have this name."""
    if not isinstance(tag, str):
        raise ValueError(f"tag is {tag!r}; it must be a string")
    if not _TAG.fullmatch(tag) or tag == "latest":
        raise ValueError(
            f'tag is "{tag}"; it must be a directory\'s name of 1 to 200 characters A-Z a-z 0-9 . _ = + , @ -, the first neither '
            '"." nor "-", and not "latest": a tag with a slash would be saved where no loader looks'
        )
