"""Compiler flags and thin wrappers shared by every C++ target."""

COPTS = [
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Werror",
    "-Wunused-result",
]

# For code that instantiates gRPC's templates (services, stubs): Debian's gRPC is not built for
# ThreadSanitizer, so every callback would look like a race. Such files stay thin; what they call
# is instrumented. No effect without tsan.
NO_TSAN = ["-fno-sanitize=thread"]

def ckptd_cc_library(name, **kwargs):
    native.cc_library(name = name, copts = COPTS + kwargs.pop("copts", []), features = ["layering_check"], **kwargs)

def ckptd_cc_binary(name, **kwargs):
    """A program. Under --config=release it is static: one file that runs on any x86-64 Linux.

    What glibc warns of then does not concern us: users and groups are numbers here, and gRPC resolves names itself.
    """
    native.cc_binary(
        name = name,
        copts = COPTS + kwargs.pop("copts", []),
        linkopts = kwargs.pop("linkopts", []) + select({
            # gold cannot link static-pie; bfd can, but has no --start-lib.
            "//tools/build_rules:optimised": ["-static-pie", "-fuse-ld=bfd", "-Wl,--no-warnings"],
            "//conditions:default": [],
        }),
        features = ["layering_check", "-supports_start_end_lib"],
        **kwargs
    )

def ckptd_shared_library(name, **kwargs):
    """lib<name>.so with a C interface that needs nothing but an old glibc, for Python's ctypes."""
    native.cc_binary(
        name = name,
        copts = COPTS + kwargs.pop("copts", []),
        linkopts = kwargs.pop("linkopts", []) + [
            "-static-libgcc",
            "-Wl,--as-needed",
            "-l:libstdc++.a",
            "-Wl,-Bsymbolic",
        ],
        linkshared = True,
        features = ["layering_check"],
        **kwargs
    )

def ckptd_closed_library(name, out, exports, deps):
    """A shared object with a C++ interface that needs nothing but libc and libstdc++.

    `exports`, a version script, names what is seen of it. All else, also of the libraries that are linked in, is its own:
    a program may have other versions of these. It is never unloaded, as gRPC has threads.
    """
    native.cc_binary(
        name = out,
        linkopts = [
            # gold cannot do with C++ names in a version script what bfd does.
            "-fuse-ld=bfd",
            "-Wl,--version-script=$(location %s)" % exports,
            "-Wl,-soname=" + out,
            "-Wl,-z,nodelete",
        ],
        linkshared = True,
        features = ["-supports_start_end_lib"],
        tags = ["manual"],  # It is released, and not for sanitizers: those want their own part in the program.
        deps = ["@system//:archives", exports] + deps,
    )
    native.alias(name = name, actual = out, tags = ["manual"])

def ckptd_cc_test(name, deps = [], **kwargs):
    """A test program. Its own source is not optimised: that takes half of the time to compile it.

    What it tests is optimised as the build says. (glibc's fortified functions need an optimised caller.)
    """
    native.cc_test(
        name = name,
        size = kwargs.pop("size", "small"),
        copts = COPTS + kwargs.pop("copts", []) + select({
            "//tools/build_rules:optimised": ["-O0", "-U_FORTIFY_SOURCE"],
            "//conditions:default": [],
        }),
        features = ["layering_check"],
        deps = deps + ["@system//:gtest_main", "@system//:gmock"],
        **kwargs
    )

def ckptd_fuzz_target(name, srcs, deps, size = "small"):
    """A fuzz target with its corpus in corpus/<name>: see tests/fuzz/fuzz.h.

    <name>_replay_test runs the corpus in every build. <name> itself is a program of libFuzzer's, for
    `bazel run --config=fuzz`.
    """
    native.cc_library(
        name = name + "_target",
        testonly = True,
        srcs = srcs,
        copts = COPTS,
        features = ["layering_check"],
        alwayslink = True,
        deps = deps + [":fuzz"],
    )
    native.cc_test(
        name = name + "_replay_test",
        size = size,
        args = ["tests/fuzz/corpus/" + name],
        data = native.glob(["corpus/" + name + "/*"]),
        deps = [":replay", ":" + name + "_target"],
    )
    native.cc_binary(
        name = name,
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [":" + name + "_target"],
    )
