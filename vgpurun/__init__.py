"""vgpurun: `docker run` with a GPU memory cap and a compute cap."""

__version__ = "0.2.0"
