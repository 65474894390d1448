"""The calls of a run about its history, retention, single checkpoints and the trash."""

from typing import Any, List, Optional

from ckptd import errors
from ckptd._checkpoint_info import CheckpointInfo, info_of_message
from ckptd._membership.membership import RPC_SECONDS, Joined
from ckptd._run_reader import RunReader
from ckptd._wire.protocol import messages
from ckptd.restore import is_open_here
from ckptd.retention import (
    Keep,
    RetentionDecision,
    TrashedCheckpoint,
    best_of,
    decision_of_message,
    policy_message,
    trashed_of_message,
)


class RetainedRun(RunReader):
    """The part of :class:`Run` that looks at what it keeps, and changes it."""

    def best(self, metric: str, mode: str = "min") -> Optional[CheckpointInfo]:
        """Returns the committed checkpoint with the best value of a metric, or None if none has it.

        Of equal values, the newer one is better. Checkpoints that are damaged or suspect, or where the metric is
        NaN, do not count.

        Args:
            metric (str): its name, as in :meth:`save`
            mode (str): ``"min"`` if the lowest value is the best, ``"max"`` if the highest is. Default: ``"min"``

        Raises:
            Unavailable: no daemon answered within 30 seconds.
        """
        return best_of(self.list(), metric, mode)

    def explain_retention(self, keep: Optional[Keep] = None) -> List[RetentionDecision]:
        """Returns what keeps each committed checkpoint, newest first. Changes nothing.

        Args:
            keep (Keep, optional): the policy to try. Default: the one that the next commit puts in force

        Raises:
            Unavailable: no daemon answered within 30 seconds.
        """
        request = messages.ExplainRetentionRequest()
        if keep is not None:
            request.policy.CopyFrom(policy_message(keep))

        def ask(joined: Joined) -> Any:
            request.run = joined.run
            return joined.session.call(joined.session.admin.ExplainRetention, request, RPC_SECONDS)

        return [decision_of_message(decision) for decision in self._access.ask(ask, RPC_SECONDS).decisions]

    def save_outlook(self, seconds_between_failures: float = 0) -> Any:
        """Returns what to expect of the next save, and how often to save: the message ``ckptd.v1.SaveOutlook``, measured
        from the run's last saves on this node. None if none was committed.

        Args:
            seconds_between_failures (float): how long the job runs between two failures. Default: as the history
                shows

        Raises:
            Unavailable: no daemon answered within 30 seconds.
        """
        request = messages.GetHistoryRequest(max_entries=1, seconds_between_failures=seconds_between_failures)

        def ask(joined: Joined) -> Any:
            request.run = joined.run
            return joined.session.call(joined.session.admin.GetHistory, request, RPC_SECONDS)

        answer = self._access.ask(ask, RPC_SECONDS)
        return answer.outlook if answer.HasField("outlook") else None

    def pin(self, tag: str) -> CheckpointInfo:
        """Protects a committed checkpoint: retention does not evict it, and a save of its tag is refused.

        Raises:
            NotFound: there is no such checkpoint.
            Unavailable: no daemon answered within 30 seconds.
        """
        return self._change("Pin", messages.PinRequest(), tag)

    def unpin(self, tag: str) -> CheckpointInfo:
        """Undoes :meth:`pin`. Raises what that raises."""
        return self._change("Unpin", messages.UnpinRequest(), tag)

    def delete(self, tag: str, *, force: bool = False) -> CheckpointInfo:
        """Moves a committed checkpoint into the trash. Returns what it was.

        Args:
            tag (str): the checkpoint.
            force (bool): delete it although it is pinned, or a pointer file names it. Default: ``False``

        Raises:
            Refused: something needs the checkpoint, or it is the newest one that is neither damaged nor suspect.
            NotFound: there is no such checkpoint.
            Unavailable: no daemon answered within 30 seconds.
        """
        request = messages.DeleteCheckpointRequest(force=force)
        try:
            return self._change("DeleteCheckpoint", request, tag)
        except errors.Refused as error:
            if error.reason == "BEING_READ":
                why = self._who_reads(request.name)
                raise errors.Refused(f"{tag} is not deleted: {why}", reason=error.reason, tag=tag) from None
            raise

    def trash(self) -> List[TrashedCheckpoint]:
        """Returns the checkpoints that were deleted, evicted or replaced by a save of their tag, and can be brought
        back, the last one deleted first.

        The daemon's configuration says how long they stay (``limits.trash_grace_seconds``). By default it deletes
        them at once.

        Raises:
            Unavailable: no daemon answered within 30 seconds.
        """

        def ask(joined: Joined) -> Any:
            request = messages.ListTrashRequest(run=joined.run)
            return joined.session.call(joined.session.admin.ListTrash, request, RPC_SECONDS)

        return [trashed_of_message(trashed) for trashed in self._access.ask(ask, RPC_SECONDS).checkpoints]

    def undelete(self, tag: str, *, sequence: Optional[int] = None) -> CheckpointInfo:
        """Brings a checkpoint back from the trash, and pins it, because retention would evict it again.

        It has its old place in the order of checkpoints, so it is not the latest if a newer one is good.

        Args:
            tag (str): the checkpoint.
            sequence (int, optional): which of those of the tag. Default: the one with the highest sequence

        Raises:
            Refused: a checkpoint, or a save under way, has the tag.
            NotFound: it is not in the trash, or is being deleted already.
            Corrupt: a file of it is missing or has another size.
            Unavailable: no daemon answered within 30 seconds.
        """
        return self._change("UndeleteCheckpoint", messages.UndeleteCheckpointRequest(sequence=sequence or 0), tag)

    def _who_reads(self, name: str) -> str:
        """Returns which processes may have a checkpoint open, and what to do. name: runs/ID/checkpoints/TAG."""
        if is_open_here(name):
            return (
                "this process has it open; call close() of the checkpoint that open() or resume() returned, or leave its "
                "with block, and delete it then"
            )

        def ask(joined: Joined) -> Any:
            return joined.session.call(joined.session.admin.ListSessions, messages.ListSessionsRequest(), RPC_SECONDS)

        pids = sorted({str(session.pid) for session in self._access.ask(ask, RPC_SECONDS).sessions if session.leases})
        having = f" (with checkpoints open: pid {', '.join(pids)})" if pids else ""
        return f"another process reads it{having}; end that process, or have it close the checkpoint, and delete it then"

    def _change(self, method: str, request: Any, tag: str) -> CheckpointInfo:
        def ask(joined: Joined) -> Any:
            request.name = f"{joined.run}/checkpoints/{tag}"
            return joined.session.call(getattr(joined.session.admin, method), request, RPC_SECONDS)

        return info_of_message(self._access.ask(ask, RPC_SECONDS))
