"""Compose files: what people write into them for a share of a GPU, and what does that."""
