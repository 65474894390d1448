"""A bucket behind a root that two nodes share: the coordinator uploads, and the next one goes on where it has ended."""

from __future__ import annotations

import pathlib
import re
import signal
import uuid
from typing import Any, Dict, Iterator, List, Tuple

import pytest
from bucket_servers import BUCKET, BucketServer, start_moto
from cluster import LOSS_SECONDS, PROMPT_SECONDS, Cluster, Node
from launches import Launch, assert_all_hear
from places import OneHost
from rank_program import content
from slow_proxy import Proxy

from harness import ckptctl, closing, tags, temporary_folder, until, until_equal

CONFIGURATION = f'upload {{ allowed_prefixes: "s3://{BUCKET}" }}\n'
PART = 100_000  # Bytes of a rank's file.


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    yield from start_moto()


class Pair:
    """Two nodes, each with a relay of its own to the bucket, and a run."""

    def __init__(self, folder: pathlib.Path, server: BucketServer, prefix: str = "") -> None:
        """`prefix`: of another pair's bucket; empty: a new one."""
        self.server = server
        self.prefix = prefix or uuid.uuid4().hex
        self.url = f"s3://{BUCKET}/{self.prefix}"
        self.proxies = [Proxy(server.endpoint) for _ in range(2)]
        environments: List[Dict[str, str]] = [
            {**server.environment(), "AWS_ENDPOINT_URL_S3": proxy.endpoint} for proxy in self.proxies
        ]
        self.cluster = Cluster(
            folder, OneHost(), names=("gpu1", "gpu2"), configuration=CONFIGURATION, environments=environments
        )
        self.nodes = self.cluster.nodes
        self.root = self.cluster.root

    def launch(self, name: str = "first", keep: Any = None, **upload: Any) -> Any:
        return closing(Launch(name, self.root, self.nodes, 1, keep, {"url": self.url, **upload}))

    def proxy(self, node: Node) -> Proxy:
        return self.proxies[self.nodes.index(node)]

    def uploaded(self) -> "set[str]":
        """The tags that the bucket has a whole checkpoint of."""
        listed = self.server.client().list_objects_v2(Bucket=BUCKET, Prefix=self.prefix)
        keys = [found["Key"] for found in listed.get("Contents", [])]
        return {key.split("/")[1] for key in keys if key.endswith("/.ckptd/manifest")}

    def tool(self, *arguments: str) -> str:
        with pytest.MonkeyPatch.context() as environment:
            for name, value in self.server.environment().items():
                environment.setenv(name, value)
            return ckptctl(*arguments).stdout

    def close(self) -> None:
        self.cluster.close()
        for proxy in self.proxies:
            proxy.end()


@pytest.fixture
def pair(request: pytest.FixtureRequest, server: BucketServer) -> Iterator[Pair]:
    with temporary_folder() as folder, closing(Pair(folder, server)) as made:
        yield made
        if getattr(request.node, "failed", False):
            print(made.cluster.logs())


def assert_committed(heard: Any) -> None:
    assert_all_hear(heard, "committed", [], PROMPT_SECONDS)


def waiting(node: Node) -> List[str]:
    return [checkpoint.tag for run in node.status().runs for checkpoint in run.uploads.waiting]


def listed_as_uploaded(node: Node, root: str) -> List[str]:
    return [each["tag"] for each in node.listed(root) if each.get("upload", {}).get("state") == "DONE"]


def test_each_nth_checkpoint_of_both_nodes_is_uploaded_and_both_hear_of_it(
    pair: Pair, tmp_path: pathlib.Path
) -> None:
    with pair.launch(every=2) as job:
        heard = []
        for step in (1, 2, 3, 4):
            assert_committed(job.save(f"step_{step}", step))
            heard.append(job.do("me.uploaded()"))
        assert heard == [["NOT_UPLOADED"] * 2, ["uploaded"] * 2] * 2
    assert pair.uploaded() == {"step_2", "step_4"}
    for node in pair.nodes:
        until_equal(
            lambda node=node: listed_as_uploaded(node, pair.root), ["step_4", "step_2"], f"{node.name} to list that"
        )
    assert "OK" in pair.tool("verify", pair.url)
    pair.tool("fetch", f"{pair.url}/step_4", str(tmp_path / "elsewhere"))
    for rank in (0, 1):
        assert (tmp_path / f"elsewhere/step_4/rank{rank}.raw").read_bytes() == content(4, rank)


def test_coordinator_killed_in_an_upload_is_followed_by_one_that_ends_it(pair: Pair) -> None:
    with pair.launch() as job:
        assert_committed(job.save("step_1", 1))
        assert job.do("me.uploaded()") == ["uploaded"] * 2
        node = pair.cluster.coordinator()
        (other,) = pair.cluster.followers()
        pair.proxy(node).stop_after(PART // 2)
        assert_committed(job.save("step_2", 2))
        assert pair.proxy(node).stopped.wait(PROMPT_SECONDS), "nothing was sent"
        until_equal(lambda: waiting(other), ["step_2"], "the other node to know that it waits")
        assert node.end(signal.SIGKILL) == -signal.SIGKILL
        assert pair.uploaded() == {"step_1"}
        until_equal(pair.uploaded, {"step_1", "step_2"}, "the upload by the other node", LOSS_SECONDS)
        assert job.do("me.uploaded()", job.ranks_on(other)) == ["uploaded"]
        pair.proxy(node).open_server()
        node.start()
        assert job.do("me.uploaded()", job.ranks_on(node)) == ["uploaded"]
        until_equal(lambda: waiting(node), [], "the killed node to know that nothing waits")
    assert "OK" in pair.tool("verify", pair.url)


def test_paused_coordinator_that_comes_back_sends_and_removes_nothing(pair: Pair) -> None:
    with pair.launch(keep_last=1) as job:
        assert_committed(job.save("last", 1))
        assert job.do("me.uploaded()") == ["uploaded"] * 2
        node = pair.cluster.coordinator()
        (other,) = pair.cluster.followers()
        pair.proxy(node).stop_after(PART // 2)
        assert_committed(job.save("step_2", 2))
        assert pair.proxy(node).stopped.wait(PROMPT_SECONDS), "nothing was sent"
        node.process.send_signal(signal.SIGSTOP)
        until_equal(pair.uploaded, {"step_2"}, "the upload by the other node", LOSS_SECONDS)
    # A launch on the other node alone saves that tag once more.
    with closing(Launch("second", pair.root, [other], 1, None, {"url": pair.url, "keep_last": 1})) as job:
        assert_committed(job.save("step_2", 3))
        assert job.do("me.uploaded()") == ["uploaded"]
        pair.proxy(node).open_server()
        node.process.send_signal(signal.SIGCONT)
        until(lambda: re.search("no longer registered|lease", node.log()), "the paused node to notice")
        until(lambda: node.is_registered(), "the paused node to be back")
        until_equal(lambda: waiting(node), [], "it to know that nothing waits")
        assert_committed(job.save("step_4", 4))
        assert job.do("me.uploaded()") == ["uploaded"]
    until_equal(pair.uploaded, {"step_4"}, "the removal of the one before")
    assert "OK" in pair.tool("verify", pair.url)


def test_retention_waits_for_uploads_which_survive_the_end_of_all_daemons(pair: Pair) -> None:
    with pair.launch(keep=1, keep_last=2) as job:
        for proxy in pair.proxies:
            proxy.close_server()
        steps = ["step_1", "step_2", "step_3"]
        for step, tag in enumerate(steps, 1):
            assert_committed(job.save(tag, step))
        for node in pair.nodes:
            until_equal(lambda node=node: waiting(node), steps, f"{node.name} to know what waits")
        assert tags(pair.root) == steps[::-1]
    for node in pair.nodes:
        node.end(signal.SIGKILL)
    for node in pair.nodes:
        node.start()  # No trainer asks for anything.
    pair.cluster.wait_until_registered()
    for node in pair.nodes:
        until_equal(lambda node=node: waiting(node), steps, f"{node.name} to know what waits")
    assert tags(pair.root) == steps[::-1]
    for proxy in pair.proxies:
        proxy.open_server()
    until_equal(pair.uploaded, {"step_2", "step_3"}, "the uploads, of which two are kept", 120)
    until_equal(lambda: tags(pair.root), ["step_3"], "retention to remove what is in the bucket")


def test_a_launch_without_upload_uploads_only_what_waits(pair: Pair) -> None:
    with pair.launch() as job:
        for proxy in pair.proxies:
            proxy.close_server()
        assert_committed(job.save("step_1", 1))
    with closing(Launch("second", pair.root, pair.nodes, 1)) as job:
        assert_committed(job.save("step_2", 2))
        for proxy in pair.proxies:
            proxy.open_server()
        until_equal(pair.uploaded, {"step_1"}, "the upload of what waits")
        assert job.do("me.uploaded()") == ["NOT_UPLOADED"] * 2


# ---- resume


@pytest.fixture
def successor(request: pytest.FixtureRequest, server: BucketServer) -> Iterator[Pair]:
    """A new cluster, with a new etcd and an empty folder, after one that has uploaded step_1 and step_2 and is lost."""
    with temporary_folder() as folder, closing(Pair(folder, server)) as lost, lost.launch() as job:
        for step in (1, 2):
            assert_committed(job.save(f"step_{step}", step))
            assert job.do("me.uploaded()") == ["uploaded"] * 2
    with temporary_folder() as folder, closing(Pair(folder, server, lost.prefix)) as made:
        yield made
        if getattr(request.node, "failed", False):
            print(made.cluster.logs())


def resumed(step: int) -> List[Any]:
    """What both ranks resume from."""
    return [[f"step_{step}", step, ["rank0.raw", "rank1.raw"]]] * 2


def test_new_cluster_resumes_from_the_bucket_on_both_nodes(successor: Pair) -> None:
    pair = successor
    with pair.launch(restore=True, keep_last=2) as job:
        assert job.do("me.resume()") == resumed(2)
        for node in pair.nodes:
            until_equal(lambda node=node: listed_as_uploaded(node, pair.root), ["step_2"], f"{node.name} to list that")
        assert_committed(job.save("step_3", 3))
        assert job.do("me.uploaded()") == ["uploaded"] * 2
        until_equal(pair.uploaded, {"step_2", "step_3"}, "the removal of the oldest, which the lost cluster had uploaded")
        assert pair.nodes[0].tags(pair.root) == ["step_3", "step_2"]
    # The root wins where it is newer, also if the bucket has lost its newest one.
    with closing(Launch("second", pair.root, pair.nodes, 1, None, {"url": pair.url, "restore": True})) as job:
        assert job.do("me.resume()") == resumed(3)
    assert "OK" in pair.tool("verify", pair.url)


def stopped_in_the_fetch(pair: Pair, job: Launch) -> Tuple[Node, Node]:
    """Lets the ranks of one node resume. Returns the other one, which has fetched a part as the coordinator and gets no more; and the
    node that resumes.
    """
    node = pair.cluster.coordinator()
    (other,) = pair.cluster.followers()
    pair.proxy(node).stop_after(PART // 2, upstream=False)
    job.start("me.resume(timeout=300)", job.ranks_on(other))
    assert pair.proxy(node).stopped.wait(PROMPT_SECONDS), "nothing was fetched"
    return node, other


def test_coordinator_killed_in_the_fetch_is_followed_by_one_that_fetches_again(successor: Pair) -> None:
    pair = successor
    with pair.launch(restore=True) as job:
        node, other = stopped_in_the_fetch(pair, job)
        assert pair.nodes[0].tags(pair.root) == []
        assert node.end(signal.SIGKILL) == -signal.SIGKILL
        until_equal(lambda: tags(pair.root), ["step_2"], "the fetch by the other node", LOSS_SECONDS)
        pair.proxy(node).open_server()
        node.start()
        job.start("me.resume(timeout=300)", job.ranks_on(node))
        assert job.results() == resumed(2)
        assert_committed(job.save("step_3", 3))
    assert not list(pathlib.Path(pair.root, ".ckptd/shared").glob("term.*/step*"))


def test_paused_coordinator_that_comes_back_publishes_nothing_that_it_has_fetched(successor: Pair) -> None:
    pair = successor
    with pair.launch(restore=True) as job:
        node, other = stopped_in_the_fetch(pair, job)
        node.process.send_signal(signal.SIGSTOP)
        until_equal(lambda: tags(pair.root), ["step_2"], "the fetch by the other node", LOSS_SECONDS)
    with closing(Launch("second", pair.root, [other], 1, None, {"url": pair.url})) as job:
        assert job.do("me.resume()") == resumed(2)[:1]
        assert_committed(job.save("step_3", 3))
        other.ask("delete", f"{pair.root}/step_2")
        pair.proxy(node).open_server()
        node.process.send_signal(signal.SIGCONT)
        until(lambda: re.search("no longer registered|lease", node.log()), "the paused node to notice")
        until(lambda: node.is_registered(), "the paused node to be back")
        assert_committed(job.save("step_4", 4))
    assert tags(pair.root) == ["step_4", "step_3"]


def test_resume_fails_on_both_nodes_while_the_bucket_cannot_be_read(successor: Pair) -> None:
    pair = successor
    with pair.launch(restore=True) as job:
        for proxy in pair.proxies:
            proxy.close_server()
        name = pair.cluster.coordinator().name
        for reason, message in job.do("me.cannot_resume()"):
            assert reason == "RESTORE_FAILED", message
            assert name in message
            assert "restore=False" in message
        for proxy in pair.proxies:
            proxy.open_server()
        assert job.do("me.resume()") == resumed(2)
    with closing(Launch("alone", pair.root, pair.nodes, 1, None, {"url": pair.url, "restore": False})) as job:
        assert job.do("me.resume()") == resumed(2)
