"""tools/conformance: runs the cases with the stock libraries and with ckptd, and writes docs/conformance.md."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
from typing import Dict, List

from conformance import page, runner, upstream
from conformance.case import HANG, LOST, RIGHT, WRONG, Case


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/conformance", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="these cases alone, such as 'lightning_*'; the page is not written"
    )
    parser.add_argument("--update", action="store_true", help="with --only: write the lines of these cases, and keep the others")
    parser.add_argument("--upstream", action="store_true", help="run the tests of other projects instead, and write their rows")
    options = parser.parse_args()
    if options.upstream:
        return upstream.main()
    every = runner.load_cases()
    chosen = [each for each in every if not options.only or any(fnmatch.fnmatch(each.name, name) for name in options.only)]
    if not chosen:
        parser.error(f"no case is called {', '.join(options.only)}")
    runner.preload()
    results: "Dict[str, Dict[str, runner.Result]]" = {each.name: {} for each in chosen}
    with tempfile.TemporaryDirectory(prefix="ckptd-conformance-") as folder, runner.daemon(folder) as endpoint:
        for each, variant, result in runner.run_all(chosen, endpoint, say=True):
            results[each.name][variant] = result
    if options.update or not options.only:
        page.PAGE.write_text(page.text_of(every, results, page.versions(), page.PAGE.read_text()))
        print(f"wrote {page.PAGE}")
    bad = defects(chosen, results)
    for line in bad:
        print(line)
    print(f"{len(chosen)} cases, {len(bad)} defects of ckptd")
    return 1 if bad else 0


def defects(cases: List[Case], results: page.Results) -> List[str]:
    """Returns what is not right where ckptd has a part, and has no reason beside it."""
    found = []
    for each in cases:
        for variant, result in results[each.name].items():
            reason = "" if variant == "stock" else each.crosswise_reason if variant == "ckptd, then stock" else each.reason
            allowed = (RIGHT, "error") if reason else (RIGHT,)
            # What stock alone makes of its own files is not ckptd's.
            theirs = variant != "ckptd" and results[each.name].get("stock", result).outcome in (result.outcome, WRONG, LOST, HANG)
            if variant != "stock" and result.outcome not in allowed and not theirs:
                found.append(f"{each.name}, {variant}: {result.outcome}: {result.detail}")
    return found


if __name__ == "__main__":
    sys.exit(main())
