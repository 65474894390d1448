"""Where the checkpoints of a root lie that is read without a daemon: in a directory, or in a bucket."""
