"""Linux as an ordinary process (Debian's user-mode-linux), for what the kernel of this machine does not have, such as NFS. It
sees this machine's files; what runs in it has a disk of its own at /tmp.

    python -m shared_file_systems.user_mode_linux SCRIPT

runs a shell's script in it, prints its output, and ends as it does.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import List

from shared_file_systems.file_system import PROGRAMS

from harness import temporary_folder

_HERE = pathlib.Path(__file__).parent
_MEMORY = "4G"
_DISK = "4G"


def why_not() -> str:
    """Why it does not run here; empty if it does."""
    if os.uname().machine != "x86_64":
        return f"this kernel has no NFS, and user-mode-linux needs x86_64, not {os.uname().machine}"
    return ""


def command(script: str) -> List[str]:
    """The command that runs a script in it."""
    return [sys.executable, "-m", "shared_file_systems.user_mode_linux", script]


def main() -> int:
    with temporary_folder() as folder:
        (folder / "script").write_text(sys.argv[1])
        subprocess.run(["mke2fs", "-q", "-t", "ext4", folder / "disk", _DISK], check=True)
        library = folder / "floating_point_state.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, _HERE / "floating_point_state.c"], check=True)
        linux = [str(PROGRAMS / "usr/bin/linux.uml"), f"mem={_MEMORY}", f"ubd0={folder}/disk", f"uml_dir={folder}/uml"]
        root = ["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw"]
        consoles = ["con=null", "con0=null,fd:1", "loglevel=0"]
        started = [f"init={sys.executable}", "--", str(_HERE / "boot.py"), str(folder)]
        with open(folder / "console", "wb") as console:
            subprocess.run(
                [*linux, *root, *consoles, *started],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={**os.environ, "LD_PRELOAD": str(library)},
            )
        output, status = folder / "output", folder / "status"
        if not status.exists() or not status.read_text():
            print((folder / "console").read_text(errors="replace"), "the machine has ended without a status")
            return 1
        print(output.read_text(errors="replace"), end="")
        return int(status.read_text())


if __name__ == "__main__":
    sys.exit(main())
