"""The daemon that sees use of the GPUs that no library counts, and acts on programs over their limits."""
