"""What there is on this host now: who holds which part of a GPU, and what is used of it."""
