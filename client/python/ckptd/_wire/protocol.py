"""The protocol's generated messages under short names, and conversions of its small types."""

import datetime
from typing import Any, Dict, Optional

from ckptd.storage.v1 import storage_pb2 as storage
from ckptd.v1 import handoff_pb2 as handoff
from ckptd.v1 import messages_pb2 as messages
from ckptd.v1 import service_pb2_grpc as services
from ckptd.v1 import types_pb2 as types

__all__ = ["handoff", "messages", "services", "storage", "types"]

PROTOCOL_VERSION = 1
TOKEN_KEY = "ckptd-token"
DETAILS_KEY = "grpc-status-details-bin"

# Level -> its name for users.
LEVEL_NAMES: Dict[int, str] = {
    types.OPEN: "open",
    types.STAGED: "staged",
    types.SEALED: "sealed",
    types.COMMITTED: "committed",
    types.UPLOADED: "uploaded",
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
    """Returns the user's name of a level, or its number if this version does not know it."""
    return LEVEL_NAMES.get(level, f"level {level}")


def set_duration(duration: Any, seconds: float) -> None:
    """Sets a google.protobuf.Duration."""
    duration.FromNanoseconds(int(seconds * 1e9))


def time_of(stamp: Any) -> Optional[datetime.datetime]:
    """Converts a google.protobuf.Timestamp to UTC; None if it is not set."""
    if not stamp.seconds:
        return None
    return datetime.datetime.fromtimestamp(stamp.seconds + stamp.nanos * 1e-9, datetime.timezone.utc)
