"""Makes every engine of DeepSpeed save and load through ckptd."""

import os
from typing import Any, Optional

from ckptd.deepspeed import _hooks
from ckptd.deepspeed._engine import CheckpointEngine
from ckptd.deepspeed._process import Settings, process
from ckptd.run import Run


def configure(
    endpoint: Optional[str] = None,
    *,
    commit_timeout: float = 600.0,
    timeout: float = 3600.0,
    pool_bytes: Optional[int] = None,
) -> None:
    """Sets which daemon this process uses. Call it on every rank, before the first save or load.

    A later call replaces all settings, after waiting for the saves that are in flight.

    Args:
        endpoint (str, optional): the daemon's endpoint. Default: ``$CKPTD_ENDPOINT``, else the node's
            service, else a private daemon that all ranks of this user on this machine share
        commit_timeout (float): seconds from a save's first rank to its last. Default: 600
        timeout (float): seconds to wait for the disk after that, also at the end of the process. Default: 3600
        pool_bytes (int, optional): the memory of a private daemon. Default: a quarter of this machine's
            memory

    Raises:
        ValueError: a timeout is not more than 0 seconds.
    """
    for name, seconds in (("commit_timeout", commit_timeout), ("timeout", timeout)):
        if seconds <= 0:
            raise ValueError(f"{name} is {seconds}; it must be more than 0 seconds")
    process.configure(Settings(endpoint, commit_timeout, timeout, pool_bytes))


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
    return process.run(os.path.abspath(os.fspath(save_dir)))
