"""Loads files without extra copies, and refuses those that would run code."""
