"""Copies between tensors on devices and the memory of files."""
