"""Errors of loading that are of ckptd's class and of the class of Python that NxD raises there."""

from errno import ENOENT

from ckptd import errors


class NoCheckpoint(errors.NotFound, RuntimeError):
    """There is no checkpoint to load. It is a RuntimeError, too, which is what NxD raises."""


class NoTag(NoCheckpoint, FileNotFoundError):
    """There is no checkpoint of this name. It is a FileNotFoundError, too, which is what NxD raises."""

    errno = ENOENT


class NoFile(errors.NotFound, FileNotFoundError):
    """The checkpoint was saved without this file. It is a FileNotFoundError, too, which is what NxD raises."""

    errno = ENOENT
