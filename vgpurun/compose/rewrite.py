"""Puts the CDI device of a slice in the place of what was found, in the tree of a Compose file."""

from collections.abc import Sequence

from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from vgpurun.cdi.specification import KIND
from vgpurun.compose import comments
from vgpurun.compose.findings import Service
from vgpurun.compose.nodes import NULL, Entry, Place, column_of, entries, is_alias
from vgpurun.errors import ComposeError

_KEPT = ("capabilities",)  # keys of a request, beside extensions


class Rewriter:
    """Changes a tree, one service after the other."""

    def __init__(self) -> None:
        self._changed: set[int] = set()  # targets, by id(): services may share one
        self._emptied: set[int] = set()  # collections, by id()

    def convert(self, service: Service, slice_name: str) -> None:
        """Give a service the device of a slice, in the place of what was found in it. Raises ComposeError."""
        for finding in service.findings:
            self._remove(finding.place)
        node, missing = service.target.node, service.target.missing
        self._prune(service.node, node)
        if id(node) in self._changed:
            return
        self._changed.add(id(node))
        if missing is None and isinstance(node, MappingNode):
            self._replace(node, slice_name)
        else:
            _add(node, missing or (), slice_name)

    def _remove(self, place: Place) -> None:
        """Comments on lines of their own stay."""
        values = place.parent.value
        number = next((number for number, each in enumerate(values) if _value(each) is place.value), None)
        if number is None:
            return  # another service that shares it has changed it
        lines = [] if is_alias(place.value, place.parent) else comments.own_lines(place.value)
        del values[number]
        before = [each for each in map(_value, values[:number]) if not is_alias(each, place.parent)]
        if before:
            comments.add_after(before[-1], lines)
        else:
            comments.add_before(place.parent, lines)
        if not values:
            self._emptied.add(id(place.parent))

    def _prune(self, node: MappingNode, target: Node) -> None:
        """Remove keys of whose values nothing is left, but for the one that the device is put into."""
        for each in list(entries(node)):
            if isinstance(each.value, MappingNode):
                self._prune(each.value, target)
            if id(each.value) in self._emptied and each.value is not target:
                self._remove(each)

    def _replace(self, device: MappingNode, slice_name: str) -> None:
        """Make a request for GPUs one for the slice; what is merged into it goes."""
        own = [Entry(key, value, device) for key, value in device.value]
        gone = [each for each in own if each.name not in _KEPT and not each.name.startswith("x-")]
        new = _device(slice_name).value
        device.value[:0] = new[:2]
        for each in gone:
            self._remove(each)
        if not any(key.value in _KEPT for key, _ in device.value):
            _append(device, new[2:])


def _add(node: CollectionNode, missing: Sequence[str], slice_name: str) -> None:
    """Put a device into a list, or below missing keys into a mapping. A key with nothing below it is a missing one."""
    new: Node = _device(slice_name)
    if not missing:
        _append(node, [new])
        return
    empty = next((each for each in entries(node) if each.name == missing[0] and each.parent is node), None)
    if empty and empty.value.tag != NULL:
        raise ComposeError(f"line {empty.line}: '{empty.name}' is not a mapping")
    node.value = [(key, value) for key, value in node.value if not empty or key is not empty.key]
    new = SequenceNode(_tag("seq"), [new], flow_style=False)
    for name in missing[:0:-1]:
        new = _mapping({name: new})
    _append(node, _mapping({missing[0]: new}).value)


def _append(collection: CollectionNode, new: Sequence[object]) -> None:
    """Put entries or items behind the last one, and before the comments on what comes next."""
    values = collection.value
    following = []
    if not values:
        following = comments.take_before(collection, column_of(collection))
    elif not collection.flow_style and not is_alias(_value(values[-1]), collection):
        following = comments.take_after(_value(values[-1]), column_of(collection))
    values += new
    comments.add_after(collection, following)


def _value(each: Node | tuple[Node, Node]) -> Node:
    """Return an item, or the value of an entry."""
    return each[1] if isinstance(each, tuple) else each


def _device(slice_name: str) -> MappingNode:
    ids = SequenceNode(_tag("seq"), [_text(f"{KIND}={slice_name}", '"')], flow_style=True)
    capabilities = SequenceNode(_tag("seq"), [_text("gpu")], flow_style=True)
    return _mapping({"driver": _text("cdi"), "device_ids": ids, "capabilities": capabilities})


def _mapping(content: dict[str, Node]) -> MappingNode:
    return MappingNode(_tag("map"), [(_text(name), value) for name, value in content.items()], flow_style=False)


def _text(text: str, quote: str | None = None) -> ScalarNode:
    return ScalarNode(_tag("str"), text, style=quote)


def _tag(kind: str) -> str:
    return f"tag:yaml.org,2002:{kind}"
