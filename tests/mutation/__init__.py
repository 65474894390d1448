"""tools/mutate: removes guards from the source, one at a time, and checks that a test fails for each."""
