"""The sources of a checkpoint: one that ckptd committed, whose bytes are verified, or a folder that NxD
wrote.
"""

import contextlib
import errno
from typing import Any, FrozenSet, Iterator, NamedTuple, Sequence

from ckptd import errors
from ckptd._adapters import root_paths
from ckptd.nxd import _pickles
from ckptd.nxd._errors import NoFile
from ckptd.restore import Checkpoint


class Classes(NamedTuple):
    """The classes that a file may hold."""

    more: Sequence[Any] = ()
    anything: bool = False


class Source:
    """The files of one checkpoint."""

    def __init__(self, tag: str, names: FrozenSet[str]) -> None:
        self.tag = tag
        self.names = names

    def load(self, name: str, classes: Classes) -> Any:
        """Returns the object in one file, on the CPU, with references unresolved."""
        with self.file(name) as file:
            return _pickles.load(file, f"{name} of {self.tag}", classes.more, classes.anything)

    def load_into(self, name: str, target: Any, classes: Classes) -> bool:
        """Fills the tensors of `target` without a second copy.

        Returns False, with nothing changed, if it does not fit.
        """
        return False

    def check(self, name: str) -> None:
        """Raises NoFile unless the checkpoint has the file."""
        if name not in self.names:
            folder = name.rpartition("/")[0]
            beside = sorted(other for other in self.names if other.rpartition("/")[0] == folder)
            there = ", ".join(beside[:6]) + (", ..." if len(beside) > 6 else "")
            raise NoFile(
                f'{self.tag} has no file "{name}"; in that folder it has {there or "none"}: was it saved without this, or with '
                "another topology?",
                reason="UNKNOWN_FILE",
                tag=self.tag,
                path=name,
            )

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[Any]:
        """Opens one file for reading."""
        raise NotImplementedError
        yield


class Committed(Source):
    """A checkpoint that ckptd committed."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.tag, frozenset(checkpoint.files))
        self._checkpoint = checkpoint

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[Any]:
        self.check(name)
        with self._checkpoint._file(name) as file:
            with file.buffered() as reader:
                yield reader

    def load_into(self, name: str, target: Any, classes: Classes) -> bool:
        self.check(name)
        try:
            self._checkpoint.load(name, safe_globals=classes.more, into=target)
        except errors.Refused as error:
            if error.reason in ("STATE_MISMATCH", "UNSAFE_GLOBALS"):
                return False
            raise
        return True


class Foreign(Source):
    """A folder that NxD wrote. There are no checksums to verify its bytes with, and a warning in the log says so.

    Raises:
        errors.Corrupt: ckptd wrote it, and its manifest is missing.
    """

    def __init__(self, root: str, tag: str) -> None:
        self._root = root_paths.of(root)
        self._root.is_committed(tag)
        self._root.warn_unverified(tag)
        self._files = self._root.files(tag)
        super().__init__(tag, frozenset(self._files))

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[Any]:
        self.check(name)
        try:
            with self._root.open(self.tag, name, self._files[name]) as file:
                yield file
        except (errors.CkptdError, ImportError, AttributeError, MemoryError):
            raise  # Such as a class that is not installed here: the file is not at fault.
        except Exception as error:  # torch and pickle may raise anything for a wrong byte.
            # EINVAL: a seek to before the file's begin.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise errors.Corrupt(
                f"{name} of {self.tag} in {self._root.name} cannot be read: {error}; NxD wrote it without checksums: load "
                "another tag",
                reason="CORRUPT_FILE",
                tag=self.tag,
                path=name,
            ) from error
