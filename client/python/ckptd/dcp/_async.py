"""Saving without waiting for the disk, and the future that tells how it ended."""

import concurrent.futures
import contextlib
import gc
import logging
from typing import Any, Optional

from torch.distributed.checkpoint.api import CheckpointException  # No Exception, only a BaseException.
from torch.distributed.checkpoint.metadata import Metadata

from ckptd.dcp._process import place_of, process
from ckptd.dcp._sync import read_metadata, save_state

_log = logging.getLogger("ckptd")


class SaveFuture(concurrent.futures.Future):  # type: ignore[type-arg]
    """The metadata of a checkpoint, once it is committed: durable, under its name. Thread-safe.

    It serves as DCP's ``AsyncSaveResponse``, too.

    Attributes:
        staging_completion (Future): the state may change when it is done: at once, unless devices still copy.
        upload_completion (Future): this future.
    """

    def __init__(self) -> None:
        super().__init__()
        self.staging_completion: "concurrent.futures.Future[None]" = concurrent.futures.Future()
        self.upload_completion = self
        self._is_asked = False

    def result(self, timeout: Optional[float] = None) -> Metadata:
        """Returns the metadata. Only the coordinator has it; the other ranks read it from the checkpoint.

        Args:
            timeout (float, optional): seconds to wait. Default: as long as it takes

        Raises:
            TimeoutError: of concurrent.futures; the save goes on.
            Exception: why there is no checkpoint.
        """
        self._is_asked = True
        found = super().result(timeout)
        return found if isinstance(found, Metadata) else read_metadata(found)

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """Returns why there is no checkpoint; None if there is one. Waits and raises TimeoutError as :meth:`result`."""
        self._is_asked = True
        return super().exception(timeout)

    def end_staging(self) -> None:
        """Notes that the state may change. No-op the second time."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.staging_completion.set_result(None)

    def fail(self, error: BaseException, path: str) -> None:
        """Sets the error, and logs it unless result() or exception() was called before."""
        self.end_staging()
        if not self._is_asked:
            _log.warning("ckptd: %s is not a checkpoint: %s", path, error)
        self.set_exception(error)


def save_async(state_dict: Any, writer: Any, **arguments: Any) -> SaveFuture:
    """Saves; returns when this rank's part is sealed, or when devices copy it with ``stage="overlap"``. Errors are the
    future's.

    It plans, copies and seals on this thread: afterwards nothing needs this process. It does not wait for the parts of other
    ranks, which on several nodes would be a wait for etcd. Once it has returned on all ranks, all parts are sealed.

    Args:
        writer: the Writer, whose ``wait`` does not count.
        arguments: those of dcp.save.
    """
    checkpoint_id = arguments.pop("checkpoint_id", None)
    if checkpoint_id:
        writer.reset(checkpoint_id)
    future, path, chosen = SaveFuture(), writer.checkpoint_id, writer.options
    is_collecting = gc.isenabled()
    gc.disable()  # Nothing of a plan is garbage, and collections take longer than planning.
    writer.options = chosen._replace(wait="begun")
    try:
        metadata = save_state(state_dict, writer, **arguments)
        assert writer.save is not None  # save_state() has called the writer.
        saved = writer.save.future("committed")
    except (Exception, CheckpointException) as error:  # As in DCP's async_save(), an error goes to the future.
        future.fail(error, path)
        process.add_failure(place_of(path), error)
        return future
    finally:
        writer.options = chosen
        if is_collecting:
            gc.enable()

    def end(done: Any) -> None:
        error = done.exception()
        if error is None:
            future.set_result(metadata if metadata is not None else path)
        else:
            future.fail(error, path)

    writer.save.future("staged").add_done_callback(lambda _: future.end_staging())
    saved.add_done_callback(end)
    return future
