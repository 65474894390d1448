"""The checkpoints of a directory."""

import logging
import os
from typing import List, Optional, Tuple, Union

from ckptd import errors
from ckptd._checkpoint_info import CheckpointInfo, info_of_manifest, info_of_unreadable
from ckptd._checkpoint_paths import is_committed
from ckptd._paths import directory_path
from ckptd._reading.local_files import LocalFiles
from ckptd._reading.manifest import read_damages, read_summary
from ckptd._roots.place import no_checkpoint

_log = logging.getLogger("ckptd")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Directory:
    """A Place: a directory with a folder for each checkpoint."""

    readers = 1

    def __init__(self, path: "Union[str, os.PathLike[str]]") -> None:
        self.name = directory_path(path)
        if not os.path.isdir(self.name):
            raise errors.NotFound(f"the root {self.name} is not a directory", reason="UNKNOWN_RUN")

    def summaries(self, unreadable: Optional[List[CheckpointInfo]] = None) -> "List[Tuple[int, str]]":
        found = []
        for name in os.listdir(self.name):
            if name.startswith("."):
                continue
            path = os.path.join(self.name, name)
            try:
                directory = os.open(path, _DIRECTORY | os.O_NOFOLLOW)
            except OSError:
                continue  # A file or a link, and no checkpoint.
            try:
                summary = read_summary(directory, path)
                if summary.tag == name:  # Otherwise it is a renamed or copied checkpoint.
                    found.append((summary.sequence, name))
            except OSError:
                continue  # No manifest: not a checkpoint of ckptd.
            except errors.CkptdError as error:
                _log.warning("ckptd: %s", error)
                if unreadable is not None and isinstance(error, errors.Corrupt):
                    unreadable.append(info_of_unreadable(name, 0, str(error)))
            finally:
                os.close(directory)
        return sorted(found, reverse=True)

    def open(self, tag: str) -> Tuple[CheckpointInfo, LocalFiles]:
        path = os.path.join(self.name, tag)
        # A name with a slash would leave the root, and one that begins with a dot is no tag.
        if os.path.basename(path) != tag or tag.startswith(".") or "\0" in tag:
            raise no_checkpoint(tag, self.name)
        if os.path.islink(path):
            return self._open_linked(tag)
        try:
            directory = os.open(path, _DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise no_checkpoint(tag, self.name) from error
        try:
            files = LocalFiles(directory, tag, path)
        except OSError as error:
            is_committed(path)  # Raises for a checkpoint of ckptd whose manifest is missing.
            raise no_checkpoint(tag, self.name) from error
        damage = read_damages(self.name).get(files.summary.sequence)
        # Both must fit: a checkpoint that was copied here may have the sequence of another one.
        known_damage = damage.message if damage is not None and damage.tag == tag else ""
        return info_of_manifest(files.summary, files.records, known_damage), files

    def _open_linked(self, tag: str) -> Tuple[CheckpointInfo, LocalFiles]:
        real = os.path.realpath(os.path.join(self.name, tag))
        root, tag_there = os.path.split(real)
        if not os.path.isdir(real):  # The link leads to nothing, to a file, or in a circle.
            raise no_checkpoint(tag, self.name)
        return Directory(root).open(tag_there)
