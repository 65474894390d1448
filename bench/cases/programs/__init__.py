"""The programs of processes that the cases start."""
