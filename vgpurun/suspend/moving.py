"""Moves a share to other GPUs while its programs run: a suspension that ends elsewhere, all of it under one lock.

Both sets of GPUs are reserved meanwhile. relocation.py has the steps that are its own, and says where none is possible.
"""

import time
from collections.abc import Mapping, Sequence

from vgpurun import abi
from vgpurun.errors import SuspendError
from vgpurun.host.checkpoints import Checkpoints
from vgpurun.host.gpus import Gpu
from vgpurun.limits import usage_file
from vgpurun.limits.update import Limited, changing, devices_of
from vgpurun.suspend import checks, record, relocation
from vgpurun.suspend.processes import find_all, held_by_each, held_bytes
from vgpurun.suspend.record import Phase, Record
from vgpurun.suspend.transition import (
    CALLS_NOTICE_S,
    Admitted,
    Wishes,
    finish_locked,
    gpus_of,
    is_part,
    limits_of,
    set_suspended,
    take,
    takes_turns,
    undo,
)  # fmt: skip
from vgpurun.util.process_identity import ProcessIdentity

_POLL_INTERVAL_S = 0.01


def move(
    target: Limited,
    gpus: Sequence[Gpu],
    driver: Checkpoints,
    wanted: Sequence[Gpu],
    admitted: Admitted,
    wishes: Wishes,
) -> Record:
    """Bring all processes of a share onto these GPUs, as many as it has; all of them, or none.

    The share's present GPUs are read under the lock, since another command may just have moved it. `admitted` is
    entered while the new GPUs are reserved; the old ones stay reserved until the share has left them.
    Raises NoRoomError, SuspendError and StateError: then all programs continue where they were.
    """
    with changing(target):
        if not takes_turns(target) and finish_locked(target, gpus, driver) is not None:
            raise SuspendError(f"{target.name} is suspended; resume it first")
        own, limits = gpus_of(target, gpus), limits_of(target)
        onto = relocation.onto_named(target.name, own, wanted)
        there = check_move(target, gpus, driver, onto)
        needed = devices_of(target.name, [(onto[uuid], quota) for uuid, quota in limits if uuid in onto], gpus)
        begun = Record(
            Phase.SUSPENDING, tuple(there), held_bytes(there, own), True, wishes.by, onto=onto
        ).begun_now()  # fmt: skip
        record.write(target.limits_folder, begun)
        try:
            with admitted(target, needed):
                set_suspended(target, abi.SUSPENDING)  # new programs wait, before they see the GPUs of both sides
                relocation.reserve(target, limits, onto)
            time.sleep(CALLS_NOTICE_S)
            _await_starts(target, wishes.lock_timeout_ms)
            begun = take(target, driver, begun, wishes, own, lambda: find_all(target.limits_folder, own, driver))
            relocation.check(target, begun.processes, gpus, onto)  # some have started meanwhile
            record.write(target.limits_folder, begun._replace(phase=Phase.MOVING))
            begun = begun._replace(phase=Phase.MOVING)  # only now: what is not written down is undone
            relocation.forward(target, gpus, driver, begun)
        except BaseException as error:
            if begun.phase == Phase.MOVING:
                relocation.turn_back(target, driver, begun)
            undo(target, gpus, driver, error)
            raise
        finish_locked(target, gpus, driver)
        return begun


def _await_starts(target: Limited, timeout_ms: int) -> None:
    """Wait for processes that are within their first call of CUDA: each has found its GPUs, and is not known yet.

    Those that begin meanwhile wait for the move, and find the new ones. Raises SuspendError.
    """
    deadline_s = time.monotonic() + timeout_ms / 1000
    while usage_file.is_starting(target.limits_folder / "run" / "usage"):
        if time.monotonic() > deadline_s:
            raise SuspendError(
                f"a process of {target.name} has been starting CUDA for {timeout_ms / 1000:g} s; move it when that has "
                "started, or give it longer: --timeout"
            )
        time.sleep(_POLL_INTERVAL_S)


def check_move(
    target: Limited, gpus: Sequence[Gpu], driver: Checkpoints, onto: Mapping[str, str]
) -> list[ProcessIdentity]:
    """Return the processes that would move. Raises SuspendError and GpuError where something stands against it."""
    if takes_turns(target):
        raise SuspendError(f"{target.name} takes turns with its memory (--swap), and stays where the others are")
    if is_part(target):
        raise SuspendError(f"{target.name} is a part of another share, and stays on that one's GPUs")
    own = gpus_of(target, gpus)
    there = find_all(target.limits_folder, own, driver)
    checks.check_runs(target.name, there)
    relocation.check(target, there, gpus, onto)
    checks.check_alone(target.name, target.limits_folder, own)
    checks.check(target.name, held_by_each(there, own))
    return there
