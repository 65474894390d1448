"""Kills the coordinator of three nodes at every call by which it changes the root in a save, one save after another: first in
saves of new tags, whose checkpoints retention removes, then in saves of one tag. For tools/soak.
"""

from __future__ import annotations

import argparse

from coordinator_kills import Moment, new_job


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/soak coordinator", description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=1, help="the call of each kind of save at which to begin")
    first = parser.parse_args().first
    with new_job() as job:
        try:
            for replaces_tag in (False, True):
                at, calls = first, ["yet"]
                while calls:
                    # From when all nodes are durable. Files of the daemon's own are not in the root.
                    moment = Moment(r"^(?!open )\S+ ROOT\b", None, at, since="^open NEW$")
                    calls = job.save_and_kill(moment, replaces_tag)
                    print("replaces" if replaces_tag else "publishes", at, *(calls or ["is over"]), flush=True)
                    at += 1
        except BaseException:
            print(job.cluster.logs())
            raise
    print("coordinator: clean")


if __name__ == "__main__":
    main()
