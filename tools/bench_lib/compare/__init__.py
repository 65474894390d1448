"""tools/bench compare: the same work for ckptd and for what is used today, in turns."""
