"""Certificates of etcd's members and clients, by an authority of the test's own."""

from __future__ import annotations

import datetime
import pathlib
import subprocess
from collections.abc import Sequence
from typing import List

_CONFIGURATION = """[ca]
default_ca = test
[test]
database = {folder}/database
new_certs_dir = {folder}
rand_serial = yes
unique_subject = no
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
"""


class Authority:
    """Signs certificates that are valid for seconds."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.file = folder / "ca.crt"
        (folder / "database").touch()
        (folder / "configuration").write_text(_CONFIGURATION.format(folder=folder))
        _openssl(*self._new_key("ca"), "-x509", "-days", "2", "-subj", "/CN=test", "-out", str(self.file))

    def certificate(self, name: str) -> pathlib.Path:
        return self._folder / f"{name}.crt"

    def key(self, name: str) -> pathlib.Path:
        return self._folder / f"{name}.key"

    def sign(self, name: str, seconds: float, addresses: Sequence[str] = ()) -> datetime.datetime:
        """Makes a certificate, or a new one, and returns when it ends to be valid."""
        now = datetime.datetime.now(datetime.timezone.utc)
        ends = (now + datetime.timedelta(seconds=seconds)).replace(microsecond=0)
        begins = now - datetime.timedelta(hours=1)
        request = str(self._folder / f"{name}.csr")
        names = [f"subjectAltName={','.join(f'IP:{address}' for address in addresses)}"] if addresses else []
        extensions = [argument for each in names for argument in ("-addext", each)]
        _openssl(*self._new_key(name), *extensions, "-subj", f"/CN={name}", "-out", request)
        files = ["-cert", str(self.file), "-keyfile", str(self.key("ca")), "-in", request, "-out", str(self.certificate(name))]
        valid = ["-startdate", f"{begins:%Y%m%d%H%M%SZ}", "-enddate", f"{ends:%Y%m%d%H%M%SZ}"]
        _openssl("ca", "-batch", "-notext", "-config", str(self._folder / "configuration"), *files, *valid)
        return ends

    def _new_key(self, name: str) -> List[str]:
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        return ["req", "-new", "-nodes", *curve, "-keyout", str(self.key(name))]


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"openssl {arguments}: {done.stderr}"
