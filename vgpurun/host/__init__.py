"""This host: its GPUs, their driver, the library, and what is in the way."""
