"""Brings programs that are off their GPUs back on others of the same kind, or back on their own where that fails.

A share that moves has both reserved until it is over: its limits file names the new GPUs behind those that it had, and
in their place at the end. All of its processes go, or none.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vgpurun import abi
from vgpurun.errors import EnforceError, GpuError, NoRoomError, SuspendError
from vgpurun.host import memory_limits
from vgpurun.host.checkpoints import CheckpointError, Checkpoints, ProcessState
from vgpurun.host.gpus import Gpu
from vgpurun.host.mounted import mounts_of, path_of
from vgpurun.inventory.cgroups import cgroups_of
from vgpurun.limits import limits_file
from vgpurun.limits.quota import Quota
from vgpurun.limits.update import Limited
from vgpurun.storage.shared_file import read_regular
from vgpurun.suspend import checks, record
from vgpurun.suspend.processes import on_gpus
from vgpurun.suspend.record import Phase, Record
from vgpurun.util.kernel_text import read_lines
from vgpurun.util.process_identity import ProcessIdentity
from vgpurun.util.threads import uninterrupted

_PROC = Path("/proc")
_SIMULATED = "sim.yaml"
_MOST_BYTES = 1 << 20  # that file's


def onto_named(name: str, own: Sequence[Gpu], wanted: Sequence[Gpu]) -> dict[str, str]:
    """Return which wanted GPU replaces which GPU of a share, by UUID. GPUs that it has already stay.

    Raises SuspendError where it has another number of GPUs, or those already.
    """
    if len(own) != len(wanted):
        raise SuspendError(f"{name} has {len(own)} GPU{'s' * (len(own) != 1)}; name as many")
    old, new = ([gpu for gpu in some if gpu not in others] for some, others in ((own, wanted), (wanted, own)))
    if not new:
        raise SuspendError(f"{name} is on GPU {', '.join(gpu.number for gpu in own)} already")
    return {each.uuid: onto.uuid for each, onto in zip(old, new, strict=True)}


def check(target: Limited, processes: Sequence[ProcessIdentity], gpus: Sequence[Gpu], onto: Mapping[str, str]) -> None:
    """Raise SuspendError where a share with these processes cannot go on on those GPUs."""
    name = target.name
    if not target.id.isdecimal() and not limits_file.is_movable(_path(target)):
        raise SuspendError(f"{name} has the nodes of its own GPUs alone, and so stays; make it with --movable")
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for old, new in ((by_uuid[old], by_uuid[new]) for old, new in onto.items()):
        if old.mig_index is not None or new.mig_index is not None or new.mig_enabled:
            raise SuspendError(f"{name} cannot be moved from GPU {old.number} to {new.number}: MIG instances stay")
        if old.name != new.name:
            raise SuspendError(
                f"{name} cannot be moved from GPU {old.number} to {new.number}: they are of different kinds "
                f"({old.name}, {new.name})"
            )
        if _is_held_by_driver(target, processes, old):
            raise SuspendError(
                f"{name} is held by the driver's own limits on GPU {old.number}, which do not go along; launch it with "
                "--enforce library"
            )
    for each in processes:
        if _has_parts(each.pid):
            raise SuspendError(f"{name} has given a part of its share away, and so stays where it is")
        hidden = [by_uuid[new].number for new in onto.values() if by_uuid[new] not in _seen_by(each.pid, gpus)]
        if hidden:
            raise SuspendError(f"process {each.pid} of {name} has no node of GPU {hidden[0]}, and so cannot get there")


def reserve(target: Limited, limits: Sequence[tuple[str, Quota]], onto: Mapping[str, str]) -> None:
    """Add the new GPUs to the limits file while calls wait. Raises OSError."""
    both = [*limits, *((onto[uuid], quota) for uuid, quota in limits if uuid in onto)]
    waiting = [(uuid, replace(quota, suspended=abi.SUSPENDING)) for uuid, quota in both]
    limits_file.write_gpus(_path(target), waiting, has_moved=False)


def settle(target: Limited, gpus: Sequence[Gpu], driver: Checkpoints, found: Record) -> Record:
    """Finish an interrupted move so far that all processes are on the same GPUs, or will come back there.

    keep() does the rest. Raises SuspendError, GpuError, NoRoomError and OSError.
    """
    if found.phase == Phase.MOVING:
        try:
            forward(target, gpus, driver, found)
        except (SuspendError, NoRoomError, GpuError):
            found = turn_back(target, driver, found)
    if found.phase == Phase.RETURNING:
        _backward(target, gpus, driver, found)
    return found


def without_move(settled: Record) -> Record:
    """Return the record without the move, for what is left to do after settle() and keep()."""
    held_bytes = _moved(settled) if settled.phase == Phase.MOVING else settled.held_bytes
    return settled._replace(phase=Phase.SUSPENDING, held_bytes=held_bytes, onto={}, moved=())


def keep(target: Limited, settled: Record) -> None:
    """Release one set of GPUs: the old ones, which the new ones replace, or the new ones.

    Raises OSError.
    """
    onto, has_moved = settled.onto, settled.phase == Phase.MOVING
    limits = limits_file.read_limits(_path(target)) or []
    both = [(uuid, quota) for uuid, quota in limits if uuid not in onto.values()]
    kept = [(onto.get(uuid, uuid) if has_moved else uuid, quota) for uuid, quota in both]
    if kept != limits and any(uuid in onto for uuid, _ in limits):
        limits_file.write_gpus(_path(target), kept, has_moved)


@uninterrupted()
def forward(target: Limited, gpus: Sequence[Gpu], driver: Checkpoints, found: Record) -> None:
    """Bring back all processes that are away, on the new GPUs, still locked.

    Raises SuspendError, GpuError and NoRoomError: some may be there then.
    """
    away = _in_state(driver, found.processes, ProcessState.CHECKPOINTED)
    if away:
        checks.await_memory(target.name, found.processes, _moved(found), gpus)
    for each in away:
        _restore(driver, each, _pairs(each, gpus, found.onto))


def turn_back(target: Limited, driver: Checkpoints, found: Record) -> Record:
    """Record that all go back to their old GPUs, and which have to. Raises OSError, SuspendError."""
    moved = _in_state(driver, found.processes, ProcessState.LOCKED)
    found = found._replace(phase=Phase.RETURNING, moved=tuple(moved))
    record.write(target.limits_folder, found)
    return found


@uninterrupted()
def _backward(target: Limited, gpus: Sequence[Gpu], driver: Checkpoints, found: Record) -> None:
    """Bring processes back from the new GPUs. The record names those that are still to come back."""
    new = [gpu for gpu in gpus if gpu.uuid in found.onto.values()]
    # The driver may have finished what was given up: a process that was stopped meanwhile has come there since.
    late = [each for each in _in_state(driver, found.processes, ProcessState.LOCKED) if on_gpus([each], new)]
    found = found._replace(moved=tuple({*found.moved, *late}))
    record.write(target.limits_folder, found)
    checks.await_memory(target.name, found.processes, found.held_bytes, gpus)
    for each in found.moved:
        if each in _in_state(driver, [each], ProcessState.LOCKED) and on_gpus([each], new):
            driver.checkpoint(each.pid)
        if each in _in_state(driver, [each], ProcessState.CHECKPOINTED):
            _restore(driver, each, {at: back for back, at in _pairs(each, gpus, found.onto).items()})
        found = found._replace(moved=tuple(other for other in found.moved if other != each))
        record.write(target.limits_folder, found)


def _in_state(driver: Checkpoints, processes: Sequence[ProcessIdentity], state: ProcessState) -> list[ProcessIdentity]:
    return [each for each in processes if each.is_alive() and driver.state(each.pid) == state]


def _restore(driver: Checkpoints, process: ProcessIdentity, pairs: Mapping[str, str]) -> None:
    try:
        driver.restore(process.pid, pairs)
    except CheckpointError as error:
        if process.is_alive():
            raise SuspendError(
                f"the driver does not bring process {process.pid} back on another GPU ({error.name})"
            ) from None


def _moved(found: Record) -> dict[str, int]:
    return {found.onto.get(uuid, uuid): held for uuid, held in found.held_bytes.items()}


def _pairs(process: ProcessIdentity, gpus: Sequence[Gpu], onto: Mapping[str, str]) -> dict[str, str]:
    """Return the pairs that the driver wants for a restore: for each GPU that a process sees, the one in its place.

    GPUs that it moves to change places with those that it leaves.
    """
    seen = [gpu.uuid for gpu in _seen_by(process.pid, gpus)]
    left = [uuid for uuid in onto if uuid not in onto.values()]
    back = dict(zip((uuid for uuid in onto.values() if uuid not in onto), left, strict=False))
    return {uuid: onto.get(uuid) or back.get(uuid, uuid) for uuid in seen}


def _seen_by(pid: int, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the whole GPUs that a process can reach: all, or in a container those whose device nodes it has."""
    process = _PROC / str(pid)
    whole = [gpu for gpu in gpus if gpu.mig_index is None]
    try:
        own = next((each.place for each in mounts_of(process) if each.point == f"{abi.CONTAINER_DIR}/etc"), None)
    except OSError:
        return whole  # has ended
    if own is None:
        return whole
    try:
        folder = path_of(own)
        simulated = read_regular(folder / _SIMULATED, _MOST_BYTES) if folder else None
    except OSError:
        simulated = None
    if simulated is None:
        return [gpu for gpu in whole if os.path.lexists(process / f"root/dev/nvidia{gpu.minor_number}")]
    return [gpu for gpu in whole if gpu.uuid.encode() in simulated]


def _is_held_by_driver(target: Limited, processes: Sequence[ProcessIdentity], gpu: Gpu) -> bool:
    cgroups = {*cgroups_of({target.id}).values(), *(memory_limits.cgroup_of(each.pid) for each in processes)}
    with suppress(EnforceError, GpuError):  # a driver without such limits
        return any(memory_limits.read(gpu, each).most_bytes is not None for each in cgroups if each is not None)
    return False


def _has_parts(pid: int) -> bool:
    """Whether a process has limits of its own within the share's: then it has the files of both mapped."""
    try:
        mapped = [line.split(maxsplit=5) for line in read_lines(_PROC / str(pid) / "maps")]
    except OSError:
        return False
    return len({tuple(words[3:5]) for words in mapped if len(words) == 6 and words[5].endswith("/etc/limits")}) > 1


def _path(target: Limited) -> Path:
    return target.limits_folder / "etc" / "limits"
