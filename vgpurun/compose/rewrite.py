"""Puts a CDI device in the place of what was found: by changes to lines, so that everything else stays as it was."""

from collections.abc import Sequence

from yaml import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from vgpurun.cdi.specification import KIND
from vgpurun.compose.findings import Service
from vgpurun.compose.nodes import Entry, entries, entry
from vgpurun.errors import ComposeError

_REPLACED = ("driver", "count", "device_ids", "options")  # of a device


class Rewriter:
    """Collects changes to the lines of a text. Lines count from 0."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._gone: set[int] = set()
        self._after: dict[int, list[str]] = {}
        self._changed: set[int] = set()  # devices, by id(): services may share one

    def result(self) -> str:
        """Return the text with the changes."""
        lines = []
        for number, line in enumerate(self._lines):
            if number not in self._gone:
                lines.append(line)
            lines += self._after.get(number, [])
        return "".join(f"{line}\n" for line in lines)

    def convert(self, service: Service, slice_name: str) -> None:
        """Give a service the device of a slice. Raises ComposeError for what is not laid out in lines."""
        for finding in service.findings:
            self._remove(finding.node)
        if service.device is not None and id(service.device) not in self._changed:
            self._changed.add(id(service.device))
            self._change_device(service.device, slice_name)
        self._remove_what_is_empty(service.node)
        if service.device is None:
            self._add_device(service.node, slice_name)

    def _remove(self, node: Entry | Node) -> None:
        first, last = _lines_of(node)
        self._gone.update(range(first, last + 1))

    def _insert(self, after: int, lines: Sequence[str]) -> None:
        self._after.setdefault(after, []).extend(lines)

    def _change_device(self, device: MappingNode, slice_name: str) -> None:
        """The first key has the dash of the list before it, and takes it along where it goes."""
        own = [each for each in entries(device) if each.mapping is device]
        for each in own:
            if each.name in _REPLACED:
                self._remove(each)
        new = _device_lines(slice_name, has_capabilities=any(each.name == "capabilities" for each in own))
        first, column = own[0].line - 1, device.start_mark.column
        if first in self._gone:
            dash = self._lines[first][:column]
            self._insert(first - 1, [f"{dash}{new[0]}", *(f"{' ' * column}{line}" for line in new[1:])])
        else:
            self._insert(_lines_of(own[0])[1], [f"{' ' * column}{line}" for line in new])

    def _add_device(self, service: MappingNode, slice_name: str) -> None:
        """Add it as deep as the keys go that are there already, after what is in there."""
        missing = ["deploy", "resources", "reservations", "devices"]
        mapping = service
        while (inner := entry(mapping, missing[0])) and inner.line - 1 not in self._gone:
            if not isinstance(inner.value, MappingNode):
                raise ComposeError(f"line {inner.line}: '{inner.name}' has to be changed by hand")
            mapping = inner.value
            missing.pop(0)
        _refuse_flow(mapping)
        column = mapping.start_mark.column
        lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(missing)]
        first, *others = _device_lines(slice_name, has_capabilities=False)
        lines += ["  " * len(missing) + line for line in (f"- {first}", *(f"  {other}" for other in others))]
        self._insert(_last_line(mapping), [f"{' ' * column}{line}" for line in lines])

    def _remove_what_is_empty(self, node: Node) -> None:
        """Remove keys of whose values nothing is free."""
        for each in entries(node):
            if isinstance(each.value, ScalarNode) or _is_alias(each):
                continue
            self._remove_what_is_empty(each.value)
            first, last = _lines_of(each)
            inside = set(range(first + 1, last + 1))
            grows = any(self._after.get(number) for number in range(first, last + 1))
            if inside & self._gone and not grows and all(map(self._is_gone, inside)):
                self._gone.add(first)

    def _is_gone(self, number: int) -> bool:
        line = self._lines[number].strip()
        return number in self._gone or not line or line.startswith("#")


def _device_lines(slice_name: str, has_capabilities: bool) -> list[str]:
    lines = ["driver: cdi", f'device_ids: ["{KIND}={slice_name}"]']
    return lines if has_capabilities else [*lines, "capabilities: [gpu]"]


def _refuse_flow(node: Node) -> None:
    if isinstance(node, CollectionNode) and node.flow_style:
        raise ComposeError(f"line {node.start_mark.line + 1}: what is in {{}} or [] has to be changed by hand")


def _is_alias(each: Entry) -> bool:
    return bool(each.value.start_mark.index < each.key.start_mark.index)


def _lines_of(node: Entry | Node) -> tuple[int, int]:
    """Return the first and last line of an entry or an item, which has them for itself. Raises ComposeError."""
    if not isinstance(node, Entry):
        return node.start_mark.line, _last_line(node)
    _refuse_flow(node.mapping)
    first = node.line - 1
    return first, first if _is_alias(node) else max(first, _last_line(node.value))


def _last_line(node: Node) -> int:
    """Blocks have no end of their own in YAML: the end of one is that of what is in it."""
    if isinstance(node, MappingNode) and not node.flow_style:
        return max(
            key.start_mark.line if value.start_mark.index < key.start_mark.index else _last_line(value)
            for key, value in node.value
        )
    if isinstance(node, SequenceNode) and not node.flow_style:
        return max(_last_line(item) for item in node.value)
    end = node.end_mark
    return int(end.line) - 1 if end.column == 0 and end.line > node.start_mark.line else int(end.line)
