"""python -m ckptd.tensorboard: what TensorBoard's own reader finds in the files, beside what `ckptctl history` has."""

import json
import os
import signal
import subprocess
import sys

import pytest

from harness import TIMEOUT, ckptctl, until

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
pytest.importorskip("torch.utils.tensorboard")
COMMAND = [sys.executable, "-m", "ckptd.tensorboard"]


def write(daemon, *arguments, code=None):
    command = COMMAND if code is None else [sys.executable, "-c", code]
    return subprocess.run(
        [*command, f"--endpoint={daemon.endpoint}", *arguments], capture_output=True, text=True, timeout=2 * TIMEOUT
    )


def read(logdir):
    """{tag: [(step, value, time)]} of scalars and texts."""
    events = accumulator.EventAccumulator(str(logdir), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    found = {
        tag: [(event.step, event.value, event.wall_time) for event in events.Scalars(tag)] for tag in tags["scalars"]
    }
    for tag in tags["tensors"]:
        texts = [(event.step, event.tensor_proto.string_val[0].decode(), event.wall_time) for event in events.Tensors(tag)]
        found[tag] = texts
    return found


def history(daemon, root):
    entries = json.loads(ckptctl("history", root, "--output=json", endpoint=daemon.endpoint).stdout)["entries"]
    return list(reversed(entries))


def save(rank, step, size=100_000, tag=None):
    code = f"run.save({tag or f's{step}'!r}, step={step}, files={{'a': b'x' * {size}}}, metrics={{'loss': {1 / step}}})"
    rank.do(f"{code}.wait('committed', 60)", 90)


def steps(logdir, tag="save/bytes"):
    return [step for step, _, _ in read(logdir).get(tag, [])]


def test_events_are_the_figures_of_the_history(daemon, trainers, root, tmp_path):
    ranks = trainers("a", 2, options=", commit_timeout=1.0")
    for step in (10, 20):
        for rank in ranks:
            rank.start(
                f"run.save('s{step}', step={step}, files={{f'a{{rank}}': b'x' * 100_000 * {step}}},"
                f" metrics={{'loss': 1 / {step}}}).wait('committed', 60)"
            )
        for rank in ranks:
            rank.result(90)
    ranks[1].start("part = run.begin('s30', step=30)")  # It is never sealed.
    assert ranks[0].fails("run.save('s30', step=30, files={'a': b'x'}).wait('committed', 60)", 90)
    readers = trainers("b", 2)
    for rank in readers:
        rank.start("run.restore(lambda last: len(last.read(f'a{rank}')))")
    for rank in readers:
        rank.result(90)
    until(lambda: len(history(daemon, root)) == 4, "the restore in the history")

    done = write(daemon, root, f"--logdir={tmp_path}")
    assert done.returncode == 0, done.stderr
    found = read(tmp_path)
    one, two, failed, restore = history(daemon, root)
    assert f"wrote {sum(map(len, found.values()))} new" in done.stdout
    columns = {
        "stall_seconds": "stall_seconds",
        "copied_seconds": "staged_seconds",
        "written_seconds": "written_seconds",
        "published_seconds": "committed_seconds",
        "slowest_rank": "slowest_rank",
    }
    for ours, name in columns.items():
        values = [value for _, value, _ in found[f"save/{ours}"]]
        assert values == pytest.approx([entry[name] for entry in (one, two)]), ours
    assert [(step, value) for step, value, _ in found["save/bytes"]] == [(10, 2_000_000), (20, 4_000_000)]
    rates = [int(entry["size_bytes"]) / entry["written_seconds"] for entry in (one, two)]
    assert [value for _, value, _ in found["save/bytes_per_second"]] == pytest.approx(rates)
    assert [(step, value) for step, value, _ in found["metrics/loss"]] == [(10, pytest.approx(0.1)), (20, pytest.approx(0.05))]
    ((step, text, _),) = found["save/failures/text_summary"]
    assert step == 30 and text.startswith("s30 FAILED: RANKS_MISSING: ranks 1 ") and failed["tag"] == "s30"
    ((step, seconds, _),) = found["restore/seconds"]
    assert step == 20 and seconds == pytest.approx(restore["staged_seconds"])
    assert found["restore/slowest_rank"][0][1] == restore["slowest_rank"]


def test_second_start_writes_only_what_is_new_also_after_a_cut_off_file(daemon, trainers, root, tmp_path):
    rank = trainers("a", 1)[0]
    for step in (1, 2):
        save(rank, step)
    assert write(daemon, root, f"--logdir={tmp_path}").returncode == 0
    before = read(tmp_path)
    (file,) = tmp_path.iterdir()
    os.truncate(file, file.stat().st_size - 5)  # As a killed process leaves it: its last record is cut off.
    assert "wrote 1 new of " in write(daemon, root, f"--logdir={tmp_path}").stdout
    assert read(tmp_path) == before
    save(rank, 3)
    assert write(daemon, root, f"--logdir={tmp_path}").returncode == 0
    assert steps(tmp_path) == steps(tmp_path, "metrics/loss") == [1, 2, 3]
    assert "wrote 0 new of " in write(daemon, root, f"--logdir={tmp_path}").stdout


def test_follow_goes_on_with_what_happens_over_a_restart_of_the_daemon(daemon, trainers, root, tmp_path):
    rank = trainers("a", 1)[0]
    save(rank, 1)
    follower = subprocess.Popen(
        [*COMMAND, f"--endpoint={daemon.endpoint}", root, f"--logdir={tmp_path}", "--follow", "--interval=0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "wrote " in follower.stdout.readline()
        save(rank, 2)
        until(lambda: steps(tmp_path) == [1, 2], "the second save")
        daemon.kill()
        assert "looking again every 0.1 s" in follower.stderr.readline()
        daemon.restart()
        save(rank, 3)
        until(lambda: steps(tmp_path) == [1, 2, 3], "the save after the restart")
        follower.send_signal(signal.SIGTERM)
        assert follower.wait(TIMEOUT) == 0
    finally:
        follower.kill()
        follower.communicate(timeout=TIMEOUT)


def test_save_without_a_step_is_at_its_number(daemon, trainers, root, tmp_path):
    trainers("a", 1)[0].do("run.save('best', files={'a': b'x' * 1000}).wait('committed', 60)", 90)
    assert write(daemon, root, f"--logdir={tmp_path}").returncode == 0
    (entry,) = history(daemon, root)
    assert "step" not in entry and steps(tmp_path) == [int(entry["sequence"])]


def test_wrong_arguments_are_named(daemon, trainers, root, tmp_path):
    save(trainers("a", 1)[0], 1)
    (tmp_path / "file").touch()
    wrong = {
        ("/none", f"--logdir={tmp_path}"): f"the daemon knows no run in /none; it knows {root}; name the root's",
        (root, f"--logdir={tmp_path}/file"): f"--logdir {tmp_path}/file cannot be used: File exists; name another",
        (root, "--logdir=s3://bucket/logs"): "--logdir is s3://bucket/logs; it must be a local folder",
        (root, f"--logdir={tmp_path}", "--interval=0"): "--interval is 0; it must be more than 0 seconds",
        (root, f"--logdir={tmp_path}", "--endpoint=unix:/none"): "/none",
    }
    for arguments, said in wrong.items():
        done = write(daemon, *arguments)
        assert done.returncode == 2 and said in done.stderr, (arguments, done.stderr)
        assert done.stderr.startswith("ckptd.tensorboard: ") and "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_missing_tensorboard_is_named_with_what_to_install(daemon, trainers, root, tmp_path):
    save(trainers("a", 1)[0], 1)
    hide = "import sys; sys.modules['tensorboard'] = None; from ckptd.tensorboard.__main__ import main; sys.exit(main())"
    done = write(daemon, root, f"--logdir={tmp_path}", code=hide)
    assert done.returncode == 2 and "pip install tensorboard" in done.stderr and "Traceback" not in done.stderr
