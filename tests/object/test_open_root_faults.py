"""What open_root("s3://...") says when the server, the way to it, or the settings fail, and that it says so in time."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import ssl
import subprocess
import threading
import time
from typing import Iterator

import ckptd
import pytest
from bucket_copies import Copies
from bucket_servers import BUCKET, BucketServer, with_moto
from checkpoint_files import CHUNK, write_checkpoint
from ckptd._roots.bucket import bucket_file, client, store
from fault_plan import PASSING, Fault, Rule, can_meet
from fault_proxy import FaultProxy

from harness import until

BIG = random.Random(5).randbytes(10 * CHUNK + 1234)
KINDS = ("GET list", "GET manifest", "GET file")


@pytest.fixture
def copies(server: BucketServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Copies:
    monkeypatch.setattr(bucket_file, "_PART_BYTES", 2 * CHUNK)
    made = Copies(server, tmp_path, monkeypatch)
    write_checkpoint(tmp_path, "step_1", 1, {"big": BIG, "note.txt": b"one"}, 1)
    made.copy("step_1")
    return made


@pytest.fixture
def proxy(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    made = FaultProxy(copies.server.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", made.endpoint)
    yield made
    made.end()


def read_all(copies: Copies) -> bytes:
    with copies.root().open() as checkpoint:
        return checkpoint.read("big")


@pytest.mark.parametrize("fault", PASSING)
@with_moto
def test_fault_that_passes_is_not_noticed(copies: Copies, proxy: FaultProxy, fault: Fault) -> None:
    kinds = [kind for kind in KINDS if can_meet(fault, kind)]
    proxy.plan(*(Rule(fault, kind) for kind in kinds))
    assert read_all(copies) == BIG
    assert sorted(request.kind for request in proxy.met) == sorted(kinds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.HANG, Fault.ERROR_503, Fault.CUT_RESPONSE, Fault.WAIT_LONG])
@with_moto
def test_server_that_does_not_answer_is_named_in_time(
    copies: Copies, proxy: FaultProxy, fault: Fault, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_LIMIT_SECONDS", 1.0)
    monkeypatch.setattr(client, "_STALL_SECONDS", 0.5)
    proxy.plan(Rule(fault, kind, times=0))
    begun = time.monotonic()
    with pytest.raises(ckptd.Unavailable, match=r"no success within 1 s and \d+ tr.*; the last one: ") as caught:
        read_all(copies)
    assert caught.value.reason == "STORE_TIMEOUT" and copies.url in str(caught.value)
    assert time.monotonic() - begun < 30


@with_moto
def test_server_that_comes_back_is_read_on(copies: Copies, proxy: FaultProxy) -> None:
    with copies.root().open() as checkpoint:
        proxy.plan(Rule(Fault.FREEZE_BEFORE, "GET file", nth=3))
        threading.Thread(target=lambda: proxy.frozen.wait(60) and proxy.thaw(), daemon=True).start()
        assert checkpoint.read("big") == BIG


@with_moto
def test_bytes_that_are_damaged_on_each_way_are_damage(copies: Copies, proxy: FaultProxy) -> None:
    proxy.plan(Rule(Fault.DAMAGE_RESPONSE, "GET file", times=0))
    with pytest.raises(ckptd.Corrupt, match="file big of checkpoint step_1 is corrupt: chunk") as caught:
        read_all(copies)
    assert caught.value.reason == "CORRUPT_FILE"


@with_moto
def test_checkpoint_does_not_vanish_from_the_list_because_of_the_server(
    copies: Copies, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_LIMIT_SECONDS", 1.0)
    write_checkpoint(copies.folder, "step_2", 2, {"note.txt": b"two"}, 2)
    copies.copy("step_2")
    for nth in (1, 3):  # The look at its head, and the one at the whole of it.
        proxy.plan(Rule(Fault.ERROR_500, "GET manifest", nth=nth, times=0))
        for use in (copies.root().list, copies.root().latest, copies.root().open):
            with pytest.raises(ckptd.Unavailable):
                use()


@with_moto
def test_other_server_than_one_of_s3_is_told(copies: Copies, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LIMIT_SECONDS", 1.0)
    proxy.plan(Rule(Fault.SHORTEN_RESPONSE, "GET list", times=0))
    with pytest.raises(ckptd.Unavailable, match="is the endpoint a server of S3") as caught:
        copies.root().latest()
    assert caught.value.reason == "STORE_TIMEOUT"


@pytest.mark.usefixtures("interrupt_handler")
@pytest.mark.parametrize("kind", KINDS)
@with_moto
def test_ctrl_c_ends_what_waits(copies: Copies, proxy: FaultProxy, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_STALL_SECONDS", 0.5)
    write_checkpoint(copies.folder, "step_2", 2, {"big": BIG}, 2)
    copies.copy("step_2")
    proxy.plan(Rule(Fault.ERROR_503, kind, times=0))
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        until(lambda: proxy.met, "the first fault")
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        read_all(copies)
    assert time.monotonic() - begun < 30


def test_credentials_that_the_server_refuses_are_told(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    for use in (copies.root().list, copies.root().latest, lambda: copies.root().open("step_1")):
        with pytest.raises(ckptd.Refused, match="look at the credentials and their policy") as caught:
            use()
        assert caught.value.reason == "STORE_DENIED"


def test_bucket_that_is_missing_is_told(copies: Copies) -> None:
    # moto's policies hide what is not allowed.
    reasons = {"moto": "STORE_DENIED", "swift": "NO_BUCKET"}
    root = ckptd.open_root("s3://no-such-bucket/run")
    for use in (root.list, root.latest, lambda: root.open("step_1")):
        with pytest.raises((ckptd.NotFound, ckptd.Refused), match="no-such-bucket") as caught:
            use()
        assert caught.value.reason == reasons[copies.server.name]


@with_moto
def test_bucket_that_vanishes_is_no_damage(copies: Copies, proxy: FaultProxy) -> None:
    with copies.root().open() as checkpoint:
        proxy.plan(Rule(Fault.NO_BUCKET, "GET file", times=0))
        with pytest.raises(ckptd.NotFound) as caught:
            checkpoint.read("big")
        assert caught.value.reason == "NO_BUCKET"


@with_moto
def test_missing_credentials_are_told(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ckptd.Refused, match="credentials") as caught:
        copies.root().latest()
    assert caught.value.reason == "NO_CREDENTIALS"


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("AWS_ENDPOINT_URL_S3", "localhost:9000", "must begin with http:// or https://"),
        ("CKPTD_S3_ADDRESSING_STYLE", "vhost", "must be path or virtual"),
        ("AWS_PROFILE", "nobody", "nobody"),
        ("AWS_REGION", "not a region", "not a region"),
        ("AWS_CA_BUNDLE", "/no/such/file", "there is no /no/such/file"),
    ],
)
@with_moto
def test_setting_that_cannot_be_used_is_refused(
    copies: Copies, name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ckptd.Refused, match=said) as caught:
        copies.root()
    assert caught.value.reason == "INVALID_ARGUMENT"


@with_moto
def test_certificate_that_is_not_trusted_is_told_and_one_of_the_bundle_is_trusted(
    copies: Copies, proxy: FaultProxy, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test".split()
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([*command, *more], check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    proxy._http.socket = context.wrap_socket(proxy._http.socket, server_side=True)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint.replace("http:", "https:"))
    with pytest.raises(ckptd.Refused, match="AWS_CA_BUNDLE") as caught:
        copies.root().latest()
    assert caught.value.reason == "STORE_REFUSED"
    monkeypatch.setenv("AWS_CA_BUNDLE", certificate)
    assert read_all(copies) == BIG


@with_moto
def test_settings_have_the_names_that_ckptctl_knows(
    copies: Copies, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = copies.server
    (tmp_path / "config").write_text(f"[profile there]\nendpoint_url = {server.endpoint}/\nregion = us-east-1\n")
    (tmp_path / "credentials").write_text(
        f"[there]\naws_access_key_id = {server.access_key}\naws_secret_access_key = {server.secret_key}\n"
    )
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "there")
    monkeypatch.setenv("AWS_DEFAULT_PROFILE", "nobody")
    assert read_all(copies) == BIG
    # An endpoint has path style: no name of a host has the bucket's.
    made = client.make_client(BUCKET)
    assert made.meta.endpoint_url == server.endpoint and made.meta.config.s3["addressing_style"] == "path"
    monkeypatch.setenv("CKPTD_S3_ADDRESSING_STYLE", "virtual")
    assert client.make_client(BUCKET).meta.config.s3["addressing_style"] == "virtual"
    monkeypatch.setenv("AWS_PROFILE", "")
    monkeypatch.delenv("AWS_DEFAULT_PROFILE")
    monkeypatch.delenv("CKPTD_S3_ADDRESSING_STYLE")
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    made = client.make_client(BUCKET)
    assert made.meta.region_name == "eu-west-3" and made.meta.config.s3["addressing_style"] == "virtual"
