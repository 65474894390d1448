"""Runs cases: in rounds, each in a process of its own, within a time, and leaves nothing behind."""
