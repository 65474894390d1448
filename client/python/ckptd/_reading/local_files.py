"""The files of a committed checkpoint that this process opens itself."""

import errno
import os
import time
from typing import Any, Dict

from ckptd import errors
from ckptd._membership.membership import STALE_SECONDS
from ckptd._reading.manifest import open_beneath, read_manifest, read_summary
from ckptd._reading.verified_file import LocalFile, corrupt_file, removed_while_read

# EINVAL: it is not a regular file. ESTALE: what was found on a network file system is there no longer.
_MISSING_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.ESTALE)
_PAUSE_SECONDS = 0.1


class LocalFiles:
    """The files of one committed checkpoint, by its directory. Not thread-safe.

    Attributes:
        summary: the storage.ManifestSummary.
        records (dict): the storage.FileRecord of each file by its path.
    """

    def __init__(self, directory: int, tag: str, what: str) -> None:
        """Takes ownership of the directory's descriptor. Raises as read_manifest(), and closes it then.

        Args:
            what: names the checkpoint in the errors of its manifest.
        """
        self._directory = directory
        self._tag = tag
        try:
            self.summary, records = read_manifest(directory, what)
        except BaseException:
            os.close(directory)
            raise
        self.records: Dict[str, Any] = records

    def close(self) -> None:
        os.close(self._directory)

    def open(self, path: str, threads: int) -> LocalFile:
        """Opens a file.

        A network file system may not show yet what another node has just written: what is missing, or has another size
        than it should, is looked at again for STALE_SECONDS. One node sees what it has written at once.

        Args:
            threads: that read the file.

        Raises:
            errors.Corrupt: it is missing, or its size is wrong.
            errors.NotFound: the checkpoint was removed meanwhile. That is no damage.
            OSError: it cannot be opened, for another reason.
        """
        deadline = time.monotonic() + STALE_SECONDS
        while True:
            try:
                return self._open(path, threads)
            except errors.Corrupt:
                if self._was_removed():
                    raise removed_while_read(self._tag) from None
                if time.monotonic() >= deadline or not self._is_of_several_nodes():
                    raise
            time.sleep(_PAUSE_SECONDS)

    def _open(self, path: str, threads: int) -> LocalFile:
        record = self.records[path]
        try:
            descriptor = open_beneath(self._directory, path)
        except OSError as error:
            if error.errno not in _MISSING_ERRNOS:
                raise
            raise corrupt_file(self._tag, record, f"it cannot be opened: {error.strerror}") from error
        return LocalFile(self._tag, record, self.summary.chunk_bytes, descriptor, threads)

    def _was_removed(self) -> bool:
        """Whether the directory no longer holds the checkpoint. A removal takes the manifest away before the files."""
        try:
            return bool(read_summary(self._directory, self._tag).sequence != self.summary.sequence)
        except errors.Corrupt:
            return False
        except OSError as error:
            return error.errno in _MISSING_ERRNOS

    def _is_of_several_nodes(self) -> bool:
        """Whether several nodes can have written it: each has left a record then. True, too, if it is just being removed."""
        try:
            names = os.listdir(f"/proc/self/fd/{self._directory}/.ckptd")
        except OSError:
            return True
        return any(name.startswith("node.") for name in names)
