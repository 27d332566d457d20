"""Takes processes off their GPUs, and brings them back, by the driver's checkpoint functions.

Each call is made by a helper process: one that the driver does not answer, as for programs that use NCCL while another
of them is locked, is given up with the helper, and not waited for.
"""

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import TracebackType

from vgpurun.errors import SuspendError
from vgpurun.host.stopped import is_stopped
from vgpurun.util.threads import uninterrupted

_CALLS = Path(__file__).with_name("checkpoint_calls.py")
FIRST_DRIVER = 570
_START_TAKES_S = 30.0
_ANSWER_TAKES_S = 30.0  # besides the time that a lock is given
_COPY_TAKES_S = 600.0  # several hundred gigabytes through a slow host
_MAY_BE_STOPPED_S = 5.0  # a process, within a call: the driver's part in it does nothing then
_POLL_INTERVAL_S = 0.5
_NAMES = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    201: "CUDA_ERROR_INVALID_CONTEXT",
    304: "CUDA_ERROR_OPERATING_SYSTEM",
    401: "CUDA_ERROR_ILLEGAL_STATE",
    500: "CUDA_ERROR_NOT_FOUND",
    600: "CUDA_ERROR_NOT_READY",
    800: "CUDA_ERROR_NOT_PERMITTED",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    999: "CUDA_ERROR_UNKNOWN",
}
_REASONS = {
    "CUDA_ERROR_INVALID_VALUE": "it is not a process that uses CUDA",
    "CUDA_ERROR_OPERATING_SYSTEM": "the driver could not reach it, or has failed at it before",
    "CUDA_ERROR_NOT_FOUND": "this driver is too old: it takes 570 or newer",
    "CUDA_ERROR_NOT_READY": "its work on the GPU did not end in time",
    "CUDA_ERROR_NOT_SUPPORTED": "the driver does not support it for this process, as with managed memory, or is older "
    "than 570",
}


class ProcessState(IntEnum):
    """A process's state, as the driver says."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class CheckpointError(SuspendError):
    """The driver refused something about one process. `name` is its error's, or nothing where it did not answer."""

    def __init__(self, verb: str, pid: int, name: str) -> None:
        reason = _REASONS.get(name, "")
        said = f"{reason} ({name})" if reason else name or "the driver did not answer"
        super().__init__(f"cannot {verb} process {pid}: {said}")
        self.pid = pid
        self.name = name


class Checkpoints:
    """The driver's checkpoint functions. `libcuda` is the driver's library, or the simulated one's."""

    def __init__(self, libcuda: str = "libcuda.so.1") -> None:
        self._libcuda = libcuda
        self._helper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_up()

    def state(self, pid: int) -> ProcessState | None:
        """Return the state of a process, or None for one that uses no GPU (any more). Raises CheckpointError."""
        words = self._ask("state", pid, _ANSWER_TAKES_S)
        if (name := _name(words[0])) in ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_NOT_INITIALIZED"):
            return None
        if name:
            raise CheckpointError("look at", pid, name)
        return ProcessState(int(words[1])) if int(words[1]) in set(ProcessState) else ProcessState.LOCKED

    def lock(self, pid: int, timeout_ms: int) -> None:
        """Let the process's work end, and its further calls wait. Raises CheckpointError; then nothing has changed."""
        self._do("lock", pid, timeout_ms / 1000 + _ANSWER_TAKES_S, str(timeout_ms))

    def checkpoint(self, pid: int) -> None:
        """Copy a locked process's memory to the host, and take it off its GPUs. Raises CheckpointError."""
        self._do("checkpoint", pid, _COPY_TAKES_S)

    def restore(self, pid: int, onto: Mapping[str, str] = {}) -> None:
        """Bring it back, locked still: onto the same GPUs, or to others by UUID. Raises CheckpointError.

        A driver never brings back a process for which it has found too little memory once.
        """
        self._do("restore", pid, _COPY_TAKES_S, *(f"{_hex(old)}={_hex(new)}" for old, new in onto.items()))

    def unlock(self, pid: int) -> None:
        """Let the process go on. Raises CheckpointError."""
        self._do("unlock", pid, _ANSWER_TAKES_S)

    def _do(self, verb: str, pid: int, patience_s: float, *arguments: str) -> None:
        (code,) = self._ask(verb, pid, patience_s, *arguments)
        if name := _name(code):
            raise CheckpointError(verb, pid, name)

    @uninterrupted()  # a question is always answered: the next answer would be taken for this one
    def _ask(self, verb: str, pid: int, patience_s: float, *arguments: str) -> list[str]:
        helper = self._started()
        assert helper.stdin is not None
        with suppress(BrokenPipeError):
            helper.stdin.write(" ".join((verb, str(pid), *arguments, "\n")).encode())
        if not self._is_answered(pid, patience_s) or (answer := self._line(_ANSWER_TAKES_S)) is None:
            self._give_up()
            raise CheckpointError(verb, pid, "")
        return answer.split()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._helper is None:
            command = [sys.executable, "-I", "-S", str(_CALLS), self._libcuda]
            self._helper = subprocess.Popen(  # Ctrl-C of a terminal is not for it
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
            )
            greeting = self._line(_START_TAKES_S)
            if greeting != "ready":
                self._give_up()
                raise SuspendError(f"the driver cannot be loaded: {(greeting or '! ')[2:]}; does nvidia-smi work?")
        return self._helper

    def _is_answered(self, pid: int, patience_s: float) -> bool:
        """Wait for the helper. Return False where it is silent for so long, or the process is stopped meanwhile."""
        assert self._helper is not None
        assert self._helper.stdout is not None
        began_s = ran_s = time.monotonic()
        while not select.select([self._helper.stdout], [], [], _POLL_INTERVAL_S)[0]:
            now_s = time.monotonic()
            if not is_stopped(pid):
                ran_s = now_s
            if now_s - ran_s > _MAY_BE_STOPPED_S or now_s - began_s > patience_s:
                return False
        return True

    def _line(self, patience_s: float) -> str | None:
        """Return the next line of the helper, or None where it has ended, or is silent for so long."""
        assert self._helper is not None
        assert self._helper.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self._helper.stdout], [], [], patience_s)[0]:
                return None
            if not (more := os.read(self._helper.stdout.fileno(), 4096)):
                return None
            line += more
        return line.decode(errors="replace").strip()

    def _give_up(self) -> None:
        """End the helper. The driver ends by itself what it has begun."""
        if self._helper is not None:
            self._helper.kill()
            self._helper.wait()
            for pipe in (self._helper.stdin, self._helper.stdout):
                if pipe is not None:
                    pipe.close()
            self._helper = None


def _name(code: str) -> str:
    return "" if code == "0" else _NAMES.get(int(code), f"CUDA error {code}")


def _hex(uuid: str) -> str:
    return uuid.removeprefix("GPU-").replace("-", "")
