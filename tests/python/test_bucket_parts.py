"""What a bucket's files are read by: the parts that are requested, the threads that do it, and URLs."""

from __future__ import annotations

import gc
import random
import signal
import subprocess
import sys
import threading
import time
from typing import List, Tuple

import ckptd
import pytest
from ckptd._roots.bucket.parts import Part, parts_of
from ckptd._bucket_url import parse_bucket_url
from ckptd._roots.parallel import in_parallel, pause
from harness.waiting import until

CHUNK = 100


def some_pieces(numbers: random.Random, size: int) -> List[Tuple[int, int, int]]:
    """Pieces that do not overlap; each has its offset as its address."""
    cuts = sorted(numbers.sample(range(size + 1), min(2 * numbers.randrange(1, 9), size // 2 * 2)))
    return [(begin, begin, end - begin) for begin, end in zip(cuts[::2], cuts[1::2])]


@pytest.mark.parametrize("seed", range(20))
def test_parts_have_the_chunks_that_are_wanted_and_no_other(seed: int) -> None:
    numbers = random.Random(seed)
    for _ in range(50):
        size, most = numbers.randrange(20, 3000), numbers.choice([1, CHUNK, 3 * CHUNK + 1, 10**6])
        pieces = some_pieces(numbers, size)
        parts = list(parts_of(pieces, size, CHUNK, most))
        got = [chunk for part in parts for chunk in range(part.offset // CHUNK, -(-(part.offset + part.size) // CHUNK))]
        wanted = {chunk for at, _, n in pieces for chunk in range(at // CHUNK, -(-(at + n) // CHUNK))}
        assert got == sorted(wanted)  # Each once.
        for part in parts:
            assert part.offset % CHUNK == 0 and 0 < part.size <= max(CHUNK, most // CHUNK * CHUNK)
            assert part.size % CHUNK == 0 or part.offset + part.size == size
            assert all(at == address and part.offset <= at and at + n <= part.offset + part.size for at, address, n in part.pieces)
        bytes_got = [byte for part in parts for at, _, n in part.pieces for byte in range(at, at + n)]
        assert bytes_got == [byte for at, _, n in pieces for byte in range(at, at + n)]


def test_piece_that_has_all_of_a_part_is_read_straight_to_its_place() -> None:
    pieces = [(150, 0, 800), (950, 900, 10)]
    parts = list(parts_of(pieces, 960, CHUNK, 3 * CHUNK))
    assert [(part.offset, part.size, part.is_wanted_whole) for part in parts] == [
        (100, 300, False),
        (400, 300, True),
        (700, 260, False),
    ]
    assert parts[1] == Part(400, 300, [(400, 250, 300)])


def test_results_come_in_the_order_of_the_items_and_at_most_so_many_at_a_time() -> None:
    lock, now, most, done = threading.Lock(), [0], [0], []

    def work(item: int) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.001 * (item % 3))
        with lock:
            now[0] -= 1
        return item * item

    assert in_parallel(range(50), work, 4, done.append) == [item * item for item in range(50)]
    assert sorted(done) == [item * item for item in range(50)] and 1 < most[0] <= 4
    assert in_parallel([], work, 4) == []


@pytest.mark.parametrize("where", ["work", "done"])
def test_error_ends_the_others_and_is_raised_when_none_of_them_works(where: str) -> None:
    ended = []

    def work(item: int) -> int:
        if item == 0 and where == "work":
            raise ValueError("first")
        try:
            if item > 0:
                pause(600)  # Ends when the caller gives up.
        finally:
            ended.append(item)
        return item

    def done(_: int) -> None:
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        in_parallel(range(100), work, 4, done)
    assert 0 < len(ended) <= 5
    count = len(ended)
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "ckptd-bucket"], "the threads to end")
    assert len(ended) == count


@pytest.mark.usefixtures("interrupt_handler")
@pytest.mark.parametrize("seed", range(30))
def test_interrupt_at_any_time_leaves_no_thread_at_work(seed: int) -> None:
    working, lock = [0], threading.Lock()

    def work(_: int) -> None:
        with lock:
            working[0] += 1
        try:
            pause(0.002)
        finally:
            with lock:
                working[0] -= 1

    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.0005 * seed, signal.pthread_kill, (main, signal.SIGINT))
    gc.collect()
    gc.disable()  # Python ignores an interrupt in a finalizer, such as those of what earlier tests have left.
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            in_parallel(range(10_000), work, 8)
        assert working[0] == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "url, said",
    [
        ("s3://", '"" in s3:// is no name of a bucket'),
        ("s3://Bucket/run", "no name of a bucket"),
        ("s3://bucket//run", "an empty name"),
        ("s3://bucket/a//b", "an empty name"),
        ("s3://bucket/../other", '".."'),
    ],
)
def test_url_that_names_no_prefix_of_a_bucket_is_refused(url: str, said: str) -> None:
    with pytest.raises(ckptd.Refused) as caught:
        ckptd.open_root(url)
    assert said in str(caught.value) and caught.value.reason == "INVALID_ARGUMENT"


def test_url_is_the_same_with_a_slash_at_its_end_and_may_be_a_bucket_alone() -> None:
    assert parse_bucket_url("s3://bucket/a/b/") == parse_bucket_url("s3://bucket/a/b") == ("bucket", "a/b")
    assert str(parse_bucket_url("s3://bucket/")) == str(parse_bucket_url("s3://bucket")) == "s3://bucket"


def test_without_botocore_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(ImportError, match=r"s3://bucket is read with botocore.*pip install 'ckptd\[s3\]'"):
        ckptd.open_root("s3://bucket/run")


def test_botocore_is_imported_by_a_url_alone() -> None:
    program = "import sys, ckptd, ckptd.restore; sys.exit('botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0
