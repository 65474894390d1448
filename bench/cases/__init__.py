"""The cases of tools/bench. Each module has a `run`; `programs` has what the processes run that it starts."""
