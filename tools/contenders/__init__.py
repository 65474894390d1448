"""What saves a training state: ckptd and what is used today, each behind the same calls, for tools/demo and tools/bench."""
