"""Reports to the daemon how reading a checkpoint ended: damage, and, for a resume, whether this rank has
loaded it.
"""

import logging
from typing import Any, Optional, Union

from ckptd import errors
from ckptd._checkpoint_info import CheckpointInfo
from ckptd._membership.attachment import Attachment
from ckptd._membership.membership import RPC_SECONDS, Joined, Membership
from ckptd._wire.protocol import messages, set_duration, types

_log = logging.getLogger("ckptd")
# How long a report waits for a daemon that restarts. The other ranks may take longer.
_RECONNECT_SECONDS = 60.0
_FINISH_GRACE_SECONDS = 10.0  # The daemon answers FinishResume this much after its timeout, at the latest.
_MAX_TEXT_BYTES, _MAX_VALUE_BYTES = 1000, 100  # The limits of ckptd.v1.Damage.


class ReadReporter:
    """Reports for a checkpoint that one rank reads for itself, from Run.open() or DaemonRoot.open()."""

    def __init__(self, access: "Union[Membership, Attachment]", info: CheckpointInfo) -> None:
        self._access = access
        self._info = info
        self.fault: Optional[errors.Corrupt] = None  # The first damage that was found.

    def report_damage(self, fault: errors.Corrupt) -> None:
        """Tells the daemon that the checkpoint is not what was saved: it remembers that, and offers an older
        one.

        Only the first damage is reported. A report that fails is logged.
        """
        if self.fault is not None:
            return
        self.fault = fault
        try:
            self._send_damage(damage_of(fault))
        except errors.CkptdError as error:
            _log.warning("ckptd: the damage of %s could not be reported (%s): %s", self._info.tag, error, fault)

    def finish(self) -> None:
        """Ends the reading. Raises the damage that was found, even if the caller has gone on after it."""
        if self.fault is not None:
            raise self.fault

    def fail(self, why: str) -> None:
        """Ends the reading because the rank could not go on, for another reason than damage."""

    def _send_damage(self, damage: Any) -> None:
        def ask(joined: Joined) -> None:
            request = messages.ReportDamageRequest(
                name=f"{joined.run}/checkpoints/{self._info.tag}", sequence=self._info.sequence, damage=damage
            )
            joined.session.call(joined.session.checkpoints.ReportDamage, request, RPC_SECONDS)

        self._access.ask(ask, RPC_SECONDS)


class ResumeReporter(ReadReporter):
    """Reports for the checkpoint that every rank of the attempt resumes from, from Run.resume()."""

    def __init__(self, membership: Membership, info: CheckpointInfo, timeout: float) -> None:
        """timeout: seconds that finish() waits for the other ranks."""
        super().__init__(membership, info)
        self._timeout = timeout

    def finish(self) -> None:
        """Blocks until every rank has loaded its part.

        Raises:
            errors.Corrupt: a rank has found damage.
            errors.CheckpointFailed: a rank could not go on.
            errors.WaitTimeout: ranks are missing; they are in the error.
        """
        super().finish()
        self._send_outcome(self._timeout)

    def fail(self, why: str) -> None:
        if self.fault is not None:
            return  # The other ranks know of the damage.
        try:
            self._send_outcome(RPC_SECONDS, failure=_cut(why, _MAX_TEXT_BYTES))
        except errors.CkptdError as error:
            _log.debug("ckptd: the other ranks are not told why this one does not resume: %s", error)

    def _send_damage(self, damage: Any) -> None:
        self._send_outcome(RPC_SECONDS, damage=damage)

    def _send_outcome(self, timeout: float, **outcome: Any) -> None:
        def ask(joined: Joined) -> None:
            request = messages.FinishResumeRequest(
                run=joined.run, rank=self._access.rank, sequence=self._info.sequence, **outcome
            )
            set_duration(request.timeout, timeout)
            joined.session.call(
                joined.session.checkpoints.FinishResume, request, timeout + _FINISH_GRACE_SECONDS
            )

        self._access.ask(ask, min(timeout, _RECONNECT_SECONDS))


def damage_of(fault: errors.Corrupt) -> Any:
    """Converts an error to the ckptd.v1.Damage that the daemon is sent."""
    details = fault.details
    damage = types.Damage(
        path=_cut(str(details.get("path", "")), _MAX_TEXT_BYTES),
        expected=_value_text(details.get("expected")),
        found=_value_text(details.get("found")),
        message=_cut(str(fault), _MAX_TEXT_BYTES),
    )
    if "chunk" in details:
        damage.chunk = int(details["chunk"])
    return damage


def _value_text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:#010x}" if isinstance(value, int) else _cut(str(value), _MAX_VALUE_BYTES)


def _cut(text: str, max_bytes: int) -> str:
    """Cuts a text to a number of bytes in UTF-8, between two characters."""
    return text.encode(errors="replace")[:max_bytes].decode(errors="ignore")
