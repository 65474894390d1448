"""Makes every engine of DeepSpeed save and load through ckptd."""

import os
from typing import Any

from ckptd.deepspeed import _hooks, _names
from ckptd.deepspeed._engine import CheckpointEngine
from ckptd.deepspeed._process import process
from ckptd.run import Run

configure = process.configure  # See Process.configure.


def install(**options: Any) -> None:
    """Makes ``save_checkpoint`` and ``load_checkpoint`` of every engine to come go through ckptd.

    Every rank calls it before ``deepspeed.initialize``, which raises ValueError if the configuration has a key that
    cannot be served. A later call replaces the options.

    Args:
        options: those of :class:`CheckpointEngine`, such as ``num_kept_ckpts=3``.

    Raises:
        TypeError, ValueError: CheckpointEngine does not accept an option.
        ImportError: DeepSpeed cannot be imported.
    """
    CheckpointEngine(**options)
    _hooks.set_maker(lambda config: CheckpointEngine(config, **options))


def uninstall() -> None:
    """Undoes :func:`install` for the engines to come. No-op if it was not called."""
    _hooks.set_maker(None)


def run(save_dir: "str | os.PathLike[str]") -> Run:
    """Returns ckptd's run of a ``save_dir``, for example for ``run(save_dir).failures()``.

    The directory is made if it is missing. Every rank that saves there may call it.
    """
    return process.run(_names.root_of(save_dir))
