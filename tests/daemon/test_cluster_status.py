"""What `ckptctl status` says of a node that lacks something: a shared folder, a certificate of etcd that it trusts."""

from __future__ import annotations

import pathlib
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness import TIMEOUT, ckptctl, until


def _start_node(daemon: Any, cluster: str) -> Any:
    text = daemon.configuration.read_text()
    daemon.configuration.write_text(f'{text}cluster {{ node_name: "n" {cluster} }}\n')
    return daemon.start()


def _status(daemon: Any) -> str:
    return str(ckptctl("status", endpoint=daemon.endpoint).stdout)


def test_shared_folder_that_is_not_there_is_shown_until_it_is(daemon: Any) -> None:
    folder = daemon.folder / "shared"
    _start_node(daemon, f'etcd_endpoints: "http://127.0.0.1:9" shared_folders: "{folder}"')
    problem = f'"{folder}" cannot be looked at (No such file or directory): mount its file system there'
    until(lambda: problem in _status(daemon), "the problem in the status")
    assert [problem.folder for problem in daemon.status().cluster.shared_folder_problems] == [str(folder)]
    daemon.wait_log("a shared folder cannot be used folder=")
    folder.mkdir()
    until(lambda: "NO FOLDER" not in _status(daemon), "the folder")  # It looks again every ten seconds.
    daemon.wait_log("a shared folder can be used now folder=")


@pytest.fixture
def endpoint_of_a_stranger(tmp_path: pathlib.Path) -> Iterator[str]:
    """A server with TLS whose certificate no authority of this machine has signed."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:  # The daemon does not trust it.
                connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_certificate_that_no_authority_has_signed_names_the_setting(daemon: Any, endpoint_of_a_stranger: str) -> None:
    _start_node(daemon, f'etcd_endpoints: "{endpoint_of_a_stranger}"')
    until(lambda: "no authority in cluster.etcd_ca_file has signed it" in _status(daemon), "the cause in the status")


def test_etcd_that_does_not_run_is_told_in_few_words(daemon: Any) -> None:
    _start_node(daemon, 'etcd_endpoints: "http://127.0.0.1:9"')
    until(lambda: "127.0.0.1:9 (Connection refused)" in _status(daemon), "the cause in the status")


def test_root_in_a_shared_folder_that_the_job_has_mounted_itself_is_refused(daemon: Any) -> None:
    folder = daemon.folder / "shared"
    folder.mkdir()
    _start_node(daemon, f'etcd_endpoints: "http://127.0.0.1:9" shared_folders: "{folder}"')
    opens = f"import ckptd; ckptd.connect({daemon.endpoint!r}).open({str(folder / 'run')!r})._access"
    script = f'mount -t tmpfs none {folder} && mkdir {folder}/run && exec "$0" -c "$1"'
    job = ["unshare", "--mount", "--propagation=private", "sh", "-c", script, sys.executable, opens]
    refused = subprocess.run(job, capture_output=True, text=True, timeout=TIMEOUT)
    assert "another one than this daemon has at that path" in refused.stderr, refused.stderr
