"""A training job that saves and resumes with ckptd. train.py is the part to copy."""
