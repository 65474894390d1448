"""PyTorch Distributed Checkpoint (DCP) through ckptd: the same calls, the same files.

    import torch.distributed.checkpoint as dcp
    import ckptd.dcp

    dcp.save(state, storage_writer=ckptd.dcp.Writer("/data/ckpts/step-10"))
    dcp.load(state, storage_reader=ckptd.dcp.Reader("/data/ckpts/step-10"))

docs/dcp.md lists what is different.
"""

from ckptd.dcp._reader import Reader
from ckptd.dcp._writer import Writer

__all__ = ["Reader", "Writer"]
