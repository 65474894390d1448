"""The session with one daemon, its shared memory, and the connection that opens the next session."""
