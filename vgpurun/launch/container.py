"""Carries out a LaunchPlan on the engine: makes the state folder and the container, runs it, and cleans up."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from vgpurun.admission.controller import AdmissionController
from vgpurun.admission.overdue import end_overdue
from vgpurun.admission.placement import Placement
from vgpurun.console import terminal
from vgpurun.console.signals import Signals
from vgpurun.engine.client import Engine, VgpurunContainer
from vgpurun.engine.launches import LaunchEngine, launch_error
from vgpurun.errors import CommandLineError, EngineError, OptionError
from vgpurun.host.drivers import EngineFacts
from vgpurun.inventory.reservations import is_abandoned
from vgpurun.launch.attached import AttachedRun
from vgpurun.launch.ending import Countdown
from vgpurun.launch.plan import LaunchPlan, tenant_folder
from vgpurun.launch.request import plan_body
from vgpurun.options import ContainerOptions
from vgpurun.options.values import detach_keys
from vgpurun.storage import state, tenants
from vgpurun.storage.state import StateFolder
from vgpurun.util.background import Background

_LET_GO_S = 10  # so long the engine may take to say whether the container is gone


def check_terminal(options: ContainerOptions, engine: LaunchEngine) -> None:
    """Refuse -it without a terminal, and keys that cannot be typed, as docker does. Raises CommandLineError."""
    if options.tty and options.takes_input and not terminal.is_terminal(0):
        raise CommandLineError("the input device is not a TTY; leave out -t to read from a pipe or file")
    check_keys(options, engine)


def check_keys(options: ContainerOptions, engine: LaunchEngine) -> None:
    """Refuse keys to detach with that cannot be typed. Raises CommandLineError."""
    try:
        if options.streams:
            detach_keys(options.detach_keys or engine.configured_detach_keys())
    except ValueError as error:
        raise CommandLineError(str(error)) from None


def sweep(engine: Engine, facts: Background[EngineFacts], is_dry_run: bool = False) -> list[tuple[Path, int]]:
    """Remove what killed launches have left: containers that nobody will start, and state folders without one.

    Returns the folders, with the bytes that they took. The engine's id is waited for only where there is a folder.
    """
    free = state.free_folders()
    if not is_dry_run:
        tenants.sweep()
    return _sweep(engine, engine.containers(), free, facts, is_dry_run)


def _sweep(
    engine: Engine,
    listed: Sequence[VgpurunContainer],
    free: Mapping[Path, Mapping[str, Any] | None],
    facts: Background[EngineFacts],
    is_dry_run: bool = False,
) -> list[tuple[Path, int]]:
    """Sweep by a list of all containers that was made after the free folders were looked up."""
    abandoned = [container for container in listed if is_abandoned(container, engine)]
    if not is_dry_run:
        for left in (*(container.id for container in abandoned), *engine.left_looks):
            engine.remove(left, force=False)
        abandoned = [container for container in abandoned if engine.state_of(container.id) is None]

    def states() -> tuple[str, set[str]]:
        return facts.result().id, {each.state_folder for each in listed if each not in abandoned}

    return state.sweep(states, is_dry_run, free, has_tenants=False)


def launch(
    engine: LaunchEngine,
    facts: Background[EngineFacts],
    admission: AdmissionController,
    make_plan: Callable[[Placement], LaunchPlan],
    signals: Signals,
    warn: Callable[[str], None],
) -> int:
    """Run the planned container once it is admitted; return its exit code, or 0 when it is detached.

    After a failed start neither a container nor a state folder is left. Raises VgpurunError and Interrupted.
    """
    state.make_lock_dir()
    for ended in end_overdue(engine):
        warn(f"{ended} reached its --for limit and was stopped")
    free = state.free_folders()
    engine_id = facts.result().id  # while nobody waits for the lock
    with ExitStack() as held, ExitStack() as undo:
        with admission.granted() as placement:
            _sweep(engine, engine.containers() if engine.listed is None else engine.listed, free, facts)
            plan = make_plan(placement)
            if plan.membership:
                held.enter_context(plan.membership.joined())  # the mounts' sources have to exist
            with signals.held():
                id_file = _new_id_file(plan.options.cidfile, undo)
                owner = {"engine": engine_id, **plan.owner}
                folder = StateFolder.make(
                    plan.state_folder, plan.state_files, owner, plan.slice_folder is None, plan.state_links
                )
                undo.callback(_remove_unused, engine, folder)
                if (engine_uid := facts.result().rootless_uid) is not None:
                    folder.let_in(engine_uid)
                tenants.make(tenant_folder(plan.slice_folder or plan.state_folder, plan.parents))
                if plan.profiling and plan.profiling.make_folder():
                    undo.callback(plan.profiling.folder.rmdir)
                sweeping = Background(tenants.sweep)  # while the engine is at work
                container, warnings = engine.create(
                    plan.options,
                    plan_body(plan, engine.proxies(), terminal.size()),
                    plan.slice_folder or plan.state_folder,
                )
                undo.callback(engine.remove, container)
                folder.give_to(container)
                id_file.write_text(container)
            sweeping.result()
            admission.confirm(container)
        for warning in (*plan.warnings, *warnings, *plan.options.warnings):
            warn(warning)
        if plan.options.detach:
            with signals.held():
                engine.start(container)
            undo.pop_all()  # an ending signal that came in the meantime has undone all
            folder.close()
            print(container)
            return 0
        run = AttachedRun(engine, container, plan.options, signals)
        ends_s = state.ends_s(plan.owner)
        began_s = time.time()
        countdown = None if ends_s is None else Countdown(engine, container, folder.path, ends_s)
        try:
            return run.run(started=undo.pop_all)
        finally:
            if countdown:
                countdown.cancel()
            for incident in plan.membership.incidents_since(began_s) if plan.membership else ():
                warn(incident)
            _let_go(engine, container, folder, run.has_ended and plan.options.remove)


def _new_id_file(path: str | None, undo: ExitStack) -> Path:
    """Make the file of --cidfile, which may not be there yet. Raises OptionError."""
    if not path:
        return Path(os.devnull)
    file = Path(path)
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        raise OptionError(
            f"container ID file found, make sure the other container isn't running or delete {path}"
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise launch_error(f"failed to create the container ID file: open {path}: {reason}") from None
    undo.callback(file.unlink, missing_ok=True)
    return file


def _remove_unused(engine: LaunchEngine, folder: StateFolder) -> None:
    """Remove the folder of a failed start. If the engine has kept the container, the next launch removes both."""
    try:
        is_used = any(each.state_folder == str(folder.path) for each in engine.containers())
    except EngineError:
        is_used = True
    if is_used:
        folder.close()
    else:
        folder.remove()


def _let_go(engine: LaunchEngine, container: str, folder: StateFolder, is_removed: bool) -> None:
    """Let the folder live as long as its container."""
    folder.close()
    with suppress(EngineError):  # an engine that was stopped meanwhile: the next launch sweeps
        if is_removed or engine.state_of(container, _LET_GO_S) is None:
            folder.remove()
