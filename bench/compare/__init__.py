"""tools/bench compare: ckptd and other ways to save take turns at the same work."""

RANKS = 2  # Unless the caller says otherwise.
