"""Suspends and resumes targets, and finishes transitions that another command has begun.

Every step is recorded before it is done (record.py), under the lock of the limits. A process is locked during one
transition only: a command that finds an interrupted transition unlocks the processes, or finishes bringing them back.

The limits file tells programs whether their calls wait, and admission whether memory and time are reserved: a
suspended container has given both back; one that is on its way out or back, or waits for its turn, has not.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vgpurun import abi
from vgpurun.errors import GpuError, NoRoomError, SuspendError
from vgpurun.host.checkpoints import CheckpointError, Checkpoints, ProcessState
from vgpurun.host.gpus import Gpu
from vgpurun.limits import limits_file, usage_file
from vgpurun.limits.nested import folders_above
from vgpurun.limits.quota import Quota
from vgpurun.limits.update import Limited, changing, devices_of
from vgpurun.suspend import checks, record, relocation
from vgpurun.suspend.processes import belongs_to, find, held_by_each, held_bytes, sum_by_gpu
from vgpurun.suspend.record import Phase, Record
from vgpurun.util.process_identity import ProcessIdentity
from vgpurun.util.threads import uninterrupted

LOCK_TIMEOUT_MS = 10_000
# A call that looked before the limits file said so has entered the driver, and is waited for, after this time: one that
# enters a locked driver waits there, and asks for nothing. Its thread may have been out of processor time in between.
CALLS_NOTICE_S = 0.2
_ASKS_AGAIN_NS = 2_000_000_000  # a call that waits asks every half a second; one that has asked before has ended
_MOST_ROUNDS = 20  # for processes that start while others are being locked

Admitted = Callable[[Limited, Sequence[tuple[Gpu, Quota]]], AbstractContextManager[object]]


class Wishes(NamedTuple):
    """How a suspension is to be. `by`: what asks for it, for people. `is_held`: no call of its programs ends it.

    `gives_way`: a program that asks for its GPU meanwhile keeps it. `is_swap`: it comes back at its turn.
    `when_locked`: called before the first process is taken off; from then on they allocate nothing.
    """

    by: str = "vgpurun suspend"
    is_held: bool = False
    gives_way: bool = False
    is_swap: bool = False
    lock_timeout_ms: int = LOCK_TIMEOUT_MS
    when_locked: Callable[[Record], None] | None = None


def suspend(target: Limited, gpus: Sequence[Gpu], driver: Checkpoints, wishes: Wishes) -> Record:
    """Take all processes of a container, a slice or a local program off their GPUs; all of them, or none.

    Raises SuspendError and StateError: then all run on.
    """
    with changing(target):
        found = finish_locked(target, gpus, driver)
        if found is not None:
            return _as_wished(target, found, wishes)
        own = gpus_of(target, gpus)
        is_part(target)
        there = find(target.limits_folder, own)
        checks.check_runs(target.name, there)
        processes = _not_away(driver, there)  # a driver that knows nothing of this says so here
        held = held_by_each(processes, own)
        checks.check(target.name, held)
        begun = Record(
            Phase.SUSPENDING, tuple(processes), held_bytes(processes, own), wishes.is_held, wishes.by,
            is_swapped=wishes.is_swap,
        ).begun_now()  # fmt: skip
        record.write(target.limits_folder, begun)
        try:
            set_suspended(target, abi.SUSPENDING)
            time.sleep(CALLS_NOTICE_S)
            return _settle(target, take(target, driver, begun, wishes, own, lambda: find(target.limits_folder, own)))
        except BaseException as error:  # Ctrl-C and a full disk too
            undo(target, own, driver, error)
            raise


def resume(target: Limited, gpus: Sequence[Gpu], driver: Checkpoints, admitted: Admitted) -> Record | None:
    """Bring all processes back; return their suspension, or None where there was none.

    `admitted` gets the GPUs and the limits that are needed, and is entered while they are reserved again. A share
    that takes turns has them reserved then, and waits for its turn. Raises NoRoomError, SuspendError and StateError.
    """
    with changing(target):
        found = finish_locked(target, gpus, driver)
        if found is None or found.is_swapped:
            return found
        checks.check_runs(target.name, found.processes)
        wanted = devices_of(target.name, limits_of(target), gpus)
        with nullcontext() if is_part(target) else admitted(target, wanted):  # the share around it is reserved
            if any(quota.takes_turns for _, quota in wanted):
                record.write(target.limits_folder, found._replace(phase=Phase.RESUMING))
                set_suspended(target, abi.SWAPPED)
                return _settle(target, found._replace(is_swapped=True))
            _reserve_memory(target, found, gpus)
        _come_back(target, gpus, driver, found)
        return found


def swap_in(
    target: Limited, gpus: Sequence[Gpu], driver: Checkpoints, may_go_on: Callable[[], bool] = lambda: True
) -> Record | None:
    """Bring back a target whose turn it is; return its suspension, or None where it does not wait for a turn.

    `may_go_on` is asked, and may wait, before its programs go on; where they may not, they are as before, and this
    returns None too. Raises NoRoomError, SuspendError and StateError.
    """
    with changing(target):
        found = finish_locked(target, gpus, driver)
        if found is None or not found.is_swapped:
            return None
        checks.check_runs(target.name, found.processes)
        _reserve_memory(target, found, gpus)
        if _come_back(target, gpus, driver, found, may_go_on):
            return found
        for each in found.processes:
            if driver.state(each.pid) == ProcessState.LOCKED:
                _changed(driver.checkpoint, each)
        _settle(target, found)
        return None


def finish(target: Limited, gpus: Sequence[Gpu], driver: Checkpoints) -> Record | None:
    """Finish a transition that was interrupted; return the suspension that there is then, if any.

    Raises SuspendError, StateError and OSError.
    """
    with changing(target):
        return finish_locked(target, gpus, driver)


def finish_locked(target: Limited, gpus: Sequence[Gpu], driver: Checkpoints) -> Record | None:
    """Do the same where the limits are locked already."""
    found = record.read(target.limits_folder)
    if found is None:
        if _suspended(target) == abi.NOT_SUSPENDED:
            return None
        # The share waits for its first turn; or the last step of all is left, or the record is damaged.
        is_swapped = _suspended(target) == abi.SWAPPED
        processes = tuple(find(target.limits_folder, gpus_of(target, gpus)))
        found = Record(Phase.SUSPENDED if is_swapped else Phase.SUSPENDING, processes, is_swapped=is_swapped)
    # A user's own folder may say anything, and root reads it. Processes of another user are not left out, but refused.
    own = [each for each in found.processes if each.is_alive() and belongs_to(each.pid, target.limits_folder)]
    found = found._replace(processes=tuple(own), moved=tuple(each for each in found.moved if each in own))
    if found.onto:
        found = _end_move(target, gpus, driver, relocation.settle(target, gpus, driver, found))
    state = _suspended(target)
    if found.phase == Phase.RESUMING and state in (abi.SUSPENDED, abi.SWAPPED):
        found = found._replace(phase=Phase.SUSPENDED, is_swapped=state == abi.SWAPPED)  # nothing was done
    if found.phase == Phase.SUSPENDED:
        return _settle(target, found)
    _come_back(target, gpus, driver, found)
    return None


def start_over(target: Limited) -> None:
    """Forget a suspension: what is about to start anew has its room reserved, and waits for its turn at most.

    Raises OSError.

    Not where a process of it is there still, as in a container that is paused and so does not start.
    """
    found = record.read(target.limits_folder)
    if found is not None and any(each.is_alive() for each in found.processes):
        return
    wanted = abi.SWAPPED if takes_turns(target) else abi.NOT_SUSPENDED
    if found is not None or _suspended(target) != wanted:
        record.forget(target.limits_folder)
        set_suspended(target, wanted)


def read(target: Limited) -> Record | None:
    """Return the suspension of a container, a slice or a local program, if any. Raises nothing."""
    with suppress(OSError):
        return record.read(target.limits_folder)
    return None


def was_cut_off(target: Limited) -> bool:
    """Whether it is on its way out or back, be it that somebody is at it or that this was cut off. Raises OSError."""
    found = read(target)
    return _suspended(target) == abi.SUSPENDING if found is None else found.phase != Phase.SUSPENDED


def is_asked_for(target: Limited, found: Record | None) -> bool:
    """Whether a program waits for its GPUs, and has since they were taken: found.since_s, or never where it is None.

    The file outlives a reboot, and so does a question that was asked before it.
    """
    asked_ns = usage_file.read_asked_ns(target.limits_folder / "run" / "usage")
    now_ns = time.monotonic_ns()
    return max(found.since_now_ns if found else 0, now_ns - _ASKS_AGAIN_NS) < asked_ns <= now_ns


def takes_turns(target: Limited) -> bool:
    """Whether it has its memory on the GPU in its own turns alone. Raises OSError."""
    limits = limits_file.read_limits(target.limits_folder / "etc" / "limits") or []
    return any(quota.takes_turns for _, quota in limits)


def take(
    target: Limited,
    driver: Checkpoints,
    begun: Record,
    wishes: Wishes,
    own: Sequence[Gpu],
    find_now: Callable[[], list[ProcessIdentity]],
) -> Record:
    """Lock all processes, those that start meanwhile too, and then take all of them off. Raises SuspendError."""
    locked: list[ProcessIdentity] = []
    for _ in range(_MOST_ROUNDS):
        if wishes.gives_way and is_asked_for(target, begun):
            raise SuspendError(f"{target.name} is in use again")
        new = _not_away(driver, [each for each in find_now() if each not in locked])
        if not new:
            break
        begun = begun._replace(processes=tuple({*begun.processes, *new}))
        record.write(target.limits_folder, begun)
        for each in new:
            if _changed(driver.lock, each, wishes.lock_timeout_ms):
                locked.append(each)
    else:
        raise SuspendError(f"processes of {target.name} start faster than they can be stopped")
    checks.check_alone(target.name, target.limits_folder, own)
    known, held = begun.processes, held_by_each(locked, own)
    begun = begun._replace(held_bytes=sum_by_gpu(held, locked, own), processes=tuple(locked))
    record.write(target.limits_folder, begun)
    if wishes.when_locked:
        wishes.when_locked(begun)
    away = [each for each in locked if _changed(driver.checkpoint, each)]
    if known and not away:
        raise SuspendError(f"{target.name} has ended on its way; if the kernel killed it, give it more host memory")
    return begun._replace(held_bytes=sum_by_gpu(held, away, own), processes=tuple(away))


def is_part(target: Limited) -> bool:
    """Return whether it is a part of another share. Raises SuspendError where that is suspended itself."""
    above = folders_above(target.limits_folder)
    if any(map(_suspended_at, above)):
        raise SuspendError(f"{target.name} is part of a suspended share; resume the share first")
    return bool(above)


def _not_away(driver: Checkpoints, processes: Sequence[ProcessIdentity]) -> list[ProcessIdentity]:
    """Leave out those that are suspended by themselves, as parts of this: they come back in the same way."""
    return [each for each in processes if driver.state(each.pid) != ProcessState.CHECKPOINTED]


def _changed(change: Callable[..., None], process: ProcessIdentity, *arguments: int) -> bool:
    """Return whether there was something to change: a process that ends meanwhile needs nothing."""
    try:
        change(process.pid, *arguments)
    except CheckpointError:
        if process.is_alive():
            raise
        return False
    return True


def undo(target: Limited, own: Sequence[Gpu], driver: Checkpoints, error: BaseException) -> None:
    """Have all run on after an error. Raises SuspendError where that fails too."""
    try:
        finish_locked(target, own, driver)
    except (SuspendError, GpuError, NoRoomError) as second:
        raise SuspendError(f"{error or type(error).__name__}; and {second}") from None


@uninterrupted()
def _come_back(
    target: Limited,
    gpus: Sequence[Gpu],
    driver: Checkpoints,
    found: Record,
    may_go_on: Callable[[], bool] = lambda: True,
) -> bool:
    """Bring back whatever is away, and unlock whatever is locked; then calls go on, unless they may not.

    Where the driver fails at one process, the others go on; that one is tried again by the next command.
    """
    failures = _unlock_all(target, gpus, driver, found, may_go_on)
    if failures is None:
        return False
    if not failures:
        record.forget(target.limits_folder)
    set_suspended(target, abi.NOT_SUSPENDED)
    if failures:
        raise SuspendError(f"{target.name}: {failures[0]}" + f" (and {len(failures) - 1} more)" * (len(failures) > 1))
    return True


def _end_move(target: Limited, gpus: Sequence[Gpu], driver: Checkpoints, settled: Record) -> Record:
    """Keep one set of GPUs, and return what is left to do. Raises OSError: then nothing is locked, and calls wait."""
    found = relocation.without_move(settled)
    try:
        relocation.keep(target, settled)
    except OSError:  # a disk may be read-only for long
        _unlock_all(target, gpus, driver, found)
        raise
    return found


@uninterrupted()
def _unlock_all(
    target: Limited,
    gpus: Sequence[Gpu],
    driver: Checkpoints,
    found: Record,
    may_go_on: Callable[[], bool] = lambda: True,
) -> list[str] | None:
    """Return what has failed, in words, or None where they may not go on."""
    failures: list[str] = []

    def tried(step: Callable[[ProcessIdentity], object], process: ProcessIdentity) -> bool:
        try:
            return bool(step(process))
        except SuspendError as error:
            if process.is_alive():
                failures.append(str(error))
            return False

    alive = [each for each in found.processes if each.is_alive()]
    checks.check_runs(target.name, alive)
    away = [each for each in alive if tried(lambda each: driver.state(each.pid) == ProcessState.CHECKPOINTED, each)]
    if away:
        checks.await_memory(target.name, found.processes, found.held_bytes, gpus)
    for each in away:
        tried(lambda each: driver.restore(each.pid), each)
    if not may_go_on():
        return None
    for each in alive:
        tried(lambda each: _unlock(driver, each), each)
    return failures


def _unlock(driver: Checkpoints, process: ProcessIdentity) -> None:
    state = driver.state(process.pid)
    if state == ProcessState.FAILED:
        raise SuspendError(f"the driver has failed at process {process.pid}, whose GPU memory is lost; end it")
    if state == ProcessState.LOCKED:
        driver.unlock(process.pid)


def _reserve_memory(target: Limited, found: Record, gpus: Sequence[Gpu]) -> None:
    """Write down that all comes back, where its GPUs have the memory free. Raises NoRoomError: then it is as before."""
    record.write(target.limits_folder, found._replace(phase=Phase.RESUMING))
    set_suspended(target, abi.SUSPENDING)
    try:
        checks.await_memory(target.name, found.processes, found.held_bytes, gpus)
    except BaseException:
        _settle(target, found)
        raise


def _settle(target: Limited, found: Record) -> Record:
    """Write down that everything is away, and give back what was reserved, unless for its turns: in this order."""
    found = found._replace(phase=Phase.SUSPENDED)
    record.write(target.limits_folder, found)
    set_suspended(target, abi.SWAPPED if found.is_swapped else abi.SUSPENDED)
    return found


def _as_wished(target: Limited, found: Record, wishes: Wishes) -> Record:
    """Let what is away already stay so as it is wished: held, or without the turns that it waited for."""
    wanted = found._replace(is_held=found.is_held or wishes.is_held, is_swapped=found.is_swapped and wishes.is_swap)
    if wanted.is_swapped != found.is_swapped:
        wanted = wanted._replace(by=wishes.by).begun_now()
    return wanted if wanted == found else _settle(target, wanted)


def gpus_of(target: Limited, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return which of the host's GPUs a share has. Raises SuspendError where its limits cannot be read."""
    uuids = {uuid for uuid, _ in limits_of(target)}
    return [gpu for gpu in gpus if gpu.uuid in uuids]


def limits_of(target: Limited) -> list[tuple[str, Quota]]:
    """Return the limits of a share that has its GPUs, by UUID. Raises SuspendError where they cannot be read."""
    try:
        limits = limits_file.read_limits(target.limits_folder / "etc" / "limits")
    except FileNotFoundError:
        raise SuspendError(f"{target.name} has ended meanwhile") from None
    if limits is None:
        raise SuspendError(f"the limits of {target.name} cannot be read; start it again")
    return [(uuid, replace(quota, suspended=abi.NOT_SUSPENDED)) for uuid, quota in limits]


def _suspended(target: Limited) -> int:
    return _suspended_at(target.limits_folder)


def _suspended_at(folder: Path) -> int:
    limits = limits_file.read_limits(folder / "etc" / "limits") or []
    return max((quota.suspended for _, quota in limits), default=abi.NOT_SUSPENDED)


def set_suspended(target: Limited, suspended: int) -> None:
    """Say to its programs, and to admission, how it is: SUSPENDED and so on of abi.py. Raises OSError."""
    limits_file.set_suspended(target.limits_folder / "etc" / "limits", suspended)
