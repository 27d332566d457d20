"""Compose files: what people write in them for a share of a GPU, and what really gives them one."""
