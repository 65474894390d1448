"""What cases and comparison share: limits of the machine, daemons, jobs, states to save, and results."""
