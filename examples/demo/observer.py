"""Asks the daemon about a run, as an operator's tools do: without a session."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

import grpc
from ckptd.v1 import messages_pb2, service_pb2_grpc, types_pb2

from bench.base.job import Job

SEALED = types_pb2.SEALED


class Observer:
    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint)
        self._admin = service_pb2_grpc.AdminStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def run(self) -> Optional[Any]:
        """The daemon's only run; None before there is one."""
        runs = self._status().runs
        return runs[0] if runs else None

    def pool(self) -> Any:
        return self._status().pool

    def _status(self) -> Any:
        return self._admin.GetStatus(messages_pb2.GetStatusRequest(), timeout=10, wait_for_ready=True)

    def in_flight(self, tag: str) -> Optional[Any]:
        run = self.run()
        return next((c for c in run.in_flight if c.tag == tag), None) if run else None

    def latest(self) -> str:
        """The tag of the newest committed checkpoint; empty if there is none."""
        run = self.run()
        return str(run.latest.tag) if run else ""

    def wait(self, job: Job, tag: str, condition: Callable[[Any], bool], what: str, timeout: float) -> bool:
        """Waits until a save in flight fulfils `condition`. False if it was committed before that was seen."""
        deadline = time.monotonic() + timeout
        while True:
            checkpoint = self.in_flight(tag)
            if checkpoint is not None and condition(checkpoint):
                return True
            if checkpoint is None and self.latest() == tag:
                return False
            job.check()
            if time.monotonic() > deadline:
                raise SystemExit(f"timed out after {timeout:g} s waiting for {tag} to be {what}")
            # Poll fast once it is in flight: 0.7 GB are on disk in 0.2 to 0.4 s.
            time.sleep(0.001 if checkpoint is not None else 0.02)
