"""A root that NeuronX Distributed wrote: its checkpoints are listed, adopted, resumed from, and remain usable
by NxD.
"""

import io
import json
import os
import signal
import subprocess
import time

import ckptd
from ckptd.local_daemon import find_program
from harness import ckptctl, tags, together, until, until_equal

HOUR = 3600


def write(path, content, when=None):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
    if when is not None:
        os.utime(path, (when, when))


def files_of(tag, size=100_000):
    """Returns the files, by path, of two tensor-parallel ranks of a plain save, and one tensor of an xser
    save.
    """
    files = {"checkpoint": b"1", "done": b"1", "scheduler.pt": b"s" * 10, "user_content.pt": b""}
    for rank in (0, 1):
        files[f"model/dp_rank_00_tp_rank_{rank:02d}_pp_rank_00.pt"] = (tag + str(rank)).encode() * size
        files[f"optim/dp_rank_{rank:02d}_tp_rank_00_pp_rank_00.pt"] = b"o" * 5000
    files["model/dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors/tensor_0.pt"] = b"t" * 4096
    return files


def make_foreign(root, tag, hours_ago, size=100_000, finished=True):
    """Writes files in the order of NxD: the marker `done` comes last."""
    when = time.time() - hours_ago * HOUR
    for path, content in files_of(tag, size).items():
        if path != "done" or finished:
            write(os.path.join(root, tag, path), content, when)


def everything(root, tag):
    """Returns bytes, inode and time of all files except ours."""
    found = {}
    for folder, folders, files in os.walk(os.path.join(root, tag)):
        folders[:] = [name for name in folders if name != ".ckptd"]
        for name in files:
            path = os.path.join(folder, name)
            stat = os.lstat(path)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = (file.read(), stat.st_ino, stat.st_mtime_ns)
    return found


def nxd_completed(root):
    """NxD's own rule: directories that contain `done`, sorted by its time."""
    done = [tag for tag in os.listdir(root) if os.path.isfile(os.path.join(root, tag, "done"))]
    return sorted(done, key=lambda tag: os.path.getmtime(os.path.join(root, tag, "done")))


def listed(daemon, root, *options):
    return json.loads(ckptctl("list", root, "--output=json", *options, endpoint=daemon.endpoint).stdout)


def adopt(daemon, root, *arguments, status=0):
    done = ckptctl("adopt", root, *arguments, "--output=json", endpoint=daemon.endpoint, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return {event["tag"]: event for event in events if event["outcome"] != "ADOPT_OUTCOME_UNSPECIFIED"}


def outcomes(answers):
    return {
        tag: answer["outcome"] if answer["outcome"] != "REFUSED" else answer["error"]["reason"]
        for tag, answer in answers.items()
    }


def test_nxd_root_is_listed_adopted_resumed_from_and_continued(daemon, trainers, root):
    make_foreign(root, "step_200", 1)
    make_foreign(root, "step_100", 2)
    make_foreign(root, "step_300", 0.5, finished=False)
    before = {tag: everything(root, tag) for tag in ("step_100", "step_200", "step_300")}
    ranks = trainers("a", 2)
    # Foreign checkpoints are listed beside ours, newest first; only ours are latest and resumed from.
    assert [each["tag"] for each in listed(daemon, root)["foreign"]] == ["step_200", "step_100"]
    text = ckptctl("list", root, endpoint=daemon.endpoint).stdout
    assert "FOREIGN  nxd, its latest" in text and "step_300" not in text
    described = ckptctl("describe", os.path.join(root, "step_100"), endpoint=daemon.endpoint).stdout
    assert "NeuronX Distributed" in described and f"ckptctl adopt {os.path.realpath(root)} step_100" in described
    assert tags(root) == []
    # They are adopted in their order, unchanged, and NxD still finds its own.
    assert outcomes(adopt(daemon, root)) == {"step_100": "ADOPTED", "step_200": "ADOPTED"}
    assert tags(root) == ["step_200", "step_100"] and nxd_completed(root) == ["step_100", "step_200"]
    assert {tag: everything(root, tag) for tag in before} == before
    assert listed(daemon, root)["foreign"] == []
    assert ckptctl("verify", root).stdout.count("OK") == 2
    opened = ckptd.open_root(root).open("step_200")
    with opened:
        for path, content in files_of("step_200").items():
            assert bytes(opened.read(path)) == content
        assert opened.info.step == 200
    together(ranks, "with run.resume() as c: tag = c.info.tag", 60)
    assert together(ranks, "tag") == ["step_200"] * 2
    together(ranks, "run.save('step_201', step=201, files={f'r{rank}.bin': b'x' * 9}).wait('committed', 60)")
    assert tags(root) == ["step_201", "step_200", "step_100"]


def test_retention_evicts_adopted_checkpoints_in_order_and_leaves_foreign_ones(daemon, trainers, root):
    for number in range(1, 4):
        make_foreign(root, f"old_{number}", 10 - number)
    make_foreign(root, "half_deleted", 20, finished=False)
    write(os.path.join(root, "mine", "checkpoint"), b"a folder of the user's")
    os.mkdir(os.path.join(root, "empty"))
    others = ("old_1", "half_deleted", "mine", "empty")
    before = {tag: everything(root, tag) for tag in others}
    ranks = trainers("a", 1, options=", num_kept_ckpts=2")
    assert outcomes(adopt(daemon, root, "old_2", "old_3")) == {"old_2": "ADOPTED", "old_3": "ADOPTED"}
    for step in (1, 2):
        ranks[0].do(f"run.save('new_{step}', step={step}, files={{'r.bin': b'x' * 9}}).wait('committed', 60)")
    until_equal(lambda: tags(root), ["new_2", "new_1"], "retention")
    until(lambda: not os.path.exists(os.path.join(root, "old_2")), "the trash")
    assert {tag: everything(root, tag) for tag in others} == before
    assert outcomes(adopt(daemon, root, status=4)) == {"old_1": "ADOPT_REMOVED"}
    assert everything(root, "old_1") == before["old_1"]


def test_latest_stays_newest_save_of_ckptd_after_adoption(daemon, trainers, root):
    make_foreign(root, "theirs", 3)
    rank = trainers("a", 1)[0]
    rank.do("run.save('ours', step=1, files={'r.bin': b'x'}).wait('committed', 60)")
    daemon.kill()
    daemon.restart()
    until(lambda: listed(daemon, root)["checkpoints"], "the root's recovery")
    assert outcomes(adopt(daemon, root)) == {"theirs": "ADOPTED"}
    assert tags(root) == ["ours", "theirs"]
    assert outcomes(adopt(daemon, root, "theirs")) == {"theirs": "ALREADY_OURS"}


def test_refused_checkpoints_are_named_and_others_are_adopted(daemon, trainers, root):
    for tag in ("linked", "whole"):
        make_foreign(root, tag, 1)
    make_foreign(root, "unfinished", 1, finished=False)
    os.symlink("/etc/passwd", os.path.join(root, "linked", "model", "secret"))
    trainers("a", 1)
    answers = adopt(daemon, root, "linked", "unfinished", "whole", "gone", status=4)
    assert outcomes(answers) == {
        "gone": "NO_CHECKPOINT",
        "unfinished": "FOREIGN_UNFINISHED",
        "linked": "FOREIGN_UNSUITABLE",
        "whole": "ADOPTED",
    }
    assert "linked/model/secret is a symbolic link" in answers["linked"]["error"]["message"]
    assert not os.path.exists(os.path.join(root, "linked", ".ckptd"))
    text = ckptctl("adopt", root, endpoint=daemon.endpoint, check=False)
    assert text.returncode == 4 and "linked  REFUSED: " in text.stdout and "[FOREIGN_UNSUITABLE]" in text.stdout


def test_owner_attaches_unknown_root_before_adoption(daemon, root):
    make_foreign(root, "theirs", 1)
    assert outcomes(adopt(daemon, root)) == {"theirs": "ADOPTED"}
    assert daemon.run_status(root).uid == os.geteuid()
    nothing = ckptctl("adopt", root, endpoint=daemon.endpoint)
    assert nothing.stdout == "no checkpoint to adopt\n"
    missing = ckptctl("adopt", os.path.join(root, "missing"), endpoint=daemon.endpoint, check=False)
    assert missing.returncode == 1 and "UNKNOWN_RUN" in missing.stderr


def test_directory_without_a_checkpoint_is_refused_and_stays_as_it_is(daemon, root):
    make_foreign(root, "theirs", 1)
    make_foreign(root, "unfinished", 1, finished=False)
    os.mkdir(os.path.join(root, "ours"))
    with ckptd.connect(daemon.endpoint) as client:
        run = client.run(os.path.join(root, "ours"), rank=0, world_size=1)
        run.save("step_1", files={"a.bin": b"x"}).wait("committed", 60)
    # The first holds no checkpoint at all, the others are checkpoints: of NxD, finished and not, and of ckptd.
    for path in ("theirs/model", "theirs", "unfinished", "ours/step_1"):
        before = sorted(os.walk(os.path.join(root, path)))
        refused = ckptctl("adopt", os.path.join(root, path), endpoint=daemon.endpoint, check=False)
        assert refused.returncode == 1 and "name the directory that holds the checkpoints" in refused.stderr, path
        assert sorted(os.walk(os.path.join(root, path))) == before


def test_daemon_killed_during_adoption_leaves_each_checkpoint_foreign_or_ours(daemon, root):
    make_foreign(root, "theirs", 1)  # Adopting attaches the root.
    adopt(daemon, root)
    for number in range(4):
        make_foreign(root, f"more_{number}", 0.5 - number / 100, size=2_000_000)
    names = [f"more_{number}" for number in range(4)]
    before = {tag: everything(root, tag) for tag in names}
    for delay in (0.0, 0.02, 0.05, 0.1):
        command = [find_program("ckptctl"), f"--endpoint={daemon.endpoint}", "adopt", root, "--output=json"]
        adopting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(delay)  # Anywhere within the adoption.
        os.kill(daemon.pid, signal.SIGKILL)
        said = io.BytesIO(adopting.communicate(timeout=60)[0])
        daemon.restart()
        until(lambda: listed(daemon, root)["checkpoints"], "the root's recovery")
        ours = set(tags(root))
        for event in map(json.loads, said):
            assert event["outcome"] != "ADOPTED" or event["tag"] in ours
        foreign = {each["tag"] for each in listed(daemon, root)["foreign"]}
        assert ours | foreign == {"theirs", *names} and not ours & foreign
        assert {tag for tag in names if os.path.exists(os.path.join(root, tag, ".ckptd"))} == ours - {"theirs"}
        assert {tag: everything(root, tag) for tag in names} == before
    adopt(daemon, root)
    assert tags(root) == [*reversed(names), "theirs"]
    assert "DAMAGED" not in ckptctl("verify", root).stdout
