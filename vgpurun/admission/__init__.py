"""Decides which launch gets which GPU, and which has to wait: nothing is reserved twice."""
