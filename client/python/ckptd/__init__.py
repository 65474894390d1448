"""ckptd: asynchronous, durable checkpoints for training jobs.

with ckptd.LocalDaemon("/tmp/x", pool_bytes=4 << 30) as d:
    run = ckptd.connect(d.endpoint).run("/data/ckpts", num_kept_ckpts=3)
    state = run.restore(lambda c: c.load("model.pt") if c else None)
    run.save("step_100", step=100, files={"model.pt": state}).wait()
"""

from ckptd._checkpoint_info import CheckpointInfo
from ckptd._client import Client, connect
from ckptd._run_reader import DaemonRoot
from ckptd._saving.file_values import File, Torch
from ckptd._saving.finite import Finite, NonFiniteTensor
from ckptd._saving.part import Part
from ckptd._saving.save import Save
from ckptd._version import __version__
from ckptd.errors import (
    Busy,
    CheckpointFailed,
    CkptdError,
    Corrupt,
    Fenced,
    FileConflict,
    Indeterminate,
    NonFinite,
    NonFiniteWarning,
    NoSpace,
    NotFound,
    Refused,
    Skipped,
    Superseded,
    Unavailable,
    UnsafeGlobalsWarning,
    WaitTimeout,
)
from ckptd.local_daemon import LocalDaemon
from ckptd.preemption import Preemption, on_preemption
from ckptd.restore import Checkpoint, Root, open_root
from ckptd.retention import Keep, RetentionDecision, TrashedCheckpoint
from ckptd.run import Run
from ckptd.uploads import Upload

__all__ = [
    "Busy",
    "Checkpoint",
    "CheckpointFailed",
    "CheckpointInfo",
    "CkptdError",
    "Client",
    "Corrupt",
    "DaemonRoot",
    "Fenced",
    "File",
    "FileConflict",
    "Finite",
    "Indeterminate",
    "Keep",
    "LocalDaemon",
    "NoSpace",
    "NonFinite",
    "NonFiniteTensor",
    "NonFiniteWarning",
    "NotFound",
    "Part",
    "Preemption",
    "Refused",
    "RetentionDecision",
    "Root",
    "Run",
    "Save",
    "Skipped",
    "Superseded",
    "Torch",
    "TrashedCheckpoint",
    "Unavailable",
    "UnsafeGlobalsWarning",
    "Upload",
    "WaitTimeout",
    "__version__",
    "connect",
    "on_preemption",
    "open_root",
]
