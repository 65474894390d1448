"""libckptd_client.so as a file: what it needs, what it shows, and that it keeps out of the way of other libraries."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
import sdk_programs
from sdk_programs import SDK, SOURCES

LIBRARY = SDK / "lib/libckptd_client.so.0"
# What every Linux has that runs C++ programs. The first releases of a distribution with both: Debian 12, Ubuntu 22.04, RHEL 10.
NEEDED = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
NEWEST_GLIBC = (2, 34)
NEWEST_GLIBCXX = (3, 4, 30)


@pytest.fixture(scope="module", autouse=True)
def library() -> pathlib.Path:
    assert LIBRARY.exists(), "run tools/sdk"
    return LIBRARY


def dynamic_symbols(*, defined: bool) -> list[str]:
    option = "--defined-only" if defined else "--undefined-only"
    lines = sdk_programs.run("nm", "--dynamic", "--with-symbol-versions", option, str(LIBRARY)).splitlines()
    return [line.split()[-1] for line in lines]


def demangled(names: list[str]) -> list[str]:
    return sdk_programs.run("c++filt", input="\n".join(names)).splitlines()


def test_library_needs_only_libc_and_libstdcxx() -> None:
    dynamic = sdk_programs.run("readelf", "--dynamic", "--wide", str(LIBRARY))
    assert set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)) <= NEEDED
    assert re.findall(r"\(SONAME\).*\[(.+)\]", dynamic) == ["libckptd_client.so.0"]
    # There is too little static thread-local memory in a process with torch to load a library that needs some.
    assert "TEXTREL" not in dynamic and "STATIC_TLS" not in dynamic
    assert "NODELETE" in dynamic  # gRPC's threads outlive a dlclose().


def test_what_it_takes_from_them_is_of_libc_and_libstdcxx_and_old_enough() -> None:
    symbols = dynamic_symbols(defined=False)
    versions = {symbol.partition("@")[2] for symbol in symbols if "@" in symbol}
    families = {re.sub(r"_[0-9.]+$", "", version) for version in versions}
    assert families <= {"GLIBC", "GLIBCXX", "CXXABI", "GCC"}, families
    for family, newest in (("GLIBC", NEWEST_GLIBC), ("GLIBCXX", NEWEST_GLIBCXX)):
        numbers = [re.fullmatch(rf"{family}_([0-9.]+)", version) for version in versions]
        assert max(tuple(map(int, number[1].split("."))) for number in numbers if number) <= newest
    # Those without a version are weak and need not exist.
    unversioned = [symbol for symbol in symbols if "@" not in symbol]
    weak = sdk_programs.run("nm", "--dynamic", "--undefined-only", str(LIBRARY)).splitlines()
    assert set(unversioned) <= {line.split()[-1] for line in weak if line.split()[-2] in "wv"}


def test_library_shows_the_functions_of_its_header_and_nothing_else() -> None:
    """So a program may have another gRPC, protobuf or Abseil, and not even a template of ours replaces one of its own."""
    names = dynamic_symbols(defined=True)
    assert len(names) > 50
    strangers = [name for name in demangled(names) if not name.startswith("ckptd::abi0::")]
    assert not strangers


def test_each_exported_function_is_declared_in_the_header() -> None:
    header = (SDK / "include/ckptd/client.h").read_text()
    for name in demangled(dynamic_symbols(defined=True)):
        function = re.sub(r"\[abi:cxx11\]|\(.*", "", name).rpartition("::")[2]
        assert re.search(rf"\b{re.escape(function)}\(", header), name


def test_program_with_a_protobuf_and_an_abseil_of_its_own_has_both(tmp_path: pathlib.Path) -> None:
    """Two copies of protobuf that met would end the process: "File already exists in database"."""
    for package in ("protobuf", "absl_status"):
        if subprocess.run(["pkg-config", "--exists", package], check=False).returncode:
            pytest.skip(f"{package} is not installed")
    flags = sdk_programs.run("pkg-config", "--cflags", "--libs", "protobuf", "absl_status").split()
    program = sdk_programs.compile_with_pkg_config(
        SOURCES / "own_protobuf.cc", tmp_path / "program", "-Wno-error", "-w", *flags
    )
    assert "libprotobuf.so" in sdk_programs.run("ldd", program, env=sdk_programs.environment())
    out = sdk_programs.run(program, env=sdk_programs.environment(), cwd=str(tmp_path))
    assert out.splitlines() == ["google/protobuf/timestamp.proto", "UNAVAILABLE", "INVALID_ARGUMENT"]


def test_library_loads_beside_torch_and_grpc() -> None:
    """As a native extension of a Python trainer would bring it."""
    code = f"""
import grpc, torch, ctypes, google.protobuf.timestamp_pb2
library = ctypes.CDLL({str(LIBRARY)!r})
version = getattr(library, "_ZN5ckptd4abi014LibraryVersionEv")
version.restype = ctypes.c_char_p
print(version().decode())
"""
    assert (
        sdk_programs.run(sys.executable, "-c", code).strip()
        == (sdk_programs.REPOSITORY / "VERSION").read_text().strip()
    )


def test_header_compiles_alone_and_in_two_files_of_one_program(tmp_path: pathlib.Path) -> None:
    (tmp_path / "one.cc").write_text(
        "#include <ckptd/client.h>\nint other();\nint main() { return other(); }\n"
    )
    (tmp_path / "two.cc").write_text(
        "#include <ckptd/client.h>\nint other() { return ckptd::LibraryVersion()[0] == 0; }\n"
    )
    program = sdk_programs.compile_with_pkg_config(
        tmp_path / "one.cc", tmp_path / "program", str(tmp_path / "two.cc")
    )
    sdk_programs.run(program, env=sdk_programs.environment())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-std=c++17"], "needs C++20"),
        (["-std=c++20", "-D_GLIBCXX_USE_CXX11_ABI=0"], "compile with -D_GLIBCXX_USE_CXX11_ABI=1"),
    ],
)
def test_header_says_what_it_needs(tmp_path: pathlib.Path, flags: list[str], words: str) -> None:
    (tmp_path / "one.cc").write_text("#include <ckptd/client.h>\n")
    command = ["g++", *flags, "-fsyntax-only", f"-I{SDK}/include", str(tmp_path / "one.cc")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert words in done.stderr
