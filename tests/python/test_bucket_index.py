"""The list of a bucket by its index: what it costs, and what a wrong or missing name does not hide. As index_test.cc."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import ckptd
import pytest
from checkpoint_files import encode_manifest, index_name
from ckptd._roots.bucket.bucket import Bucket
from ckptd._roots.bucket.index import summary_of_name
from ckptd._wire.protocol import storage

BODY = storage.ManifestBody().SerializeToString()


def summary_of(tag: str, sequence: int) -> Any:
    begun = 1_700_000_000_000_000 + sequence * 1_000_000
    return storage.ManifestSummary(
        format_version=1,
        run_id="run-of-tests",
        tag=tag,
        sequence=sequence,
        attempt=1,
        ordinal=1,
        world_size=1,
        create_time_us=begun,
        commit_time_us=begun + 500_000,
        metrics={"loss": 0.5},
        chunk_bytes=1 << 20,
    )


class Objects:
    """A bucket in memory, in the place of Store."""

    def __init__(self) -> None:
        self.objects: Dict[str, bytes] = {}
        self.requests: List[str] = []

    def folders(self, prefix: str) -> List[str]:
        self.requests.append("LIST")
        return sorted({key[len(prefix) :].partition("/")[0] for key in self.objects if key.startswith(prefix)})

    def names(self, prefix: str) -> List[str]:
        self.requests.append("LIST")
        return sorted(key[len(prefix) :] for key in self.objects if key.startswith(prefix))

    def read_start(self, key: str, most: int) -> Tuple[bytes, int]:
        data = self.read_all(key, 1 << 30)
        return data[:most], len(data)

    def read_all(self, key: str, most: int) -> bytes:
        self.requests.append("GET")
        if key not in self.objects:
            raise ckptd.NotFound(f"no object {key}", reason="NO_OBJECT")
        return self.objects[key][:most]


class Prefix:
    def __init__(self) -> None:
        self.store = Objects()
        self.bucket = Bucket.__new__(Bucket)
        self.bucket.name = "s3://bucket/run"
        self.bucket._base = "run/"
        self.bucket._store = self.store  # type: ignore[assignment]

    def put_unnamed(self, tag: str, sequence: int) -> None:
        """As an earlier version of ckptd, or a copy by hand."""
        self.store.objects[f"run/{tag}/.ckptd/manifest"] = encode_manifest(summary_of(tag, sequence), BODY)

    def put_name(self, tag: str, sequence: int) -> None:
        self.store.objects[f"run/.ckptd/index/{index_name(summary_of(tag, sequence))}"] = b""

    def put(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.put_unnamed(f"step_{number}", number)
            self.put_name(f"step_{number}", number)

    def remove(self, key: str) -> None:
        del self.store.objects[key]

    def listed(self) -> "Dict[str, int]":
        """Returns the sequences by their tags, the newest first."""
        self.store.requests.clear()
        return {tag: sequence for sequence, tag in self.bucket.summaries()}

    def requests(self) -> Tuple[int, int]:
        """Returns how many lists and gets the last listed() has cost."""
        return self.store.requests.count("LIST"), self.store.requests.count("GET")


@pytest.fixture
def prefix() -> Prefix:
    return Prefix()


def test_name_of_the_cpp_programs_is_read() -> None:
    expected = storage.ManifestSummary(tag="step_1", sequence=1)
    assert summary_of_name("step_1!8-zfHAEoAQ") == expected  # As in index_test.cc.
    summary = summary_of("step=1,+@-._", 7)
    assert summary_of_name(index_name(summary)) == summary


def test_damaged_and_foreign_names_are_no_names() -> None:
    name = index_name(summary_of("step_1", 1))
    for at in range(len(name) - 1):  # The last digit has bits that say nothing.
        other = "x" if name[at] != "x" else "y"
        assert summary_of_name(name[:at] + other + name[at + 1 :]) is None, at
    for text in ("", "!", "step_1", "step_1!", "step_1!AAAA", "latest!AAAAAAAAAA", "step_1!AAAAAAAA!", "step_1!\xe4"):
        assert summary_of_name(text) is None, text


def test_list_costs_no_request_for_each_checkpoint(prefix: Prefix) -> None:
    prefix.put(1, 10)
    assert len(prefix.listed()) == 10 and prefix.requests() == (2, 10)
    prefix.put(11, 1500)
    listed = prefix.listed()
    assert len(listed) == 1500 and next(iter(listed)) == "step_1500" and prefix.requests() == (2, 64)


def test_bucket_of_an_earlier_version_is_listed(prefix: Prefix) -> None:
    for number in range(1, 21):
        prefix.put_unnamed(f"step_{number}", number)
    assert list(prefix.listed().values()) == list(range(20, 0, -1))


def test_checkpoint_that_was_copied_by_hand_is_the_newest(prefix: Prefix) -> None:
    prefix.put(1, 100)
    prefix.put_unnamed("copied", 400)
    assert next(iter(prefix.listed())) == "copied"


def test_checkpoint_that_has_taken_a_tag_without_its_name_is_not_hidden_by_the_old_name(prefix: Prefix) -> None:
    prefix.put(1, 100)
    prefix.put_unnamed("step_37", 1037)
    assert prefix.listed()["step_37"] == 1037
    prefix.put_unnamed("step_37", 37)
    prefix.put_unnamed("step_3", 2000)
    prefix.put_unnamed("fresh", 1999)
    assert next(iter(prefix.listed())) == "step_3"


def test_several_names_of_a_tag_let_the_manifest_decide(prefix: Prefix) -> None:
    prefix.put(1, 100)
    prefix.put_unnamed("step_2", 999)
    prefix.put_name("step_2", 999)
    assert prefix.listed()["step_2"] == 999 and prefix.requests() == (2, 65)


def test_name_without_its_checkpoint_is_none(prefix: Prefix) -> None:
    prefix.put(1, 100)
    prefix.remove("run/step_4/.ckptd/manifest")
    assert "step_4" not in prefix.listed(), "its tag is gone"
    prefix.remove("run/step_100/.ckptd/manifest")
    prefix.store.objects["run/step_100/model.pt"] = b"left"
    assert next(iter(prefix.listed())) == "step_99"


def test_damaged_manifest_of_the_newest_is_told(prefix: Prefix) -> None:
    prefix.put(1, 100)
    key = "run/step_100/.ckptd/manifest"
    prefix.store.objects[key] = b"x" + prefix.store.objects[key][1:]
    unreadable: List[Any] = []
    assert next(iter(prefix.bucket.summaries(unreadable)))[1] == "step_99"
    assert [info.tag for info in unreadable] == ["step_100"]
