"""Where the storages of an archive lie is the same with every version of torch's reader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checkpoint_files import BytesFile, saved
from ckptd._torch.reading import archive_records


class ReaderWithoutSizes:
    """The reader of torch 2.11: it has no get_record_size()."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        if name == "get_record_size":
            raise AttributeError(name)
        return getattr(self._reader, name)


def test_reader_that_does_not_tell_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"a": torch.randn(1000), "b": torch.randn(3, dtype=torch.bfloat16), "none": torch.empty(0), "c": [torch.ones(7)]}
    file = BytesFile(saved(state))
    expected = archive_records.records_of(file)
    assert [record.size for record in expected.values()] == [4000, 6, 0, 28]
    assert archive_records.why_not_meta(file) == ""
    open_archive = archive_records._open
    monkeypatch.setattr(archive_records, "_open", lambda *args: ReaderWithoutSizes(open_archive(*args)))
    assert archive_records.records_of(file) == expected
    assert archive_records.why_not_meta(file) == ""
