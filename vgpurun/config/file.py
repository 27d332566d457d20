"""Reads one configuration file. Every value keeps the line that it stands on; every mistake is one line with it.

defaults:                   for options that are not given
  mem: 25%
  groups:                   in the administrator's file only: for members of a group
    students: {mem: 10%}
quotas:                     in the administrator's file only
  default: {memory: 16g}    for everybody
  groups:
    students: {memory_per_gpu: 25%}
  users:
    alice: {memory: unlimited}
guard:                      in the administrator's file only: what `vgpurun guard` does
  memory: kill
outside:                    in the administrator's file only: time slices of programs that vgpurun did not start
  users:
    alice: low
  cgroups:
    /system.slice/jupyter.service: 20
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vgpurun.config.schema import DEFAULTS_BY_NAME, GUARD_BY_NAME, MAXIMA_BY_NAME, OUTSIDE, Key
from vgpurun.errors import ConfigError, VgpurunError


@dataclass(frozen=True)
class Setting:
    """A value, and where it comes from: `FILE:LINE`, a variable, or the program itself."""

    value: Any
    origin: str


Settings = Mapping[str, Setting]


@dataclass(frozen=True)
class ConfigFile:
    """The content of one file. A quota is by the name of its user or group; that for everybody has no name.

    `outside_users` and `outside_cgroups` are time slices in microseconds, the latter by paths of cgroups.
    """

    defaults: Settings = field(default_factory=dict)
    group_defaults: Mapping[str, Settings] = field(default_factory=dict)
    everybody: Settings = field(default_factory=dict)
    groups: Mapping[str, Settings] = field(default_factory=dict)
    users: Mapping[str, Settings] = field(default_factory=dict)
    guard: Settings = field(default_factory=dict)
    outside_users: Settings = field(default_factory=dict)
    outside_cgroups: Settings = field(default_factory=dict)


def read_config(path: Path, is_admins: bool) -> ConfigFile:
    """Return what a file says, nothing if there is none. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise ConfigError(f"{path} is a link to what is not there; correct or remove it") from None
        return ConfigFile()
    except PermissionError:
        raise ConfigError(f"{path}: Permission denied; all who run vgpurun must be able to read it") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    return _Reader(path, is_admins).read(text)


class _Reader:
    """Goes through the nodes of one file."""

    def __init__(self, path: Path, is_admins: bool) -> None:
        import yaml  # slow to import, and needed only where there is a file

        self._yaml = yaml
        self._path = path
        self._is_admins = is_admins

    def read(self, text: str) -> ConfigFile:
        try:
            node = self._yaml.compose(text, Loader=self._yaml.SafeLoader)
        except self._yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{self._path}:{mark.line + 1}" if mark else str(self._path)
            problem = getattr(error, "problem", None) or " ".join(str(error).split())
            raise ConfigError(f"{where}: this is not YAML: {problem}") from None
        except RecursionError:
            raise ConfigError(f"{self._path}: too deeply nested") from None
        if node is None:
            return ConfigFile()
        parts = {"defaults": self._defaults, "quotas": self._quotas, "guard": self._guard, "outside": self._outside}
        found: dict[str, Any] = {}
        for name, key_node, value_node in self._pairs(node, parts, "the file"):
            if name != "defaults" and not self._is_admins:
                raise self._error(key_node, f"{name} is the administrator's: that belongs in /etc/vgpurun/config.yaml")
            found |= parts[name](value_node)
        return ConfigFile(**found)

    def _defaults(self, node: Any) -> dict[str, Any]:
        found: dict[str, Setting] = {}
        groups: dict[str, Settings] = {}
        for name, key_node, value_node in self._pairs(node, (*DEFAULTS_BY_NAME, "groups"), "defaults"):
            if name != "groups":
                found[name] = self._setting(name, key_node, value_node, DEFAULTS_BY_NAME)
            elif not self._is_admins:
                raise self._error(key_node, "defaults of groups belong in the administrator's file")
            else:
                groups = self._by_name(value_node, DEFAULTS_BY_NAME, "defaults")
        return {"defaults": found, "group_defaults": groups}

    def _quotas(self, node: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, _, value_node in self._pairs(node, ("default", "groups", "users"), "quotas"):
            if name == "default":
                found["everybody"] = self._settings(value_node, MAXIMA_BY_NAME, "quotas")
            else:
                found[name] = self._by_name(value_node, MAXIMA_BY_NAME, "quotas")
        return found

    def _guard(self, node: Any) -> dict[str, Any]:
        return {"guard": self._settings(node, GUARD_BY_NAME, "guard")}

    def _outside(self, node: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind, _, value_node in self._pairs(node, ("users", "cgroups"), "outside"):
            pairs = self._pairs(value_node, None, kind)
            found[f"outside_{kind}"] = {
                name: Setting(self._value(OUTSIDE, each), self._where(key_node)) for name, key_node, each in pairs
            }
        return found

    def _by_name(self, node: Any, known: Mapping[str, Key], what: str) -> dict[str, Settings]:
        """Read the settings of users or groups."""
        named = self._pairs(node, None, "groups and users")
        return {name: self._settings(value_node, known, what) for name, _, value_node in named}

    def _settings(self, node: Any, known: Mapping[str, Key], what: str) -> Settings:
        pairs = self._pairs(node, known, what)
        return {name: self._setting(name, key_node, value_node, known) for name, key_node, value_node in pairs}

    def _setting(self, name: str, key_node: Any, value_node: Any, known: Mapping[str, Key]) -> Setting:
        return Setting(self._value(known[name], value_node), self._where(key_node))

    def _value(self, key: Key, node: Any) -> Any:
        text = self._text(key, node)
        try:
            return key.read(text)
        except VgpurunError as error:
            raise self._error(node, f"{key.name}: {error}") from None

    def _text(self, key: Key, node: Any) -> str:
        if isinstance(node, self._yaml.ScalarNode) and not node.tag.endswith(":null"):
            return str(node.value).strip()
        if (
            key.is_list
            and isinstance(node, self._yaml.SequenceNode)
            and all(isinstance(each, self._yaml.ScalarNode) for each in node.value)
        ):
            return ",".join(str(each.value).strip() for each in node.value)
        wanted = "a value or a list of values" if key.is_list else "one value"
        raise self._error(node, f"{key.name} needs {wanted}, such as {key.example}")

    def _pairs(self, node: Any, known: Any, what: str) -> Iterator[tuple[str, Any, Any]]:
        """Yield the name and nodes of each pair of a mapping. `known` is None where every name will do."""
        if isinstance(node, self._yaml.ScalarNode) and node.tag.endswith(":null"):
            return  # a key with nothing below it
        if not isinstance(node, self._yaml.MappingNode):
            raise self._error(node, f"{what} must be lines of the form 'key: value'")
        seen: set[str] = set()
        for key_node, value_node in node.value:
            if not isinstance(key_node, self._yaml.ScalarNode):
                raise self._error(key_node, f"a key in {what} must be one word")
            name = str(key_node.value)
            if known is not None and name not in known:
                raise self._error(key_node, _unknown(name, list(known), what))
            if name in seen:
                raise self._error(key_node, f"{name} is there twice; remove one")
            seen.add(name)
            yield name, key_node, value_node

    def _where(self, node: Any) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"

    def _error(self, node: Any, message: str) -> ConfigError:
        return ConfigError(f"{self._where(node)}: {message}")


def _unknown(name: str, known: list[str], what: str) -> str:
    from difflib import get_close_matches  # slow to import

    near = get_close_matches(name, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}"
    return f"unknown key '{name}' in {what}; {hint}"
