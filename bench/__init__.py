"""Benchmarks of ckptd, run by tools/bench. Each figure is held against a limit that the same run measures.

cases       the figures that docs/design.md sets goals for
compare     ckptd and other ways to save, at the same work (tools/bench compare)
contenders  these ways to save, behind one interface
run         the rounds of cases: time, progress, and an end that leaves nothing behind
base        what the others share: each of them may use it, and compare may use contenders
"""

import time

STARTED = time.monotonic()  # The time that is given to a run includes the imports, which take seconds.
