"""The checkpoint that a path of DeepSpeed belongs to, and files that belong to none."""

import os
import shutil
import tempfile
from typing import Any, Optional, Sequence

from ckptd import errors
from ckptd._adapters import root_paths
from ckptd._torch.writing import archive_writer
from ckptd.deepspeed._process import Place


def check_directory(path: "str | os.PathLike[str]") -> None:
    """Raises errors.Refused for a URL, where DeepSpeed itself reads or writes files."""
    if "://" in os.fspath(path):
        raise errors.invalid(
            f'the directory is "{path}", where DeepSpeed itself would read or write files: give a path of this machine, to which '
            "ckptctl fetch brings a checkpoint of a bucket"
        )


def root_of(directory: "str | os.PathLike[str]") -> str:
    """Returns the root of a directory that DeepSpeed is given: its absolute path, or the URL of a bucket. Other URLs are refused."""
    text = os.fspath(directory)
    return root_paths.name_of(text, "directory") if "://" in text else os.path.abspath(text)


def is_numbered(save_dir: "str | os.PathLike[str]") -> bool:
    """Returns whether a directory's name ends with a number, as where each checkpoint has a save_dir of its own."""
    return os.path.normpath(os.fspath(save_dir))[-1:].isdigit()


def place_of_file(path: str) -> Place:
    """Returns the place of the checkpoint that a file may be in."""
    root, tag = os.path.split(os.path.dirname(os.path.abspath(path)))
    return Place(root, tag)


def file_in(folder: str, path: str) -> Optional[str]:
    """Returns the name of a file in a checkpoint's folder; empty for the folder itself, None if it is not in there."""
    name = os.path.relpath(os.path.abspath(path), folder)
    if name == ".":
        return ""
    return None if name.split(os.sep)[0] == ".." else name


class Folder:
    """The directory that DeepSpeed is to save to, or load from.

    In the place of a bucket it is an empty one of this machine, until close(): what DeepSpeed has this package save or load
    goes to the bucket, and the little that it writes itself, such as its recovery scripts, is not kept.
    """

    def __init__(self, root: str) -> None:
        self._made: Optional[str] = None if root_paths.of(root).is_directory else tempfile.mkdtemp(prefix="ckptd-deepspeed-")
        self.path = self._made or root

    def of(self, tag: str) -> str:
        """Returns the directory of a tag."""
        return os.path.join(self.path, tag)

    def show(self, tag: str, names: Sequence[str]) -> None:
        """Lets DeepSpeed find files of a tag by their names, without their contents. No-op in a directory."""
        for name in names if self._made else ():
            path = os.path.join(self.of(tag), name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb"):
                pass

    def close(self) -> None:
        """Removes what stands for a bucket. May be called more than once."""
        if self._made:
            shutil.rmtree(self._made, ignore_errors=True)


def write_file(path: str, value: Any) -> None:
    """Writes what torch.save would write; it is durable, and appears as a whole, when this returns."""
    folder = os.path.dirname(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=folder)
    try:
        with open(descriptor, "wb") as file:
            for piece in archive_writer.image(value).stream():
                file.write(piece)
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_directory(folder)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
