"""Carries out a LaunchPlan on the engine: makes the state folder and the container, runs it, and cleans up."""

import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

from vgpurun import places, state, terminal
from vgpurun.admission import Admission
from vgpurun.engine import Engine
from vgpurun.errors import EngineError, OptionError, OutputError
from vgpurun.holders import is_abandoned
from vgpurun.image_libc import check_image
from vgpurun.library import Library
from vgpurun.options import ContainerOptions
from vgpurun.placement import Placement
from vgpurun.plan import LaunchPlan
from vgpurun.signals import Signals
from vgpurun.state import StateFolder
from vgpurun.streams import Input, copy_output

_SIGPIPE_EXIT_CODE = 128 + signal.SIGPIPE


def check_terminal(options: ContainerOptions) -> None:
    """Refuse -it without a terminal, as docker does. Raises OptionError."""
    if options.tty and options.interactive and not options.detach and not terminal.is_terminal(0):
        raise OptionError("the input device is not a TTY; leave out -t to read from a pipe or file")


def sweep(engine: Engine, engine_id: str, is_dry_run: bool = False) -> list[tuple[Path, int]]:
    """Remove what killed launches have left: containers that nobody will start, and state folders without one.

    Returns the folders, with the bytes that they took.
    """
    abandoned = [container for container in engine.containers() if is_abandoned(container)]
    if not is_dry_run:
        for container in abandoned:
            engine.remove(container.id)
        abandoned = []
    would_go = {container.state_folder for container in abandoned}
    return state.sweep(lambda: (engine_id, {each.state_folder for each in engine.containers()} - would_go), is_dry_run)


def launch(
    engine: Engine,
    engine_id: str,
    admission: Admission,
    make_plan: Callable[[Placement], LaunchPlan],
    library: Library,
    signals: Signals,
    warn: Callable[[str], None],
) -> int:
    """Run the planned container once it is admitted; return its exit code, or 0 when it is detached.

    After a failed start neither a container nor a state folder is left. Raises VgpurunError and Interrupted.
    """
    state.make_lock_dir()
    sweep(engine, engine_id)
    with ExitStack() as undo:
        with admission.granted() as placement:
            plan = make_plan(placement)
            with signals.held():
                folder = StateFolder.make(plan.state_folder, plan.state_files, {"engine": engine_id})
                undo.callback(folder.remove)
                container, warnings = engine.create(plan)
                undo.callback(engine.remove, container)
            admission.confirm(container)
        for warning in (*plan.warnings, *warnings, *_check_libc(engine, container, plan, library)):
            warn(warning)
        if plan.options.detach:
            with signals.held():
                engine.start(container)
            undo.pop_all()  # an ending signal that came in the meantime has undone all
            folder.close()
            print(container)
            return 0
        try:
            return _run_attached(engine, container, plan, signals, undo)
        finally:
            _let_go(engine, container, folder)


def _let_go(engine: Engine, container: str, folder: StateFolder) -> None:
    """From now on the folder lives as long as its container."""
    folder.close()
    with suppress(EngineError):  # an engine that was stopped meanwhile: the next launch sweeps
        if engine.state_of(container) is None:
            folder.remove()


def _check_libc(engine: Engine, container: str, plan: LaunchPlan, library: Library) -> list[str]:
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


def _run_attached(engine: Engine, container: str, plan: LaunchPlan, signals: Signals, undo: ExitStack) -> int:
    options = plan.options
    stream = engine.attach(container, stdin=options.interactive)
    wait = engine.expect_end(container, is_removed=options.remove)
    has_terminal = options.tty and options.interactive
    keys = Input(stream)
    with terminal.raw() if has_terminal else nullcontext():
        with signals.held():
            engine.start(container)
            undo.pop_all()
            signals.relay(lambda number: _send(engine, container, number, options.tty))
        if options.tty:
            _resize(engine, container)
        if options.interactive:
            keys.start()
        try:
            copy_output(stream, is_terminal=options.tty)
        except OSError as error:
            stream.shutdown(socket.SHUT_RDWR)  # what is not read would hold the engine up
            engine.stop(container)
            wait()
            if isinstance(error, BrokenPipeError):
                return _SIGPIPE_EXIT_CODE
            raise OutputError(f"the container's output cannot be written: {error.strerror}; it was stopped") from None
        if has_terminal and keys.ended_with_detach_keys and engine.state_of(container) == "running":
            return 0
        return wait()


def _send(engine: Engine, container: str, number: int, has_terminal: bool) -> None:
    if number != signal.SIGWINCH:
        engine.kill(container, number)
    elif has_terminal:
        _resize(engine, container)


def _resize(engine: Engine, container: str) -> None:
    if size := terminal.size():
        engine.resize(container, *size)
