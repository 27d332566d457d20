"""A YAML file as the tree of nodes that ruamel.yaml reads, with everything in it that it needs to write it again."""

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.anchor import Anchor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from vgpurun.errors import ComposeError

NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"
_NO_LIMIT = 1 << 20  # columns of a line: none is broken
_MOST_VALUES = 100_000  # counted with aliases carried out; the largest real files have some thousands


@dataclass(frozen=True)
class Entry:
    """A key, its value, and the mapping in which they stand, which may be one that is merged into others."""

    key: ScalarNode
    value: Node
    parent: MappingNode

    @property
    def name(self) -> str:
        """The key's text."""
        return str(self.key.value)

    @property
    def line(self) -> int:
        """Its line, from 1."""
        return int(self.key.start_mark.line) + 1


@dataclass(frozen=True)
class Item:
    """A value, and the list in which it stands."""

    value: Node
    parent: SequenceNode

    @property
    def line(self) -> int:
        """Its line, from 1."""
        return int(self.value.start_mark.line) + 1


Place: TypeAlias = Entry | Item


def read(path: Path) -> tuple[str, MappingNode, Sequence[str]]:
    """Return a file's text, its tree, and what its lines end with. Raises ComposeError."""
    try:
        with path.open(encoding="utf-8") as file:
            text, ends = file.read(), file.newlines or "\n"
    except (OSError, UnicodeDecodeError) as error:
        raise ComposeError(f"{path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None
    return text, parse(text, path), (ends,) if isinstance(ends, str) else ends


def parse(text: str, path: Path) -> MappingNode:
    """Return the tree of a Compose file's text; errors name the path. Raises ComposeError."""
    try:
        root = _composed(text)
    except YAMLError as error:
        raise ComposeError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if root and _count(root, {}, path) > _MOST_VALUES:
        raise ComposeError(f"{path}: more than {_MOST_VALUES} values, with those of each alias; split it")
    if not isinstance(root, MappingNode) or not isinstance(child(root, "services"), MappingNode):
        raise ComposeError(f"{path} is not a Compose file: it has no services")
    return root


def written(root: MappingNode, before: str) -> str:
    """Return the text of a tree, laid out like the one that it was read from. Raises ComposeError."""
    yaml = YAML()
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.width = _NO_LIMIT
    yaml.explicit_start = bool(re.match(r"(\s*(#.*)?\n)*---\s", before))
    yaml.indent(**_indents(_composed(before) or root))
    _keep_anchors(root)
    stream = StringIO()
    try:
        yaml.serialize(root, stream)
    except YAMLError as error:
        raise ComposeError(f"it cannot be written: {' '.join(str(error).split())}") from None
    return stream.getvalue()


def entries(node: Node | None) -> Iterator[Entry]:
    """Yield the entries of a mapping, its own and then those that are merged into it."""
    if not isinstance(node, MappingNode):
        return
    merged: list[Node] = []
    for key, value in node.value:
        if key.tag == _MERGE:
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


def items(node: Node | None) -> list[Item]:
    """Return the items of a sequence; of anything else none."""
    return [Item(each, node) for each in node.value] if isinstance(node, SequenceNode) else []


def text_of(node: Node | None) -> str | None:
    """Return the text of a scalar, or None."""
    return str(node.value) if isinstance(node, ScalarNode) else None


def plain(node: Node | None) -> object:
    """Return what a tree says, with anchors and merges carried out: two that say the same are equal."""
    if isinstance(node, MappingNode):
        return {each.name: plain(each.value) for each in reversed(list(entries(node)))}
    if isinstance(node, SequenceNode):
        return [plain(each) for each in node.value]
    return (node.tag, node.value) if node and node.tag != NULL else None


def column_of(collection: CollectionNode) -> int:
    """Return the column in which a block's keys or dashes stand. Its own mark is that of an anchor where it has one."""
    first = next((each for each in _children(collection) if each.start_mark), None)
    if first and isinstance(collection, MappingNode):
        return int(first.start_mark.column)
    if first and collection.anchor:
        return int(first.start_mark.column) - len("- ")
    return int(collection.start_mark.column)


def is_alias(value: Node, parent: Node) -> bool:
    """Return whether a value that stands in a collection was written before it."""
    return bool(value.start_mark and parent.start_mark and value.start_mark.index < parent.start_mark.index)


def _composed(text: str) -> Node | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an anchor that is given twice: the later counts, as for Compose
        return YAML().compose(text)  # type: ignore[no-any-return]


def _children(node: Node) -> Iterator[Node]:
    if isinstance(node, CollectionNode):
        for each in node.value:
            yield from each if isinstance(each, tuple) else (each,)


def _count(node: Node, counted: dict[int, int], path: Path) -> int:
    """Return how many values a tree has with aliases carried out. Raises ComposeError where they never end."""
    if id(node) not in counted:
        counted[id(node)] = 0
        counted[id(node)] = 1 + sum(_count(each, counted, path) for each in _children(node))
    elif not counted[id(node)]:
        raise ComposeError(f"{path}: an alias stands within its own anchor; remove it")
    return counted[id(node)]


def _all(root: Node) -> Iterator[Node]:
    """Yield every node once: an alias is the node that it stands for."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting += reversed(list(_children(node)))


def _keep_anchors(root: MappingNode) -> None:
    """The serializer makes names up for anchors unless they are objects, as a constructor makes them."""
    for node in _all(root):
        if isinstance(node.anchor, str):
            name, node.anchor = node.anchor, Anchor()
            node.anchor.value, node.anchor.always_dump = name, True


def _indents(root: Node) -> dict[str, int]:
    """Return how far mappings and lists are set in, by the first of each."""
    found: dict[str, int] = {}
    blocks = (node for node in _all(root) if isinstance(node, MappingNode) and not node.flow_style)
    for node, (_, value) in ((each, pair) for each in blocks for pair in each.value):
        if isinstance(value, CollectionNode) and value.value and not value.flow_style and not is_alias(value, node):
            deeper = column_of(value) - column_of(node)
            if isinstance(value, MappingNode):
                found.setdefault("mapping", deeper)
            else:
                found.setdefault("offset", deeper)
                found.setdefault("sequence", value.value[0].start_mark.column - column_of(node))
    return {"mapping": 2, "sequence": 4, "offset": 2} | found
