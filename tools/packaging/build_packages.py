#!/usr/bin/python3
"""Makes all packages from a wheel, the C++ library and the checkout, and prints their paths.

The same inputs give the same bytes: every file has the given date, belongs to root, and has its place in order.
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import sys

import client_debs
import contents
import deb
import image
import rpm
import tarball

# Each makes one file, but rpm: it makes one for each package of its spec.
KINDS = {
    "deb": lambda package, checkout, out: deb.build(package, checkout / "deploy/debian", out),
    "development": lambda package, checkout, out: client_debs.build_development(package, out),
    "image": lambda package, checkout, out: image.build(package, out),
    "library": lambda package, checkout, out: client_debs.build_library(package, out),
    "rpm": lambda package, checkout, out: rpm.build(package, checkout / "deploy/rpm/ckptd.spec", out),
    "tarball": lambda package, checkout, out: tarball.build(package, out),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    path = pathlib.Path
    parser.add_argument("--wheel", type=path, required=True)
    parser.add_argument("--sdk", type=path, required=True, help="the folder that tools/sdk has built")
    parser.add_argument(
        "--checkout", type=path, required=True, help="where deploy/, LICENSE and CHANGELOG.md are"
    )
    parser.add_argument("--version", required=True)
    parser.add_argument("--date", type=int, required=True, help="of every file, in seconds since 1970")
    parser.add_argument("--out", type=path, required=True, help="an existing folder")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; default: all")
    args = parser.parse_args()
    if unknown := set(args.kinds) - set(KINDS):
        sys.exit(f"build_packages.py: unknown kind {', '.join(sorted(unknown))} (known: {', '.join(KINDS)})")

    date = datetime.datetime.fromtimestamp(args.date, datetime.timezone.utc)
    package = contents.collect(args.wheel, args.sdk, args.checkout, args.version, date)
    for kind in args.kinds or KINDS:
        made = KINDS[kind](package, args.checkout, args.out)
        print(*(made if isinstance(made, list) else [made]), sep="\n")


if __name__ == "__main__":
    main()
