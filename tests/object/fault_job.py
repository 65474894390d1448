"""A job whose uploads, removals and resumes go through a FaultProxy, and what must hold in its bucket."""

from __future__ import annotations

import os
import pathlib
import subprocess
import uuid
from typing import Dict, List, Optional, Set, Tuple

import ckptd
from bucket_servers import BUCKET, BucketServer
from ckptd.local_daemon import find_program
from fault_plan import INDEX, MANIFEST, Rule
from fault_proxy import FaultProxy
from harness.waiting import TIMEOUT, until
from upload_job import SIZE, Job

Files = Dict[str, bytes]
KEPT = 8  # More checkpoints than a bucket or a root has here.


def new_launch() -> None:
    """Makes what joins from now on a new launch of the job."""
    os.environ["CKPTD_LAUNCH_ID"] = uuid.uuid4().hex


def tag_of(key: str) -> str:
    """The tag of the checkpoint to which a key without the prefix belongs, or its name in the index."""
    return key[len(INDEX) :].partition("!")[0] if key.startswith(INDEX) else key.partition("/")[0]


class FaultJob(Job):
    """Each checkpoint has a file of two parts and a small one. saved: the bytes of the newest, by tag."""

    proxy: FaultProxy

    def __init__(self, folder: pathlib.Path, server: BucketServer, configuration: str = "") -> None:
        super().__init__(folder, server, configuration, FaultProxy(server.endpoint))
        self.saved: Dict[str, Files] = {}
        self._s3 = server.client()
        self.folder = folder

    def save(self, run: ckptd.Run, step: int, size: int = SIZE) -> ckptd.Save:
        files = {"data.bin": os.urandom(size), "notes.bin": os.urandom(1000)}
        self.saved[f"step_{step}"] = files
        for tag in list(self.saved)[:-KEPT]:
            del self.saved[tag]
        return run.save(f"step_{step}", step=step, files=files)

    def keys(self) -> Set[str]:
        """What lies in the bucket, without the prefix."""
        listed = self._s3.list_objects_v2(Bucket=BUCKET, Prefix=self.prefix)
        return {found["Key"][len(self.prefix) + 1 :] for found in listed.get("Contents", [])}

    def multipart_uploads(self) -> List[str]:
        listed = self._s3.list_multipart_uploads(Bucket=BUCKET, Prefix=self.prefix)
        return [found["Key"] for found in listed.get("Uploads", [])]

    def read_back(self, tag: str) -> Files:
        """What the server itself has of a checkpoint's files."""
        return {
            name: self._s3.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{tag}/{name}")["Body"].read()
            for name in self.saved[tag]
        }

    def check_listed(self, *tags: str) -> None:
        """These are listed, and whatever is listed is whole, byte for byte."""
        listed = self.uploaded()
        assert listed >= set(tags), f"{listed} lacks some of {tags}"
        for tag in listed:
            try:
                torn = self._what_is_torn(tag)
            except self._s3.exceptions.NoSuchKey:
                torn = "an object is missing"
            # The daemon may be about to remove it, which begins with the manifest.
            assert not torn or tag not in self.uploaded(), f"{tag} is torn: {torn}"

    def _what_is_torn(self, tag: str) -> str:
        manifest = self._s3.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{tag}/{MANIFEST}")["Body"].read()
        path = self.root / tag / MANIFEST
        if path.exists() and path.read_bytes() != manifest:
            return "the manifest is another one"
        return "" if self.read_back(tag) == self.saved[tag] else "the bytes are others"

    def check_no_leftovers(self) -> None:
        """No multipart upload goes on, and every object belongs to a checkpoint that is listed."""
        assert self.multipart_uploads() == []
        listed = self.uploaded()
        left = {
            key for key in self.keys() if tag_of(key) not in listed or key.endswith((".new", ".probe"))
        }
        assert not left, f"{left} were left"

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """ckptctl through the proxy."""
        return subprocess.run(
            [find_program("ckptctl"), *arguments],
            env={**self.server.environment(), "AWS_ENDPOINT_URL_S3": self.proxy.endpoint},
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT,
        )

    def upload_with_fault(self, run: ckptd.Run, step: int, *rules: Rule) -> None:
        """The upload of a save meets the faults, and nobody but the bucket notices them."""
        self.proxy.plan(*rules)
        saved = self.save(run, step)
        saved.wait(timeout=TIMEOUT)
        saved.wait("uploaded", timeout=TIMEOUT)
        met = self.proxy.met
        assert met, f"the upload has no such request: {[str(request) for request in self.proxy.seen]}"
        self.check_listed(f"step_{step}")

    def resumed(self, **options: bool) -> Optional[Tuple[str, Files]]:
        """What the next launch resumes from, on a node with an empty disk."""
        self.lose_disk()
        new_launch()
        return self.resume(self.run(**options))

    def resume(self, run: ckptd.Run) -> Optional[Tuple[str, Files]]:
        with run.resume(timeout=TIMEOUT) as checkpoint:
            if checkpoint is None:
                return None
            return checkpoint.tag, {name: checkpoint.read(name) for name in self.saved[checkpoint.tag]}

    def kill(self) -> None:
        """Kills the daemon while its requests are frozen, and lets the server work again."""
        self.daemon.close()
        self.proxy.thaw()

    def wait_for_freeze_or(self, done: str) -> bool:
        """True if the proxy has frozen; false if the checkpoint is in the bucket before."""
        until(lambda: self.proxy.frozen.is_set() or self._is_done(done), f"a freeze, or {done}")
        return self.proxy.frozen.is_set()

    def _is_done(self, tag: str) -> bool:
        return tag in self.uploaded() and f"{tag}/{MANIFEST}.new" not in self.keys()

    def delete_all(self) -> None:
        for key in self.keys():
            self._s3.delete_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}")
