"""Workers in containers (`image_uri`): adds what limits need to the podman command by which Ray starts them."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from vgpurun.errors import LimitError
from vgpurun.ray.shares import FIELD, HOOK_FIELD

_BEFORE = " --entrypoint "
_OF_HOST = ("PATH", "LD_LIBRARY_PATH")  # the image has its own


def allow_fields() -> None:
    """Let a runtime_env have what jobs have by our hook beside `image_uri`, which Ray allows few others."""
    from ray._private.runtime_env.image_uri import ImageURIPlugin

    keys = ImageURIPlugin.get_compatible_keys()
    ImageURIPlugin.get_compatible_keys = staticmethod(lambda: {*keys, FIELD, HOOK_FIELD})


def with_limits(command: str, variables: Mapping[str, str], places: Iterable[Path]) -> str:
    """Return Ray's command for a worker's container with these variables, and these places of the host in theirs.

    Raises LimitError for a command that is not as it is known here.
    """
    start, found, image = command.rpartition(_BEFORE)
    if not found or " run " not in start:
        raise LimitError(f"the command by which this Ray starts containers is not known here: {command}")
    options = [f"--volume={shlex.quote(f'{place}:{place}')}" for place in places]
    options += [f"--env={shlex.quote(f'{name}={value}')}" for name, value in variables.items() if name not in _OF_HOST]
    return f"{start} {' '.join(options)}{found}{image}"
