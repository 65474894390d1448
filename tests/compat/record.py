"""Makes what test_compat.py holds newer versions against, with the ckptd that is installed beside this Python:

    python tests/compat/record.py tests/compat/data/VERSION

  protocol.binpb    the descriptors of every .proto file
  transcript.json   scenario.py's calls and the answers to them
  root.tar.gz       the root that they leave, of a daemon that was killed while a save was under way
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import tarfile
import tempfile

import ckptd
import play
from transcript import Protocol

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main() -> None:
    place = pathlib.Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    data = play.descriptors(ROOT / "proto")
    (place / "protocol.binpb").write_bytes(data)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder, "root")
        play.make_root(root)
        daemon = ckptd.LocalDaemon(pathlib.Path(folder, "daemon"), pool_bytes=64 << 20).start()
        recorded = play.record(Protocol(data), daemon.endpoint, str(root))
        os.kill(daemon.pid, signal.SIGKILL)
        with tarfile.open(place / "root.tar.gz", "w:gz") as archive:
            archive.add(root, arcname="root")
    (place / "transcript.json").write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
