"""tools/mutate: plants bugs and shows that a test fails for each."""
