"""python -m ckptd: prints the version and where the programs are."""

import argparse

from ckptd import __version__, errors
from ckptd.local_daemon import find_program


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ckptd", description=__doc__)
    parser.add_argument("--version", action="version", version=f"ckptd {__version__}")
    parser.parse_args()
    print(f"ckptd {__version__}")
    for program in ("ckptd", "ckptctl"):
        try:
            print(f"{program}: {find_program(program)}")
        except errors.CkptdError as error:
            print(f"{program}: {error}")


if __name__ == "__main__":
    main()
