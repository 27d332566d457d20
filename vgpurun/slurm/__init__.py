"""Slurm: a job's share of the GPUs of a node is a slice, and every process of the job is held to it."""
