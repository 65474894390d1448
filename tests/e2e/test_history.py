"""What ckptctl history and ckptctl why answer: after failures, restarts, restores, evictions and deletions."""

import json
import os
import shutil

from harness import ckptctl, until


def history(daemon, root):
    done = ckptctl("history", root, "--count=10000", "--output=json", endpoint=daemon.endpoint)
    return json.loads(done.stdout)["entries"]


def why(daemon, root, tag):
    done = ckptctl("why", os.path.join(root, tag), "--output=json", endpoint=daemon.endpoint, check=False)
    answer = json.loads(done.stdout)
    assert done.returncode == (0 if answer["ok"] else 1)
    return answer


def save(rank, tag, step, more=""):
    code = f"run.save({tag!r}, step={step}, files={{'a': b'{step}' * 100_000}}{more}).wait('committed', 60)"
    rank.do(code, 90)


def test_history_has_each_save_with_its_times_and_survives_a_killed_daemon(daemon, trainers, root):
    ranks = trainers("a", 2, options=", commit_timeout=1.0")
    for rank in ranks:
        rank.start("run.save('s1', step=1, files={f'a{rank}': b'x' * 100_000}).wait('committed', 60)")
    for rank in ranks:
        rank.result(90)
    ranks[1].start("part = run.begin('s2', step=2)")  # It is never sealed.
    error = ranks[0].fails("run.save('s2', step=2, files={'a': b'x'}).wait('committed', 60)", 90)
    assert error.reason == "RANKS_MISSING"
    ranks[1].result()
    until(lambda: len(history(daemon, root)) == 2, "both ends")
    before = history(daemon, root)
    daemon.kill()
    daemon.restart()
    failed, saved = after = history(daemon, root)
    assert after == before
    assert (saved["kind"], saved["tag"], saved["step"], saved["level"]) == ("SAVE", "s1", "1", "COMMITTED")
    assert (saved["size_bytes"], saved["processes"]) == ("200000", 2)
    assert 0 < saved["staged_seconds"] <= saved["written_seconds"] <= saved["committed_seconds"] < 60
    assert 0 < saved["stall_seconds"] < 60 and saved["slowest_rank"] in (0, 1)
    assert (failed["tag"], failed["level"], failed["reason"]) == ("s2", "FAILED", "RANKS_MISSING")
    assert failed["ranks"] == [1] and "commit_timeout" in failed["message"]
    text = ckptctl("history", root, endpoint=daemon.endpoint).stdout
    assert "s2" in text and "FAILED: RANKS_MISSING: ranks 1 " in text and "COMMITTED" in text
    one = ckptctl("history", root, "-n1", endpoint=daemon.endpoint)
    assert "s1" not in one.stdout and "--count" in one.stderr


def test_history_without_a_run_has_all_runs_and_since_leaves_out_what_is_older(daemon, trainers, root):
    save(trainers("a", 1)[0], "s1", 1)
    other = trainers("b", 1, where=root + "-other")[0]
    save(other, "s2", 2)
    text = ckptctl("history", "--since=1h", endpoint=daemon.endpoint).stdout
    assert root + "\n" in text and root + "-other\n" in text and "s1" in text and "s2" in text
    daemon.restart()
    lines = ckptctl("history", "--output=json", endpoint=daemon.endpoint).stdout.splitlines()
    found = {line["root"]: [entry["tag"] for entry in line["history"]["entries"]] for line in map(json.loads, lines)}
    assert found[root] == ["s1"] and found[root + "-other"] == ["s2"]
    assert "s1" not in ckptctl("history", root, "--since=0.000001", endpoint=daemon.endpoint).stdout


def test_sealed_save_lost_with_killed_daemon_is_in_the_history_of_the_next(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    save(rank, "s1", 1)
    daemon.kill()
    inflight = os.path.join(root, ".ckptd/nodes/local/inflight/s2.9.0123456789abcdef")
    os.mkdir(inflight)  # As a daemon leaves it that was killed before the save was on disk.
    daemon.restart()
    lost = next(each for each in history(daemon, root) if each["tag"] == "s2")
    assert (lost["level"], lost["reason"], lost["sequence"]) == ("FAILED", "STAGED_LOST", "9")
    answer = why(daemon, root, "s2")
    assert answer["state"] == "FAILED" and "STAGED_LOST" in answer["answer"]
    assert "save again" in answer["next_step"]


def test_restore_is_one_entry_with_its_readers(daemon, trainers, root):
    save(trainers("a", 1)[0], "s1", 1)
    for rank in trainers("b", 1):
        assert rank.do("len(run.restore(lambda last: last.read('a')))", 90) == 100_000
    until(lambda: history(daemon, root)[0]["kind"] == "RESTORE", "the restore in the history")
    restore = history(daemon, root)[0]
    assert (restore["tag"], restore["step"], restore["processes"], restore["reason"]) == ("s1", "1", 1, "")
    assert restore["attempt"] == "2" and restore["slowest_rank"] == 0 and 0 < restore["staged_seconds"] < 60


def test_restore_that_finds_damage_says_so(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    save(rank, "s1", 1)
    save(rank, "s2", 2)
    daemon.kill()  # Its memory has a copy that is whole.
    with open(os.path.join(root, "s2", "a"), "r+b") as file:
        file.write(b"damage")
    daemon.restart()
    again = trainers("b", 1)[0]
    assert again.do("run.restore(lambda last: last.tag if last.read('a') else '')", 90) == "s1"
    until(lambda: len([each for each in history(daemon, root) if each["kind"] == "RESTORE"]) == 2, "both restores")
    whole, damaged = history(daemon, root)[:2]
    assert (whole["tag"], whole["reason"]) == ("s1", "")
    assert (damaged["tag"], damaged["reason"]) == ("s2", "CHECKPOINT_DAMAGED")
    assert "rank 0 has found damage in a" in damaged["message"]
    answer = why(daemon, root, "s2")
    assert answer["state"] == "DAMAGED" and "it is not the latest, which is s1" in answer["answer"]
    assert "ckptctl repaired" in answer["next_step"]


def test_why_tells_kept_evicted_deleted_replaced_and_removed_by_hand_apart(daemon, trainers, root):
    rank = trainers("a", 1, options=", num_kept_ckpts=2")[0]
    for step in range(1, 5):
        save(rank, f"s{step}", step)
    until(lambda: not os.path.exists(os.path.join(root, "s2")), "retention")
    latest, kept, evicted = (why(daemon, root, tag) for tag in ("latest", "s3", "s2"))
    assert latest["tag"] == "s4" and "it is the latest" in latest["answer"]
    assert kept["state"] == "COMMITTED" and "retention keeps it: last 2" in kept["evidence"]
    assert "not the latest, which is s4 (sequence 4): that one was begun later" in kept["answer"]
    assert evicted["state"] == "EVICTED" and "retention evicted it" in evicted["answer"]
    assert any("COMMITTED, sequence 2" in line for line in evicted["evidence"])
    ckptctl("delete", os.path.join(root, "s3"), endpoint=daemon.endpoint)
    deleted = why(daemon, root, "s3")
    assert deleted["state"] == "DELETED" and f"uid {os.getuid()} deleted it" in deleted["answer"]
    save(rank, "s4", 5)
    shutil.rmtree(os.path.join(root, "s4"))
    daemon.kill()
    daemon.restart()
    gone = why(daemon, root, "s4")
    assert gone["state"] == "GONE" and "a program that is not ckptd" in gone["answer"]
    never = why(daemon, root, "never")
    assert never["state"] == "UNKNOWN" and any("the history begins" in line for line in never["evidence"])


def test_why_of_a_save_in_flight_names_the_ranks_it_waits_for(daemon, trainers, root):
    ranks = trainers("a", 2)
    ranks[1].start("part = run.begin('s1')")
    ranks[0].do("part = run.save('s1', files={'a': b'x'})")
    ranks[1].result()
    answer = why(daemon, root, "s1")
    assert answer["state"] == "IN FLIGHT" and "it waits for ranks 1" in answer["answer"]
    assert "IN FLIGHT" in ckptctl("why", os.path.join(root, "s1"), endpoint=daemon.endpoint).stdout


def test_history_that_cannot_be_written_harms_no_save(make_daemon, trainers, root, daemon):
    state = next(os.path.join(path, name) for path, names, _ in os.walk(daemon.folder) for name in names if name == "state")
    with open(os.path.join(state, "history"), "w"):
        pass  # A file is where the folder belongs.
    rank = trainers("a", 1)[0]
    for step in range(1, 4):
        save(rank, f"s{step}", step)
    until(lambda: "the history of" in daemon.log(), "a warning")
    assert daemon.log().count("cannot be written") == 1
    refused = ckptctl("history", root, endpoint=daemon.endpoint, check=False)
    assert refused.returncode != 0 and "reading the history" in refused.stderr
    os.unlink(os.path.join(state, "history"))
    save(rank, "s4", 4)
    assert [each["tag"] for each in history(daemon, root)] == ["s4"]


def test_history_of_a_daemon_that_ends_in_order_is_complete(daemon, trainers, root):
    rank = trainers("a", 1)[0]
    for step in range(1, 20):
        save(rank, f"s{step}", step)
    daemon.restart()  # By SIGTERM.
    assert [each["step"] for each in history(daemon, root)] == [str(step) for step in range(19, 0, -1)]
