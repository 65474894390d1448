"""tools/bench: figures of this machine, each beside the limit that the same run measured."""
