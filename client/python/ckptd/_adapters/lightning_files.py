"""Lightning's checkpoints as single files: where the committed directory behind a file lies, and the link to its data.

Lightning names a file, FOLDER/NAME. ckptd commits the directory FOLDER/.ckptd-lightning/TAG with one data file, NAME, and
FOLDER/NAME is a hard link to that. The record FOLDER/.ckptd-lightning/.linked/TAG identifies the data file that was linked
last: without it, a link that a crash has prevented would look like one that the user has removed. A mark
FOLDER/.ckptd-lightning/.removed/TAG says that ModelCheckpoint has removed the file, and which checkpoint must be committed
before it goes. No function here needs a daemon. docs/decisions/0015 has the reasons.
"""

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
import stat
import threading
import time
from typing import Callable, Container, Iterator, List, NamedTuple, Optional, Sequence

from ckptd import errors
from ckptd._checkpoint_paths import has_manifest

_log = logging.getLogger("ckptd")
ROOT = ".ckptd-lightning"  # The root of ckptd in a folder of Lightning.
_RECORDS = ".linked"
_MARKS = ".removed"
_TAG = re.compile(r"(?![.-])[A-Za-z0-9._=+,@-]{1,200}\Z")
_NOT_IN_A_TAG = re.compile(r"[^A-Za-z0-9._=+,@-]")
_TEMPORARY = ".new-"
_TEMPORARY_SECONDS = 60.0  # A temporary name is renamed at once.
_MAX_PATH_BYTES = 1000  # The longest path of a file in a checkpoint; below: the longest component of one.
_MAX_NAME_BYTES = 255
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
# Errors of os.link() where the file system makes no hard link, or none between the two paths.
_NO_HARD_LINK = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP)


class CheckpointFile(NamedTuple):
    """A file that Lightning has named."""

    folder: str  # Absolute, without links.
    name: str  # Relative to the folder; it has a slash if a metric's name has one.

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.name)

    @property
    def root(self) -> str:
        return os.path.join(self.folder, ROOT)

    @property
    def tag(self) -> str:
        """The name itself where it is a tag; else a readable part of it and a hash, because tags have fewer characters."""
        if _TAG.match(self.name) and self.name != "latest":
            return self.name
        readable = _NOT_IN_A_TAG.sub("_", self.name).lstrip(".-")[:160]
        return f"{readable}@{hashlib.sha256(os.fsencode(self.name)).hexdigest()[:16]}"

    @property
    def directory(self) -> str:
        """The directory that ckptd commits."""
        return os.path.join(self.root, self.tag)

    @property
    def data(self) -> str:
        """The data file in that."""
        return os.path.join(self.directory, self.name)

    @property
    def record(self) -> str:
        return os.path.join(self.root, _RECORDS, self.tag)

    @property
    def mark(self) -> str:
        return os.path.join(self.root, _MARKS, self.tag)


def local_path(path: "str | os.PathLike[str]") -> str:
    """Returns the absolute path of a checkpoint that Lightning names; links in its folder are followed, and one to a file
    is kept.

    Raises:
        errors.Refused: it is a URL of another machine.
    """
    text = os.fspath(path)
    if text.startswith("file://"):  # fsspec, which Lightning asks for files, takes these as paths.
        text = text[len("file://") :]
    if "://" in text:
        raise errors.invalid(
            f'the checkpoint is "{text}", a URL; ckptd.lightning saves into directories of this machine: give a path, and '
            "configure(upload=ckptd.Upload(...)) to have checkpoints copied to a bucket, or leave the plugin out"
        )
    parent, name = os.path.split(os.path.abspath(os.path.expanduser(text)))
    return os.path.join(os.path.realpath(parent), name)


def locate(path: str, folders: Sequence[str] = ()) -> CheckpointFile:
    """Returns the file at a local_path(), in the innermost of the folders that hold it, else in the folder from which ckptd
    has saved it, else in its parent.
    """
    parents = list(_parents(path))
    known = [folder for folder in parents if folder in folders]
    for folder in known:
        return CheckpointFile(folder, os.path.relpath(path, folder))
    for folder in parents:
        file = CheckpointFile(folder, os.path.relpath(path, folder))
        if os.path.isdir(file.root) and os.path.isdir(file.directory):
            return file
    return CheckpointFile(*os.path.split(path))


def check_name(file: CheckpointFile) -> None:
    """Raises errors.Refused, with what to change, for a name that no file in a checkpoint can have."""
    control = _CONTROL.search(file.name)
    try:
        size = len(file.name.encode())
        longest = max(len(part.encode()) for part in file.name.split(os.sep))
    except UnicodeEncodeError:
        raise errors.invalid(f"the checkpoint's name {file.name!r} is not valid UTF-8; give it another one") from None
    why = ""
    if not file.name:
        why = "is empty"
    elif control:
        why = f"has the control character {control.group()!r}"
    elif longest > _MAX_NAME_BYTES or size > _MAX_PATH_BYTES:
        why = f"has {size} bytes, {longest} of them between two slashes; at most {_MAX_PATH_BYTES} and {_MAX_NAME_BYTES} are possible"
    if why:
        raise errors.invalid(f"the checkpoint's name {file.name!r} {why}; give ModelCheckpoint another filename")


def check_replaceable(file: CheckpointFile) -> None:
    """Raises errors.Refused if the file's name is that of a directory of another program."""
    if os.path.isdir(file.path) and not os.path.islink(file.path) and not has_manifest(file.path):
        raise errors.Refused(
            f"{file.path} is a directory that ckptd has not written, so no checkpoint replaces it; save to another name, or move it away",
            reason="TAG_FOREIGN",
        )


def is_linked(file: CheckpointFile) -> bool:
    """Returns whether the file is that of the committed checkpoint."""
    return _is_same(file.path, file.data)


def is_unchanged(file: CheckpointFile) -> bool:
    """Returns whether no program has written to the file since it was linked: what the daemon's memory has is what it holds."""
    try:
        return _read_record(file) == _identity(file.data)
    except OSError:
        return False


def find_linked(path: str) -> Optional[CheckpointFile]:
    """Returns what ckptd has committed as the file at a path, also under another name in its folder; None if it is
    another program's file, or a copy. Follows links.
    """
    real = os.path.realpath(path)
    file = locate(real)
    if is_linked(file):
        return file
    if not os.path.isfile(real):
        return None
    for folder in _parents(real):
        for other in _committed(folder):
            if _is_same(real, other.data):
                return other
    return None


def link(file: CheckpointFile) -> None:
    """Makes the file that of the committed checkpoint. What has its name is replaced in one step; a directory that ckptd has
    committed there goes. The file is durable when the call returns.

    On a file system without hard links it is a symbolic link.

    Raises:
        FileNotFoundError: the checkpoint is not there, or no longer.
        OSError: the file cannot be made.
    """
    linked = _identity(file.data)
    if not is_linked(file):
        parent = os.path.dirname(file.path)
        os.makedirs(parent, exist_ok=True)
        try:
            _replace(file, file.root, os.link, file.data)
        except OSError as error:
            if error.errno not in _NO_HARD_LINK:
                raise
            _log.info("ckptd: %s becomes a symbolic link: %s", file.path, error)
            _replace(file, parent, os.symlink, os.path.relpath(file.data, parent))
        _sync_directory(parent)
    # After the file is durable: a record without the file means that the user has removed it. A symbolic link gets none:
    # a user who moves the link has not moved the bytes.
    if not os.path.islink(file.path):
        _write_record(file, linked)


def unlink(file: CheckpointFile) -> None:
    """Removes the file if it is that of the committed checkpoint."""
    if is_linked(file):
        os.unlink(file.path)


def forget(file: CheckpointFile) -> None:
    """Removes the record, and the mark, of a checkpoint that is removed."""
    unmark_removed(file)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(file.record)


def mark_removed(file: CheckpointFile, successor: Optional[CheckpointFile]) -> None:
    """Notes that a checkpoint is to be removed when another one is committed; at once if that is None."""
    _write(file, file.mark, successor.tag if successor else "")


def unmark_removed(file: CheckpointFile) -> None:
    """Undoes mark_removed()."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(file.mark)


def due_removals(folder: str) -> List[CheckpointFile]:
    """Returns the checkpoints that an earlier launch was to remove, and whose successors are committed. The others stay."""
    marks = os.path.join(folder, ROOT, _MARKS)
    tags = os.listdir(marks) if os.path.isdir(marks) else []
    found = [file for file in _committed(folder) if file.tag in tags] if tags else []
    due = []
    for file in found:
        with open(file.mark, encoding="ascii") as mark:
            successor = mark.read()
        if not successor or has_manifest(os.path.join(file.root, successor)):
            due.append(file)
    for tag in set(tags) - {file.tag for file in due}:  # The save that was to replace it did not commit.
        os.unlink(os.path.join(marks, tag))
    return due


def make_symbolic_link(path: str, linkpath: str) -> None:
    """Makes a relative symbolic link, in the place of whatever has its name, as Lightning does."""
    parent = os.path.dirname(linkpath)
    if os.path.isdir(linkpath) and not os.path.islink(linkpath):
        shutil.rmtree(linkpath)
    temporary = _temporary(parent)
    os.symlink(os.path.relpath(path, parent), temporary)
    os.replace(temporary, linkpath)


def repair(folder: str) -> List[CheckpointFile]:
    """Makes the links that a crash has prevented, of all committed checkpoints of a folder.

    Returns:
        The checkpoints whose file a user has removed or replaced, and that no other name leads to.

    Raises:
        OSError: a file cannot be made.
    """
    unreferenced = []
    root = os.path.join(folder, ROOT)
    if os.path.isdir(root):
        _remove_old_temporaries(root)
    for file in _committed(folder):
        # A user may have written to the file since: that is no other file, and its record goes on to say so.
        was_linked = _read_record(file).split(" ")[0] == _identity(file.data).split(" ")[0]
        if is_linked(file):
            if not was_linked:
                link(file)  # The crash was before the record was written.
        elif was_linked:
            if os.stat(file.data).st_nlink == 1:  # Else the user has renamed it, and its bytes stay anyway.
                unreferenced.append(file)
        elif not os.path.lexists(file.path) or os.lstat(file.path).st_mtime_ns <= os.stat(file.data).st_mtime_ns:
            link(file)
    return unreferenced


def path_of_tag(folder: str, tag: str) -> Optional[str]:
    """Returns the path of the file of a committed checkpoint; None if it has no file in the folder."""
    return next((file.path for file in _committed(folder) if file.tag == tag and is_linked(file)), None)


def unlink_evicted(folder: str, busy: "Container[str]" = ()) -> None:
    """Removes the files of checkpoints that are no longer there, because retention has removed them.

    busy: tags that are being saved. Some file systems cannot exchange two directories: then one is not there for a moment.
    """
    records = os.path.join(folder, ROOT, _RECORDS)
    for tag in os.listdir(records) if os.path.isdir(records) else []:
        if tag in busy or os.path.lexists(os.path.join(folder, ROOT, tag)):
            continue
        name, linked = _split_record(os.path.join(records, tag))
        file = CheckpointFile(folder, name)
        is_below = os.path.normpath(file.path) == file.path and file.path.startswith(folder + os.sep)
        if is_below and os.path.isfile(file.path) and not os.path.islink(file.path) and _identity(file.path) == linked:
            os.unlink(file.path)
        os.unlink(os.path.join(records, tag))


def _parents(path: str) -> Iterator[str]:
    """Returns the directories above a path, the innermost first."""
    while os.path.dirname(path) != path:
        path = os.path.dirname(path)
        yield path


def _committed(folder: str) -> Iterator[CheckpointFile]:
    """Returns the committed checkpoints in the root of a folder that have the place of their file's name."""
    root = os.path.join(folder, ROOT)
    for tag in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        directory = os.path.join(root, tag)
        if not has_manifest(directory):
            continue
        for parent, _, names in os.walk(directory):
            for name in names if parent != os.path.join(directory, ".ckptd") else []:
                file = CheckpointFile(folder, os.path.relpath(os.path.join(parent, name), directory))
                if file.tag == tag:
                    yield file


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _identity(path: str) -> str:
    """Returns what tells a data file from any other one."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise FileNotFoundError(errno.ENOENT, "it is not a regular file", path)
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _replace(file: CheckpointFile, folder: str, make: "Callable[[str, str], None]", target: str) -> None:
    """Makes a link to the target under a temporary name in a folder, and renames it to the file's."""
    temporary = _temporary(folder)
    try:
        make(target, temporary)
        try:
            os.replace(temporary, file.path)
        except IsADirectoryError:
            # A checkpoint that an older version has saved as a directory. If this is killed now, repair() makes the link.
            aside = _temporary(file.root) + ".replaced"
            os.rename(file.path, aside)
            os.replace(temporary, file.path)
            shutil.rmtree(aside)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _write_record(file: CheckpointFile, linked: str) -> None:
    if _read_record(file) != linked:
        _write(file, file.record, f"{linked} {file.name}")


def _write(file: CheckpointFile, path: str, text: str) -> None:
    # Atomic but not synced: a record that a power failure has torn is read as a missing one.
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = _temporary(file.root)
    with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as written:
        written.write(text)
    os.replace(temporary, path)


def _read_record(file: CheckpointFile) -> str:
    return _split_record(file.record)[1]


def _split_record(path: str) -> "tuple[str, str]":
    """Returns the name and the identity in a record; both empty if it is missing, or torn by a power failure."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as record:
            inode, size, changed, name = record.read().split(" ", 3)
    except (OSError, ValueError):
        return "", ""
    return name, f"{inode} {size} {changed}"


def _temporary(folder: str) -> str:
    return os.path.join(folder, f"{_TEMPORARY}{os.getpid()}-{threading.get_ident()}")


def _remove_old_temporaries(root: str) -> None:
    """Removes what a process left when it was killed: a link to a data file holds the bytes of a removed checkpoint."""
    for name in os.listdir(root):
        path = os.path.join(root, name)
        with contextlib.suppress(FileNotFoundError):
            if name.startswith(_TEMPORARY) and time.time() - os.lstat(path).st_ctime > _TEMPORARY_SECONDS:
                shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
