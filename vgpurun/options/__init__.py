"""The options of `docker run`, in Docker's value syntax: parsed and checked before anything starts."""

from vgpurun.options.model import ContainerOptions, Mount, MountType, Volume

__all__ = ["ContainerOptions", "Mount", "MountType", "Volume"]
