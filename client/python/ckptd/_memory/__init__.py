"""Memory that both sides share: the native library's calls, and the file images that are copied into it."""
