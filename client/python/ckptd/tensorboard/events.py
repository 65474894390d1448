"""TensorBoard's event files in a folder, written and read by its own library."""

import os
import pathlib
from typing import Any, Iterable, Iterator, Tuple

from ckptd import errors
from ckptd.tensorboard.figures import Figure

_SUFFIX = ".ckptd"  # Of our files: a job may write others into the same folder.
_TEXT = "/text_summary"  # TensorBoard's library adds it to the tag of a text.


class EventFolder:
    """Writes each figure once, also when an earlier process has written a part of them."""

    def __init__(self, folder: str) -> None:
        """Makes the folder if it is missing.

        Raises:
            ImportError: TensorBoard or torch is not installed.
            Refused: the folder cannot be used.
        """
        try:
            from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            needs = "ckptd.tensorboard needs tensorboard and torch"
            raise ImportError(f"{needs} ({error}): pip install tensorboard torch") from error
        if "://" in folder:
            raise errors.invalid(f"--logdir is {folder}; it must be a local folder")
        try:
            os.makedirs(folder, exist_ok=True)
            files = sorted(pathlib.Path(folder).glob(f"events.out.tfevents.*{_SUFFIX}"))
            loaders = [LegacyEventFileLoader(os.fspath(file)) for file in files]
            self._written = {written for loader in loaders for written in _written_by(loader)}
            self._writer = SummaryWriter(folder, filename_suffix=_SUFFIX)
        except OSError as error:
            raise errors.invalid(f"--logdir {folder} cannot be used: {error.strerror}; name another folder") from None

    def add(self, figures: Iterable[Figure]) -> int:
        """Writes those that are new, to the disk, and returns how many they are."""
        new = [figure for figure in figures if (figure.tag, figure.time) not in self._written]
        for figure in new:
            if isinstance(figure.value, str):
                self._writer.add_text(figure.tag, figure.value, figure.step, walltime=figure.time)
            else:
                self._writer.add_scalar(figure.tag, figure.value, figure.step, walltime=figure.time)
            self._written.add((figure.tag, figure.time))
        self._writer.flush()
        return len(new)

    def close(self) -> None:
        self._writer.close()


def _written_by(loader: Any) -> Iterator[Tuple[str, float]]:
    """The figures of a file, up to where a killed process has cut it off."""
    for event in loader.Load():
        for value in event.summary.value:
            tag = value.tag
            yield (tag[: -len(_TEXT)] if tag.endswith(_TEXT) else tag), event.wall_time
