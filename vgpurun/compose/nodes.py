"""A YAML file as a tree that knows where everything stands, so that a change touches nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from vgpurun.errors import ComposeError


@dataclass(frozen=True)
class Entry:
    """A key, its value, and the mapping in which they stand, which may be one that is merged into others."""

    key: ScalarNode
    value: Node
    mapping: MappingNode

    @property
    def name(self) -> str:
        """The key's text."""
        return str(self.key.value)

    @property
    def line(self) -> int:
        """Its line, from 1."""
        return int(self.key.start_mark.line) + 1


def read(path: Path) -> tuple[str, MappingNode]:
    """Return a file's text and its tree. Raises ComposeError."""
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ComposeError(f"{path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None
    except yaml.YAMLError as error:
        raise ComposeError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(root, MappingNode) or not isinstance(child(root, "services"), MappingNode):
        raise ComposeError(f"{path} is not a Compose file: it has no services")
    return text, root


def entries(node: Node | None) -> Iterator[Entry]:
    """Yield the entries of a mapping, its own and then those that are merged into it."""
    if not isinstance(node, MappingNode):
        return
    merged: list[Node] = []
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            merged += value.value if isinstance(value, SequenceNode) else [value]
        elif isinstance(key, ScalarNode):
            yield Entry(key, value, node)
    for each in merged:
        yield from entries(each)


def entry(node: Node | None, *names: str) -> Entry | None:
    """Return the entry that keys lead to, or None."""
    found = None
    for name in names:
        found = next((each for each in entries(node) if each.name == name), None)
        node = found.value if found else None
    return found


def child(node: Node | None, *names: str) -> Node | None:
    """Return the value that keys lead to, or None."""
    found = entry(node, *names)
    return found.value if found else None


def items(node: Node | None) -> list[Node]:
    """Return the items of a sequence; of anything else none."""
    return list(node.value) if isinstance(node, SequenceNode) else []


def text_of(node: Node | None) -> str | None:
    """Return the text of a scalar, or None."""
    return str(node.value) if isinstance(node, ScalarNode) else None
