"""Limits: how people write them, where they are kept for a container, and what it uses of them."""
