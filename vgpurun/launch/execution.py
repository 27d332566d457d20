"""Runs a further command in a container, with this process's standard streams or terminal as its own."""

import queue
import signal
from contextlib import nullcontext

from vgpurun.console import terminal
from vgpurun.console.signals import Signals
from vgpurun.console.streams import Input, copy_output
from vgpurun.engine.containers import ContainerEngine, ExecOptions
from vgpurun.util.threads import Helper


def execute(engine: ContainerEngine, container: str, options: ExecOptions, others: bool) -> int:
    """Run the command and return its exit code; 0 when it goes on without us. Raises ContainerError.

    `others`: in a container of another user, too.
    """
    exec_id = engine.exec_create(engine.find_own(container, others).id, options)
    if options.detach:
        engine.exec_detached(exec_id, options.tty)
        return 0
    with Signals():
        return _attached(engine, exec_id, options)


def _attached(engine: ContainerEngine, exec_id: str, options: ExecOptions) -> int:
    has_terminal = options.tty and options.interactive
    with terminal.Raw() if has_terminal else nullcontext():
        stream = engine.exec_start(exec_id, options.tty)
        if options.tty:
            _keep_size(engine, exec_id)
        if options.interactive:
            Input(stream).start()
        copy_output(stream, is_terminal=options.tty)
        is_running, exit_code = engine.exec_state(exec_id)
    return 0 if is_running else exit_code  # after the detach keys the command runs on


def _keep_size(engine: ContainerEngine, exec_id: str) -> None:
    """Give the command's terminal the size of ours, now and whenever it changes."""
    changes: queue.SimpleQueue[int] = queue.SimpleQueue()  # may be filled from a signal's handler
    changes.put(signal.SIGWINCH)

    def follow() -> None:
        while changes.get():
            if size := terminal.size():
                engine.exec_resize(exec_id, *size)

    signal.signal(signal.SIGWINCH, lambda number, _: changes.put(number))
    Helper(follow).start()
