"""Small helpers that know nothing of GPUs, containers or limits."""
