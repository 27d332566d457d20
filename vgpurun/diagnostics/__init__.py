"""Whether this host can limit programs, and whether the limits hold."""
