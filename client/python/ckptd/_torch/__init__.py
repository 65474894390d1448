"""Everything that needs torch: writing archives as torch.save does, and loading them without extra copies."""
