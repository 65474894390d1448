"""The state of this process between two calls of this adapter."""

from ckptd._adapters.node_process import MEET_SECONDS, Place, Process, await_sealed

__all__ = ["MEET_SECONDS", "Place", "Process", "await_sealed", "process"]

process = Process("deepspeed")
