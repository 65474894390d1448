"""Waiting for the saves of a directory that is about to be read without an engine."""

import os
from typing import Union

from ckptd.deepspeed._names import check_directory
from ckptd.deepspeed._process import Place, await_sealed, process


def await_saves(checkpoint_dir: Union[str, "os.PathLike[str]"]) -> None:
    """Waits for the saves of this process that are in flight there, and for what earlier launches had sealed.

    Args:
        checkpoint_dir: a directory with tags, or a tag itself.
    """
    check_directory(checkpoint_dir)
    path = os.path.abspath(os.fspath(checkpoint_dir))
    process.await_root(path)
    process.await_place(Place(*os.path.split(path)))
    reader = process.run_to_read(path)
    if reader is not None:
        await_sealed(reader, process.settings.timeout)
