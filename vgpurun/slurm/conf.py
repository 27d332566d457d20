"""Reads Slurm's configuration files: slurm.conf, gres.conf and plugstack.conf."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from vgpurun.errors import SlurmError

DEFAULT = Path("/etc/slurm/slurm.conf")
_FETCHED = Path("/run/slurm/conf/slurm.conf")
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
    """Return the path of slurm.conf: the one that SLURM_CONF names, as in every prolog, or the usual one.

    Where there is none of them it is the one that slurmd has fetched ("configless").
    """
    given = os.environ.get("SLURM_CONF")
    return Path(given) if given else DEFAULT if DEFAULT.exists() or not _FETCHED.exists() else _FETCHED


def host() -> str:
    """Return this host's name without its domain."""
    return os.uname().nodename.split(".")[0]


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


def scripts(path: Path, key: str) -> list[Path]:
    """Return the files of a setting that slurm.conf may have several times, and as patterns. Raises SlurmError."""
    given = [settings(line).get(key.lower(), "") for line in lines(path)]
    return [file for name in given if name for file in script_files(path, name)]


def script_files(path: Path, name: str) -> list[Path]:
    """Return the files that the setting of a script stands for; a name without a folder is beside slurm.conf."""
    return _absolute(name) if "*" in name and name.startswith("/") else [path.parent / name]


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
