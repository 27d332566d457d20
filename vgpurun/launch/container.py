"""Carries out a LaunchPlan on the engine: makes the state folder and the container, runs it, and cleans up."""

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from vgpurun.admission.entry import Admission
from vgpurun.admission.holders import is_abandoned
from vgpurun.admission.placement import Placement
from vgpurun.background import Background
from vgpurun.console import terminal
from vgpurun.console.signals import Signals
from vgpurun.engine.client import Engine
from vgpurun.engine.image_libc import check_image
from vgpurun.engine.launches import LaunchEngine
from vgpurun.errors import EngineError, OptionError
from vgpurun.host.drivers import EngineFacts
from vgpurun.host.library import Library
from vgpurun.launch import places
from vgpurun.launch.attached import AttachedRun
from vgpurun.launch.plan import LaunchPlan
from vgpurun.limits import state
from vgpurun.limits.state import StateFolder
from vgpurun.options import ContainerOptions
from vgpurun.slices.joining import Joining


def check_terminal(options: ContainerOptions) -> None:
    """Refuse -it without a terminal, as docker does. Raises OptionError."""
    if options.tty and options.takes_input and not terminal.is_terminal(0):
        raise OptionError("the input device is not a TTY; leave out -t to read from a pipe or file")


def sweep(engine: Engine, facts: Background[EngineFacts], is_dry_run: bool = False) -> list[tuple[Path, int]]:
    """Remove what killed launches have left: containers that nobody will start, and state folders without one.

    Returns the folders, with the bytes that they took. The engine's id is waited for only where there is a folder.
    """
    abandoned = [container for container in engine.containers() if is_abandoned(container, engine)]
    if not is_dry_run:
        for container in abandoned:
            engine.remove(container.id, force=False)
        abandoned = []
    would_go = {container.state_folder for container in abandoned}

    def states() -> tuple[str, set[str]]:
        return facts.result().id, {each.state_folder for each in engine.containers()} - would_go

    return state.sweep(states, is_dry_run)


def launch(
    engine: LaunchEngine,
    facts: Background[EngineFacts],
    admission: Admission | Joining,
    make_plan: Callable[[Placement], LaunchPlan],
    library: Library,
    signals: Signals,
    warn: Callable[[str], None],
) -> int:
    """Run the planned container once it is admitted; return its exit code, or 0 when it is detached.

    After a failed start neither a container nor a state folder is left. Raises VgpurunError and Interrupted.
    """
    state.make_lock_dir()
    sweep(engine, facts)
    engine_id = facts.result().id  # while nobody waits for the lock
    with ExitStack() as undo:
        with admission.granted() as placement:
            plan = make_plan(placement)
            with signals.held():
                id_file = _new_id_file(plan.options.cidfile, undo)
                folder = StateFolder.make(
                    plan.state_folder, plan.state_files, {"engine": engine_id}, has_usage=plan.slice_folder is None
                )
                undo.callback(_remove_unused, engine, folder)
                if plan.profiling and plan.profiling.make_folder():
                    undo.callback(plan.profiling.folder.rmdir)
                container, warnings = engine.create(plan)
                undo.callback(engine.remove, container)
                id_file.write_text(container)
            admission.confirm(container)
        with signals.held():  # it may make a container to read from
            doubts = _check_libc(engine, container, plan, library)
        for warning in (*plan.warnings, *warnings, *doubts):
            warn(warning)
        if plan.options.detach:
            with signals.held():
                engine.start(container)
            undo.pop_all()  # an ending signal that came in the meantime has undone all
            folder.close()
            print(container)
            return 0
        run = AttachedRun(engine, container, plan.options, signals)
        try:
            return run.run(started=undo.pop_all)
        finally:
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
        raise OptionError(f"failed to create the container ID file: open {path}: {error.strerror}") from None
    undo.callback(file.unlink, missing_ok=True)
    return file


def _remove_unused(engine: LaunchEngine, folder: StateFolder) -> None:
    """Remove the folder of a failed start, unless the engine could not remove the container: the next launch does."""
    try:
        is_used = any(each.state_folder == str(folder.path) for each in engine.containers())
    except EngineError:
        is_used = True
    if is_used:
        folder.close()
    else:
        folder.remove()


def _let_go(engine: LaunchEngine, container: str, folder: StateFolder, is_removed: bool) -> None:
    """From now on the folder lives as long as its container."""
    folder.close()
    with suppress(EngineError):  # an engine that was stopped meanwhile: the next launch sweeps
        if is_removed or engine.state_of(container) is None:
            folder.remove()


def _check_libc(engine: LaunchEngine, container: str, plan: LaunchPlan, library: Library) -> list[str]:
    """Look at the C library that the container will have: the image's, or that of a host folder mounted over it.

    The image's files are read from the container that was made. An engine cannot open one with our mounts inside a
    read-only folder of the user's; then a container of the image alone is made to read from.
    """

    def read(path: str) -> bytes | None:
        on_host = places.path_on_host(path, plan.options)
        if on_host is not None:
            return _read_if_there(Path(on_host))
        try:
            return engine.read_file(container, path)
        except EngineError:
            bare = engine.create_for_copy(plan.options.image, plan.state_folder)
            try:
                return engine.read_file(bare, path)
            finally:
                engine.remove(bare)

    return check_image(plan.options.image, read, library)


def _read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
