"""How these tests call the converter."""

from __future__ import annotations

import pathlib

from harness import find_program


def convert_command(tag: pathlib.Path, out: pathlib.Path, *options: str) -> list[str]:
    return [find_program("ckptctl"), "convert", "nxd-zero", f"--input_dir={tag}", f"--output_dir={out}", *options]
