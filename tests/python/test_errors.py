"""Errors as users see them: the reason, or else the code, chooses the class; reason, tag and ranks are always
set.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any, List, Tuple

import ckptd
import grpc
import pytest
from ckptd import errors
from ckptd._wire.status import error_of_save, to_error
from ckptd._session.session import is_transient
from ckptd._wire.protocol import DETAILS_KEY, types


class Failed(grpc.RpcError):
    """An error as grpc raises it."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: List[Tuple[str, Any]]) -> None:
        self._all = (code, details, trailers)

    def code(self) -> grpc.StatusCode:
        return self._all[0]

    def details(self) -> str:
        return self._all[1]

    def trailing_metadata(self) -> List[Tuple[str, Any]]:
        return self._all[2]


def field(number: int, data: bytes) -> bytes:
    size = len(data)
    assert size < 1 << 14
    length = bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([number << 3 | 2]) + length + data


def rich(code: grpc.StatusCode, reason: str, **metadata: str) -> Failed:
    info = types.ErrorInfo(reason=reason, domain="ckptd", metadata=metadata).SerializeToString()
    detail = field(1, b"type.googleapis.com/google.rpc.ErrorInfo") + field(2, info)
    status = (
        b"\x08\x09" + field(2, b"words") + field(3, field(1, b"type.googleapis.com/other")) + field(3, detail)
    )
    return Failed(code, "words", [("x", "y"), (DETAILS_KEY, status)])


S = grpc.StatusCode


@pytest.mark.parametrize(
    "code, reason, kind",
    [
        (S.INVALID_ARGUMENT, "INVALID_TAG", ckptd.Refused),
        (S.FAILED_PRECONDITION, "FENCED", ckptd.Fenced),
        (S.FAILED_PRECONDITION, "PINNED", ckptd.Refused),
        (S.UNIMPLEMENTED, "MULTI_NODE_UNSUPPORTED", ckptd.Refused),
        (S.ALREADY_EXISTS, "FILE_CONFLICT", ckptd.FileConflict),
        (S.ALREADY_EXISTS, "RANK_TAKEN", ckptd.Refused),
        (S.RESOURCE_EXHAUSTED, "NO_SPACE", ckptd.NoSpace),
        (S.RESOURCE_EXHAUSTED, "POOL_TOO_SMALL", ckptd.NoSpace),
        (S.RESOURCE_EXHAUSTED, "POOL_EXHAUSTED", ckptd.Busy),
        (S.DEADLINE_EXCEEDED, "ADMISSION_TIMEOUT", ckptd.Busy),
        (S.DEADLINE_EXCEEDED, "RANKS_MISSING", ckptd.CheckpointFailed),
        (S.DEADLINE_EXCEEDED, "RESUME_TIMEOUT", ckptd.WaitTimeout),
        (S.ABORTED, "SAVE_ABORTED", ckptd.CheckpointFailed),
        (S.ABORTED, "STAGED_LOST", ckptd.CheckpointFailed),
        (S.ABORTED, "SUPERSEDED", ckptd.Superseded),
        (S.ABORTED, "SKIPPED", ckptd.Skipped),
        (S.UNAVAILABLE, "DRAINING", ckptd.Unavailable),
        (S.FAILED_PRECONDITION, "NODE_DRAINED", ckptd.Busy),
        (S.NOT_FOUND, "NO_CHECKPOINT", ckptd.NotFound),
        (S.DATA_LOSS, "CORRUPT_FILE", ckptd.Corrupt),
        (S.UNKNOWN, "INDETERMINATE", ckptd.Indeterminate),
        (S.FAILED_PRECONDITION, "A_REASON_OF_THE_FUTURE", ckptd.Refused),
        (S.INTERNAL, "A_REASON_OF_THE_FUTURE", ckptd.CkptdError),
    ],
)
def test_reason_and_code_choose_the_class(code: grpc.StatusCode, reason: str, kind: type) -> None:
    error = to_error(rich(code, reason, tag="step_1", ranks="0,3", path="a.pt"))
    assert type(error) is kind
    assert (error.reason, error.tag, error.ranks, error.details) == (
        reason,
        "step_1",
        (0, 3),
        {"path": "a.pt"},
    )
    assert str(error) == "words"


@pytest.mark.parametrize(
    "code, kind",
    [
        (S.UNAVAILABLE, ckptd.Unavailable),
        (S.DEADLINE_EXCEEDED, ckptd.Unavailable),
        (S.UNIMPLEMENTED, ckptd.Refused),
    ],
)
def test_without_details_the_code_alone_decides(code: grpc.StatusCode, kind: type) -> None:
    error = to_error(Failed(code, "words", []))
    assert type(error) is kind
    assert (error.reason, error.tag, error.ranks) == (code.name, None, ())


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 30, b"\x1a\x7f", b"\x1a\x04\x0a\x02xy", b"\x08"])
def test_garbage_in_the_status_details_is_ignored(garbage: bytes) -> None:
    error = to_error(Failed(S.ABORTED, "words", [(DETAILS_KEY, garbage)]))
    assert type(error) is ckptd.CheckpointFailed


@pytest.mark.parametrize(
    "level, reason, kind",
    [
        (types.FAILED, "RANKS_MISSING", ckptd.CheckpointFailed),
        (types.FAILED, "NO_SPACE", ckptd.CheckpointFailed),
        (types.FAILED, "FENCED", ckptd.Fenced),
        (types.FAILED, "FILE_CONFLICT", ckptd.FileConflict),
        (types.SKIPPED, "SKIPPED", ckptd.Skipped),
        (types.SUPERSEDED, "SUPERSEDED", ckptd.Superseded),
        (types.INDETERMINATE, "IO_ERROR", ckptd.Indeterminate),
    ],
)
def test_level_and_reason_of_a_failed_save_choose_the_class(level: Any, reason: str, kind: type) -> None:
    checkpoint = types.Checkpoint(
        tag="step_1", level=level, error=types.SaveError(reason=reason, message="why", ranks=[1])
    )
    error = error_of_save(checkpoint)
    assert type(error) is kind
    assert (error.reason, error.tag, error.ranks) == (reason, "step_1", (1,))
    assert "step_1" in str(error) and "why" in str(error)


def test_error_classes_have_the_documented_bases() -> None:
    tree = {
        ckptd.CkptdError: [
            ckptd.Unavailable,
            ckptd.Refused,
            ckptd.Fenced,
            ckptd.FileConflict,
            ckptd.CheckpointFailed,
            ckptd.Indeterminate,
            ckptd.WaitTimeout,
            ckptd.NotFound,
            ckptd.Corrupt,
        ],
        ckptd.Refused: [ckptd.NoSpace, ckptd.Busy],
        ckptd.CheckpointFailed: [ckptd.Skipped, ckptd.Superseded],
        TimeoutError: [ckptd.WaitTimeout],
    }
    for base, kinds in tree.items():
        for kind in kinds:
            assert issubclass(kind, base)
    assert not issubclass(ckptd.WaitTimeout, ckptd.CheckpointFailed)


def test_error_can_be_pickled_and_copied() -> None:
    error = errors.make("ABORTED", "SAVE_ABORTED", "words", tag="a", ranks=[1, 2], path="p")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert (str(again), again.reason, again.tag, again.ranks, again.details) == (
            "words",
            "SAVE_ABORTED",
            "a",
            (1, 2),
            {"path": "p"},
        )


def test_only_errors_that_may_pass_are_transient() -> None:
    again = [
        ("UNAVAILABLE", ""),
        ("UNAVAILABLE", "DRAINING"),
        ("UNAUTHENTICATED", "UNKNOWN_TOKEN"),
        ("CANCELLED", ""),
    ]
    again += [("UNAVAILABLE", "UNKNOWN_RUN")]
    never = [("NOT_FOUND", "UNKNOWN_RUN"), ("ABORTED", "SAVE_ABORTED"), ("FAILED_PRECONDITION", "FENCED")]
    never += [
        ("UNAVAILABLE", "IO_URING_UNAVAILABLE"),
        ("DEADLINE_EXCEEDED", ""),
        ("DEADLINE_EXCEEDED", "RANKS_MISSING"),
    ]
    assert all(is_transient(errors.make(code, reason, "x")) for code, reason in again)
    assert not any(is_transient(errors.make(code, reason, "x")) for code, reason in never)
