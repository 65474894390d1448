"""What adapters ask of a root that a user names, and of what lies at a tag there: of a directory and of a bucket alike.

of() finds the kind of a root. A root is its absolute path, or the URL of a bucket without a slash at its end.
"""

import contextlib
import functools
import os
from typing import Any, BinaryIO, ContextManager, Dict, List, Optional, Protocol, Tuple

from ckptd import errors
from ckptd._bucket_url import is_bucket_url, parse_bucket_url
from ckptd._checkpoint_paths import has_manifest, is_committed, log_unverified, warn_unverified
from ckptd._paths import check_folder, directory_path, open_regular, root_name
from ckptd._roots.bucket.client import CONNECTIONS
from ckptd._roots.bucket.objects import Objects
from ckptd._roots.parallel import in_parallel
from ckptd.restore import open_root

_OWN = ".ckptd"  # The folder of ckptd in a root, and in a checkpoint.
_MANIFEST = "manifest"  # In that of a checkpoint.

name_of = root_name  # Returns the root that a user names.


def is_name(path: "str | os.PathLike[str]") -> bool:
    """Returns whether it is a path, or the URL of a bucket, and no other URL."""
    text = os.fspath(path)
    return "://" not in text or is_bucket_url(text)


def split(path: "str | os.PathLike[str]", what: str = "checkpoint id") -> Tuple[str, str]:
    """Returns the root and the tag of a checkpoint that a user names: the parent, and the last component.

    Args:
        what: what the path is, for the message of an error.

    Raises:
        errors.Refused: it has no parent, or as root_name().
    """
    if not is_bucket_url(path):
        root, tag = os.path.split(directory_path(path, what))
        if not tag:
            raise errors.invalid(f'the {what} is "{os.fspath(path)}", which has no parent directory to be the root')
        return root, tag
    root, _, tag = str(parse_bucket_url(str(path))).rpartition("/")
    if not is_bucket_url(root):
        raise errors.invalid(f'the {what} is "{path}", which names no checkpoint: s3://BUCKET/PREFIX/TAG')
    return root, tag


def join(root: str, tag: str) -> str:
    """Returns the path, or the URL, of a tag."""
    return f"{root}/{tag}" if is_bucket_url(root) else os.path.join(root, tag)


class RootPath(Protocol):
    """A root. Nothing here needs a daemon. Those of a bucket ask its server, and raise as ckptd.open_root()."""

    name: str
    # A bucket is opened by the daemon of the job that trains alone: another daemon, or another launch, would take it away.
    # There DCP reads nothing that it has saved itself, and nothing is set aside or linked.
    is_directory: bool

    def real(self) -> str:
        """Returns the root without links: two names of one root give one."""

    def real_place(self, tag: str) -> Tuple[str, str]:
        """Returns the root and the tag of a checkpoint without links."""

    def identity(self) -> Any:
        """Returns what tells this root from one that is made in its place; None if there is none."""

    def is_of_ckptd(self) -> bool:
        """Returns whether a daemon has ever used the root."""

    def is_there(self) -> bool:
        """Returns whether the root exists. A bucket's prefix always does."""

    def check_writable(self, what: str) -> None:
        """Raises errors.Refused, with what the root is, for a folder that cannot be made or written to. A bucket says so later."""

    def exists(self, tag: str) -> bool:
        """Returns whether anything is at a tag."""

    def is_committed(self, tag: str) -> bool:
        """Returns whether ckptd has committed what is at a tag.

        Raises:
            errors.Corrupt: it has, in a directory, and the manifest is missing.
        """

    def has_manifest(self, tag: str) -> bool:
        """Returns whether a tag has a manifest, intact or damaged."""

    def is_of_others(self, tag: str) -> bool:
        """Returns whether a tag is a folder that another program has written."""

    def has_file(self, tag: str, name: str) -> bool:
        """Returns whether a file is straight in the folder of a tag that no save is writing."""

    def times_of_others(self, name: str) -> Dict[str, int]:
        """Returns when the file of this name was written that is straight in the folder of a tag, in nanoseconds, by tag; without
        the tags that ckptd has committed.
        """

    def manifests(self) -> List[str]:
        """Returns the tags that have a manifest."""

    def has_any(self, name: str) -> bool:
        """Returns whether a tag has such a file, of whatever program."""

    def files(self, tag: str) -> Dict[str, Any]:
        """Returns all files at a tag, with what open() needs of each."""

    def open(self, tag: str, name: str, found: Any) -> ContextManager[BinaryIO]:
        """Opens one of files(), to be read without verification. An error of the bucket's server is raised as itself."""

    def warn_unverified(self, tag: str) -> None:
        """Logs, once for each tag, that what another program has written is read without verification."""


def of(root: str) -> RootPath:
    """Returns what a root's name leads to. Asks no server."""
    return _bucket(root) if is_bucket_url(root) else DirectoryRoot(root)


class DirectoryRoot:
    """A RootPath in a file system."""

    is_directory = True

    def __init__(self, name: str) -> None:
        self.name = name

    def real(self) -> str:
        return os.path.realpath(self.name)

    def real_place(self, tag: str) -> Tuple[str, str]:
        return os.path.split(os.path.realpath(self._path(tag)))

    def identity(self) -> Any:
        try:
            found = os.stat(self.name)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def is_of_ckptd(self) -> bool:
        return os.path.isdir(self._path(_OWN))

    def is_there(self) -> bool:
        return os.path.isdir(self.name)

    def check_writable(self, what: str) -> None:
        check_folder(self.name, what)

    def exists(self, tag: str) -> bool:
        return os.path.lexists(self._path(tag))

    def is_committed(self, tag: str) -> bool:
        return is_committed(self._path(tag))

    def has_manifest(self, tag: str) -> bool:
        return has_manifest(self._path(tag))

    def is_of_others(self, tag: str) -> bool:
        return os.path.isdir(self._path(tag)) and not self.has_manifest(tag)

    def has_file(self, tag: str, name: str) -> bool:
        return os.path.lexists(os.path.join(self._path(tag), name))

    def times_of_others(self, name: str) -> Dict[str, int]:
        return {tag: time for tag, time in self._times(name).items() if not self.has_manifest(tag)}

    def manifests(self) -> List[str]:
        return [tag for tag in self._tags() if self.has_manifest(tag)]

    def has_any(self, name: str) -> bool:
        return bool(self._times(name))

    def files(self, tag: str) -> Dict[str, Any]:
        names: List[str] = []
        path = self._path(tag)
        for folder, _, files in os.walk(path):
            below = os.path.relpath(folder, path)
            names += [file if below == "." else f"{below}/{file}" for file in files]
        return dict.fromkeys(names)

    def open(self, tag: str, name: str, found: Any) -> ContextManager[BinaryIO]:
        return open(os.path.join(self._path(tag), name), "rb", opener=open_regular)

    def warn_unverified(self, tag: str) -> None:
        warn_unverified(self._path(tag))

    def _tags(self) -> List[str]:
        try:
            return [tag for tag in os.listdir(self.name) if not tag.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _times(self, name: str) -> Dict[str, int]:
        found = {}
        for tag in self._tags():
            with contextlib.suppress(OSError):  # Unfinished, half deleted, or not a checkpoint.
                found[tag] = os.stat(os.path.join(self._path(tag), name)).st_mtime_ns
        return found

    def _path(self, tag: str) -> str:
        return os.path.join(self.name, tag)


class BucketRoot:
    """A RootPath beneath a prefix of a bucket.

    A tag has objects of ckptd beneath TAG/.ckptd/ from before the first byte of a save until after the last one of its
    removal. What is under way is neither committed nor of others, though it may have a marker of NxD already.
    """

    is_directory = False

    def __init__(self, url: str) -> None:
        self.name = url

    @functools.cached_property
    def _objects(self) -> Objects:
        return Objects(self.name)

    def real(self) -> str:
        return self.name

    def real_place(self, tag: str) -> Tuple[str, str]:
        return self.name, tag

    def identity(self) -> Any:
        return self.name

    def is_of_ckptd(self) -> bool:
        return _OWN in self._objects.entries()[1]

    def is_there(self) -> bool:
        return True

    def check_writable(self, what: str) -> None:
        pass

    def exists(self, tag: str) -> bool:
        return any(self._objects.entries(tag))

    def is_committed(self, tag: str) -> bool:
        # A manifest that is missing is no damage: it goes first, and whoever removes a checkpoint may do so by hand.
        return self.has_manifest(tag)

    def has_manifest(self, tag: str) -> bool:
        return self._own(tag).get(_MANIFEST, 0) > 0

    def is_of_others(self, tag: str) -> bool:
        return self._of_others(tag) is not None

    def has_file(self, tag: str, name: str) -> bool:
        files, folders = self._objects.entries(tag)
        return name in files and (_OWN not in folders or self.has_manifest(tag) or self._of_others(tag) is not None)

    def times_of_others(self, name: str) -> Dict[str, int]:
        # The tags first: what is committed in between is then among the committed ones.
        tags = [tag for tag in self._objects.entries()[1] if not tag.startswith(".")]
        committed = set(self.manifests())
        others = [tag for tag in tags if tag not in committed]
        found = zip(others, in_parallel(others, self._of_others, CONNECTIONS))
        return {tag: files[name].modified_ns for tag, files in found if files is not None and name in files}

    def has_any(self, name: str) -> bool:
        return bool(self.manifests()) or bool(self.times_of_others(name))

    def files(self, tag: str) -> Dict[str, Any]:
        return self._objects.beneath(tag)

    def open(self, tag: str, name: str, found: Any) -> ContextManager[BinaryIO]:
        return self._objects.open(f"{tag}/{name}", found)

    def warn_unverified(self, tag: str) -> None:
        log_unverified(join(self.name, tag))

    def manifests(self) -> List[str]:
        return [tag for _, tag in open_root(self.name)._summaries()]

    def _of_others(self, tag: str) -> Optional[Dict[str, Any]]:
        """Returns the files straight in a tag that another program has written; None if ckptd has something there, or nothing is."""
        files, folders = self._objects.entries(tag)
        is_others = bool(files) or any(folder != _OWN for folder in folders)
        if not is_others or (_OWN in folders and any(self._own(tag).values())):
            return None
        return files

    def _own(self, tag: str) -> Dict[str, int]:
        """Returns the sizes of ckptd's own objects at a tag. A manifest without a byte is what a save left that was given up."""
        return {name: info.size for name, info in self._objects.beneath(f"{tag}/{_OWN}").items()}


@functools.lru_cache(maxsize=8)
def _bucket(url: str) -> BucketRoot:
    return BucketRoot(url)


os.register_at_fork(after_in_child=_bucket.cache_clear)  # A child must not use the connections of its parent.
