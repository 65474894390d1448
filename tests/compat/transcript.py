"""A recorded conversation with a daemon, as JSON beside the descriptors of the protocol that it was made with.

`Conversation` speaks to a daemon with those recorded descriptors alone: what it sends has the field numbers and types of
then, and what it reads it decodes as a client of then would.
"""

from __future__ import annotations

import pathlib
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

SECONDS = 60.0  # For each call.
DETAILS_KEY = "grpc-status-details-bin"


class Protocol:
    """Messages and methods of a FileDescriptorSet."""

    def __init__(self, descriptors: bytes) -> None:
        self.files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        self.pool = descriptor_pool.DescriptorPool()
        for file in self.files.file:
            self.pool.Add(file)

    def method(self, name: str) -> Tuple[str, Any]:
        """(path of the call, its descriptor) of "Checkpoints.Begin"."""
        service, _, method = name.partition(".")
        found = self.pool.FindServiceByName(f"ckptd.v1.{service}").methods_by_name[method]
        return f"/ckptd.v1.{service}/{method}", found

    def encode(self, kind: Any, value: Dict[str, Any]) -> bytes:
        message = message_factory.GetMessageClass(kind)()
        return bytes(json_format.ParseDict(value, message, descriptor_pool=self.pool).SerializeToString())

    def decode(self, kind: Any, data: bytes) -> Dict[str, Any]:
        message = message_factory.GetMessageClass(kind).FromString(data)
        unknown = [field.field_number for field in unknown_fields(message)]
        assert not unknown, f"{kind.full_name} came with fields that a client of then does not know: {unknown}"
        return dict(
            json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=self.pool)
        )


def unknown_fields(message: Any) -> List[Any]:
    from google.protobuf import unknown_fields as of

    return list(of.UnknownFieldSet(message))


def reason_of(details: bytes) -> str:
    """The reason in a serialized google.rpc.ErrorInfo: field 1, right before the domain, field 2."""
    domain = details.find(b"\x12\x05ckptd")
    for start in range(domain - 1, 1, -1):
        if details[start - 2] == 0x0A and details[start - 1] == domain - start:
            return details[start:domain].decode()
    return ""


class Conversation:
    """Calls by name, with requests and answers as JSON. An answer is a dict; of a stream, a list of them; of a
    call that fails, {"code": ..., "reason": ...}.
    """

    def __init__(self, protocol: Protocol, socket: str) -> None:
        self.protocol = protocol
        self.channel = grpc.insecure_channel(f"unix:{socket}")
        self.tokens: Dict[str, str] = {}  # Of open sessions, by the name that the scenario gave.
        self._streams: List[Any] = []

    def open_session(self, session: str, request: Dict[str, Any]) -> Dict[str, Any]:
        path, method = self.protocol.method("Checkpoints.OpenSession")
        stream = self.channel.unary_stream(path)(self.protocol.encode(method.input_type, request))
        self._streams.append(stream)  # The session lasts as long as the stream.
        answer = self.protocol.decode(method.output_type, next(stream))
        self.tokens[session] = answer["token"]
        return answer

    def call(self, session: Optional[str], name: str, request: Any) -> Any:
        path, method = self.protocol.method(name)
        metadata = [("ckptd-token", self.tokens[session])] if session else []
        many_in, many_out = isinstance(request, list), method.server_streaming
        make = {
            (False, False): self.channel.unary_unary,
            (False, True): self.channel.unary_stream,
            (True, False): self.channel.stream_unary,
        }[many_in, many_out](path)
        sent: Any = (
            iter([self.protocol.encode(method.input_type, part) for part in request])
            if many_in
            else self.protocol.encode(method.input_type, request)
        )
        try:
            answer = make(sent, timeout=SECONDS, metadata=metadata)
            if many_out:
                return [self.protocol.decode(method.output_type, part) for part in answer]
            return self.protocol.decode(method.output_type, answer)
        except grpc.RpcError as error:
            details = b"".join(v for k, v in error.trailing_metadata() or () if k == DETAILS_KEY)
            return {"code": error.code().name, "reason": reason_of(details)}

    def close(self) -> None:
        for stream in self._streams:
            stream.cancel()
        self.channel.close()


# What differs from run to run, or is for people.
NOT_COMPARED = {
    "create_time", "commit_time", "scrub_time", "time", "start_time", "daemon_instance", "daemon_version", "probe",
    "message", "written_bytes", "pool", "sessions", "trash_bytes", "id",
}  # fmt: skip
NAMED_BY_THE_DAEMON = {"token", "root", "run", "lease"}


class Names:
    """What the daemon named then and what it names now."""

    def __init__(self, known: Dict[str, str]) -> None:
        self.now = dict(known)

    def translate(self, value: Any) -> Any:
        if isinstance(value, str):
            for then in sorted(self.now, key=len, reverse=True):
                value = value.replace(then, self.now[then])
            return value
        if isinstance(value, list):
            return [self.translate(item) for item in value]
        if isinstance(value, dict):
            return {key: self.translate(item) for key, item in value.items()}
        return value

    def learn(self, then: Any, now: Any) -> None:
        if isinstance(then, list) and isinstance(now, list):
            for a, b in zip(then, now):
                self.learn(a, b)
        elif isinstance(then, dict) and isinstance(now, dict):
            for key in then.keys() & now.keys():
                if key in NAMED_BY_THE_DAEMON and isinstance(then[key], str):
                    self.now.setdefault(then[key], now[key])
                else:
                    self.learn(then[key], now[key])


def comparable(value: Any) -> Any:
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items() if key not in NOT_COMPARED}
    return value


def differences(then: Any, now: Any, place: str = "") -> Iterator[str]:
    """Between two comparable answers."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted(then.keys() | now.keys()):
            yield from differences(then.get(key), now.get(key), f"{place}.{key}")
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for index, (a, b) in enumerate(zip(then, now)):
            yield from differences(a, b, f"{place}[{index}]")
    elif then != now:
        yield f"{place}: was {then!r}, is {now!r}"


def wait_for_socket(path: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not pathlib.Path(path).exists():
        assert time.monotonic() < deadline, f"the daemon has not made {path} within {SECONDS:.0f} s"
        time.sleep(0.02)
