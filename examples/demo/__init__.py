"""tools/demo: kills a training job and its daemon, and checks what ckptd promises."""
