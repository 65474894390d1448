"""Examples of jobs that use ckptd."""
