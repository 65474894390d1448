"""A plugin of pytest: save_state and load_state of accelerate go through ckptd, by the loop of docs/frameworks.md.

upstream.py runs accelerate's own tests with it. The daemon is that of $CKPTD_ENDPOINT.
"""

from __future__ import annotations

import functools
import os
import pathlib
from typing import Any, Dict, Optional

import accelerate
import ckptd

from conformance.case import names_when
from conformance.libraries import CkptdAccelerate

_save, _load = accelerate.Accelerator.save_state, accelerate.Accelerator.load_state
_libraries: "Dict[int, CkptdAccelerate]" = {}  # By accelerator: each has runs with limits of their own.


class _Stock:
    """What the loop saves with and loads with: accelerate's own methods, for one accelerator."""

    def __init__(self, accelerator: accelerate.Accelerator) -> None:
        self.save_state = functools.partial(_save, accelerator)
        self.load_state = functools.partial(_load, accelerator)


def _named(accelerator: accelerate.Accelerator) -> pathlib.Path:
    return pathlib.Path(accelerator.project_dir, "checkpoints")


def save_state(self: accelerate.Accelerator, output_dir: Optional[str] = None, **options: Any) -> str:
    project = self.project_configuration
    library = _libraries.setdefault(id(self), CkptdAccelerate())
    path = _named(self) / f"checkpoint_{self.save_iteration}" if project.automatic_checkpoint_naming else pathlib.Path(str(output_dir))
    if project.automatic_checkpoint_naming:
        library.set_limit(path.parent, project.total_limit)
        if path.exists():
            raise ValueError(f"{path} already exists")
    elif path.is_dir() and not any(path.iterdir()):
        path.rmdir()  # The tests make the folder; a checkpoint appears whole.
    named, project.automatic_checkpoint_naming = project.automatic_checkpoint_naming, False
    try:
        library.save(_Stock(self), path, **options)
    finally:
        project.automatic_checkpoint_naming = named
    if named and project.total_limit is not None:
        names_when(path.parent, lambda names: len(names) <= project.total_limit)
    with open(os.environ["UPSTREAM_SAVES"], "a") as file:
        file.write(f"{path}\n")
    return str(path)


def load_state(self: accelerate.Accelerator, input_dir: Optional[str] = None, **options: Any) -> None:
    if input_dir is None:
        latest = ckptd.open_root(_named(self)).latest()
        assert latest is not None
        input_dir = str(_named(self) / latest.tag)
    if not os.path.isdir(input_dir):
        _load(self, input_dir, **options)  # It says that it is not there.
    CkptdAccelerate().load(_Stock(self), pathlib.Path(input_dir), **options)


accelerate.Accelerator.save_state = save_state
accelerate.Accelerator.load_state = load_state
