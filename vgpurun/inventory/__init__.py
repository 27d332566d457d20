"""The state of this host now: which container holds which part of a GPU, and what it uses."""
