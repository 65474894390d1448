"""The libraries that the cases compare: the stock one, and ckptd, by one interface for each framework.

Each saves and loads as its documentation says. Where a library has no answer of its own to "which is the newest
checkpoint?", the stock side does what its users do.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile
from typing import Any, Dict, List, Optional, Tuple

import torch


class StockTorch:
    """torch.save and torch.load: a checkpoint is a file."""

    name = "torch.save"

    def save(self, path: pathlib.Path, state: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, path)

    def load(self, path: pathlib.Path, **options: Any) -> Any:
        return torch.load(path / "state.pt" if path.is_dir() else path, **options)

    def newest(self, folder: pathlib.Path) -> Optional[pathlib.Path]:
        """What users take: the youngest file."""
        found = [path for path in folder.iterdir() if not path.name.startswith(".")]
        return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


class CkptdTorch:
    """The same through ckptd: a checkpoint is a folder with the file state.pt."""

    name = "ckptd"

    def __init__(self) -> None:
        self._runs: Dict[str, Any] = {}

    def save(self, path: pathlib.Path, state: Any) -> None:
        self.begin(path, state).wait("committed", 60)

    def begin(self, path: pathlib.Path, state: Any, **options: Any) -> Any:
        """Returns when the state is copied."""
        return self.run(path.parent).save(path.name, files={"state.pt": state}, timeout=60, **options)

    def run(self, root: pathlib.Path, **options: Any) -> Any:
        import ckptd

        key = os.path.realpath(root)
        if key not in self._runs:
            root.mkdir(parents=True, exist_ok=True)
            self._runs[key] = ckptd.connect().run(str(root), rank=0, world_size=1, **options)
        return self._runs[key]

    def load(self, path: pathlib.Path, **options: Any) -> Any:
        import ckptd

        with ckptd.open_root(path.parent).open(path.name) as checkpoint:
            return checkpoint.load("state.pt", **options)

    def newest(self, folder: pathlib.Path) -> Optional[pathlib.Path]:
        import ckptd

        latest = ckptd.open_root(folder).latest()
        return folder / latest.tag if latest else None


class StockDcp:
    """PyTorch Distributed Checkpoint in one process. ckptd.dcp.install() replaces functions of the whole process, so each call
    says first whose it is: one case may save with ckptd and load without it.
    """

    name = "DCP"

    def choose(self) -> None:
        """Makes calls of torch.distributed.checkpoint in this process those of this library."""
        installed = sys.modules.get("ckptd.dcp")
        if installed is not None:
            installed.uninstall()

    def save(self, path: pathlib.Path, state: Dict[str, Any], **options: Any) -> None:
        import torch.distributed.checkpoint as dcp

        self.choose()
        dcp.save(state, checkpoint_id=str(path), **{"no_dist": True, **options})

    def async_save(self, path: pathlib.Path, state: Dict[str, Any]) -> Any:
        import torch.distributed.checkpoint as dcp

        self.choose()
        return dcp.async_save(state, checkpoint_id=str(path), no_dist=True)

    def load(self, path: pathlib.Path, state: Dict[str, Any], **options: Any) -> Dict[str, Any]:
        import torch.distributed.checkpoint as dcp

        self.choose()
        dcp.load(state, checkpoint_id=str(path), **{"no_dist": True, **options})
        return state

    def writer(self, path: pathlib.Path, **options: Any) -> Any:
        import torch.distributed.checkpoint as dcp

        return dcp.FileSystemWriter(str(path), **options)

    def reader(self, path: pathlib.Path, **options: Any) -> Any:
        import torch.distributed.checkpoint as dcp

        return dcp.FileSystemReader(str(path), **options)

    def newest(self, folder: pathlib.Path) -> Optional[pathlib.Path]:
        """What users take: the folder with the highest step."""
        steps = [path for path in folder.iterdir() if path.is_dir() and path.name.startswith("step-")]
        return max(steps, key=lambda path: int(path.name[len("step-") :]), default=None)


class CkptdDcp(StockDcp):
    """The same calls after ckptd.dcp.install()."""

    name = "ckptd"

    def choose(self) -> None:
        import ckptd.dcp

        ckptd.dcp.install(timeout=60)

    def writer(self, path: pathlib.Path, **options: Any) -> Any:
        import ckptd.dcp

        return ckptd.dcp.Writer(str(path), **options)

    def reader(self, path: pathlib.Path, **options: Any) -> Any:
        import ckptd.dcp

        return ckptd.dcp.Reader(str(path), **options)

    def newest(self, folder: pathlib.Path) -> Optional[pathlib.Path]:
        import ckptd.dcp

        latest = ckptd.dcp.latest(str(folder))
        return pathlib.Path(latest) if latest else None


class StockLightning:
    """A Trainer of Lightning with its own plugin for checkpoints."""

    name = "Lightning"

    def plugins(self) -> List[Any]:
        return []

    def async_plugins(self) -> List[Any]:
        from pytorch_lightning.plugins.io import AsyncCheckpointIO

        return [AsyncCheckpointIO()]


class CkptdLightning:
    name = "ckptd"

    def plugins(self) -> List[Any]:
        import ckptd.lightning

        return [ckptd.lightning.CheckpointIO(timeout=60)]

    async_plugins = plugins


class StockTransformers:
    """The Trainer of transformers."""

    name = "transformers"

    def callbacks(self) -> List[Any]:
        return []

    def newest(self, folder: pathlib.Path) -> Optional[str]:
        from transformers.trainer_utils import get_last_checkpoint

        return get_last_checkpoint(str(folder))

    def wait(self) -> None:
        """Nothing is in flight: the Trainer writes before it goes on."""


class CkptdTransformers:
    name = "ckptd"

    def callbacks(self) -> List[Any]:
        import ckptd.transformers

        return [ckptd.transformers.CheckpointCallback()]

    def newest(self, folder: pathlib.Path) -> Optional[str]:
        import ckptd.transformers

        return ckptd.transformers.latest(str(folder))

    def wait(self) -> None:
        import ckptd.transformers

        ckptd.transformers.wait(60)


class StockDeepspeed:
    """Engines of DeepSpeed. ckptd.deepspeed.install() serves the engines to come, so each library says first whose they are."""

    name = "DeepSpeed"

    def choose(self) -> None:
        """Makes the engines that this process initializes from now on those of this library."""
        installed = sys.modules.get("ckptd.deepspeed")
        if installed is not None:
            installed.uninstall()

    def whole_weights(self, root: pathlib.Path) -> Dict[str, torch.Tensor]:
        from deepspeed.utils import zero_to_fp32

        self.choose()
        return zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(str(root))

    def finish(self, root: pathlib.Path) -> None:
        """Waits as the end of a process does. Nothing is in flight: save_checkpoint writes before it returns."""


class CkptdDeepspeed(StockDeepspeed):
    name = "ckptd"

    def __init__(self) -> None:
        import ckptd.deepspeed

        ckptd.deepspeed.configure(timeout=60)

    def choose(self) -> None:
        import ckptd.deepspeed

        ckptd.deepspeed.install()

    def whole_weights(self, root: pathlib.Path) -> Dict[str, torch.Tensor]:
        import ckptd.deepspeed

        return ckptd.deepspeed.get_fp32_state_dict_from_zero_checkpoint(str(root))

    def finish(self, root: pathlib.Path) -> None:
        from ckptd.deepspeed._waiting import await_saves

        await_saves(root)


class StockAccelerate:
    """save_state and load_state of accelerate: a checkpoint is a folder."""

    name = "accelerate"

    def accelerator(self, root: pathlib.Path, limit: Optional[int] = None) -> Any:
        """Returns an Accelerator that saves below the root; limit: how many checkpoints it keeps."""
        import accelerate

        project = accelerate.utils.ProjectConfiguration(str(root), automatic_checkpoint_naming=limit is not None, total_limit=limit)
        return accelerate.Accelerator(cpu=True, project_config=project)

    def save(self, accelerator: Any, path: pathlib.Path, **options: Any) -> None:
        """With a limit accelerate chooses the place itself: checkpoints/checkpoint_N."""
        limited = accelerator.project_configuration.automatic_checkpoint_naming
        accelerator.save_state(None if limited else str(path), **options)

    def load(self, accelerator: Any, path: pathlib.Path) -> None:
        accelerator.load_state(str(path))

    def newest(self, folder: pathlib.Path) -> Optional[pathlib.Path]:
        """What users take: the folder with the highest number."""
        found = [path for path in folder.iterdir() if path.name.startswith("checkpoint_")]
        return max(found, key=lambda path: int(path.name[len("checkpoint_") :]), default=None)


class CkptdAccelerate:
    """The recipe of docs/frameworks.md, "accelerate"."""

    name = "ckptd"

    def __init__(self) -> None:
        self._runs: Dict[str, Any] = {}
        self._limits: Dict[str, Optional[int]] = {}

    def accelerator(self, root: pathlib.Path, limit: Optional[int] = None) -> Any:
        import accelerate

        self.set_limit(root / "checkpoints", limit)
        return accelerate.Accelerator(cpu=True)

    def set_limit(self, root: pathlib.Path, limit: Optional[int]) -> None:
        """Sets how many checkpoints a root keeps, before the first save there."""
        self._limits[os.path.realpath(root)] = limit

    def save(self, accelerator: Any, path: pathlib.Path, **options: Any) -> None:
        import ckptd

        root = os.path.realpath(path.parent)
        if root not in self._runs:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = {} if self._limits.get(root) is None else {"num_kept_ckpts": self._limits[root]}
            self._runs[root] = ckptd.connect().run(root, rank=0, world_size=1, **kept)
        memory = os.environ.get("CONFORMANCE_MEMORY", "/dev/shm")
        os.makedirs(memory, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="accelerate-", dir=memory)
        try:
            accelerator.save_state(folder, **options)
            names = [os.path.relpath(os.path.join(place, name), folder) for place, _, names in os.walk(folder) for name in names]
            files = {name: ckptd.File(os.path.join(folder, name)) for name in names}
            saved = self._runs[root].save(path.name, files=files, ranks=[0], timeout=60)
        finally:
            shutil.rmtree(folder)
        saved.wait("committed", 60)

    def load(self, accelerator: Any, path: pathlib.Path, **options: Any) -> None:
        import ckptd

        try:
            checkpoint = ckptd.open_root(path.parent).open(path.name)
        except ckptd.NotFound:
            pass  # accelerate itself has saved it.
        else:
            with checkpoint:
                for name in checkpoint.files:
                    checkpoint.read(name)  # Verifies it.
        accelerator.load_state(str(path), **options)

    def newest(self, folder: pathlib.Path) -> Optional[pathlib.Path]:
        import ckptd

        latest = ckptd.open_root(folder).latest()
        return folder / latest.tag if latest else None


class StockTorchtnt:
    """TorchTNT's saver for PyTorch Distributed Checkpoint."""

    name = "TorchTNT"

    @property
    def saver(self) -> Any:
        from torchtnt.framework.callbacks.dcp_saver import DistributedCheckpointSaver

        return DistributedCheckpointSaver


class CkptdTorchtnt:
    name = "ckptd"

    def __init__(self) -> None:
        import ckptd.dcp

        ckptd.dcp.configure(timeout=60)

    @property
    def saver(self) -> Any:
        from ckptd.torchtnt import CheckpointSaver

        return CheckpointSaver


# Stock, and ckptd. They are made in the process that runs the case.
PAIRS: Dict[str, Tuple[Any, Any]] = {
    "torch": (StockTorch, CkptdTorch),
    "dcp": (StockDcp, CkptdDcp),
    "lightning": (StockLightning, CkptdLightning),
    "transformers": (StockTransformers, CkptdTransformers),
    "accelerate": (StockAccelerate, CkptdAccelerate),
    "deepspeed": (StockDeepspeed, CkptdDeepspeed),
    "torchtnt": (StockTorchtnt, CkptdTorchtnt),
}
