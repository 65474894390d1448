"""What a job and ckptctl do while requests meet faults, and what must hold then: for the tests and for tools/soak."""

from __future__ import annotations

import concurrent.futures
import functools
import pathlib
import shutil
import tempfile
from typing import Any, Callable, Generic, List, Optional, TypeVar, Union, cast

import ckptd
from bucket_servers import BucketServer
from fault_job import FaultJob, new_launch, tag_of
from fault_plan import Fault, Rule
from harness.waiting import TIMEOUT, until

KINDS_OF_UPLOAD = [
    "PUT claim", "HEAD claim", "GET claim", "HEAD manifest", "PUT marker", "GET list", "GET uploads", "POST begin",
    "PUT probe", "PUT part", "PUT file", "PUT record", "POST complete", "PUT manifest", "PUT name", "DELETE claim",
]  # fmt: skip
KINDS_OF_REMOVAL = [
    "HEAD manifest", "GET manifest", "PUT claim", "DELETE name", "DELETE manifest", "GET list", "GET uploads",
    "DELETE file", "DELETE record", "DELETE marker", "DELETE claim",
]  # fmt: skip
KINDS_OF_FETCH = ["GET list", "HEAD manifest", "GET manifest", "GET file", "HEAD record", "GET record"]
KINDS_OF_LIST = ["GET list", "HEAD manifest", "GET manifest"]


C = TypeVar("C", bound=Callable[..., Any])


def case(method: C) -> C:
    """After a case that has failed, the job is not as the next one needs it."""

    @functools.wraps(method)
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        self.is_usable = False
        result = method(self, *arguments, **options)
        self.is_usable = True
        return result

    return cast(C, run)


class Cases:
    """One case after another on one job, whose bucket and root keep two checkpoints."""

    is_usable = True

    def __init__(self, job: FaultJob, folder: pathlib.Path) -> None:
        self.job = job
        self.step = 0
        self.run = self._join()

    def _join(self) -> ckptd.Run:
        new_launch()
        client = self.job.start()
        return client.run(self.job.root, num_kept_ckpts=2, upload=ckptd.Upload(self.job.url, keep_last=2))

    def next_tag(self) -> str:
        self.step += 1
        return f"step_{self.step}"

    def save(self) -> ckptd.Save:
        return self.job.save(self.run, self.step)

    def check_met(self) -> None:
        seen = [str(request) for request in self.job.proxy.seen]
        assert self.job.proxy.met, f"no request was of this kind: {seen}"

    def ended(self, tag: str) -> bool:
        """The upload of this checkpoint, and the removals after it."""
        keys = self.job.keys()
        is_there = f"{tag}/.ckptd/manifest" in keys and f"{tag}/.ckptd/manifest.new" not in keys
        return is_there and len({tag_of(key) for key in keys}) <= 2

    def check_end(self, tag: str) -> None:
        until(lambda: self.ended(tag), f"the upload of {tag} and the removals after it")
        self.job.check_listed(tag)
        self.job.check_no_leftovers()

    @case
    def upload(self, fault: Fault, kind: str, times: int = 1) -> None:
        """A request of an upload meets the fault. The trainer does not notice."""
        tag = self.next_tag()
        self.job.proxy.plan(Rule(fault, kind, times=times, within=f"{tag}/"))
        saved = self.save()
        saved.wait(timeout=TIMEOUT)
        saved.wait("uploaded", timeout=TIMEOUT)
        self.job.check_listed(tag)
        self.check_met()
        self.check_end(tag)

    @case
    def removal(self, fault: Fault, kind: str) -> None:
        """A request of the removal of the oldest checkpoint of the bucket meets the fault."""
        while len(self.job.uploaded()) < 2:
            self.upload_well()
        oldest = f"step_{self.step - 1}"
        tag = self.next_tag()
        self.job.proxy.plan(Rule(fault, kind, within=f"{oldest}/"))
        self.save().wait("uploaded", timeout=TIMEOUT)
        self.check_end(tag)
        self.check_met()
        assert self.job.uploaded() == {f"step_{self.step - 1}", tag}

    def upload_well(self) -> str:
        tag = self.next_tag()
        self.job.proxy.plan()
        self.save().wait("uploaded", timeout=TIMEOUT)
        self.check_end(tag)
        return tag

    @case
    def outage(self, fault: Fault) -> None:
        """All requests meet the fault for a while. Saves go on, and then everything is uploaded."""
        self.job.proxy.plan(Rule(fault, times=0))
        tags = [self.next_tag()]
        saved = [self.save()]
        until(lambda: len(self.job.proxy.met) >= 2, "two requests")
        tags.append(self.next_tag())
        saved.append(self.save())
        for each in saved:
            each.wait(timeout=TIMEOUT)
        self.job.check_listed()
        self.job.proxy.plan()
        for each in saved:
            each.wait("uploaded", timeout=2 * TIMEOUT)
        self.check_end(tags[-1])
        assert self.job.uploaded() == set(tags)

    @case
    def resume(self, fault: Fault, kind: str) -> None:
        """A request of a resume on an empty disk meets the fault. It takes the newest checkpoint nevertheless, or says
        that the bucket is missing.
        """
        newest = f"step_{self.step}" if self.step else self.upload_well()
        self.lose_disk()
        self.job.proxy.plan(Rule(fault, kind))
        try:
            resumed = self.job.resume(self.run)
        except ckptd.Refused as refused:
            assert fault is Fault.NO_BUCKET and refused.reason == "RESTORE_FAILED"
            assert "NoSuchBucket" in str(refused)
            resumed = self.job.resume(self.run)
        assert resumed == (newest, self.job.saved[newest])
        self.check_met()

    def lose_disk(self) -> None:
        self.job.lose_disk()
        self.run = self._join()

    # ---- kills

    @case
    def kill_in_upload(self, fault: Fault, nth: int) -> bool:
        """Kills the daemon at a request of an upload. False if the upload has fewer."""
        tag = self.next_tag()
        self.job.proxy.plan(Rule(fault, nth=nth, within=f"{tag}/"))
        self.save().wait(timeout=TIMEOUT)
        return self._kill_and_go_on(tag)

    @case
    def kill_in_removal(self, fault: Fault, nth: int) -> bool:
        while len(self.job.uploaded()) < 2:
            self.upload_well()
        oldest = f"step_{self.step - 1}"
        tag = self.next_tag()
        self.job.proxy.plan(Rule(fault, nth=nth, within=f"{oldest}/"))
        self.save().wait("uploaded", timeout=TIMEOUT)
        return self._kill_and_go_on(tag)

    def _kill_and_go_on(self, tag: str) -> bool:
        proxy = self.job.proxy
        until(lambda: proxy.frozen.is_set() or self.ended(tag), f"the end, or a frozen request: {proxy.seen}")
        was_frozen = proxy.frozen.is_set()
        if was_frozen:
            self.job.kill()
            self.job.check_listed()
            self.job.start()  # No trainer asks for anything.
        self.check_end(tag)
        return was_frozen

    @case
    def abandon(self) -> None:
        """Kills the daemon in a multipart upload that the next one does not go on with."""
        tag = self.next_tag()
        proxy = self.job.proxy
        proxy.plan(Rule(Fault.FREEZE_AFTER, "PUT part", within=f"{tag}/"))
        self.save().wait(timeout=TIMEOUT)
        until(proxy.frozen.is_set, "a part to arrive")
        self.job.kill()
        assert self.job.multipart_uploads() == [f"{self.job.prefix}/{tag}/data.bin"]
        shutil.rmtree(self.job.root / tag)  # By an operator: the next daemon has nothing to send.
        self.job.start()
        until(lambda: not any(key.startswith(f"{tag}/") for key in self.job.keys()), "the removal")
        self.job.check_no_leftovers()

    @case
    def kill_in_resume(self, fault: Fault, nth: int) -> bool:
        newest = f"step_{self.step}" if self.step else self.upload_well()
        self.lose_disk()
        proxy = self.job.proxy
        proxy.plan(Rule(fault, nth=nth))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            resuming = pool.submit(self.job.resume, self.run)
            until(lambda: proxy.frozen.is_set() or resuming.done(), "the end, or a frozen request")
            was_frozen = proxy.frozen.is_set()
            if was_frozen:
                self.job.kill()
                assert newest not in self._tags_on_disk(), "it was committed before it was fetched"
                self.job.start()
            concurrent.futures.wait([resuming])
        if was_frozen and resuming.exception() is not None:
            assert isinstance(resuming.exception(), ckptd.CkptdError)
            resumed = self.job.resume(self.run)
        else:
            resumed = resuming.result()
        assert resumed == (newest, self.job.saved[newest])
        return was_frozen

    def _tags_on_disk(self) -> List[str]:
        return [info.tag for info in ckptd.open_root(self.job.root).list()] if self.job.root.exists() else []


class ToolCases:
    """ckptctl with s3://: `root` has the checkpoint step_1, which the job has saved."""

    is_usable = True

    def __init__(self, job: FaultJob, folder: pathlib.Path) -> None:
        self.job = job
        self.folder = folder
        job.save(job.start().run(job.root), 1).wait()
        self.uploaded = job.url
        self._run("upload", str(job.root / "step_1"), job.url)

    def _run(self, *arguments: str, code: int = 0) -> str:
        done = self.job.ctl(*arguments)
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def _run_with_fault(self, fault: Fault, kind: str, *arguments: str) -> str:
        """What it says. It fails only for a missing bucket and for damage that it has found; then the next try succeeds."""
        self.job.proxy.plan(Rule(fault, kind))
        first = self.job.ctl(*arguments)
        assert self.job.proxy.met, f"no such request: {[str(request) for request in self.job.proxy.seen]}"
        if first.returncode == 0:
            return first.stdout
        allowed = {
            Fault.NO_BUCKET: ["NO_BUCKET"],
            Fault.DAMAGE_REQUEST: ["CORRUPT_TRANSFER", "MalformedXML"],
            Fault.DAMAGE_RESPONSE: ["CRC32C"] if arguments[0] in ("list", "verify") else [],
        }.get(fault, [])
        said = first.stdout + first.stderr
        assert any(words in said for words in allowed), f"{arguments}: {first.returncode}: {said}"
        return self._run(*arguments)

    @case
    def upload(self, fault: Fault, kind: str) -> None:
        self.job.delete_all()
        source = str(self.job.root / "step_1")
        self._run_with_fault(fault, kind, "upload", source, self.job.url)
        self.job.check_listed("step_1")
        self.job.check_no_leftovers()

    @case
    def fetch(self, fault: Fault, kind: str) -> None:
        into = self.folder / "fetched"
        shutil.rmtree(into, ignore_errors=True)
        self._run_with_fault(fault, kind, "fetch", f"{self.uploaded}/step_1", str(into))
        fetched = {name: (into / "step_1" / name).read_bytes() for name in self.job.saved["step_1"]}
        assert fetched == self.job.saved["step_1"]
        assert "OK" in self._run("verify", str(into / "step_1"))

    @case
    def listing(self, command: str, fault: Fault, kind: str) -> None:
        """`command` is list or verify."""
        said = self._run_with_fault(fault, kind, command, self.uploaded)
        assert ("OK" if command == "verify" else "step_1") in said


T = TypeVar("T", bound=Union[Cases, ToolCases])


class Shared(Generic[T]):
    """The cases of one job, until one of them fails: then the next one has a job of its own."""

    def __init__(self, server: BucketServer, make: Callable[[FaultJob, pathlib.Path], T]) -> None:
        self._server, self._make = server, make
        self._job: Optional[FaultJob] = None
        self._made: Optional[T] = None

    def get(self) -> T:
        if self._made is None or not self._made.is_usable:
            self.close()
        if self._made is None:
            folder = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-"))
            self._job = FaultJob(folder, self._server)
            self._made = self._make(self._job, folder)
        return self._made

    def close(self) -> None:
        job, self._job, self._made = self._job, None, None
        if job is not None:
            job.close()
            shutil.rmtree(job.folder, ignore_errors=True)
