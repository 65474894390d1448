"""Checks which user serves a socket: bytes of a checkpoint must not go to a process of another user."""

import os
from typing import Optional

from ckptd import errors


def check_server(path: str, uid: Optional[int] = None) -> None:
    """Checks that root, this user, or the owner of the socket's directory serves a socket.

    The owner of the directory decides what lies in it. A user namespace shows users of outside as one uid, which is
    then that of the directory, too.

    Args:
        path: of the socket.
        uid: of the process that listens there. Default: the owner of the socket

    Raises:
        errors.Refused: another user serves it.
        OSError: there is no such socket.
    """
    if uid is None:
        uid = os.stat(path).st_uid
    folder = os.path.dirname(os.path.realpath(path))
    if uid in (0, os.getuid(), os.geteuid()) or uid == os.stat(folder).st_uid:
        return
    raise errors.Refused(
        f"the socket {path} belongs to uid {uid}, which is neither root, nor this user (uid {os.getuid()}), nor the owner of "
        f"{folder}: another user may have put it there, so nothing was sent. Set $CKPTD_ENDPOINT to the socket of a daemon that "
        "you trust, or have it serve in a directory of its own",
        reason="WRONG_UID",
    )
