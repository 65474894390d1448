"""The state of this process between two calls of this adapter."""

from ckptd._adapters.node_process import Place, Process, await_sealed, place_of

__all__ = ["Place", "Process", "await_sealed", "place_of", "process"]

process = Process("dcp")
