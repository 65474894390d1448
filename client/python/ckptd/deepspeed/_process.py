"""The state of this process between two calls of this adapter."""

from ckptd._adapters.node_process import Place, Process, await_sealed

__all__ = ["Place", "Process", "await_sealed", "process"]

process = Process("deepspeed")
