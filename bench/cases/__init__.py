"""The cases of tools/bench. Each module has a `run`, and perhaps the program of a process that it starts."""
