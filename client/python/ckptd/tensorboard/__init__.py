"""The history of a run as scalars for TensorBoard: python -m ckptd.tensorboard."""
