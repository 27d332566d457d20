"""`docker vgpurun ...`: docker's command line calls the program docker-vgpurun, and finds it among its plugins.

    docker-vgpurun docker-cli-plugin-metadata
    docker-vgpurun [docker's own options] vgpurun [vgpurun's command line]

The options that say which engine it is become the variables by which vgpurun finds it. The protocol is docker's:
https://github.com/docker/cli/blob/master/docs/extend/cli_plugins.md
"""

import json
import os
from collections.abc import Iterator, Sequence

from vgpurun import __version__
from vgpurun.errors import CommandLineError

METADATA = "docker-cli-plugin-metadata"
_NAME = "vgpurun"
_VARIABLES = {
    **dict.fromkeys(("-H", "--host"), "DOCKER_HOST"),
    **dict.fromkeys(("-c", "--context"), "DOCKER_CONTEXT"),
    "--config": "DOCKER_CONFIG",
}
_IGNORED = {"-D": 0, "--debug": 0, "-l": 1, "--log-level": 1}  # about docker's own messages, with their values


def metadata() -> str:
    """Return what docker shows of its plugins."""
    about = {
        "SchemaVersion": "0.1.0",
        "Vendor": "vgpurun",
        "Version": __version__,
        "ShortDescription": "Run containers with a GPU memory cap and a compute cap",
    }
    return json.dumps(about)


def own_arguments(arguments: Sequence[str]) -> list[str]:
    """Return vgpurun's command line, and put docker's options into the environment. Raises CommandLineError."""
    left = iter(arguments)
    for word in left:
        if word == _NAME:
            return list(left)
        _obey(word, left)
    return []


def _obey(word: str, left: Iterator[str]) -> None:
    option, equals, value = word.partition("=")
    if option in _IGNORED:
        if _IGNORED[option] and not equals:
            next(left, None)
        return
    if option not in _VARIABLES:
        raise CommandLineError(f"docker's option {option} is not for vgpurun; use its variables, such as DOCKER_HOST")
    choose(_VARIABLES[option], value if equals else next(left, ""))


def choose(variable: str, value: str) -> None:
    """Set one of docker's variables by which the engine is found."""
    if variable == "DOCKER_CONTEXT":
        os.environ.pop("DOCKER_HOST", None)  # which would go before it
    os.environ[variable] = value
