"""Lays out the files that torch.save and others would write, without a second copy of the tensors."""
