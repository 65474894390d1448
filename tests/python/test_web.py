"""The status page: what it says in each state, that nothing from elsewhere becomes markup, and who may read it."""

import html.parser
import http.client
import os
import re
import socket
import stat
import threading
import time

import pytest
from ckptd import errors
from ckptd.v1 import messages_pb2, types_pb2
from ckptd.web import __main__ as program
from ckptd.web import advice, page, server
from ckptd.web.facts import Facts, NoAnswerError
from ckptd.web.plots import Point, _round_up, plot
from ckptd.web.text import in_bytes, in_seconds

NOW = 1_700_000_000.0
VOID = {"meta"}
HOSTILE = "<script>alert('x')</script>\"&"


class Checked(html.parser.HTMLParser):
    """Parses a page, and fails on tags that do not fit together and on anything from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.tags, self.links = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            assert not name.startswith("on"), f"a handler: {name}"
            assert name not in ("src", "srcset", "action"), f"a file: {value}"
            if name == "href":
                assert value.startswith("/") and not value.startswith("//")
                self.links.append(value)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    def words(self):
        return " ".join(" ".join(self.text).split())


def run_of(name="runs/0000000000000001", path="/data/ckpts"):
    run = messages_pb2.Run(name=name, path=path, uid=1000, attempt=3, world_size=2, checkpoint_count=3)
    run.probe.free_bytes = 1 << 40
    run.probe.file_system, run.probe.io_backend = "ext4", "io_uring"
    latest = run.latest
    latest.tag, latest.step, latest.sequence, latest.level = "step_1200", 1200, 12, types_pb2.COMMITTED
    latest.size_bytes = 6 << 30
    latest.create_time.seconds, latest.commit_time.seconds = int(NOW) - 245, int(NOW) - 242
    return run


def in_flight(run, level=types_pb2.OPEN, missing=(), age=30):
    save = run.in_flight.add(tag="step_1300", step=1300, sequence=13, level=level, size_bytes=1000, written_bytes=370)
    save.create_time.seconds = int(NOW) - age
    save.missing_ranks.extend(missing)
    return save


def status_of(*runs):
    status = messages_pb2.Status(daemon_version="0.1.0", state="SERVING", sessions=2)
    status.start_time.seconds = int(NOW) - 11520
    status.pool.total_bytes, status.pool.used_bytes = 16 << 30, 4 << 30
    status.runs.extend(runs)
    return status


def saved(ago, stall=0.25, level=types_pb2.COMMITTED, reason="", message=""):
    entry = messages_pb2.HistoryEntry(
        kind=messages_pb2.HistoryEntry.SAVE, tag="step_1", step=1, sequence=1, level=level, reason=reason, message=message
    )
    entry.size_bytes, entry.stall_seconds, entry.written_seconds, entry.committed_seconds = 3 << 30, stall, 3, 3.5
    entry.time.seconds = int(NOW) - ago
    return entry


def overview(status, entries=(), problem=None, interval=""):
    names = [run.name for run in status.runs]
    facts = Facts(status, {name: list(entries) for name in names}, problem or {}, {name: interval for name in names})
    return page.overview(facts, NOW)


# ---- What it says


def test_page_of_a_healthy_daemon_says_so_and_what_a_death_costs():
    told = Checked(overview(status_of(run_of()), [saved(60), saved(120)]))
    words = told.words()
    assert "All is well" in words and "What to look at" not in words
    assert "If the job died now, it resumes at step 1200 (step_1200) and loses 4 min 5 s" in words
    assert "16.0 GiB of memory" in words and "4.0 GiB saves in flight" in words
    assert "1.0 TiB free, ext4, io_uring" in words
    assert told.links == ["/runs/0000000000000001"]
    assert told.tags.count("figure") == 2


def test_sealed_save_outlives_the_job_but_not_the_machine():
    run = run_of()
    in_flight(run, types_pb2.SEALED, age=5)
    words = Checked(overview(status_of(run))).words()
    assert "If the job died now, it resumes at step 1300 (step_1300) and loses 5 s" in words
    assert "If the machine died now, it resumes at step 1200 (step_1200) and loses 4 min 5 s" in words


def test_job_without_a_checkpoint_begins_anew():
    run = run_of()
    run.ClearField("latest")
    assert "If the job died now, it begins anew" in Checked(overview(status_of(run))).words()


def test_save_in_flight_shows_its_progress_and_whom_it_waits_for():
    run = run_of()
    in_flight(run, missing=[1, 3], age=90)
    told = overview(status_of(run))
    words = Checked(told).words()
    assert "Saving step_1300: open, 370 B of 1000 B written, for 1 min 30 s, waits for ranks 1, 3" in words
    assert '<progress max="1" value="0.3700">37%</progress>' in told
    assert "1 problem to look at" in words and "Look at the log and the stack of these ranks." in words


def broken(run):
    run.degraded = run.read_only = True
    run.damaged.add(tag="step_1100").damage.message = "chunk 3 of model.pt differs"
    failure = run.last_failure
    failure.tag, failure.level = "step_1300", types_pb2.FAILED
    failure.error.reason, failure.error.message = "NO_SPACE", "the disk is full"
    failure.create_time.seconds = int(NOW) - 10
    run.probe.free_bytes = 1 << 30
    run.probe.warnings.append("the root is in memory")


def test_each_problem_is_named_with_what_to_do():
    run = run_of()
    broken(run)
    status = status_of(run)
    status.draining = True
    words = Checked(overview(status)).words()
    assert "6 problems to look at" in words
    for said in (
        "The daemon is ending: it takes no new saves.",
        "The file system of /data/ckpts does not answer. Look at the disk or the file server.",
        "/data/ckpts takes no saves: a sync of a directory failed.",
        "step_1100 of /data/ckpts is damaged: chunk 3 of model.pt differs ckptctl verify /data/ckpts/step_1100",
        "step_1300, failed: the disk is full ckptctl why /data/ckpts/step_1300",
        "has 1.0 GiB free, less than two checkpoints. Free room, or keep fewer: ckptctl retention /data/ckpts",
        "the root is in memory ckptctl doctor /data/ckpts",
    ):
        assert said in words


def test_failure_before_the_last_commit_is_no_problem_any_more():
    run = run_of()
    broken_before = run.last_failure
    broken_before.tag, broken_before.level = "step_900", types_pb2.FAILED
    broken_before.create_time.seconds = int(NOW) - 500
    assert advice.of_run(run, NOW) == []


def test_cluster_shows_all_nodes_and_what_is_away():
    status = status_of()
    cluster = status.cluster
    cluster.node, cluster.error.message = "gpu17", "etcd does not answer"
    cluster.nodes.add(name="gpu17", host="h17", daemon_version="0.1.0")
    cluster.nodes.add(name="gpu18", host="h18", daemon_version="0.2.0")
    cluster.etcd_members.add(endpoint="10.0.0.1:2379", answers=False, error="refused")
    cluster.etcd_members.add(endpoint="10.0.0.2:2379", answers=True)
    cluster.etcd_members.add(endpoint="10.0.0.3:2379")
    shared = cluster.shared_runs.add(root="/shared/gpt")
    shared.saves.add(tag="step_7", waits_for="the report of gpu18")
    words = Checked(overview(status)).words()
    for said in ("gpu17 is not registered in etcd: etcd does not answer", "/shared/gpt has no coordinator", "gpu18 h18"):
        assert said in words
    assert "10.0.0.1:2379 does not answer 10.0.0.2:2379 answers 10.0.0.3:2379 was not asked" in words
    assert "step_7 waits for the report of gpu18" in words


def test_page_says_how_often_to_save_where_that_is_known():
    advised = "a save every 14 min loses the least time"
    assert f"Advice {advised}" in Checked(overview(status_of(run_of()), interval=advised)).words()
    assert "Advice" not in Checked(overview(status_of(run_of()))).words()


def test_drained_daemon_is_a_remark_with_who_and_why_and_what_to_do():
    status = status_of()
    status.drain.uid, status.drain.message = 1000, "a new kernel"
    words = Checked(overview(status)).words()
    assert "uid 1000 has drained the daemon: it takes no new saves (a new kernel). ckptctl drain shows what it" in words
    status.drain.drained = True
    assert "Restart it now: nothing is lost." in Checked(overview(status)).words()


def test_run_with_problems_comes_first():
    well, bad = run_of("runs/1", "/well"), run_of("runs/2", "/bad")
    broken(bad)
    assert Checked(overview(status_of(well, bad))).links == ["/runs/2", "/runs/1"]


def test_page_of_a_run_has_its_problems_all_plots_and_the_history():
    run = run_of()
    broken(run)
    restore = messages_pb2.HistoryEntry(kind=messages_pb2.HistoryEntry.RESTORE, tag="step_1", staged_seconds=2)
    evicted = messages_pb2.HistoryEntry(kind=messages_pb2.HistoryEntry.EVICTED, tag="step_0", size_bytes=5)
    failed = saved(30, level=types_pb2.FAILED, reason="RANKS_MISSING", message="ranks 1 have not sealed")
    entries = [restore, restore, failed, saved(60), saved(90), evicted]
    facts = Facts(status_of(run), {run.name: entries}, {})
    text = page.run_page(facts, run.name, NOW)
    told = Checked(text)
    assert told.tags.count("figure") == 5 and told.tags.count("tr") == 7
    assert "failed: RANKS_MISSING: ranks 1 have not sealed" in told.words()
    assert "is damaged" in told.words()
    assert page.run_page(facts, "runs/other", NOW) is None


def test_history_that_cannot_be_read_is_said():
    run = run_of()
    assert "Its history cannot be read: UNKNOWN: no" in Checked(
        overview(status_of(run), problem={run.name: "UNKNOWN: no"})
    ).words()


def test_nothing_of_others_becomes_markup():
    run = run_of(path="/" + HOSTILE)
    broken(run)
    run.latest.tag = run.last_failure.tag = run.last_failure.error.message = HOSTILE
    run.damaged[0].damage.message = HOSTILE
    run.predicted_victims.append(HOSTILE)
    in_flight(run).tag = HOSTILE
    entries = [saved(n, level=types_pb2.FAILED, reason=HOSTILE, message=HOSTILE) for n in range(3)]
    status = status_of(run)
    status.cluster.node = status.cluster.error.message = HOSTILE
    facts = Facts(status, {run.name: entries}, {})
    pages = [page.overview(facts, NOW), page.run_page(facts, run.name, NOW), page.no_daemon(HOSTILE, HOSTILE)]
    for text in pages:
        told = Checked(text)
        assert "script" not in told.tags and HOSTILE in "".join(told.text)


def test_plot_marks_failures_with_their_reason_and_can_be_read_as_text():
    points = [Point(NOW, 0.3, "one"), Point(NOW + 60, None, "it failed: <disk>"), Point(NOW + 90, 0.4, "three")]
    drawn = plot("Stall", points, in_seconds)
    Checked(drawn)
    assert 'aria-label="Stall: 2 values up to 0.5 s, 1 failures"' in drawn
    assert '<g class="failure"><title>it failed: &lt;disk&gt;</title>' in drawn
    xs = [float(x) for x in re.findall(r'cx="([\d.]+)"', drawn)]
    ys = [float(y) for y in re.findall(r'cy="([\d.]+)"', drawn)]
    assert xs == sorted(xs) and ys == sorted(ys, reverse=True) and all(0 < each < 420 for each in xs + ys)
    assert plot("Stall", points[:1], in_seconds) == ""
    assert plot("Stall", [Point(NOW, None, "x")] * 2, in_seconds).count('class="failure"') == 2


@pytest.mark.parametrize(
    "value, step, rounded",
    [(0, 10, 1), (0.03, 10, 0.05), (1, 10, 1), (1.1, 10, 2), (70, 10, 100), (3 << 20, 1024, 5 << 20), (700 << 20, 1024, 1 << 30)],
)
def test_scale_ends_at_a_round_number(value, step, rounded):
    assert _round_up(value, step) == pytest.approx(rounded)


def test_numbers_have_units():
    assert [in_bytes(n) for n in (0, 1023, 1536, 6 << 30)] == ["0 B", "1023 B", "1.5 KiB", "6.0 GiB"]
    assert [in_seconds(n) for n in (0.25, 12, 192, 7500, 356400)] == ["0.25 s", "12 s", "3 min 12 s", "2 h 5 min", "4 d 3 h"]


# ---- Who may read it


class Source:
    """A daemon that answers, or does not."""

    endpoint = "unix:/run/ckptd/ckptd.sock"
    away = False

    def ask(self, run=None):
        if self.away:
            raise NoAnswerError("UNAVAILABLE: nobody listens")
        return Facts(status_of(run_of()), {}, {})

    def close(self):
        pass


@pytest.fixture
def serve():
    made = []

    def start(one):
        threading.Thread(target=one.serve_forever, daemon=True).start()
        made.append(one)
        return one

    yield start
    for one in made:
        one.shutdown()
        one.server_close()


def get(one, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", one.server_address[1], timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


TOKEN = "0123456789abcdef"


def test_page_on_a_port_needs_the_token(serve):
    one = serve(server.serve_on_port(Source(), 0, TOKEN))
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "ckptd-web=wrong; other=1"}):
        answer, body = get(one, **headers)
        assert answer.status == 401 and "/data/ckpts" not in body
    assert get(one, "/?token=wrong")[0].status == 401
    assert get(one, Authorization=f"Bearer {TOKEN}")[0].status == 200
    first, _ = get(one, f"/?token={TOKEN}")
    assert first.status == 303 and first.getheader("Location") == "/"
    cookie = first.getheader("Set-Cookie")
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    answer, body = get(one, Cookie=cookie.split(";")[0])
    assert answer.status == 200 and "/data/ckpts" in body
    assert "default-src 'none'" in answer.getheader("Content-Security-Policy")
    assert answer.getheader("Cache-Control") == "no-store"


def test_page_of_another_site_cannot_read_it_through_a_name_of_its_own(serve):
    one = serve(server.serve_on_port(Source(), 0, TOKEN))
    answer, body = get(one, Host="evil.example:80", Authorization=f"Bearer {TOKEN}")
    assert answer.status == 421 and "/data/ckpts" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_page_is_read_only(serve, method):
    one = serve(server.serve_on_port(Source(), 0, TOKEN))
    assert get(one, method=method, Authorization=f"Bearer {TOKEN}")[0].status == 501
    head, body = get(one, method="HEAD", Authorization=f"Bearer {TOKEN}")
    assert head.status == 200 and body == ""


def test_port_listens_on_loopback_only(serve):
    one = serve(server.serve_on_port(Source(), 0, TOKEN))
    assert one.server_address[0] == "127.0.0.1"
    with pytest.raises(errors.Refused, match="choose another --port"):
        server.serve_on_port(Source(), one.server_address[1], TOKEN)


def test_socket_is_for_this_user_and_replaces_one_that_is_left(serve, tmp_path):
    path = str(tmp_path / "web.sock")
    left = socket.socket(socket.AF_UNIX)
    left.bind(path)
    left.close()
    one = serve(server.serve_on_socket(Source(), path))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        client.settimeout(10)
        assert client.recv(12) == b"HTTP/1.0 200"
    with pytest.raises(errors.Refused, match="another process listens"):
        server.serve_on_socket(Source(), path)
    (tmp_path / "file").write_text("keep me")
    with pytest.raises(errors.Refused, match="no socket"):
        server.serve_on_socket(Source(), str(tmp_path / "file"))
    assert one and (tmp_path / "file").read_text() == "keep me"


def test_page_without_a_daemon_says_what_to_do(serve):
    source = Source()
    source.away = True
    one = serve(server.serve_on_port(source, 0, ""))
    answer, body = get(one)
    words = Checked(body).words()
    assert answer.status == 503
    assert "No daemon answers" in words and "nobody listens" in words and "systemctl status ckptd" in words
    source.away = False
    assert get(one)[0].status == 200, "it looks again"


def test_unknown_run_is_404(serve):
    one = serve(server.serve_on_port(Source(), 0, ""))
    answer, body = get(one, "/runs/none")
    assert answer.status == 404 and "There is no such run" in Checked(body).words()
    assert get(one, "/runs/0000000000000001")[0].status == 200


def test_client_that_sends_nothing_blocks_no_other(serve):
    one = serve(server.serve_on_port(Source(), 0, ""))
    with socket.create_connection(one.server_address) as silent:
        begun = time.monotonic()
        assert get(one)[0].status == 200
        assert time.monotonic() - begun < 5
        silent.close()


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--endpoint=tcp:1"], "name a Unix socket"),
        (["--token-file=/nonexistent"], "cannot be read"),
        (["--token-file=/dev/null"], "16 or more letters"),
    ],
)
def test_wrong_arguments_are_named(arguments, said, capsys):
    assert program.main(arguments) == 2
    assert said in capsys.readouterr().err
