"""`ckptd://PATH`, a protocol of fsspec, for programs that take URLs and no writer, such as `dcp.save(checkpoint_id=URL)`.

Files are written beside the checkpoints, in a directory that no checkpoint can have the name of. The rename of
`.metadata.tmp` saves them as one checkpoint through ckptd, and is its commit. So every byte is written twice:
use a Writer where the program takes one. Reading goes through ckptd, and verifies every byte.
"""

import io
import os
import shutil
import tempfile
from typing import Any, Dict, List, Set, Tuple

from fsspec.spec import AbstractFileSystem

from ckptd import errors
from ckptd._checkpoint_paths import has_manifest
from ckptd._paths import directory_path, open_regular
from ckptd._saving.file_values import File
from ckptd.dcp import _directory, _names
from ckptd.dcp._metadata import load_metadata
from ckptd.dcp._process import Place, place_of, process

_TIMEOUT = 120.0  # Seconds to wait for room.


class CkptdFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Checkpoints as directories, ``ckptd:///ROOT/TAG``, and the files in them.

    It serves what DCP's FsspecWriter and FsspecReader do, reading and listing of any checkpoint, and the removal of
    checkpoints. A file that is being written is seen by its own process only. One rank renames; the other ranks have
    closed their files before.
    """

    protocol = "ckptd"
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        text: str = os.fspath(path)
        return text[len("ckptd://") :] if text.startswith("ckptd://") else text

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes the place for a checkpoint's files."""
        os.makedirs(_incoming(_place(self._strip_protocol(path))), exist_ok=True)

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Returns whether a file of a committed checkpoint, or a directory, is there."""
        return os.path.exists(self._strip_protocol(path))

    def info(self, path: str, **kwargs: Any) -> Dict[str, Any]:
        """Returns name, size and type."""
        text = self._strip_protocol(path)
        kind = "directory" if os.path.isdir(text) else "file"
        return {"name": text, "size": os.stat(text).st_size, "type": kind}

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> List[Any]:
        """Lists a directory, without what is ckptd's own, or a file alone."""
        text = self._strip_protocol(path)
        if os.path.isfile(text):
            return [self.info(text)] if detail else [text]
        found = [os.path.join(text, name) for name in sorted(os.listdir(text)) if not name.startswith(".ckptd")]
        return [self.info(one) for one in found] if detail else found

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        """Opens a file: of a committed checkpoint to read, of one that is being made to write."""
        if mode == "rb":
            return _Reading(*_split_committed(self._strip_protocol(path)))
        place, name = _split(self._strip_protocol(path))
        if mode == "wb":
            folder = _incoming(place)
            os.makedirs(folder, exist_ok=True)
            return _Unsynced(os.path.join(folder, name))
        raise ValueError(f'the mode is "{mode}"; files of ckptd:// are opened with "rb" or "wb"')

    def put_file(self, lpath: Any, rpath: str, *args: Any, **kwargs: Any) -> None:
        """Raises NotImplementedError, as pipe_file() and touch() do: no checkpoint would ever have the file."""
        raise _single_file(rpath)

    def pipe_file(self, path: str, *args: Any, **kwargs: Any) -> None:
        raise _single_file(path)

    def touch(self, path: str, *args: Any, **kwargs: Any) -> None:
        raise _single_file(path)

    def cp_file(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> None:
        raise _single_file(path2)

    def rename(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Commits a checkpoint by the rename of ``.metadata.tmp`` to ``.metadata``. Returns when it is durable."""
        place, name = _split(self._strip_protocol(path1))
        new_place, new_name = _split(self._strip_protocol(path2))
        folder = _incoming(place)
        if place != new_place or (name, new_name) != (_names.METADATA_FILE + ".tmp", _names.METADATA_FILE):
            raise errors.invalid(
                f"{path1} was to be renamed to {path2}; with ckptd:// the rename of {_names.METADATA_FILE}.tmp commits a "
                "checkpoint, and there is no other"
            )
        os.rename(os.path.join(folder, name), os.path.join(folder, new_name))
        _unwanted.discard(place)  # It is saved anew, so an earlier removal does not count.
        _directory.make_way(place, None)
        files = {one: File(os.path.join(folder, one)) for one in _files_of(os.path.join(folder, new_name))}
        saved = process.run(place.root, 0, 1).save(place.tag, files=files, timeout=_TIMEOUT)
        process.add(place, saved)
        saved.wait("committed", process.settings.timeout)
        shutil.rmtree(folder, ignore_errors=True)
        _remove_unwanted()

    mv = rename

    def rm(self, path: str, recursive: bool = False, maxdepth: Any = None) -> None:
        """Removes a file that is being written; with ``recursive``, a checkpoint.

        The newest checkpoint goes when the next one is committed. No-op for a file that is committed: a checkpoint
        is replaced whole.
        """
        text = self._strip_protocol(path)
        if recursive:
            _remove(_place(text))
            return
        place, name = _split(text)
        if os.path.exists(os.path.join(_incoming(place), name)):
            os.remove(os.path.join(_incoming(place), name))

    rm_file = rm


def _single_file(path: str) -> NotImplementedError:
    return NotImplementedError(
        f"{path} would be written alone, and a checkpoint of ckptd appears whole: save it with dcp.save(checkpoint_id=ckptd://...), "
        "or with Run.save(files={name: ckptd.File(path)})"
    )


_unwanted: Set[Place] = set()  # Checkpoints that are removed when the next one is committed.


def _remove(place: Place) -> None:
    """Removes a checkpoint. If it is the newest one, a later call of _remove_unwanted() does."""
    if not os.path.exists(os.path.join(place.path, ".ckptd")):  # Another writer's, or there is none.
        shutil.rmtree(place.path)
        return
    _unwanted.add(place)
    _remove_unwanted()


def _remove_unwanted() -> None:
    """Removes the unwanted checkpoints that nothing needs any more."""
    for place in list(_unwanted):
        if process.delete(place):
            _unwanted.discard(place)


class _Unsynced(io.FileIO):
    """A file whose fsync() costs nothing: the commit makes a copy of it durable."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "wb")
        self._nothing = tempfile.TemporaryFile(dir="/dev/shm")

    def fileno(self) -> int:
        """Returns a descriptor for fsync(). Without one DCP's writer calls os.sync(), for the whole machine."""
        return self._nothing.fileno()

    def close(self) -> None:
        super().close()
        self._nothing.close()


class _Reading(io.BufferedReader):
    """A file of a checkpoint, which stays open as long as the file is. Its bytes are verified."""

    def __init__(self, place: Place, name: str) -> None:
        self._opened: Any = None
        checkpoint = process.open(place)
        if checkpoint is None:
            raise FileNotFoundError(f"ckptd has committed no checkpoint {place.path}")
        try:
            self._opened = checkpoint._open(name)
        except errors.NotFound as error:
            checkpoint.close()
            raise FileNotFoundError(str(error)) from error
        self._checkpoint = checkpoint
        super().__init__(self._opened)

    def close(self) -> None:
        if self._opened is not None and not self.closed:
            super().close()
            self._checkpoint.close()


def _files_of(metadata: str) -> List[str]:
    """Returns the names of a checkpoint's files: not those that an earlier save has left."""
    with open(metadata, "rb", opener=open_regular) as file:
        found = {info.relative_path for info in load_metadata(file, metadata).storage_data.values()}
    return sorted({*found, os.path.basename(metadata)})


def _place(path: str) -> Place:
    """Returns the place of a directory. errors.Refused: a URL, also that of a bucket: files are written beside the checkpoint."""
    return place_of(directory_path(path, "path behind ckptd://"))


def _split(path: str) -> Tuple[Place, str]:
    folder, name = os.path.split(path)
    return _place(folder), name


def _split_committed(path: str) -> Tuple[Place, str]:
    """Returns the checkpoint that a file is in, and its name there: that may have folders."""
    folder = os.path.dirname(path)
    while folder not in ("", "/"):
        if has_manifest(folder):
            return _place(folder), os.path.relpath(path, folder)
        folder = os.path.dirname(folder)
    return _split(path)


def _incoming(place: Place) -> str:
    return os.path.join(place.root, f".{place.tag}.incoming")
