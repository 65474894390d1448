"""The protocol's messages, and errors as they come over the wire."""

import datetime
from typing import Any, Dict, List, Optional, Tuple

import grpc

from ckptd import errors
from ckptd.storage.v1 import storage_pb2 as storage
from ckptd.v1 import handoff_pb2 as handoff
from ckptd.v1 import messages_pb2 as messages
from ckptd.v1 import service_pb2_grpc as services
from ckptd.v1 import types_pb2 as types

__all__ = ["handoff", "messages", "services", "storage", "types"]

PROTOCOL_VERSION = 1
TOKEN_KEY = "ckptd-token"
DETAILS_KEY = "grpc-status-details-bin"

# Level -> its name for users. The waits are for the first three.
LEVEL_NAMES: Dict[int, str] = {
    types.OPEN: "open",
    types.STAGED: "staged",
    types.SEALED: "sealed",
    types.COMMITTED: "committed",
    types.FAILED: "failed",
    types.SKIPPED: "skipped",
    types.SUPERSEDED: "superseded",
    types.INDETERMINATE: "indeterminate",
}
LEVELS_TO_WAIT_FOR: Dict[str, int] = {
    "staged": types.STAGED,
    "sealed": types.SEALED,
    "committed": types.COMMITTED,
}


def level_name(level: int) -> str:
    return LEVEL_NAMES.get(level, f"level {level}")


def set_duration(duration: Any, seconds: float) -> None:
    duration.FromNanoseconds(int(seconds * 1e9))


def time_of(stamp: Any) -> Optional[datetime.datetime]:
    if not stamp.seconds:
        return None
    return datetime.datetime.fromtimestamp(stamp.seconds + stamp.nanos * 1e-9, datetime.timezone.utc)


def code_name(number: int) -> str:
    """The name of a google.rpc.Code."""
    return next((code.name for code in grpc.StatusCode if code.value[0] == number), "UNKNOWN")


def to_error(error: grpc.RpcError) -> errors.CkptdError:
    """The ckptd error for a failed call."""
    code = error.code().name if hasattr(error, "code") and error.code() is not None else "UNKNOWN"
    message = error.details() if hasattr(error, "details") else str(error)
    info = _error_info(error)
    if info is None:
        return errors.make(code, "", message or code)
    details = dict(info.metadata)
    tag = details.pop("tag", None)
    ranks = [int(rank) for rank in details.pop("ranks", "").split(",") if rank.isdigit()]
    return errors.make(code, info.reason, message or info.reason, tag=tag, ranks=ranks, **details)


def error_of_save(checkpoint: Any) -> errors.CkptdError:
    """The error for a save that ended without a checkpoint."""
    error = checkpoint.error
    kinds = {
        types.SKIPPED: errors.Skipped,
        types.SUPERSEDED: errors.Superseded,
        types.INDETERMINATE: errors.Indeterminate,
    }
    of_reason = {"FENCED": errors.Fenced, "FILE_CONFLICT": errors.FileConflict}
    kind = kinds.get(checkpoint.level) or of_reason.get(error.reason) or errors.CheckpointFailed
    return kind(
        f"the save of {checkpoint.tag} ended as {level_name(checkpoint.level)}: {error.message or error.reason}",
        reason=error.reason,
        tag=checkpoint.tag,
        ranks=error.ranks,
        sequence=checkpoint.sequence,
    )


def _error_info(error: grpc.RpcError) -> Any:
    trailers = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in trailers or ():
        if key != DETAILS_KEY:
            continue
        try:
            for number, detail in _fields(value):
                if number != 3:  # google.rpc.Status.details
                    continue
                any_message = dict(_fields(detail))
                if any_message.get(1, b"").endswith(b"/google.rpc.ErrorInfo"):
                    return types.ErrorInfo.FromString(any_message.get(2, b""))
        except (IndexError, ValueError):
            return None
    return None


def _fields(data: bytes) -> List[Tuple[int, Any]]:
    """The fields of a serialized message: as much of protobuf as google.rpc.Status takes, which would be a
    package more.
    """
    fields: List[Tuple[int, Any]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            fields.append((tag >> 3, varint()))
        elif tag & 7 == 2:
            size = varint()
            fields.append((tag >> 3, data[at : at + size]))
            at += size
        else:
            break
    return fields
