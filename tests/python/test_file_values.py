"""The values that may be saved as files, and the errors for those that may not."""

from __future__ import annotations

import array
import collections
import io
import json
import mmap
import pathlib
import sys
from typing import Any

import ckptd
import numpy as np
import pytest
import torch
from ckptd._saving import file_values


def content(name: str, value: Any) -> bytes:
    image = file_values.image_of(name, value)
    data = b"".join(image.stream())
    assert len(data) == image.size
    return data


@pytest.mark.parametrize("name", ["note.txt", "model.pt", "a/b.bin"])
@pytest.mark.parametrize(
    "value",
    [
        b"some bytes",
        bytearray(b"some bytes"),
        memoryview(b"some bytes"),
        memoryview(bytearray(b"some bytes")),
    ],
    ids=["bytes", "bytearray", "read-only view", "view"],
)
def test_bytes_are_saved_unchanged_under_any_name(name: str, value: Any) -> None:
    assert content(name, value) == b"some bytes"


@pytest.mark.parametrize("empty", [b"", bytearray(), memoryview(b""), array.array("d")])
def test_empty_file_is_restored(empty: Any) -> None:
    assert content("empty", empty) == b""


def test_other_buffers_are_saved_by_their_bytes() -> None:
    assert content("a", array.array("I", [1, 2])) == array.array("I", [1, 2]).tobytes()
    assert content("a", memoryview(b"abcdef")[::2]) == b"ace"
    assert content("a", memoryview(array.array("H", [1, 2, 3]))[1:]) == array.array("H", [2, 3]).tobytes()
    with mmap.mmap(-1, 4096) as mapped:
        mapped[:3] = b"xyz"
        assert content("a", mapped)[:4] == b"xyz\0"


def test_a_file_is_read_when_it_is_saved(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 40_000_000)
    assert content("f.pt", ckptd.File(path)) == path.read_bytes()
    assert content("f", ckptd.File(str(path))) == path.read_bytes()
    path.write_bytes(b"")
    assert content("f", ckptd.File(path)) == b""


def test_a_file_that_grows_or_shrinks_meanwhile_is_an_error_and_no_crash(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 1000)
    for now in (b"x" * 1001, b"x" * 999, b""):
        image = file_values.image_of("f", ckptd.File(path))
        before = path.read_bytes()
        path.write_bytes(now)
        with pytest.raises(RuntimeError, match="while it was being saved"):
            list(image.stream())
        path.write_bytes(before)


def test_missing_file_is_an_oserror() -> None:
    with pytest.raises(FileNotFoundError):
        file_values.image_of("f", ckptd.File("/nonexistent/file"))


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.bin", "m.ckpt", "deep/er.pt"])
@pytest.mark.parametrize(
    "value", [{"w": torch.ones(3)}, [1, 2], "text", None, 5], ids=lambda v: type(v).__name__
)
def test_object_under_a_torch_suffix_is_saved_as_torch_save_does(name: str, value: Any) -> None:
    back = torch.load(io.BytesIO(content(name, value)), weights_only=True)
    assert back == value if not isinstance(value, dict) else torch.equal(back["w"], value["w"])


@pytest.mark.filterwarnings("ignore")
def test_a_numpy_array_under_a_torch_name_is_an_object_and_not_its_bytes() -> None:
    back = torch.load(io.BytesIO(content("a.pt", np.arange(5))), weights_only=False)
    assert isinstance(back, np.ndarray)


def test_torch_value_is_saved_as_torch_save_does_under_any_name() -> None:
    assert torch.load(io.BytesIO(content("state", ckptd.Torch({"a": 1}))), weights_only=True) == {"a": 1}


def test_views_argument_keep_reaches_the_writer() -> None:
    view = torch.zeros(100_000)[:10]
    assert len(content("a", ckptd.Torch(view, views="keep"))) > 400_000 > len(content("a", ckptd.Torch(view)))
    with pytest.raises(ValueError, match='views is "all"'):
        ckptd.Torch(view, views="all")


@pytest.mark.parametrize(
    "value, advice",
    [
        ("text", "value.encode()"),
        ({"a": 1}, "json.dumps(value).encode()"),
        ([1], "json.dumps(value).encode()"),
        (5, "json.dumps(value).encode()"),
        (pathlib.Path("/x"), "ckptd.File(value)"),
        (io.BytesIO(), "value.getvalue()"),
        (io.StringIO(), "value.getvalue().encode()"),
        (np.arange(3), "value.tobytes()"),
        (torch.ones(1), 'files={"model.pt": state} for a whole state dict in one file, or ckptd.Torch(value)'),
        (None, "ckptd.Torch(value)"),
        (collections.deque(), "ckptd.Torch(value)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unsupported_value_is_a_type_error_that_says_what_to_write(value: Any, advice: str) -> None:
    with pytest.raises(TypeError) as caught:
        file_values.image_of("state.json", value)
    assert 'file "state.json"' in str(caught.value)
    assert type(value).__name__ in str(caught.value)
    assert advice in str(caught.value)


def test_without_torch_bytes_can_be_saved_and_objects_say_why_not() -> None:
    code = """
import sys
sys.modules["torch"] = None
import json, ckptd
from ckptd._saving import file_values
assert b"".join(file_values.image_of("a.pt", b"raw").stream()) == b"raw"
try:
    file_values.image_of("a.pt", {})
except TypeError as error:
    print(json.dumps(str(error)))
"""
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "torch cannot be imported" in json.loads(done.stdout)


def test_importing_ckptd_does_not_import_torch() -> None:
    import subprocess

    code = "import sys, ckptd; sys.exit(any(name.partition('.')[0] in ('torch', 'numpy') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
