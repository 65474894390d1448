"""The command ckptd-nxd-convert, which runs `ckptctl convert nxd-zero`.

It takes the flags of NxD's converter.
"""

import os
import sys

from ckptd import errors
from ckptd.local_daemon import find_program


def main() -> None:
    try:
        program = find_program("ckptctl")
    except errors.CkptdError as error:
        sys.exit(f"ckptd-nxd-convert: {error}")
    if any(argument in ("-h", "--help") for argument in sys.argv[1:]):
        print("ckptd-nxd-convert is `ckptctl convert nxd-zero`:", flush=True)
    os.execv(program, ["ckptctl", "convert", "nxd-zero", *sys.argv[1:]])
