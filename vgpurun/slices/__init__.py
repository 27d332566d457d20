"""Slices: named shares of GPUs, which any number of containers and processes join and use together."""
