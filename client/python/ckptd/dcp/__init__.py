"""PyTorch Distributed Checkpoint (DCP) through ckptd: the same calls, the same files.

    import torch.distributed.checkpoint as dcp
    import ckptd.dcp

    ckptd.dcp.install(num_kept_ckpts=3)

    dcp.async_save(state, checkpoint_id="/data/ckpts/step-10")
    dcp.load(state, checkpoint_id=ckptd.dcp.latest("/data/ckpts"))

docs/dcp.md lists what is different.
"""

from ckptd.dcp._async import SaveFuture
from ckptd.dcp._hugging_face.writer import HuggingFaceWriter
from ckptd.dcp._install import async_save, configure, install, uninstall
from ckptd.dcp._queries import latest, list, run
from ckptd.dcp._reader import Reader
from ckptd.dcp._writer import Writer

__all__ = [
    "HuggingFaceWriter",
    "Reader",
    "SaveFuture",
    "Writer",
    "async_save",
    "configure",
    "install",
    "latest",
    "list",
    "run",
    "uninstall",
]
