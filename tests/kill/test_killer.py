"""The killer that the tests of this folder use."""

from __future__ import annotations

import pathlib
import threading

from harness.killer import Killer


def test_hit_that_is_found_while_the_killer_is_disarmed_is_told(tmp_path: pathlib.Path) -> None:
    killer = Killer(tmp_path / "killer")
    killer.arm("^fsync")
    killer.control.judging = 1  # The program's side has seen the killer armed.

    def find() -> None:
        killer.control.call = b"fsync root"
        killer.control.hit = 1
        killer.control.judging = 0

    finder = threading.Timer(0.2, find)
    finder.start()
    killer.disarm()
    assert killer.hit == "fsync root"
    finder.join()
