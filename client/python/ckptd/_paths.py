"""Paths that users name: a local directory, or a root in a bucket; and what a checkpoint's name says."""

import errno
import os
import re
import stat
from typing import Any, Optional, Union

from ckptd import errors
from ckptd._bucket_url import is_bucket_url, parse_bucket_url

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def directory_path(path: "Union[str, os.PathLike[str]]", what: str = "root") -> str:
    """Returns the absolute path of a directory that a user names; a leading ``~`` is the home directory.

    Args:
        what: what the directory is, for the message of an error.

    Raises:
        errors.Refused: the path is empty, a URL, or begins with the ``~`` of a user who has no home.
        TypeError: it is no path.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"the {what} is {path!r}; it must be a str or an os.PathLike[str], such as \"/data/ckpts\"")
    if not text.strip():
        raise errors.invalid(f'the {what} is "{text}"; name a directory, such as /data/ckpts')
    if isinstance(path, os.PathLike) and text.startswith("s3:/"):
        raise errors.invalid(f"the {what} is {path!r}: give the URL of a bucket as a str, because a path keeps one of its slashes")
    if is_bucket_url(text):
        raise errors.invalid(
            f'the {what} is "{text}", and must be a directory here: name one by its path, and give upload=ckptd.Upload("{text}") '
            "to have its checkpoints copied there (docs/buckets.md)"
        )
    if _URL.match(text):
        raise errors.invalid(
            f'the {what} is "{text}", a URL; ckptd saves into directories of this machine only: name one by its path'
        )
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise errors.invalid(
            f'the {what} is "{text}", and no home directory is known for that; write an absolute path, or ./{text} for a '
            "directory of that name"
        )
    return os.path.abspath(expanded)


def root_name(root: "Union[str, os.PathLike[str]]", what: str = "root") -> str:
    """Returns the absolute path of a root that a user names, or the URL of one in a bucket, without a slash at its end.

    Arguments and errors are those of directory_path(); errors.Refused: the URL is none of a bucket.
    """
    return str(parse_bucket_url(str(root))) if is_bucket_url(root) else directory_path(root, what)


def check_folder(folder: str, what: str) -> None:
    """Raises errors.Refused for a folder, named `what`, that cannot be made, or in which this user may not write. Makes nothing."""
    place = folder
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    why = ""
    if not os.path.isdir(place):
        why = f"{place} is a file and no directory"
    elif not os.access(place, os.W_OK | os.X_OK):
        why = "this user may not write there" if place == folder else f"it cannot be made in {place}, where this user may not write"
    if why:
        raise errors.invalid(
            f"{what} is {folder}, and {why}; give it a folder that this user may make and write to"
        )


def tag_text(tag: Any) -> str:
    """Returns a checkpoint's name. A number, such as a step, is a name, too. TypeError: it is neither."""
    if isinstance(tag, str):
        return tag
    if isinstance(tag, int) and not isinstance(tag, bool):
        return str(tag)
    raise TypeError(f"tag is {tag!r}; it must be a str, such as \"step_100\", or an int")


def is_tag(name: str) -> bool:
    """Returns whether a checkpoint may have this name (CheckTag of storage/format/names.cc)."""
    return re.fullmatch(r"[A-Za-z0-9_=+,@][A-Za-z0-9._=+,@-]{0,199}", name) is not None and name != "latest"


def check_text(text: str, what: str, reason: str) -> None:
    """Raises errors.Refused if a name cannot be sent to the daemon, such as one that os.listdir() gave of other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise errors.Refused(
            f"the {what} is {text!r}, whose character {error.start + 1} is no valid UTF-8; give it another name", reason=reason
        ) from None


def step_of(tag: str) -> Optional[int]:
    """Returns the number at the end of a tag, such as step-10; None if there is none."""
    found = re.search(r"(\d{1,18})$", tag)
    return int(found.group(1)) if found else None


def open_regular(path: str, flags: int) -> int:
    """Opens a regular file, as the opener of open(). Follows links.

    Raises:
        OSError: as os.open; EINVAL for what is no regular file, such as a pipe, which would be waited for.
    """
    return regular(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC), path)


def regular(descriptor: int, path: str) -> int:
    """Returns a descriptor, which it closes if it is not one of a regular file: OSError, EINVAL."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor
