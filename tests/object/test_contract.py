"""The contract of ObjectStore (tests/contract/object_store_contract_test.cc), by S3Store against a server."""

from __future__ import annotations

import pathlib
import re
import subprocess

from bucket_servers import BUCKET, BucketServer

ROOT = pathlib.Path(__file__).resolve().parents[2]


def contract_test() -> str:
    script = """
        source tools/lib.sh
        target=tests/contract/object_store_contract_test
        ckptd_bazel build --config=release --noshow_progress --show_result=0 --ui_event_filters=-info //${target%/*}:${target##*/} >&2
        echo "$(ckptd_bazel info --config=release bazel-bin 2>/dev/null)/$target"
    """
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_s3_store_keeps_the_contract(
    server: BucketServer,
) -> None:
    done = subprocess.run(
        [contract_test(), "--gtest_filter=Stores/*"],
        env={
            **server.environment(),
            "CKPTD_TEST_BUCKET": BUCKET,
            "CKPTD_TEST_BUCKET_LACKS": ", ".join(server.lacks),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"\[  PASSED  \] (\d+) tests", done.stdout)
    assert passed is not None and int(passed[1]) == 12 - len(server.lacks), done.stdout
