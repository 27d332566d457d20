"""Comments, which ruamel.yaml keeps at the node before them, or at the collection that begins below them."""

from collections.abc import Sequence

from ruamel.yaml.error import CommentMark
from ruamel.yaml.nodes import CollectionNode, Node
from ruamel.yaml.tokens import CommentToken


def own_lines(node: Node) -> list[str]:
    """Return the lines in and after a node that are nothing but comments, or empty; one behind a value is not."""
    lines = _after(node)
    if isinstance(node, CollectionNode) and not node.flow_style:
        lines += _before(node)
        for each in node.value:
            for part in each if isinstance(each, tuple) else [each]:
                lines += own_lines(part)
    return lines


def add_before(collection: CollectionNode, lines: Sequence[str]) -> None:
    """Put lines between those that a block's first entry or item has before it, and that one."""
    if lines:
        tokens = [_token(line.lstrip(" "), _depth(line)) for line in lines]
        collection.comment = [_tail(collection), [*_heads(collection), *tokens]]


def add_after(node: Node, lines: Sequence[str]) -> None:
    """Put lines after those that a node has after it."""
    if lines:
        leaf = last_leaf(node)
        token = _tail(leaf)
        text = (token.value if token else "\n") + "".join(lines)
        _set_tail(leaf, _token(text, token.start_mark.column if token else 0))


def take_after(node: Node, column: int) -> list[str]:
    """Take the lines from a node's end that belong to what comes after it: from one less deep than a column on."""
    leaf = last_leaf(node)
    kept, taken = _split(_after(leaf), column)
    token = _tail(leaf)
    if taken and token:
        text = token.value.split("\n", 1)[0] + "\n" + "".join(kept)
        _set_tail(leaf, _token(text, token.start_mark.column) if text.strip() else None)
    return taken


def take_before(collection: CollectionNode, column: int) -> list[str]:
    """Take such lines of a collection in which nothing is left."""
    kept, taken = _split(_before(collection), column)
    if taken:
        collection.comment = [_tail(collection), None]
        add_before(collection, kept)
    return taken


def last_leaf(node: Node) -> Node:
    """Return the node at which the comments after a node are kept."""
    while isinstance(node, CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return node


def _after(node: Node) -> list[str]:
    token = _tail(node)
    return token.value.split("\n", 1)[1].splitlines(keepends=True) if token and "\n" in token.value else []


def _before(collection: CollectionNode) -> list[str]:
    return [" " * token.start_mark.column + token.value for token in _heads(collection)]


def _tail(node: Node) -> CommentToken | None:
    return node.comment[0] if node.comment else None


def _heads(collection: CollectionNode) -> list[CommentToken]:
    return (collection.comment[1] if collection.comment else None) or []


def _set_tail(node: Node, token: CommentToken | None) -> None:
    node.comment = [token, *(node.comment[1:] if node.comment else [None])]


def _split(lines: list[str], column: int) -> tuple[list[str], list[str]]:
    first = next((number for number, line in enumerate(lines) if _depth(line) < column), len(lines))
    return lines[:first], lines[first:]


def _token(text: str, column: int) -> CommentToken:
    return CommentToken(text, CommentMark(column))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
