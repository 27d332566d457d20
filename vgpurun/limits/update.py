"""Changes the limits of a container that runs. Its processes see them at their next call."""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from vgpurun.errors import EnforceError, LimitError, SliceError, StateError
from vgpurun.host.gpus import Gpu
from vgpurun.limits import limits_file, quota, usage_file
from vgpurun.limits.driver_wall import Unsettled, settle
from vgpurun.limits.model import Limits
from vgpurun.limits.nested import Share, folders_above, quotas_within, share_of
from vgpurun.limits.oversubscription import NOT_OVERSUBSCRIBED, oversubscribe
from vgpurun.limits.quota import PerDevice, Quota, T
from vgpurun.storage.state import CHANGING
from vgpurun.util.locking import lock_in_time, open_lock
from vgpurun.util.nofollow import open_nofollow, opened_folder

_PATIENCE_S = ContextVar("patience_s", default=60.0)  # a start on a busy engine takes its time
_DAEMON_PATIENCE_S = 1.0  # the daemon looks again soon


@dataclass(frozen=True)
class Change:
    """A change on one GPU of a container; `held_bytes` is what the container holds of it, None if unknown.

    `unsettled` are limits of the driver's own that do not follow yet.
    """

    gpu: Gpu
    before: Quota
    after: Quota
    held_bytes: int | None
    unsettled: tuple[Unsettled, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether the container holds more than it may now: it keeps that, and gets nothing more."""
        limit_bytes = self.after.memory_bytes
        return limit_bytes is not None and self.held_bytes is not None and self.held_bytes > limit_bytes


class Limited(Protocol):
    """A container or a slice: what has a folder with limits and usage."""

    @property
    def id(self) -> str:
        """Its identity among all holders of a GPU."""

    @property
    def name(self) -> str:
        """Its name, for people."""

    @property
    def limits_folder(self) -> Path:
        """The folder of its limits and usage."""


FindCgroups = Callable[[], Sequence[Path]]
Admit = Callable[[Limited, Sequence[tuple[Gpu, Quota]], Mapping[str, Quota]], AbstractContextManager[object]]


def update(
    container: Limited, gpus: Sequence[Gpu], limits: Limits, admit: Admit, find_cgroups: FindCgroups = tuple
) -> list[Change]:
    """Write the new limits; a limit that is not given stays.

    More than before has to be admitted: `admit` gets the new limits and those before, is entered while the new ones are
    written, and when it ends in an error the limits are as they were. `find_cgroups` returns those of its processes,
    for limits of the driver's own: these grow first, and what is lowered below its use is held by the library
    meanwhile. Those that have started by the end are found again: their hooks may have read the file before.

    Raises LimitError, StateError, EnforceError where the driver's own limit would stay below, and what `admit` raises.
    """
    path = container.limits_folder / "etc" / "limits"
    with changing(container), _told(path, container):
        before = _read(path, container)
        chosen = [gpu for gpu, _ in devices_of(container.name, before, gpus)]
        above = folders_above(container.limits_folder)
        if above:  # the share around it has been admitted
            after = _changed_part([quota for _, quota in before], chosen, limits, share_of(above[0]))
        else:
            after = _changed([quota for _, quota in before], chosen, limits)
        grows = not above and any(_is_more(new, old) for new, (_, old) in zip(after, before, strict=True))
        cgroups = find_cgroups()
        with ExitStack() as undo:
            wanted = list(zip(chosen, after, strict=True))
            with admit(container, wanted, dict(before)) if grows else nullcontext():
                settled_before = list(zip(chosen, [old for _, old in before], strict=True))
                undo.callback(lambda: settle(find_cgroups(), settled_before))
                undo.callback(limits_file.write_limits, path, before)
                unsettled = settle(cgroups, wanted)
                _refuse_below(unsettled, dict(wanted))
                limits_file.write_limits(path, [(gpu.uuid, new) for gpu, new in wanted])
                unsettled += settle([each for each in find_cgroups() if each not in cgroups], wanted)
            undo.pop_all()
    readings = usage_file.read_usage(container.limits_folder / "run" / "usage", [gpu.uuid for gpu in chosen])
    held = [None] * len(chosen) if readings is None else [reading.memory_used_bytes for reading in readings]
    return [
        Change(gpu, old, new, held_bytes, tuple(left for left in unsettled if left.gpu == gpu))
        for gpu, (_, old), new, held_bytes in zip(chosen, before, after, held, strict=True)
    ]


def _refuse_below(unsettled: Sequence[Unsettled], wanted: Mapping[Gpu, Quota]) -> None:
    """Raise EnforceError for a limit that would grow for the library alone."""
    for left in unsettled:
        if wanted[left.gpu].has_more_memory_than(Quota(left.limits.most_bytes)):
            raise EnforceError(f"{left}; nothing was changed, use sudo")


def devices_of(name: str, quotas: Sequence[tuple[str, Quota]], gpus: Sequence[Gpu]) -> list[tuple[Gpu, Quota]]:
    """Return the GPUs of a container with its quotas. Raises LimitError where one of them is gone."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    found = [(by_uuid[uuid], quota) for uuid, quota in quotas if uuid in by_uuid]
    if len(found) < len(quotas):
        raise LimitError(f"a GPU of {name} is gone from this host; run its image again, on another")
    return found


def refuse_in_slice(container: str, slice_name: str) -> None:
    """Raise SliceError for a container that has joined a slice: its limits are not its own."""
    if slice_name:
        raise SliceError(
            f"{container} is in slice {slice_name}, and its limits are those of all that is in there: "
            f"vgpurun slice update {slice_name}"
        )


def set_paused(container: Limited, paused: bool) -> None:
    """Pause or unpause a container's GPU work. Raises StateError, and LimitError for one that others' stops with."""
    path = container.limits_folder / "etc" / "limits"
    with changing(container), _told(path, container):
        before = _read(path, container)
        if any(quota.together for _, quota in before):
            raise LimitError(
                f"{container.name} works at the same time as others (--together), and its GPU work alone does "
                "not stop; leave --gpu out"
            )
        limits_file.write_limits(path, [(uuid, replace(quota, paused=paused)) for uuid, quota in before])


@contextmanager
def patience(seconds: float = _DAEMON_PATIENCE_S) -> Iterator[None]:
    """Let this thread wait no longer than that for whoever changes limits: the owner of a folder may hold its lock.

    So a daemon that looks after all users' containers is held up by none of them.
    """
    before = _PATIENCE_S.set(seconds)
    try:
        yield
    finally:
        _PATIENCE_S.reset(before)


@contextmanager
def changing(container: Limited) -> Iterator[None]:
    """Keep the limits of a container as they are but for what is done in here. Raises StateError.

    The lock is on a file that the container does not see, and only its owner can open: nobody holds up a command that
    takes from others. Its programs could by a lease of the limits file, which the kernel ends within its time (45 s),
    and there is none while that is open for writing. Nobody changes a share while a part of it is being changed, whose
    processes it has too; to the owner of a part of another user's share its limits say whether it is suspended.
    """
    limits = container.limits_folder / "etc" / "limits"
    with ExitStack() as held:
        for folder in reversed(folders_above(container.limits_folder)):
            with suppress(OSError):  # ends just now, or is another user's
                held.enter_context(_locked(folder, fcntl.LOCK_SH, container.name))
        with _told(container.limits_folder / CHANGING, container):
            held.enter_context(_locked(container.limits_folder, fcntl.LOCK_EX, container.name))
        with _told(limits, container):
            file = open_nofollow(limits, os.O_RDWR)
        held.callback(os.close, file)
        try:
            yield
        except FileNotFoundError:
            if limits.exists():
                raise
            raise StateError(f"{container.name} has ended meanwhile") from None


@contextmanager
def _locked(folder: Path, kind: int, name: str) -> Iterator[None]:
    lock = _open_lock(folder)
    try:
        if not lock_in_time(lock, kind, _PATIENCE_S.get()):
            raise StateError(f"the limits of {name} are being changed by another command; try again")
        yield
    finally:
        os.close(lock)


def _open_lock(folder: Path) -> int:
    """A folder of an older version has none yet: its owner makes it."""
    with opened_folder(folder) as place:
        is_own = os.fstat(place).st_uid == os.geteuid()
        return open_lock(CHANGING, place, os.O_CREAT if is_own else 0)


def is_being_changed(container: Limited) -> bool:
    """Whether somebody is about to change the limits of a container, or to take its GPUs. Raises nothing."""
    try:
        with suppress(FileNotFoundError):
            lock = _open_lock(container.limits_folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            finally:
                os.close(lock)
    except OSError:
        return True
    return False


@contextmanager
def _told(path: Path, container: Limited) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise StateError(f"{path} is gone; remove {container.name}, and run its image again") from None
    except OSError as error:
        raise StateError(
            f"{path}: {error.strerror}; only the user who started {container.name}, or root, may change it"
        ) from None


def _read(path: Path, container: Limited) -> list[tuple[str, Quota]]:
    limits = limits_file.read_limits(path)
    if limits is None:
        raise StateError(f"{path} is not a limits file of this version; start {container.name} again")
    return limits


def _is_more(new: Quota, old: Quota) -> bool:
    return new.has_more_memory_than(old) or new.has_more_compute_than(old)


def _changed(before: Sequence[Quota], gpus: Sequence[Gpu], limits: Limits) -> list[Quota]:
    given = quota.resolve(gpus, limits.memory, limits.sm, {}, range(len(gpus)))
    after = _with_limits(before, gpus, limits, given)
    if limits.oversubscribe == NOT_OVERSUBSCRIBED:
        return [replace(each, virtual_bytes=None) for each in after]
    return oversubscribe(gpus, after, limits.oversubscribe)


def refuse_sms(limits: Limits, quotas: Iterable[Quota]) -> None:
    """Raise LimitError where --sm is a part of the SMs, and not of the time."""
    if limits.sm is not None and any(quota.together for quota in quotas):
        raise LimitError(
            "--sm of a program that works at the same time as others is its part of the SMs, from its start"
        )


def _changed_part(before: Sequence[Quota], gpus: Sequence[Gpu], limits: Limits, parent: Share) -> list[Quota]:
    refuse_sms(limits, [quota for _, quota in parent.quotas])
    return _with_limits(before, gpus, limits, [each.quota for each in quotas_within(parent, gpus, limits)])


def _with_limits(before: Sequence[Quota], gpus: Sequence[Gpu], limits: Limits, given: Sequence[Quota]) -> list[Quota]:
    named_memory, named_sm = _named(gpus, limits.memory, "--mem"), _named(gpus, limits.sm, "--sm")
    return [
        replace(
            old,
            memory_bytes=new.memory_bytes if gpu.uuid in named_memory else old.memory_bytes,
            guaranteed_bytes=new.guaranteed_bytes if gpu.uuid in named_memory else old.guaranteed_bytes,
            sm_percent=new.sm_percent if gpu.uuid in named_sm else old.sm_percent,
            sm_policy=limits.sm_policy or old.sm_policy,
            priority=limits.priority or old.priority,
        )
        for gpu, old, new in zip(gpus, before, given, strict=True)
    ]


def _named(gpus: Sequence[Gpu], given: PerDevice[T] | None, option: str) -> set[str]:
    """The GPUs that an option gives a value to, be it "no limit"."""
    values = quota.values_on(given, gpus, option)
    return {gpu.uuid for gpu, value in zip(gpus, values, strict=True) if value is not None}
