"""The status page of a daemon: python -m ckptd.web."""
