"""tools/demo: a training job that is killed, and what is left of it."""
