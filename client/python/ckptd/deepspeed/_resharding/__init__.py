"""ZeRO's state for another number of ranks than saved it."""
