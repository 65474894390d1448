"""Saving what a model's save_pretrained() writes, as one checkpoint of files."""

import os
import tempfile
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from ckptd._saving.file_values import File
from ckptd._saving.save import Save
from ckptd.run import Run


def save_pretrained(
    engine_or_model: Any,
    run: Run,
    tag: str,
    *,
    tokenizer: Any = None,
    step: Optional[int] = None,
    metrics: Optional[Mapping[str, float]] = None,
    **options: Any,
) -> Save:
    """Saves what ``model.save_pretrained`` of transformers writes: weights, configuration, tokenizer.

    Every rank of the run calls it. With ZeRO-3 all ranks gather the weights; the first rank of the run has them written
    into a temporary directory (below ``$TMPDIR``), from which they are copied. ``from_pretrained`` reads the
    checkpoint's directory.

        save = ckptd.deepspeed.save_pretrained(engine, ckptd.deepspeed.run("/data/models"), f"step_{step}")

    Args:
        engine_or_model: an engine of DeepSpeed, or a model.
        run (Run): where to save, for example ``ckptd.deepspeed.run("/data/models")``.
        tag (str): the checkpoint's name.
        tokenizer (optional): or a processor: what else has a ``save_pretrained``.
        step, metrics: as in :meth:`Run.save`.
        options: those of the model's ``save_pretrained``, such as ``max_shard_size="5GB"``.

    Returns:
        Save: the save, which goes on by itself.

    Raises:
        TypeError: the model has no ``save_pretrained``.
        ckptd.CkptdError: the save was refused, or has failed on another rank.
    """
    model = getattr(engine_or_model, "module", engine_or_model)
    if not hasattr(model, "save_pretrained"):
        raise TypeError(f"the model is {type(model).__name__}, which has no save_pretrained: use Run.save")
    state = _state_dict(engine_or_model)  # A collective with ZeRO-3.
    if run.rank != 0:
        return run.save(tag, files={}, step=step, metrics=metrics)
    with tempfile.TemporaryDirectory(prefix="ckptd-pretrained-") as folder:

        def write() -> None:
            model.save_pretrained(folder, state_dict=state, **options)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)

        return run.save(tag, files=_WrittenFiles(folder, write), step=step, metrics=metrics)


def _state_dict(engine_or_model: Any) -> Any:
    """Returns the weights; with ZeRO-3, None on every rank but the first one."""
    partitions = getattr(engine_or_model, "zero_optimization_partition_weights", None)
    if partitions is not None and partitions():
        return engine_or_model._zero3_consolidated_16bit_state_dict()
    return getattr(engine_or_model, "module", engine_or_model).state_dict()


class _WrittenFiles(Dict[str, Any]):
    """Files that are written while Run.save() asks for them: an error there ends the save on all ranks."""

    def __init__(self, folder: str, write: Any) -> None:
        super().__init__()
        self._folder = folder
        self._write = write

    def items(self) -> Any:
        self._write()
        return self._found()

    def _found(self) -> "Iterator[Tuple[str, File]]":
        for directory, _, names in os.walk(self._folder):
            for name in sorted(names):
                path = os.path.join(directory, name)
                yield os.path.relpath(path, self._folder), File(path)
