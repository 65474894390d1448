"""Errors as they come over the wire: gRPC status details, and saves that ended without a checkpoint."""

from typing import Any, List, Tuple

import grpc

from ckptd import errors
from ckptd._wire.protocol import DETAILS_KEY, level_name, types

_STATUS_DETAILS_FIELD = 3  # google.rpc.Status.details
_VARINT, _LENGTH_DELIMITED = 0, 2  # Wire types of protobuf.


def code_name(number: int) -> str:
    """Returns the name of a google.rpc.Code, or UNKNOWN."""
    return next((code.name for code in grpc.StatusCode if code.value[0] == number), "UNKNOWN")


def to_error(error: grpc.RpcError) -> errors.CkptdError:
    """Converts a failed gRPC call into the exception for its code and reason."""
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
    """Returns the exception for a save that ended without a checkpoint.

    Args:
        checkpoint (types.Checkpoint): the daemon's last description of the save.
    """
    error = checkpoint.error
    by_level = {
        types.SKIPPED: errors.Skipped,
        types.SUPERSEDED: errors.Superseded,
        types.INDETERMINATE: errors.Indeterminate,
    }
    by_reason = {"FENCED": errors.Fenced, "FILE_CONFLICT": errors.FileConflict}
    kind = by_level.get(checkpoint.level) or by_reason.get(error.reason) or errors.CheckpointFailed
    return kind(
        f"the save of {checkpoint.tag} ended as {level_name(checkpoint.level)}: {error.message or error.reason}",
        reason=error.reason,
        tag=checkpoint.tag,
        ranks=error.ranks,
        sequence=checkpoint.sequence,
    )


def _error_info(error: grpc.RpcError) -> Any:
    """Returns the ErrorInfo in a call's status details, or None if there is none that can be parsed."""
    trailers = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in trailers or ():
        if key != DETAILS_KEY:
            continue
        try:
            for number, detail in _fields(value):
                if number != _STATUS_DETAILS_FIELD:
                    continue
                any_message = dict(_fields(detail))
                if any_message.get(1, b"").endswith(b"/google.rpc.ErrorInfo"):
                    return types.ErrorInfo.FromString(any_message.get(2, b""))
        except (IndexError, ValueError):
            return None
    return None


def _fields(data: bytes) -> List[Tuple[int, Any]]:
    """Parses the fields of a serialized message into (number, value).

    Only what google.rpc.Status needs: varints and length-delimited fields. grpcio-status would do the same,
    but it would add itself and googleapis-common-protos to the package's two dependencies.
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
        if tag & 7 == _VARINT:
            fields.append((tag >> 3, varint()))
        elif tag & 7 == _LENGTH_DELIMITED:
            size = varint()
            fields.append((tag >> 3, data[at : at + size]))
            at += size
        else:
            break
    return fields
