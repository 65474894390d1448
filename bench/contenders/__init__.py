"""Ways to save a training state, ckptd among them, behind one interface (contender.py)."""
