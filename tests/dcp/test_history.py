"""What ckptctl history says of a load: which checkpoint a job went on from."""

import json
import os

import pytest

from harness import ckptctl, until

SAVED = "wanted = states.sharded_state(1)\ndcp.save(wanted, storage_writer=Writer({!r}))"
# Every rank reads its shards of files that all ranks have written, and no file whole.
LOADED = "into = states.emptied(states.sharded_state(1))\ndcp.load(into, storage_reader=Reader({!r}))"
REPORTS_ALL = "from ckptd._reading import read_progress\nread_progress.REPORT_SECONDS = {}"


def restores(endpoint, root):
    entries = json.loads(ckptctl("history", root, "--output=json", endpoint=endpoint).stdout)["entries"]
    return [entry for entry in entries if entry["kind"] == "RESTORE"]


@pytest.mark.parametrize("seconds", [1.0, 0.0], ids=["short", "as if it took long"])
def test_load_is_in_the_history_as_a_restore_that_has_read_all_it_needed(launch, root, nodes, seconds):
    path = os.path.join(root, "step-1")
    launch(2).do(SAVED.format(path))
    ranks = launch(3)
    ranks.do(REPORTS_ALL.format(seconds))
    try:
        ranks.do(LOADED.format(path))
        found = until(lambda: restores(nodes.endpoint(0), root), "the load in the history")
    finally:
        ranks.do(REPORTS_ALL.format(1.0))
    assert {(entry["tag"], entry["step"], entry["reason"]) for entry in found} == {("step-1", "1", "")}
    assert sum(entry["processes"] for entry in found) == 3
    for entry in found:
        assert 0 < int(entry["read_bytes"]) == int(entry["size_bytes"])
    assert "INCOMPLETE" not in ckptctl("history", root, endpoint=nodes.endpoint(0)).stdout
