"""A job whose root is a prefix of a bucket, on a node without a disk."""

from __future__ import annotations

from typing import Any, List

import ckptd
from bucket_servers import BUCKET
from upload_job import Job


class BucketRootJob(Job):
    """A Job whose root is the prefix in the bucket, and which has no disk."""

    def run(self, rank: int = 0, world_size: int = 1, **options: Any) -> ckptd.Run:
        return self.start().run(self.url, rank=rank, world_size=world_size, **options)

    def keys(self) -> List[str]:
        """What lies beneath the prefix, without it."""
        listed = self.server.client().list_objects_v2(Bucket=BUCKET, Prefix=self.prefix)
        return sorted(found["Key"][len(self.prefix) + 1 :] for found in listed.get("Contents", []))

    def next_node(self) -> None:
        """The daemon is killed, and the next one starts on a node that has never seen the run."""
        self.restart_without()

    def tags(self) -> List[str]:
        return [info.tag for info in self.run().list()]
