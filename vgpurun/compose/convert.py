"""Converts a Compose file into the slices that it needs, and a file that uses them."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from yaml import MappingNode

from vgpurun.compose import nodes
from vgpurun.compose.findings import Service, services
from vgpurun.compose.nodes import child, text_of
from vgpurun.compose.rewrite import Rewriter
from vgpurun.errors import ComposeError


@dataclass(frozen=True)
class Conversion:
    """`found` are services with something that does not do what it says, and `text` is the file without that.

    `commands` make the slices. `by_hand` is what has to be changed by hand; then `text` is as it was there.
    """

    found: Sequence[Service]
    commands: Sequence[str]
    before: str
    text: str
    by_hand: Sequence[str]


def convert(path: Path) -> Conversion:
    """Read a Compose file and convert it; nothing is written. Raises ComposeError."""
    before, root = nodes.read(path)
    found = services(root)
    rewriter = Rewriter(before)
    commands: dict[str, str] = {}
    names: dict[int, str] = {}  # of slices, by the device that services share
    by_hand = []
    for service in found:
        if service.unreadable or (service.memory is None and service.sm is None):
            by_hand += [f"{path}:{each}" for each in service.unreadable]
            continue
        name = names.setdefault(id(service.device or service.node), f"{_project(path, root)}-{_word(service.name)}")
        try:
            rewriter.convert(service, name)
        except ComposeError as error:
            by_hand.append(f"{path}, service {service.name}, {error}")
        commands.setdefault(name, _command(name, service))
    text = rewriter.result() if commands and not by_hand else before
    if text != before:
        _check(path, text, found)
    return Conversion(found, list(commands.values()), before, text, by_hand)


def _command(name: str, service: Service) -> str:
    words = ["vgpurun", "slice", "create", name]
    for option, value in (("--mem", service.memory), ("--sm", service.sm), ("--gpus", service.gpus)):
        words += [option, value.replace(" ", "")] if value else []
    return shlex.join(words)


def _project(path: Path, root: MappingNode) -> str:
    """The project's name, as docker compose has it."""
    return _word(text_of(child(root, "name")) or path.absolute().parent.name)


def _word(text: str) -> str:
    """A part of a name that a device may have."""
    return re.sub(r"[^a-z0-9_.-]+", "-", text.lower()).strip("-_.") or "slice"


def _check(path: Path, text: str, found: Sequence[Service]) -> None:
    """Check that the result is a Compose file in which each of these services has its device."""
    import yaml

    try:
        read = yaml.safe_load(text)["services"]
        for service in found:
            devices = read[service.name]["deploy"]["resources"]["reservations"]["devices"]
            if not any(each.get("driver") == "cdi" for each in devices):
                raise KeyError(service.name)
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ComposeError(f"{path} cannot be rewritten ({reason}); change it by hand as shown above") from None
