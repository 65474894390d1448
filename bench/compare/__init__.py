"""tools/bench compare: ckptd and other ways to save take turns at the same work."""
