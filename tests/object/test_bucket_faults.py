"""Uploads, removals, resumes and ckptctl while single requests, or all, meet faults (fault_plan.py).

Here are the pairs of a fault and a request that are most likely to break a promise; `tools/soak buckets` has all of them.
"""

from __future__ import annotations

import pathlib
import signal
import time

import pytest
from bucket_servers import BucketServer, with_moto, with_swift
from fault_cases import Cases, ToolCases
from fault_job import FaultJob
from fault_plan import Fault, Rule
from harness.waiting import TIMEOUT, until


@with_moto
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.LOSE_RESPONSE, "PUT claim"),
        (Fault.LOSE_RESPONSE, "PUT manifest"),
        (Fault.LOSE_RESPONSE, "POST complete"),
        (Fault.TWICE, "POST begin"),
        (Fault.TWICE, "PUT manifest"),
        (Fault.CUT_REQUEST, "PUT part"),
        (Fault.SHORTEN_RESPONSE, "GET uploads"),
        (Fault.EXPIRED, "HEAD manifest"),
        (Fault.NO_BUCKET, "PUT file"),
    ],
)
def test_trainer_does_not_notice_a_fault_in_an_upload(cases: Cases, fault: Fault, kind: str) -> None:
    cases.upload(fault, kind)


@pytest.mark.parametrize(
    ("fault", "kind"), [(Fault.DAMAGE_REQUEST, "PUT file"), (Fault.DAMAGE_RESPONSE, "GET manifest")]
)
def test_bytes_that_are_damaged_on_their_way_do_not_end_the_upload(
    cases: Cases, server: BucketServer, fault: Fault, kind: str
) -> None:
    # As many times as one try of the upload sends them.
    sends = 1 if fault is Fault.DAMAGE_REQUEST and "checksums" in server.lacks else 3
    cases.upload(fault, kind, times=sends)


@with_moto
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.NO_BUCKET, "HEAD manifest"),
        (Fault.DAMAGE_RESPONSE, "GET manifest"),
        (Fault.LOSE_RESPONSE, "DELETE manifest"),
        (Fault.SHORTEN_RESPONSE, "GET list"),
    ],
)
def test_fault_in_a_removal_leaves_nothing_of_the_checkpoint(cases: Cases, fault: Fault, kind: str) -> None:
    cases.removal(fault, kind)


@with_moto
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.NO_BUCKET, "HEAD manifest"),
        (Fault.EXPIRED_400, "HEAD manifest"),
        (Fault.DAMAGE_RESPONSE, "GET manifest"),
        (Fault.SHORTEN_RESPONSE, "GET file"),
        (Fault.SHORTEN_RESPONSE, "GET list"),
        (Fault.DAMAGE_RESPONSE, "GET record"),
    ],
)
def test_resume_takes_the_newest_checkpoint_whatever_a_request_meets(
    cases: Cases, fault: Fault, kind: str
) -> None:
    cases.resume(fault, kind)


@with_moto
@pytest.mark.parametrize("fault", [Fault.ERROR_503, Fault.EXPIRED, Fault.NO_BUCKET])
def test_saves_go_on_while_every_request_fails(cases: Cases, fault: Fault) -> None:
    cases.outage(fault)


@with_moto
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.ERROR_500, "PUT probe"),
        (Fault.SLOW, "PUT part"),
        (Fault.TWICE, "POST complete"),
        (Fault.DAMAGE_REQUEST, "PUT manifest"),
        (Fault.DAMAGE_REQUEST, "PUT claim"),
        (Fault.REFUSE, "DELETE claim"),
    ],
)
def test_tool_uploads_whole_checkpoints(tool: ToolCases, fault: Fault, kind: str) -> None:
    tool.upload(fault, kind)


@with_moto
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.DAMAGE_RESPONSE, "GET file"),
        (Fault.CUT_RESPONSE, "GET file"),
        (Fault.SHORTEN_RESPONSE, "GET manifest"),
        (Fault.DAMAGE_RESPONSE, "GET record"),
        (Fault.NO_BUCKET, "GET manifest"),
    ],
)
def test_tool_fetches_whole_checkpoints(tool: ToolCases, fault: Fault, kind: str) -> None:
    tool.fetch(fault, kind)


@with_moto
@pytest.mark.parametrize(
    ("command", "fault", "kind"),
    [
        ("list", Fault.SHORTEN_RESPONSE, "GET list"),
        ("list", Fault.SLOW_DOWN, "GET manifest"),
        ("verify", Fault.DAMAGE_RESPONSE, "GET manifest"),
        ("verify", Fault.NO_BUCKET, "GET list"),
    ],
)
def test_tool_lists_and_verifies_what_is_there(
    tool: ToolCases, command: str, fault: Fault, kind: str
) -> None:
    tool.listing(command, fault, kind)


@with_swift
@pytest.mark.parametrize(
    ("fault", "kind"), [(Fault.TWICE, "POST complete"), (Fault.DAMAGE_REQUEST, "PUT part")]
)
def test_tool_uploads_whole_checkpoints_to_a_server_that_compares_checksums(
    tool: ToolCases, fault: Fault, kind: str
) -> None:
    tool.upload(fault, kind)


@with_swift
def test_resume_takes_the_newest_checkpoint_of_a_server_that_compares_checksums(cases: Cases) -> None:
    cases.resume(Fault.SHORTEN_RESPONSE, "GET list")


@with_moto
def test_daemon_ends_while_the_server_lets_it_wait(server: BucketServer, tmp_path: pathlib.Path) -> None:
    job = FaultJob(tmp_path, server)
    try:
        run = job.run()
        job.proxy.plan(Rule(Fault.WAIT_LONG, times=0))
        job.save(run, 1).wait()
        until(lambda: job.proxy.met, "a request")
        begun = time.monotonic()
        job.daemon.end(signal.SIGTERM)
        took = time.monotonic() - begun
        assert took < 8, f"{took:.1f} s, because the server asks for 50"
        job.proxy.plan()
        job.start()
        until(lambda: job.uploaded() == {"step_1"}, "the upload by the next daemon", 2 * TIMEOUT)
        job.check_listed("step_1")
    finally:
        job.close()
