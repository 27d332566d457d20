"""Converts a Compose file into the slices that it needs, and a file that uses them."""

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ruamel.yaml.nodes import MappingNode

from vgpurun.cdi.specification import KIND
from vgpurun.compose import nodes
from vgpurun.compose.findings import Service, base_of, services
from vgpurun.compose.nodes import child, plain, text_of
from vgpurun.compose.rewrite import Rewriter
from vgpurun.errors import ComposeError


@dataclass(frozen=True)
class Conversion:
    """`found` are services with something that does not do what it says, and `text` is the file without that.

    `commands` make the slices, and `shared` says which services have one together. `by_hand` is what has to be changed
    by hand; then `text` is as it was there. In the file, each line has `line_end` for "\\n".
    """

    found: Sequence[Service]
    commands: Sequence[str]
    shared: Sequence[str]
    before: str
    text: str
    line_end: str
    by_hand: Sequence[str]


def convert(path: Path) -> Conversion:
    """Read a Compose file and convert it; nothing is written. Raises ComposeError."""
    try:
        return _convert(path)
    except RecursionError:
        raise ComposeError(f"{path}: values are nested too deep; make them flatter") from None


def _convert(path: Path) -> Conversion:
    before, root, line_ends = nodes.read(path)
    every = services(root)
    found = [each for each in every if each.findings]
    limited = [each for each in found if each.limits[:2] != (None, None)]
    by_hand = list(dict.fromkeys(f"{path}:{each}" for service in found for each in service.unreadable))
    slices = _slices(limited, _project(path, root))
    by_hand += [f"{path}: {each}" for each in _differing(limited)]
    if limited and len(line_ends) > 1:
        by_hand.append(f"{path}: its lines end in more than one way (LF, CRLF or CR); make them end alike")
    text = before
    if limited and not by_hand:
        text, by_hand = _rewritten(path, before, root, every, slices)
    commands = dict.fromkeys(_command(slices[each.name], each) for each in limited if not each.unreadable)
    shared = _shared(every, slices) if text != before else []
    return Conversion(found, list(commands), shared, before, text, line_ends[0], by_hand)


def _slices(limited: Sequence[Service], project: str) -> dict[str, str]:
    """Return the slice of each service: those whose device stands in the same place share one, and no others."""
    names: dict[int, str] = {}
    for each in limited:
        names.setdefault(id(each.target.node), _unused(f"{project}-{_word(each.name)}", names.values()))
    return {each.name: names[id(each.target.node)] for each in limited}


def _unused(name: str, used: Collection[str]) -> str:
    return name if name not in used else next(each for n in count(2) if (each := f"{name}-{n}") not in used)


def _differing(limited: Sequence[Service]) -> Iterator[str]:
    """Say which services share a place for the device, but do not have the same limits."""
    firsts: dict[int, Service] = {}
    for each in limited:
        first = firsts.setdefault(id(each.target.node), each)
        if first.limits != each.limits:
            yield f"services {first.name} and {each.name} share lines with a GPU, but not its limits; give each its own"


def _rewritten(
    path: Path, before: str, root: MappingNode, every: Sequence[Service], slices: dict[str, str]
) -> tuple[str, list[str]]:
    """Return the new text, and what has to be changed by hand instead."""
    unchanged = {each.name: plain(each.node) for each in every}
    rewriter = Rewriter()
    try:
        _check_writing(path, before)
        for service in every:
            if service.name in slices:
                rewriter.convert(service, slices[service.name])
        text = nodes.written(root, before)
    except ComposeError as error:
        return before, [f"{path}: {error}"]
    wrong = [
        f"{path}: service {each.name} would change with another whose lines it shares; give it lines of its own"
        for each in services(nodes.parse(text, path))
        if not _is_right(each, slices.get(each.name), unchanged[each.name])
    ]
    return (before, wrong) if wrong else (text, [])


def _check_writing(path: Path, before: str) -> None:
    """Raise ComposeError if something is lost by reading and writing alone."""
    root = nodes.parse(before, path)
    again = nodes.written(root, before)
    if again.count("#") != before.count("#"):
        raise ComposeError("comments within [] or {} would be lost; move them out")
    if plain(nodes.parse(again, path)) != plain(root):
        raise ComposeError("the file would not mean the same when written again")


def _is_right(service: Service, slice_name: str | None, unchanged: object) -> bool:
    if slice_name is None:
        return plain(service.node) == unchanged
    return [list(each.names) for each in service.requests] == [[f"{KIND}={slice_name}"]]


def _shared(every: Sequence[Service], slices: dict[str, str]) -> list[str]:
    """Say which services have a slice together, by an anchor or by `extends`."""
    members: dict[str, list[str]] = {}
    bases = {each.name: base_of(each) for each in every}
    for service in every:
        name: str | None = service.name
        for _ in every:  # a circle ends, too
            name = name if name in slices else bases.get(name or "")
        if name in slices:
            members.setdefault(slices[name], []).append(service.name)
    return [
        f"Services {', '.join(names[:-1])} and {names[-1]} share lines (an anchor or extends), and so slice "
        f"{slice_name}: together they have its limits once. For a slice each, write a device in each."
        for slice_name, names in members.items()
        if len(names) > 1
    ]


def _command(name: str, service: Service) -> str:
    words = ["vgpurun", "slice", "create", name]
    for option, value in (("--mem", service.memory), ("--sm", service.sm), ("--gpus", service.gpus)):
        words += [option, value.replace(" ", "")] if value else []
    return shlex.join(words)


def _project(path: Path, root: MappingNode) -> str:
    """The project's name, as docker compose has it; one that Compose inserts is that of the folder here."""
    name = text_of(child(root, "name")) or "$"
    return _word(path.absolute().parent.name if "$" in name else name)


def _word(text: str) -> str:
    """A part of a name that a device may have."""
    return re.sub(r"[^a-z0-9_.-]+", "-", text.lower()).strip("-_.") or "slice"
