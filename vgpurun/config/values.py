"""The configuration: values for options that are not given, and what the administrator grants.

A value is the first of: the option, its environment variable (VGPURUN_MEM for --mem), the user's file, the
administrator's, what is built in. Quotas are in the administrator's file alone, and nothing goes before them. Of a
user's quotas each value is the first of: the user's own, that of the first group in the file that has the user, that
for everybody.
"""

import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vgpurun.config.file import ConfigFile, Setting, read_config
from vgpurun.config.schema import DEFAULTS_BY_NAME, MAXIMA
from vgpurun.errors import ConfigError, VgpurunError
from vgpurun.host.users import current_user, groups_of

if TYPE_CHECKING:
    from vgpurun.admission.grants import Grant

ADMIN_FILE = Path("/etc/vgpurun/config.yaml")


def user_file() -> Path:
    """Return where the user's own configuration is."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".config") / "vgpurun" / "config.yaml"


class Config(NamedTuple):
    """What both files say."""

    admin: ConfigFile
    user: ConfigFile

    def default(self, name: str, environment: Mapping[str, str]) -> Setting:
        """Return the value of an option that is not given, and its origin. Raises ConfigError for a variable."""
        key = DEFAULTS_BY_NAME[name]
        if text := environment.get(key.variable, "").strip():
            try:
                return Setting(key.read(text), key.variable)
            except VgpurunError as error:
                raise ConfigError(f"{key.variable}={text}: {error}; correct it, or unset it") from None
        for file in (self.user, self.admin):
            if name in file.defaults:
                return file.defaults[name]
        return Setting(key.built_in, "built in")

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
    """Return the configuration of this host and user. Raises ConfigError."""
    return Config(read_config(ADMIN_FILE, has_quotas=True), read_config(user_file(), has_quotas=False))


def default(name: str) -> Any:
    """Return the value of an option that is not given. Raises ConfigError."""
    return load().default(name, os.environ).value


def own_quotas() -> dict[str, Setting]:
    """Return what who launches may have at most. Raises ConfigError."""
    config, user = load(), current_user()
    return config.quotas(user, groups_of(user) if config.admin.groups else ())


def own_grant() -> "Grant":
    """Return what the administrator grants who launches. Raises ConfigError."""
    from vgpurun.admission.grants import Grant, Maxima  # not needed to read a default

    quotas = own_quotas()
    values = {name: setting.value for name, setting in quotas.items()}
    return Grant(current_user(), Maxima(**values, origins={name: each.origin for name, each in quotas.items()}))
