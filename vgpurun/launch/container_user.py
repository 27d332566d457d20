"""The user and the groups, by their numbers, that the program of a container will have."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from vgpurun.options import ContainerOptions

_PASSWD, _GROUP = "/etc/passwd", "/etc/group"
_FIELDS = 4  # the fields of either file's lines that count here
Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class ContainerUser:
    """A user of a container; `name` is as it was said."""

    name: str
    uid: int
    gids: frozenset[int]


def container_user(options: ContainerOptions, of_image: str, read: Read) -> ContainerUser | None:
    """Return who it will be, or None where the image does not tell. `read` returns a file of it.

    Raises what `read` raises.
    """
    said = str(options.fields.get("User") or of_image or "0")
    name, _, group = said.partition(":")
    if name in ("0", "root"):
        return ContainerUser(said, 0, frozenset())
    entry = next((each for each in _rows(read, _PASSWD) if name in (each[0], each[2])), None)
    if entry is None and not name.isdecimal():
        return None
    uid = int(name) if name.isdecimal() else _number(entry[2] if entry else "")
    wanted: list[Any] = [group or (entry[3] if entry else "0"), *(options.fields.get("HostConfig.GroupAdd") or ())]
    named = [each for each in wanted if not str(each).isdecimal()]
    groups = list(_rows(read, _GROUP)) if named or entry else []
    gids = [int(each) for each in wanted if str(each).isdecimal()]
    gids += [_number(each[2]) for each in groups if each[0] in named]
    if entry and not group:
        gids += [_number(each[2]) for each in groups if entry[0] in each[3].split(",")]
    return None if uid < 0 else ContainerUser(said, uid, frozenset(gids))


def _rows(read: Read, path: str) -> Iterator[list[str]]:
    for line in (read(path) or b"").decode(errors="replace").splitlines():
        if len(fields := line.split(":")) >= _FIELDS:
            yield fields


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else -1
