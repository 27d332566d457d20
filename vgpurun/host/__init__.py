"""What this host has: GPUs, their driver, the library, and what is in the way."""
