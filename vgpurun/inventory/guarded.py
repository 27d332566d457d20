"""The guard's state, and the record of its actions: every user may read both, and none may hold a lock of its.

    <host's root>/guard/    0755
        lock                0600: held by the guard that runs, so that there is one
        process             JSON: which process that is, or was
        state               JSON: what is stopped now, what each duty remembers, and actions that are under way; all of
                            it of one boot
        actions             a line of JSON for each action; the older half is in actions.1

Only the guard writes here, as root, so what is read is trusted.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from vgpurun.errors import ContainerError
from vgpurun.host.freezer import Cgroup, run_of
from vgpurun.storage import state
from vgpurun.util.process_identity import ProcessIdentity, boot_id

_ID_LENGTH = 64  # of a container
LOCK, PROCESS, STATE, ACTIONS, OLDER_ACTIONS = "lock", "process", "state", "actions", "actions.1"
# The verbs of actions. A container is held while it is frozen and thawed in turn, and so kept to its share of time.
WARN, FREEZE, THAW, KILL, HOLD, RELEASE = "warn", "freeze", "thaw", "kill", "hold", "release"
STOPPING = {FREEZE: "frozen", HOLD: "held"}  # verbs that last, and what they make of a container


@dataclass(frozen=True)
class Stopped:
    """A container that is frozen or held now: by which verb, for which cause, since when (seconds since 1970).

    `run` tells this start of it from the next. `slices` are the names of those that it is in, with commas.
    """

    verb: str
    cause: str
    since_s: float
    folder: str = ""
    is_unified: bool = False
    run: str = ""
    slices: str = ""

    @cached_property
    def cgroup(self) -> Cgroup:
        """Its cgroup."""
        return Cgroup(Path(self.folder), self.is_unified)

    def __str__(self) -> str:
        return f"{STOPPING.get(self.verb, self.verb)} by the guard: {self.cause}"


@dataclass(frozen=True)
class Action:
    """A thing to do to a container, or to a process outside: the verb, why, and to whom.

    `container` is an id, empty for a process; `cgroup` is its folder, and `run` tells one start of it from the next;
    `folder` has its limits, `slices` are the names of those that it is in, with commas. `pid` and `started_ticks` are a
    process's. `words` are for the journal, after the name.
    """

    verb: str
    cause: str
    words: str
    name: str
    user: str
    container: str = ""
    cgroup: str = ""
    is_unified: bool = False
    run: str = ""
    folder: str = ""
    gpu: str = ""
    pid: int = 0
    started_ticks: int = 0
    slices: str = ""


@dataclass(frozen=True)
class Done:
    """An action that has been done. `at_s` is seconds since 1970."""

    id: int
    at_s: float
    action: Action


def is_launch(id_: str) -> bool:
    """Whether an id is that of a launch of `vgpurun local`, its number, and no container's."""
    return id_.isdecimal() and len(id_) < _ID_LENGTH


def folder() -> Path:
    """Return where the guard of this host keeps its state."""
    return state.host_root() / "guard"


def is_running() -> bool:
    """Whether the process that was written down as the guard lives. Raises nothing."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        pid, started_ticks, boot = json.loads((folder() / PROCESS).read_bytes())
        return ProcessIdentity(int(pid), int(started_ticks), str(boot)).is_alive()
    return False


def read_state() -> dict[str, Any]:
    """Return the state as it was written; nothing where there is none. Raises ValueError for a damaged one.

    Of a boot before only the counts are left: its processes and cgroups have ended, and others have their numbers.
    """
    try:
        found = json.loads((folder() / STATE).read_bytes())
    except OSError:
        return {}
    except RecursionError:
        raise ValueError("too deeply nested") from None
    if not isinstance(found, dict):
        raise ValueError("not an object")
    if found.get("boot_id", boot_id()) != boot_id():
        return {key: found[key] for key in ("next", "counts") if key in found}
    return found


def stopped() -> dict[str, Stopped]:
    """Return what the guard has stopped, by the containers' ids; what no guard holds any more runs. Raises nothing."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        found = stopped_in(read_state())
        if any(each.verb == HOLD for each in found.values()) and not is_running():
            return {id_: each for id_, each in found.items() if each.verb != HOLD}
        return found
    return {}


def stopped_in(found: Mapping[str, Any]) -> dict[str, Stopped]:
    """Return what a state says is stopped. Raises the errors of a damaged one."""
    return {
        str(container): Stopped(
            str(each["verb"]), str(each["cause"]), float(each["since_s"]), str(each["folder"]),
            bool(each["is_unified"]), str(each["run"]), str(each.get("slices", "")),
        )
        for container, each in found.get("stopped", {}).items()
    }  # fmt: skip


def frozen_container(id_: str, name: str) -> Stopped:
    """Return a container, or a launch by its number, that is frozen now. Raises ContainerError for one that is not."""
    found = stopped().get(id_)
    if found is None or found.verb != FREEZE or run_of(found.cgroup) != found.run:
        held = f", but {found}: `vgpurun update --sm` gives it more" if found and found.verb == HOLD else ""
        raise ContainerError(f"{name} is not frozen by the guard{held}")
    return found


def frozen_in_slice(slice_name: str) -> dict[str, Stopped]:
    """Return what is frozen now of all that has joined a slice, by id. Raises ContainerError where nothing is."""
    found = {
        id_: each for id_, each in stopped().items()
        if each.verb == FREEZE and slice_name in each.slices.split(",") and run_of(each.cgroup) == each.run
    }  # fmt: skip
    if not found:
        raise ContainerError(f"nothing in slice {slice_name} is frozen by the guard")
    return found


def counts() -> dict[tuple[str, str], int]:
    """Return how many actions there were since the guard first ran, by verb and cause. Raises nothing."""
    with suppress(ValueError, TypeError, AttributeError):
        found = read_state().get("counts", {})
        return {(words[0], words[1]): int(count) for key, count in found.items() if len(words := key.split()) == 2}
    return {}


def actions() -> Iterator[Done]:
    """Yield what the guard has done, the oldest first. A line that a killed guard wrote in part is left out."""
    for name in (OLDER_ACTIONS, ACTIONS):
        with suppress(OSError):
            for line in (folder() / name).read_text(errors="replace").splitlines():
                with suppress(ValueError, TypeError, KeyError, RecursionError):
                    found = json.loads(line)
                    known = {field.name: found[field.name] for field in fields(Action) if field.name in found}
                    yield Done(int(found["id"]), float(found["at_s"]), Action(**known))
