"""Uploads: which committed checkpoints of a run the daemon copies to a bucket."""

import dataclasses
from typing import Any, Optional

from ckptd import errors
from ckptd._wire.protocol import types

_MOST = 1_000_000


@dataclasses.dataclass(frozen=True)
class Upload:
    """Which committed checkpoints the daemon copies to a bucket, for :meth:`Client.run`.

        client.run(root, upload=ckptd.Upload("s3://bucket/run", every=10, keep_last=5))

    Saves do not wait for the bucket, also while it cannot be reached: what could not be sent is sent later, also after a
    restart of the daemon. Retention keeps a checkpoint on the disk until it is in the bucket, unless a save needs its room.

    The first :meth:`Run.resume` of a launch asks the bucket. If it has a newer checkpoint than the root, as on a node with
    an empty disk, the daemon fetches it, and all ranks resume from it. With an adapter's ``configure(upload=)`` that is
    what happens when the library first looks for its newest checkpoint.

    Args:
        url (str): ``s3://BUCKET/PREFIX``. Each run has a prefix of its own
        every (int): each how many-th checkpoint is uploaded, suspect ones not counted. Default: 1, each one
        keep_last (int, optional): how many of the checkpoints that this run has uploaded stay in the bucket. Default: all
        evict_before_upload (bool): let retention evict a checkpoint before it is uploaded; it is then not uploaded.
            Default: ``False``
        restore (bool): take part in :meth:`Run.resume`, and in the loads of an adapter, which then fail while the bucket does
            not answer. ``False``: resume from the root alone, which a root that several nodes share needs. Default: ``True``

    Raises:
        Refused: an argument is out of its range.
    """

    url: str
    every: int = 1
    keep_last: Optional[int] = None
    evict_before_upload: bool = False
    restore: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.startswith("s3://"):
            raise errors.invalid(f"url is {self.url!r}; it must be s3://BUCKET/PREFIX")
        for name, value in (("every", self.every), ("keep_last", self.keep_last)):
            is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST
            if not is_count and not (name == "keep_last" and value is None):
                raise errors.invalid(f"{name} is {value!r}; it must be a whole number in [1, {_MOST}]")


def message_of(upload: "Optional[Upload]") -> Any:
    """Returns the types.UploadPolicy of an Upload; None of None."""
    if upload is None:
        return None
    return types.UploadPolicy(
        url=upload.url,
        every=upload.every,
        keep_last=upload.keep_last or 0,
        evict_before_upload=upload.evict_before_upload,
        no_restore=not upload.restore,
    )
