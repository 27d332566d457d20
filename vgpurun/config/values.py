"""The configuration: values for options that are not given, and what the administrator grants.

A value is the first of: the option, its environment variable (VGPURUN_MEM for --mem), the user's file, the
administrator's for the first group in it that has the user, the administrator's for everybody, what is built in. Quotas
are in the administrator's file alone, and nothing goes before them. For a user's quotas each value is the first of: the
user's own, that of the first group in the file that has the user, that for everybody.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from vgpurun.config.file import ConfigFile, Setting, Settings, read_config
from vgpurun.config.schema import DEFAULTS_BY_NAME, GUARD, MAXIMA
from vgpurun.errors import ConfigError, VgpurunError
from vgpurun.util.users import current_user, groups_of

ADMIN_FILE = Path("/etc/vgpurun/config.yaml")


def user_file() -> Path:
    """Return where the user's own configuration is."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".config") / "vgpurun" / "config.yaml"


@dataclass(frozen=True)
class Config:
    """The contents of both files; `mistakes` says by path what is wrong with one, which then counts as empty."""

    admin: ConfigFile
    user: ConfigFile
    mistakes: Mapping[Path, ConfigError] = field(default_factory=dict)

    def default(self, name: str, environment: Mapping[str, str]) -> Setting:
        """Return the value of an option that is not given, and its origin. Raises ConfigError for a variable."""
        key = DEFAULTS_BY_NAME[name]
        if text := environment.get(key.variable, "").strip():
            try:
                return Setting(key.read(text), key.variable)
            except VgpurunError as error:
                raise ConfigError(f"{key.variable}={text}: {error}; correct it, or unset it") from None
        for settings in (self.user.defaults, *self._of_groups(), self.admin.defaults):
            if name in settings:
                return settings[name]
        return Setting(key.built_in, "built in")

    def _of_groups(self) -> list[Settings]:
        by_group = self.admin.group_defaults
        mine = groups_of(current_user()) if by_group else ()
        return [settings for group, settings in by_group.items() if group in mine]

    def guard(self) -> dict[str, Setting]:
        """Return what the guard is to do, from the administrator's file or built in."""
        built_in = {key.name: Setting(key.read(str(key.built_in)), "built in") for key in GUARD}
        return {**built_in, **self.admin.guard}

    def outside(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the time slices of programs outside, in microseconds: by user, and by path of a cgroup."""
        kinds = self.admin.outside_users, self.admin.outside_cgroups
        users, cgroups = ({name: setting.value for name, setting in each.items()} for each in kinds)
        return users, cgroups

    def quotas(self, user: str, groups: Iterable[str]) -> dict[str, Setting]:
        """Return what a user may have at most, and which line says so; what no line speaks of is left out."""
        mine = set(groups)
        of_groups = [settings for name, settings in self.admin.groups.items() if name in mine]
        found: dict[str, Setting] = {}
        for layer in (self.admin.users.get(user, {}), *of_groups, self.admin.everybody):
            found = {**layer, **found}
        return {key.name: found[key.name] for key in MAXIMA if key.name in found}


@cache
def load() -> Config:
    """Return the configuration of this host and user. A broken file counts as empty, and is among `mistakes`."""
    mistakes: dict[Path, ConfigError] = {}

    def read(path: Path, is_admins: bool) -> ConfigFile:
        try:
            return read_config(path, is_admins)
        except ConfigError as error:
            mistakes[path] = error
            return ConfigFile()

    return Config(read(ADMIN_FILE, is_admins=True), read(user_file(), is_admins=False), mistakes)


_tell: ContextVar[Callable[[str], object] | None] = ContextVar("_tell", default=None)


@contextmanager
def without_broken_files(tell: Callable[[str], object]) -> Iterator[None]:
    """Let values be read although a file is broken; `tell` hears once what is wrong with it.

    That is for verbs that launch nothing. The administrator's grants are never read so.
    """
    token = _tell.set(cache(tell))
    try:
        yield
    finally:
        _tell.reset(token)


def readable() -> Config:
    """Return the configuration, without broken files where that is allowed. Raises ConfigError."""
    config, tell = load(), _tell.get()
    if tell is None:
        return whole()
    for each in config.mistakes.values():
        tell(f"a file is left out, and launches and higher limits are refused, until this is corrected: {each}")
    return config


def whole() -> Config:
    """Return the configuration. Raises ConfigError for a file that is broken."""
    config = load()
    for each in config.mistakes.values():
        raise each
    return config


def default(name: str) -> Any:
    """Return the value of an option that is not given. Raises ConfigError."""
    return readable().default(name, os.environ).value


def own_quotas(config: Config) -> dict[str, Setting]:
    """Return what the user who launches may have at most."""
    user = current_user()
    return config.quotas(user, groups_of(user) if config.admin.groups else ())
