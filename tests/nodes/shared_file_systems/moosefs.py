"""MooseFS by FUSE: a master and one chunk server, default options."""

from __future__ import annotations

import pathlib
import shutil

from node_namespaces import Namespaces
from shared_file_systems.file_system import PROGRAMS, run

from harness import until


class MooseFs:
    def __init__(self) -> None:
        self._address = ""

    def serve(self, server: Namespaces, address: str, folder: pathlib.Path) -> None:
        self._address = address
        place = folder.with_name("moosefs")
        chunks = place / "chunks"
        chunks.mkdir(parents=True)
        shutil.copy(PROGRAMS / "var/lib/mfs/metadata.mfs.empty", place / "metadata.mfs")
        (place / "exports").write_text("* / rw,alldirs,admin,maproot=0:0\n")
        (place / "disks").write_text(f"{chunks}\n")
        common = f"WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = {place}\n"
        listening = "".join(f"{of}_LISTEN_HOST = {address}\n" for of in ("MATOML", "MATOCS", "MATOCL"))
        (place / "master").write_text(f"{common}EXPORTS_FILENAME = {place}/exports\n{listening}")
        server_options = f"HDD_CONF_FILENAME = {place}/disks\nMASTER_HOST = {address}\nBIND_HOST = {address}\n"
        (place / "chunkserver").write_text(f"{common}{server_options}CSSERV_LISTEN_HOST = {address}\n")
        for program in ("master", "chunkserver"):
            # They keep their output open.
            start = f"mfs{program} -c {place}/{program} start > {place}/{program}.log 2>&1 < /dev/null"
            run(server.wrapper, "sh", "-c", start)
        # The test's own client.
        run(server.network_wrapper, "mfsmount", str(folder), "-H", address, "-o", _UNCACHED)
        # One copy, for the only chunk server.
        run(server.network_wrapper, "mfssetgoal", "-r", "1", str(folder))
        until(lambda: _blocks(server.network_wrapper, folder) > 0, "the chunk server")

    def mount(self, node: Namespaces, name: str, folder: pathlib.Path) -> None:
        run(node.wrapper, "mfsmount", str(folder), "-H", self._address)


_UNCACHED = "mfsattrcacheto=0,mfsentrycacheto=0,mfsdirentrycacheto=0,mfscachemode=DIRECT"


def _blocks(wrapper: "list[str]", folder: pathlib.Path) -> int:
    return int(run(wrapper, "stat", "-f", "-c", "%b", str(folder)))
