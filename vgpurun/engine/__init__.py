"""The Docker Engine: where it is, what it has, and what is asked of it."""
