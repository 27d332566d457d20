"""Reads Slurm's configuration files: slurm.conf, gres.conf and plugstack.conf."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from vgpurun.errors import SlurmError

DEFAULT = Path("/etc/slurm/slurm.conf")
_MOST_INCLUDED = 8  # files within files
_RANGE = re.compile(r"\[([^\]]*)\]")
_NUMBER_AT_END = re.compile(r"(\d+)$")


class GresLine(NamedTuple):
    """A line of gres.conf about GPUs (`gpu`) or shards (`shard`) of a node, and the numbers at the ends of its files.

    A line with MultipleFiles is of one MIG instance: the number is its card's.
    """

    name: str
    total: int | None
    numbers: tuple[int, ...]


def slurm_conf() -> Path:
    """Return the path of slurm.conf: the one that SLURM_CONF names, as in every prolog, or the usual one."""
    return Path(os.environ.get("SLURM_CONF") or DEFAULT)


def lines(path: Path, depth: int = 0) -> Iterator[str]:
    """Yield the lines of a file and of those that it includes, joined where they are continued, without comments.

    Raises SlurmError for a file that cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SlurmError(f"{path} cannot be read: {error.strerror}; name another slurm.conf with SLURM_CONF") from None
    for line in text.replace("\\\n", "").splitlines():
        line = re.sub(r"(?<!\\)#.*", "", line).strip()
        words = line.split(None, 1)
        if len(words) == 2 and words[0].lower() == "include":
            names = sorted(path.parent.glob(words[1])) if not words[1].startswith("/") else _absolute(words[1])
            for included in names if depth < _MOST_INCLUDED else ():
                yield from lines(included, depth + 1)
        elif line:
            yield line


def _absolute(pattern: str) -> list[Path]:
    return sorted(Path("/").glob(pattern.lstrip("/")))


def settings(line: str) -> dict[str, str]:
    """Return the `Key=value` pairs of a line; keys in lower case, for Slurm does not mind their case."""
    return {key.lower(): value.strip('"') for key, value in re.findall(r'(\w+)=("[^"]*"|\S+)', line)}


def values(path: Path) -> dict[str, str]:
    """Return what slurm.conf sets for the whole cluster. Raises SlurmError."""
    found: dict[str, str] = {}
    for line in lines(path):
        if not re.match(r"(NodeName|PartitionName|NodeSet|DownNodes|FrontendName)\b", line, re.IGNORECASE):
            found |= settings(line)
    return found


def scripts(path: Path, key: str) -> list[str]:
    """Return the scripts of a setting that slurm.conf may have several times, as Prolog. Raises SlurmError."""
    given = (settings(line).get(key.lower(), "") for line in lines(path))
    return [each for each in given if each]


def files(pattern: str) -> list[Path]:
    """Return the files that a script's setting stands for: it may be a pattern."""
    return _absolute(pattern) if "*" in pattern else [Path(pattern)]


def node_settings(path: Path, node: str) -> dict[str, str]:
    """Return what slurm.conf says of a node. Raises SlurmError."""
    found: dict[str, str] = {}
    for line in lines(path):
        given = settings(line)
        name = given.get("nodename", "")
        if name.upper() == "DEFAULT" or node in expand(name):
            found |= given
    return found


def gres_lines(path: Path, node: str) -> list[GresLine]:
    """Return the lines of gres.conf that are about GPUs and shards of a node. Raises SlurmError."""
    found = []
    for line in lines(path):
        given = settings(line)
        if given.get("name", "").lower() in ("gpu", "shard") and node in expand(given.get("nodename", node)):
            found.append(_gres_line(given))
    return found


def _gres_line(given: Mapping[str, str]) -> GresLine:
    several = given.get("multiplefiles", "")
    files = [expand(several)[0]] if several else expand(given.get("file", ""))
    numbers = [int(match.group(1)) for match in map(_NUMBER_AT_END.search, files) if match]
    count = given.get("count", "")
    return GresLine(given["name"].lower(), int(count) if count.isdecimal() else None, tuple(numbers))


def expand(names: str) -> list[str]:
    """Return the names of a list such as `n[1-3,07],m1`, in its order; a number keeps its leading zeros."""
    found = []
    for name in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", names):
        ranges = _RANGE.search(name)
        if ranges is None:
            found.append(name)
            continue
        for number in _numbers(ranges.group(1)):
            found += expand(name[: ranges.start()] + number + name[ranges.end() :])
    return found


def _numbers(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and last.isdecimal():
            yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
        else:
            yield part
