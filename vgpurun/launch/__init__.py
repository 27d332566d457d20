"""A launch: planned as plain data, then carried out, as a container or as a process of this host."""
