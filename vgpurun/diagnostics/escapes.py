"""Tries to pass a limit on purpose, in a container for each way, and judges what stopped it.

lib/verify does what a hostile program would: it comes to the driver past the library, or forges what the library reads.
Its memory is read from NVML on the host; whether the library counts it, from the usage file. Its share of time is what
it gets done, against what it does without a limit.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vgpurun.diagnostics.verify import FAILED, OK, OWN_PROGRAM, SKIPPED, Check, family
from vgpurun.errors import ContainerError, GpuError, VgpurunError
from vgpurun.host import gpus
from vgpurun.host.gpus import Gpu
from vgpurun.inventory import guarded
from vgpurun.limits.quota import show_size
from vgpurun.limits.usage_file import read_usage

if TYPE_CHECKING:
    from vgpurun.engine.containers import ContainerEngine

# The names in lib/verify/escapes.c. The first ones have the library in them.
WAYS = (
    "plain", "empty environment", "lying variables", "RTLD_DEEPBIND", "setuid program", "Nix's loader",
    "forged limits file", "forged usage file", "closed usage file", "dlmopen", "copy of the driver",
    "driver's own symbols", "loader of its own", "unmounted preload", "mount namespace",
)  # fmt: skip
TIME_WAYS = (
    "plain", "empty environment", "lying variables", "forged limits file", "forged usage file", "dlmopen",
    "copy of the driver", "driver's own symbols", "loader of its own", "short processes", "unmounted preload",
    "mount namespace",
)  # fmt: skip
_WORK_S = 12.0  # only the second half counts
_MORE_TIME = 1.25  # times the limit, and two percent: a guard that freezes is no more exact
PAST_THE_LIMIT = 1.3  # the part of the limit that is asked for
_START_S = 60.0  # for a container to start
_GUARD_S = 4.0  # in which a guard acts on what is past its limit
_LOOK_S, _RECORD_S, _ENGINE_S = 0.05, 0.5, 5.0
_OUT_OF_MEMORY = 2
_MOST_OVER_BYTES = 2 << 20  # a step of the driver's


class _Container:
    """The container of one attempt, as the engine and the host see it."""

    def __init__(self, engine: "ContainerEngine") -> None:
        self.name = f"vgpurun-verify-{os.urandom(4).hex()}"
        self._engine = engine
        self._found: dict[str, Any] = {}

    def first_pid(self) -> int | None:
        """Return the host's number of its first process, or None before it runs."""
        if not self._found:
            with suppress(ContainerError):
                found = self._engine.describe(self.name)
                self._found = found if found["State"]["Pid"] else {}
        return int(self._found["State"]["Pid"]) if self._found else None

    @property
    def id(self) -> str:
        """Its id, or nothing before it runs."""
        return str(self._found.get("Id", ""))

    def counted_bytes(self, gpu: Gpu) -> int:
        """Return what the library counts in it."""
        if not self._found:
            return 0
        from vgpurun.engine.containers import from_description

        folder = Path(from_description(self._found).state_folder)
        return sum(each.memory_used_bytes for each in read_usage(folder / "run" / "usage", [gpu.uuid]) or [])

    def end(self) -> None:
        """End it, also if it is frozen."""
        self._engine.kill(self.name, signal.SIGKILL)


class Seen(NamedTuple):
    """The outcome of an attempt: what its program said, the most that it held by NVML, and what the guard did."""

    said: dict[str, Any]
    held_bytes: int
    is_counted: bool
    acted: str
    acted_s: float
    errors: str


def try_escapes(start: Sequence[str], image: str, gpu: Gpu, limit_bytes: int) -> Iterator[Check]:
    """Try each way to pass a memory limit. `start` are the words of vgpurun before the image.

    Raises VgpurunError when a container does not end.
    """
    from vgpurun.engine.containers import ContainerEngine

    engine = ContainerEngine.connect()
    for way in WAYS:
        container = _Container(engine)
        most = str(int(limit_bytes * PAST_THE_LIMIT))
        command = [*start, f"--name={container.name}", image, "escape", most, way]
        yield judge_memory(way, _watch(command, container, gpu, limit_bytes), limit_bytes)


def try_time(free: Sequence[str], limited: Sequence[str], image: str, limit_percent: int) -> Iterator[Check]:
    """Try each way to pass a limit of time; `free` and `limited` are the words of vgpurun before the image.

    Raises VgpurunError when a container does not end.
    """
    from vgpurun.engine.containers import ContainerEngine

    engine = ContainerEngine.connect()
    full = 0.0
    for way, start in (("plain", free), *((way, limited) for way in TIME_WAYS)):
        container = _Container(engine)
        before = max((each.id for each in guarded.actions()), default=0)
        said, errors = _worked([*start, f"--name={container.name}", image, "work", str(_WORK_S), way], container)
        if not full:
            full = float(said.get("kernels_per_second", 0.0))
            if not full:
                raise VgpurunError(f"the work without a limit cannot be tried: {said.get('error') or errors}")
        else:
            yield judge_time(way, said, errors, full, limit_percent, _acted(container.id, before))


def judge_time(way: str, said: dict[str, Any], errors: str, full: float, limit_percent: int, acted: str) -> Check:
    """Judge an attempt to get more time than the limit."""
    name, percent = f"time: {way}", 100 * said.get("kernels_per_second", 0.0) / full
    figures = {**said, "share_percent": round(percent, 1), "limit_percent": limit_percent, "stopped_by": ""}
    had = f"it had {percent:.1f} of {limit_percent} %"
    if "closed" in said:
        return Check(name, OK, f"the container: {said['closed']}", {**figures, "stopped_by": "the container"})
    if "kernels_per_second" not in said:
        reason = said.get("error") or errors or "the program said nothing"
        return Check(name, SKIPPED, f"it could not be tried: {reason}", figures)
    if percent > _MORE_TIME * limit_percent + 2:
        return Check(name, FAILED, f"nothing: {had}" if not acted else f"the guard, but {had}", figures)
    stopped_by = "the guard" if acted else "the library"
    return Check(name, OK, f"{stopped_by}: {had}", {**figures, "stopped_by": stopped_by})


def _worked(command: Sequence[str], container: _Container) -> tuple[dict[str, Any], str]:
    """Return what the program says in the end, and vgpurun's own last word."""
    said: dict[str, Any] = {}
    with _started(command, container) as program:
        end_s = time.monotonic() + _START_S + _WORK_S
        while program.process.poll() is None and time.monotonic() < end_s:
            container.first_pid()
            said |= program.line(_LOOK_S)
            if said.keys() & {"kernels_per_second", "closed", "error"}:
                break
    return said, program.errors


def judge_memory(way: str, seen: Seen, limit_bytes: int) -> Check:
    """Judge an attempt to get more memory than the limit."""
    name = f"escape: {way}"
    held = f"{show_size(seen.held_bytes)} of {show_size(limit_bytes)}"
    figures = {**seen.said, "held_bytes": seen.held_bytes, "limit_bytes": limit_bytes, "stopped_by": ""}

    def judged(stopped_by: str, words: str) -> Check:
        status = OK if stopped_by else FAILED
        return Check(name, status, words, {**figures, "stopped_by": stopped_by})

    if "closed" in seen.said:
        return judged("the container", f"the container: {seen.said['closed']}")
    if seen.acted:
        return judged(
            "the guard", f"the guard: {seen.acted} {seen.acted_s:.1f} s after it passed the limit; it held {held}"
        )
    if seen.held_bytes > limit_bytes + _MOST_OVER_BYTES:
        return judged("", f"nothing: it holds {held}")
    if seen.said.get("answer") == _OUT_OF_MEMORY and seen.held_bytes:
        stopped_by = "the library" if seen.is_counted else "the driver's own limit"
        return judged(stopped_by, f"{stopped_by}: refused at {held}")
    answered = f"the driver answered {seen.said['answer']}, and granted nothing" if "answer" in seen.said else ""
    reason = seen.said.get("error") or answered or seen.errors or "the program said nothing"
    words = f"it could not be tried: {reason}"
    return Check(name, SKIPPED, words, figures)


def _watch(command: Sequence[str], container: _Container, gpu: Gpu, limit_bytes: int) -> Seen:
    seen = Seen({}, 0, False, "", 0.0, "")
    passed_s: float | None = None
    before = max((each.id for each in guarded.actions()), default=0)
    with _started(command, container) as program:
        end_s = time.monotonic() + _START_S
        has_ended = False
        while not has_ended and time.monotonic() < end_s and not seen.acted and "closed" not in seen.said:
            has_ended = program.process.poll() is not None
            seen = seen._replace(said={**seen.said, **program.line(_LOOK_S)})
            held_bytes = _held(container, gpu)
            if held_bytes > seen.held_bytes:
                is_counted = container.counted_bytes(gpu) > held_bytes // 2
                seen = seen._replace(held_bytes=held_bytes, is_counted=is_counted)
            if held_bytes > limit_bytes + _MOST_OVER_BYTES and passed_s is None:
                passed_s = time.monotonic()
                end_s = passed_s + _GUARD_S
            if passed_s is not None:
                seen = seen._replace(acted=_acted(container.id, before), acted_s=time.monotonic() - passed_s)
            elif "answer" in seen.said:
                if held_bytes:
                    break
                end_s = min(end_s, time.monotonic() + _ENGINE_S)  # its program may run before the engine says so
        if has_ended and not seen.acted:  # a guard that ends it writes that down right afterwards
            time.sleep(_RECORD_S)
            acted_s = 0.0 if passed_s is None else time.monotonic() - _RECORD_S - passed_s
            seen = seen._replace(acted=_acted(container.id, before), acted_s=acted_s)
    return seen._replace(errors=program.errors)


def _acted(container: str, before: int) -> str:
    done = [each for each in guarded.actions() if each.id > before and each.action.container == container]
    words = {guarded.FREEZE: "frozen", guarded.KILL: "ended", guarded.HOLD: "held", guarded.RELEASE: "held"}
    return words.get(done[-1].action.verb, "") if done else ""


def _held(container: _Container, gpu: Gpu) -> int:
    first = container.first_pid()
    with suppress(GpuError):
        by_pid = gpus.read_processes(gpu)
        return sum(by_pid[pid] for pid in family(first) & by_pid.keys()) if first else 0
    return 0


class _Program:
    """The container's program: what it says, a line of JSON each, and what vgpurun says of it at the end."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.errors = ""
        self._rest = b""

    def line(self, timeout_s: float) -> dict[str, Any]:
        """Return what it has said meanwhile."""
        said: dict[str, Any] = {}
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            return said
        *lines, self._rest = (self._rest + self.process.stdout.read1(1 << 16)).split(b"\n")  # type: ignore[attr-defined]
        for each in lines:
            with suppress(ValueError):
                said.update(json.loads(each))
        if not lines:
            time.sleep(timeout_s)  # its end is seen otherwise
        return said


@contextmanager
def _started(command: Sequence[str], container: _Container) -> Iterator[_Program]:
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", OWN_PROGRAM, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        program = _Program(process)
        try:
            yield program
        finally:
            container.end()
            try:
                process.communicate(timeout=_START_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise VgpurunError("the trial did not end; its container may still run: vgpurun ps") from None
            errors.seek(0)
            lines = [line for line in errors.read().splitlines() if line and "warning: " not in line]
            program.errors = lines[-1].removeprefix("vgpurun: ") if lines else ""
