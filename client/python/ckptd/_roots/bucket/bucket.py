"""The checkpoints beneath a prefix of a bucket."""

import logging
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar

from ckptd import errors
from ckptd._bucket_url import parse_bucket_url
from ckptd._checkpoint_info import CheckpointInfo, info_of_manifest, info_of_unreadable
from ckptd._paths import is_tag
from ckptd._reading.manifest import HEAD_BYTES, MANIFEST, MOST_BYTES, components_of, corrupt_manifest, parse_head, parse_manifest
from ckptd._reading.verified_file import VerifiedFile, removed_while_read
from ckptd._roots.bucket.client import CONNECTIONS, make_client
from ckptd._roots.bucket.index import FOLDER, is_same_checkpoint, summaries_of_names
from ckptd._roots.parallel import in_parallel
from ckptd._roots.place import no_checkpoint

_log = logging.getLogger("ckptd")
_TRIES = 3  # For a manifest that arrives damaged.
_CONFIRMED = 64  # Of the newest names: they are compared with their manifests (storage/bucket/list.cc).
_Result = TypeVar("_Result")


class Bucket:
    """A Place: what lies beneath a prefix, in the names of a directory. A manifest makes a checkpoint, and comes last."""

    readers = CONNECTIONS

    def __init__(self, url: str) -> None:
        """Asks no server. Raises as parse_bucket_url() and make_client()."""
        parsed = parse_bucket_url(url)
        client = make_client(parsed.bucket)
        from ckptd._roots.bucket.store import Store

        self.name = str(parsed)
        self._base = f"{parsed.prefix}/" if parsed.prefix else ""
        self._store = Store(client, parsed.bucket)

    def summaries(self, unreadable: Optional[List[CheckpointInfo]] = None) -> "List[Tuple[int, str]]":
        """As Place.summaries(). What was begun last by the clock is the newest, as for a resume: a root that was lost may
        have begun its sequences anew.
        """
        found = []
        for tag, summary in self._find().items():
            if isinstance(summary, errors.CkptdError):
                _log.warning("ckptd: %s", summary)
                if unreadable is not None and isinstance(summary, errors.Corrupt):
                    unreadable.append(info_of_unreadable(tag, 0, str(summary)))
            else:
                found.append((summary.create_time_us, summary.sequence, tag))
        return [(sequence, tag) for _, sequence, tag in sorted(found, reverse=True)]

    def _find(self) -> Dict[str, Any]:
        """Returns by tag a checkpoint's storage.ManifestSummary, or why it has none.

        As ListBucket (storage/bucket/list.h): the names of the index are believed until something contradicts them.
        """
        tags = [tag for tag in self._store.folders(self._base) if is_tag(tag)]
        index = summaries_of_names(self._store.names(self._base + FOLDER))
        named = [index[tag] for tag in tags if index.get(tag) is not None]
        named.sort(key=lambda summary: (summary.create_time_us, summary.sequence), reverse=True)
        newest, others = named[:_CONFIRMED], named[_CONFIRMED:]
        unnamed = self._read([tag for tag in tags if index.get(tag) is None])
        confirmed = self._read([summary.tag for summary in newest])
        is_contradicted = any(
            tag not in index and not isinstance(summary, errors.CkptdError) for tag, summary in unnamed.items()
        ) or not all(_is_confirmed(summary, confirmed.get(summary.tag)) for summary in newest)
        if is_contradicted:
            rest = self._read([summary.tag for summary in others])
        else:
            rest = {summary.tag: summary for summary in others}
        return {**unnamed, **confirmed, **rest}

    def _read(self, tags: List[str]) -> Dict[str, Any]:
        """Returns what _find() does, of the manifests of these tags."""
        read = zip(tags, in_parallel(tags, self._summary_or_error, CONNECTIONS))
        return {tag: summary for tag, summary in read if summary is not None}

    def _summary_or_error(self, tag: str) -> Any:
        """Returns a checkpoint's storage.ManifestSummary, or why it has none; None if there is no manifest."""
        try:
            return _undamaged(lambda: self._summary(tag))
        except errors.CkptdError as error:
            if error.reason == "NO_OBJECT":
                return None  # An upload that has not ended, a removal, or nothing of ours.
            if isinstance(error, errors.Corrupt) or error.reason == "NEWER_FORMAT":
                return error
            raise  # Of the store: a checkpoint must not vanish from a list for such a reason.

    def _summary(self, tag: str) -> Any:
        what = f"{self.name}/{tag}"
        data, size = _manifest_start(self._store, f"{self._base}{tag}/{MANIFEST}")
        head = parse_head(data, what)
        if size != HEAD_BYTES + head.body_bytes:
            raise corrupt_manifest(what, f"it has {size} bytes, and its head says {HEAD_BYTES + head.body_bytes}")
        _check_tag(head.summary, tag, what)
        return head.summary

    def open(self, tag: str) -> "Tuple[CheckpointInfo, BucketFiles]":
        if not is_tag(tag):
            raise no_checkpoint(tag, self.name)
        files = BucketFiles(self._store, f"{self._base}{tag}/", tag, self.name)
        return info_of_manifest(files.summary, files.records, ""), files


class BucketFiles:
    """CheckpointFiles of a checkpoint in a bucket.

    Nothing there is held for a reader. If the tag is removed, or saved again, the next read finds other bytes than the
    manifest says that was opened, or none.
    """

    def __init__(self, store: Any, base: str, tag: str, place: str) -> None:
        """Raises as Place.open(). base: what its keys begin with."""
        self._store = store
        self._base = base
        self._tag = tag
        self._what = f"{place}/{tag}"
        try:
            self.summary, self.records = _undamaged(self._read_manifest)
        except errors.NotFound as error:
            if error.reason != "NO_OBJECT":
                raise
            raise no_checkpoint(tag, f"{place} (an upload that has not ended is none)") from error

    def _read_manifest(self) -> Tuple[Any, Dict[str, Any]]:
        data = self._store.read_all(self._base + MANIFEST, MOST_BYTES + 1)
        if not data:
            raise _no_manifest(self._what)
        self._head = data[:HEAD_BYTES]
        summary, records = parse_manifest(data, self._what)
        _check_tag(summary, self._tag, self._what)
        return summary, records

    def open(self, path: str, threads: int) -> VerifiedFile:
        from ckptd._roots.bucket.bucket_file import BucketFile

        components_of(path)
        record, chunk_bytes = self.records[path], self.summary.chunk_bytes
        return BucketFile(self._store, self._base + path, self._tag, record, chunk_bytes, self._explain)

    def close(self) -> None:
        pass

    def _explain(self, damage: errors.Corrupt) -> errors.CkptdError:
        """Returns the error for bytes that are not what the manifest says: damage, or that of a removal or another save.

        A removal takes the manifest away before the files, and an upload puts it there after them.
        """
        try:
            head, _ = _manifest_start(self._store, self._base + MANIFEST)
        except errors.NotFound as error:
            return removed_while_read(self._tag) if error.reason == "NO_OBJECT" else error
        if head == self._head:
            return damage
        return errors.NotFound(
            f"the checkpoint {self._tag} was replaced by another one while it was being read; open it again",
            reason="NO_CHECKPOINT",
            tag=self._tag,
        )


def _is_confirmed(named: Any, found: Any) -> bool:
    """Returns whether a manifest is the one of a name; `found` as in _find(), or None if there is none."""
    return found is not None and not isinstance(found, errors.CkptdError) and is_same_checkpoint(named, found)


def _manifest_start(store: Any, key: str) -> Tuple[Any, int]:
    """Returns the head of a manifest, and its size. One without a byte is none: a save was given up there."""
    data, size = store.read_start(key, HEAD_BYTES)
    if size == 0:
        raise _no_manifest(key)
    return data, size


def _no_manifest(what: str) -> errors.NotFound:
    return errors.NotFound(f"{what} has no manifest: a save was given up there", reason="NO_OBJECT")


def _check_tag(summary: Any, tag: str, what: str) -> None:
    if summary.tag != tag:
        raise corrupt_manifest(what, f"it is of tag {summary.tag}: the objects were renamed or copied")


def _undamaged(read: "Callable[[], _Result]") -> _Result:
    """Calls read() again while its bytes are damaged: that may have happened on their way."""
    for _ in range(_TRIES - 1):
        try:
            return read()
        except errors.Corrupt:
            continue
    return read()
