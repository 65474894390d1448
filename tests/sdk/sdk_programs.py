"""Programs that are compiled outside the tree with what tools/sdk has built."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SDK = REPOSITORY / "dist/sdk"
EXAMPLE = REPOSITORY / "examples/cpp"
SOURCES = pathlib.Path(__file__).parent
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")


def run(*command: str, **options: object) -> str:
    """What a command prints; its own words are in the error if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return str(done.stdout)


def environment(prefix: pathlib.Path = SDK, **more: str) -> Mapping[str, str]:
    """That of somebody who has unpacked the library in `prefix`."""
    found = {key: value for key, value in os.environ.items() if not key.startswith(("CKPTD", "SLURM"))}
    return {**found, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig", "LD_LIBRARY_PATH": f"{prefix}/lib", **more}


def compile_with_pkg_config(
    source: pathlib.Path, target: pathlib.Path, *more: str, prefix: pathlib.Path = SDK
) -> str:
    flags = run("pkg-config", "--cflags", "--libs", "ckptd", env=environment(prefix)).split()
    run("g++", "-std=c++20", "-O1", *WARNINGS, str(source), *more, "-o", str(target), *flags)
    return str(target)


def compile_with_cmake(folder: pathlib.Path, prefix: pathlib.Path = SDK, options: Sequence[str] = ()) -> str:
    """examples/cpp, copied to `folder`: nothing of the tree is beside it."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("BUILD"))
    run("cmake", "-S", str(folder), "-B", str(folder / "build"), f"-DCMAKE_PREFIX_PATH={prefix}", *options)
    run("cmake", "--build", str(folder / "build"))
    return str(folder / "build/train")
