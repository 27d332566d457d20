"""The image of a launch: found on this host, or pulled."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vgpurun.engine import progress
from vgpurun.errors import ImageError, OptionError
from vgpurun.util.choices import PULL_POLICIES

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine, Image


@dataclass(frozen=True)
class PullOptions:
    """When an image is pulled, for which platform, and whether that is shown."""

    policy: str = "missing"
    quiet: bool = False
    platform: str | None = None

    @classmethod
    def read(cls, policy: str | None, quiet: bool, platform: str | None) -> "PullOptions":
        """Check what --pull says. Raises OptionError."""
        policy = policy or "missing"
        if policy not in PULL_POLICIES:
            raise OptionError(f"""invalid pull option: '{policy}': must be one of "always", "missing" or "never\"""")
        return cls(policy, quiet, platform)


def _tagged(name: str) -> str:
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


def find_image(engine: "Engine", name: str, found: "Image | None", pull: PullOptions) -> "Image":
    """Return the image that was found, or pull it where that is asked for or needed.

    Raises ImageError and EngineError.
    """
    if pull.policy != "always":
        if found is not None and found.is_for(pull.platform):
            return found
        wanted = f" for {pull.platform}" if pull.platform else ""
        if pull.policy == "never":
            raise ImageError(f"No such image: {name}{wanted}; --pull never forbids to pull it")
        if not pull.quiet:
            print(f"Unable to find image '{_tagged(name)}'{wanted} locally", file=sys.stderr)
    events = engine.pull(name, pull.platform)
    if pull.quiet:
        for _ in events:
            pass
    else:
        progress.show(f"Pulling {name}", events)
    image = engine.image(name)
    if image is None:
        raise ImageError(f"image {name} was pulled but is not there; is its name right?")
    return image
