"""Tries to pass limits, and judges what happened: the work behind `vgpurun verify`.

lib/verify is a program that takes memory in every way until it is refused, and works in every way for some time. It is
started under limits as any user's program is, in a container or on the host. How much memory it holds is read from NVML
by this process, which has no limits; what the program itself believes proves nothing.
"""

import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpurun.diagnostics.gpu_time import Shares, Watch
from vgpurun.errors import VgpurunError
from vgpurun.host import gpus
from vgpurun.host.gpu_records import GpuTimes
from vgpurun.host.gpus import Gpu
from vgpurun.inventory.reservations import Holder
from vgpurun.limits import usage_file
from vgpurun.limits.quota import show_size
from vgpurun.storage import state

OK, WARNING, FAILED, SKIPPED = "ok", "warn", "FAIL", "skip"

_MIB = 1 << 20
_STEP_BYTES = 2 * _MIB  # the driver's own
_LEAST_ROOM_BYTES = 64 * _MIB  # a pool grows in steps, and may have nothing with less
_MOST_CHUNK_BYTES = 256 * _MIB  # an array has no more rows
_OUT_OF_MEMORY = 2  # lib/verify's answers, like the next ones
_NO_ROOM_FOR_TWO = "no room for two contexts; try a higher limit"
_SKIPS = {-1: "this driver does not have it", -3: _NO_ROOM_FOR_TWO}  # lib/verify's answers
_END_S = 30  # after which a program that does not end is killed
_SILENT_S = 180.0  # after which it is stuck: to take all of a large GPU's memory in one way is a matter of seconds
_CHUNK_BYTES = 64 << 10
_GONE_S, _POLL_INTERVAL_S = 1.0, 0.05  # in which a process that has ended goes from NVML's list
_AGAIN_S = 3  # after which it is asked to end once more
_EXACT = "scheduler"  # the limiter under which a context leaves the GPU where it has used its time
_INEXACT_POINTS = 3.0  # by which the library's account may differ from the GPU's records
_CHARGED_LATE_S = 0.04  # a period of the library's, at whose end it charges at the latest
_BESIDE, _BESIDE_S = "beside another program", 600  # longer than any kind of work takes


@dataclass(frozen=True)
class Check:
    """An attempt: what was tried, how it is judged, in words, and the figures in it."""

    name: str
    status: str
    words: str
    figures: dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """How the program is started: the arguments of vgpurun without and with limits, up to the program's own.

    `first_pid` tells the host's number of the process that the program's processes descend from, `holder` what holds
    the GPU for them. `beside` starts another program, without limits.
    """

    free: Sequence[str]
    limited: Sequence[str]
    is_container: bool
    first_pid: Callable[[int], int | None]
    holder: Callable[[int], Holder | None] = lambda _: None
    beside: Sequence[str] = ()


def check_memory(trial: Trial, gpu: Gpu, limit_bytes: int) -> Iterator[Check]:
    """Take memory in every way until it is refused. Raises VgpurunError when the program cannot be run at all."""
    chunk_bytes = min(_MOST_CHUNK_BYTES, max(_STEP_BYTES, limit_bytes // 32 // _STEP_BYTES * _STEP_BYTES))
    yield from _try_memory(trial, gpu, limit_bytes, "memory", chunk_bytes)
    if trial.is_container:
        yield from _try_memory(trial, gpu, limit_bytes, "clean", chunk_bytes)
    else:
        yield Check("memory: an empty environment", SKIPPED, "env -i lifts the limit of a process", {})


def _try_memory(trial: Trial, gpu: Gpu, limit_bytes: int, verb: str, chunk_bytes: int) -> Iterator[Check]:
    before_bytes = _device_bytes(gpu)
    with started([*trial.limited, verb, str(chunk_bytes)]) as program:
        held: dict[str, Any] = {}
        for said in program.answers():
            if "view" in said:
                yield _judge_view(said["view"], limit_bytes)
            elif said.get("hold"):
                pid = trial.first_pid(program.pid)
                held = {**said, "used_bytes": _held_bytes(gpu, pid, before_bytes), "limit_bytes": limit_bytes}
                program.go_on()
            elif "again" in said:
                yield judge_path({**held, **said})
                held = {}
            elif "ended" in said:
                yield _ended(f"memory: {said['path']}", said)


def _judge_view(totals: dict[str, int], limit_bytes: int) -> Check:
    wrong = [f"{name} says {show_size(total)}" for name, total in totals.items() if total != limit_bytes]
    words = "; ".join(wrong) or f"{show_size(limit_bytes)} in CUDA and in NVML"
    return Check(
        "memory: the size that it sees", FAILED if wrong else OK, words, {"limit_bytes": limit_bytes, **totals}
    )


def judge_path(figures: dict[str, Any]) -> Check:
    """Judge one way of taking memory by what it took and what NVML counted."""
    name = f"memory: {figures['path']}"
    if figures["answer"] in _SKIPS:
        return Check(name, SKIPPED, _SKIPS[figures["answer"]], figures)
    used_bytes, limit_bytes = figures["used_bytes"], figures["limit_bytes"]
    amounts = f"{used_bytes / _MIB:.0f} of {limit_bytes / _MIB:.0f} MiB by NVML"
    if used_bytes > limit_bytes:
        return Check(name, FAILED, f"got {amounts}", figures)
    if not figures["granted_bytes"] and limit_bytes - used_bytes < _LEAST_ROOM_BYTES:
        return Check(name, SKIPPED, "no room beside the context; try a higher limit", figures)
    if figures["answer"] != _OUT_OF_MEMORY:
        return Check(name, FAILED, f"not refused as out of memory but with {figures['answer']}; {amounts}", figures)
    if figures["again"]:
        return Check(name, FAILED, f"refused at {amounts}, and still after all was freed", figures)
    if used_bytes < figures["granted_bytes"]:  # managed memory is on the GPU as far as it is touched
        return Check(name, OK, f"refused after {figures['granted_bytes'] / _MIB:.0f} MiB", figures)
    return Check(name, OK, f"refused at {amounts}", figures)


def check_compute(
    trial: Trial, gpu: Gpu, limit_percent: int, seconds: float, times: GpuTimes | None = None
) -> Iterator[Check]:
    """Work in every way, without a limit and with it; the share is the ratio. Raises VgpurunError.

    With `times`, compare what the library counts with what the GPU has recorded: alone, and beside another program.
    """
    if strangers := _strangers(gpu):
        yield _judge_company(strangers)
    free = {said["work"]: said["kernels_per_second"] for said in _work(trial.free, seconds) if "work" in said}
    if not strangers and (strangers := _strangers(gpu)):
        yield _judge_company(strangers)
    # The same kernels, whoever launches them: several processes without a limit lose a tenth to the GPU's time-slicing.
    full = max(free.values(), default=0.0)
    for said in _limited_work(trial, gpu, seconds, times):
        if "limiter" in said:
            yield _judge_limiter(said["limiter"])
        elif "account" in said:
            yield judge_account(said["account"], said["shares"], said["is_exact"], strangers > 0)
        elif "work" in said and said["work"] in free:
            yield judge_share(said, full, limit_percent, strangers > 0)
        elif "no_room" in said:
            yield Check(f"compute: {said['path']}", SKIPPED, _NO_ROOM_FOR_TWO, said)
        elif "ended" in said:
            yield _ended(f"compute: {said['path']}", said)
    if times is not None:
        yield _check_beside(trial, gpu, seconds, times)


def _check_beside(trial: Trial, gpu: Gpu, seconds: float, times: GpuTimes) -> Check:
    """Work under the limit while another program works without one."""
    try:
        return _compared_beside(trial, gpu, seconds, times)
    except VgpurunError as error:  # there may be no room for two
        return Check(f"GPU time: {_BESIDE}", SKIPPED, f"not compared: {error}", {})
    finally:
        state.sweep()  # the other program was ended, and so leaves its folder to the next launch


def _compared_beside(trial: Trial, gpu: Gpu, seconds: float, times: GpuTimes) -> Check:
    with started([*trial.beside, "compute", str(_BESIDE_S)], is_cut_off=True) as other:
        deadline_s = time.monotonic() + _END_S
        while not family(other.pid) & gpus.read_processes(gpu).keys():
            if other.has_ended() or time.monotonic() > deadline_s:
                raise VgpurunError("the other program does not start")
            time.sleep(_POLL_INTERVAL_S)
        with closing(_limited_work(trial, gpu, seconds, times)) as work:
            for said in work:
                if "account" in said:
                    return judge_account(_BESIDE, said["shares"], said["is_exact"], has_company=True)
    return judge_account(_BESIDE, None, is_exact=False, has_company=False)


def _strangers(gpu: Gpu) -> int:
    """How many processes are on the GPU while none of the trial's is; those take a moment to go."""
    deadline_s = time.monotonic() + _GONE_S
    while (count := len(gpus.read_processes(gpu))) and time.monotonic() < deadline_s:
        time.sleep(_POLL_INTERVAL_S)
    return count


def _judge_company(strangers: int) -> Check:
    words = f"{strangers} other process{'es' * (strangers > 1)} on the GPU: shares may be those of what is left"
    return Check("compute: a GPU of its own", WARNING, words, {"other_processes": strangers})


def _judge_limiter(limiter: str | None) -> Check:
    name, figures = "compute: the limiter", {"limiter": limiter}
    if limiter == _EXACT:
        return Check(name, OK, "the GPU's own scheduler", figures)
    if limiter is None:
        return Check(name, SKIPPED, "not seen", figures)
    return Check(name, WARNING, "launches are held, less exactly (docs/compute.md)", figures)


def _work(start: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield what the program says."""
    with started([*start, "compute", str(seconds)], seconds) as program:
        yield from program.answers()


def _limited_work(trial: Trial, gpu: Gpu, seconds: float, times: GpuTimes | None) -> Generator[dict[str, Any]]:
    """Yield what the program says under its limit; after its first answer its limiter, after each both accounts."""
    with started([*trial.limited, "compute", str(seconds)], seconds) as program:
        seen = _Seen(trial, gpu, program.pid)
        watch = None if times is None else Watch(times, gpu.uuid, seen.is_own, seen.busy_ns)
        limiter: str | None = None
        is_first = True
        with watch or nullcontext():
            for said in program.answers():
                shares = watch.shares() if watch else None
                yield said
                if "work" not in said:
                    continue
                if is_first:
                    limiter = seen.limiter(seconds)
                    yield {"limiter": limiter}
                    is_first = False
                if watch:
                    yield {"account": said["work"], "shares": shares or watch.trouble, "is_exact": limiter == _EXACT}


class _Seen:
    """What the host sees of a trial under way: its usage, and its processes. Neither may be there yet."""

    def __init__(self, trial: Trial, gpu: Gpu, pid: int) -> None:
        self._trial = trial
        self._gpu = gpu
        self._pid = pid
        self._holder: Holder | None = None
        self._first_pid: int | None = None

    def _reading(self) -> usage_file.DeviceReading | None:
        if self._holder is None:
            with suppress(VgpurunError):
                self._holder = self._trial.holder(self._pid)
        if self._holder is None:
            return None
        uuids = [uuid for uuid, _ in self._holder.quotas]
        readings = usage_file.read_usage(self._holder.folder / "run" / "usage", uuids)
        return next((each for each in readings or () if each.uuid == self._gpu.uuid), None)

    def busy_ns(self) -> int | None:
        """Return what the library has counted by now."""
        reading = self._reading()
        return None if reading is None else reading.busy_ns

    def is_own(self, pid: int) -> bool | None:
        """Return whether a process is one of the trial's, None as long as there is none."""
        if not self._first_pid:
            with suppress(VgpurunError):
                self._first_pid = self._trial.first_pid(self._pid)
        return pid in family(self._first_pid) if self._first_pid else None

    def limiter(self, patience_s: float) -> str | None:
        """Look until a process has one: each kind of work is a process of its own, which has to launch first."""
        deadline_s = time.monotonic() + patience_s
        while True:
            reading = self._reading()
            found = reading.limiter if reading else None
            if found is not None or time.monotonic() >= deadline_s:
                return found
            time.sleep(_POLL_INTERVAL_S)


def judge_account(company: str, shares: Shares | str | None, is_exact: bool, has_company: bool) -> Check:
    """Compare the accounts. `is_exact`: the GPU's own scheduler holds the limit.

    Where launches are held, a context that is alone is on the GPU also with nothing to do, and pays beside others for
    the time that these had.
    """
    name = f"GPU time: {company}"
    if has_company and not is_exact:
        shares = "launches are held"
    if not isinstance(shares, Shares):
        return Check(name, SKIPPED, f"not compared: {shares or 'it worked for too short a time'}", {})
    figures = {
        "library_percent": round(shares.library_percent, 1),
        "gpu_percent": round(shares.gpu_percent, 1),
        "seconds": round(shares.seconds, 2),
    }
    words = f"{shares.library_percent:.1f} % by the library, {shares.gpu_percent:.1f} by the GPU"
    most = _INEXACT_POINTS + 100 * _CHARGED_LATE_S / shares.seconds
    beyond = shares.library_percent - shares.gpu_percent
    is_wrong = beyond > most or (is_exact and beyond < -most)
    return Check(name, FAILED if is_wrong else OK, words, figures)


def judge_share(limited: dict[str, Any], full_per_second: float, limit_percent: int, has_company: bool) -> Check:
    """Judge a share of compute against the same work without a limit."""
    percent = 100 * limited["kernels_per_second"] / max(full_per_second, 0.1)
    least = 100 * limited["least_of_a_process"] / max(full_per_second, 0.1)
    name = f"compute: {limited['work']}"
    figures = {"limit_percent": limit_percent, "share_percent": round(percent, 1), "least_percent": round(least, 1)}
    words = f"{percent:.1f} % of the work without a limit"
    if percent > limit_percent + max(2.0, 0.1 * limit_percent):
        if has_company:  # which may have held back the work without a limit: this tells nothing of the limit
            return Check(name, WARNING, f"{percent:.1f} % of what the others left", figures)
        return Check(name, FAILED, words, figures)
    if percent < limit_percent - max(3.0, 0.15 * limit_percent):
        return Check(name, WARNING, f"{words}: less than it may", figures)
    if least < 0.25 * percent:
        return Check(name, WARNING, f"{words}; one of the processes only {least:.1f} %", figures)
    return Check(name, OK, words, figures)


def _ended(name: str, said: dict[str, Any]) -> Check:
    code = said["ended"]
    how = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
    reason = f": {said['error']}" if "error" in said else ""
    return Check(name, FAILED, f"the program that tried it was {how}{reason}", said)


class Program:
    """The program under way: its answers, and the word that it waits for while it holds memory."""

    def __init__(self, process: "subprocess.Popen[str]", patience_s: float) -> None:
        self._process = process
        self._patience_s = patience_s
        self.pid = process.pid

    def answers(self) -> Iterator[dict[str, Any]]:
        """Yield its lines; an error is part of the answer after it, which says how the attempt ended.

        Raises VgpurunError for one that gets stuck, or has no room to begin.
        """
        error: dict[str, Any] = {}
        for line in self._lines():
            said: dict[str, Any] = json.loads(line)
            if "no_room" in said and said.get("contexts", 1) == 1:
                raise VgpurunError(
                    "no room for a CUDA context, which takes hundreds of MiB: the limit is too low, or the GPU is full"
                )
            if "error" in said:
                error = said
            else:
                yield {**error, **said}
                error = {}
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)

    def _lines(self) -> Iterator[bytes]:
        """The first line may take long, for an image may have to be pulled."""
        assert self._process.stdout is not None
        file, line, patience_s = self._process.stdout.fileno(), b"", None
        while select.select([file], [], [], patience_s)[0]:
            more = os.read(file, _CHUNK_BYTES)
            if not more:
                return
            *lines, line = (line + more).split(b"\n")
            yield from lines
            patience_s = self._patience_s
        raise VgpurunError(f"the trial is stuck: it has said nothing for {patience_s:.0f} s")

    def has_ended(self) -> bool:
        """Ask whether vgpurun has ended."""
        return self._process.poll() is not None

    def go_on(self) -> None:
        """Let the program take its next step."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


# From where this one was loaded, which need not be where Python looks.
OWN_PROGRAM = (
    f"import sys; sys.path[0] = {str(Path(__file__).resolve().parents[2])!r}; from vgpurun.__main__ import main; main()"
)


@contextmanager
def started(arguments: Sequence[str], work_s: float = 0.0, is_cut_off: bool = False) -> Iterator[Program]:
    """Run vgpurun itself, as a user does. Raises VgpurunError with its words when it fails.

    `work_s` is how long the program is to work between two lines; with `is_cut_off` it is ended before it has done all.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", OWN_PROGRAM, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        try:
            yield Program(process, work_s + _SILENT_S)
        finally:
            _end(process)
        if process.returncode and not is_cut_off:
            errors.seek(0)
            raise VgpurunError(
                f"the trial cannot be run: {reason_of(errors.read()) or f'exit code {process.returncode}'}"
            )


def reason_of(errors: str) -> str:
    """Return vgpurun's own last message, which a table may follow; otherwise the last line, and the warnings."""
    lines = [line for line in errors.splitlines() if line]
    own = [line.removeprefix("vgpurun: ") for line in lines if line.startswith("vgpurun: ")]
    warnings = [line.removeprefix("warning: ") for line in own if line.startswith("warning: ")]
    if said := [line for line in own if not line.startswith("warning: ")]:
        return re.sub(r"(ask for less|limit that one), .*--(wait|overcommit)$", r"\1", said[-1])  # verify has neither
    others = [line for line in lines if not line.startswith("vgpurun: ")]
    return "; ".join([*others[-1:], *warnings[-1:]])


def _end(process: "subprocess.Popen[str]") -> None:
    for _ in range(_END_S // _AGAIN_S):
        if process.poll() is None:
            process.terminate()  # once more: what comes while a container begins has no effect
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_AGAIN_S)
            return
    process.kill()
    with suppress(subprocess.TimeoutExpired):  # its children may still hold its output
        process.communicate(timeout=_AGAIN_S)
    raise VgpurunError(f"the trial did not end in {_END_S} s; its container may still run: vgpurun ps")


def _device_bytes(gpu: Gpu) -> int:
    return gpus.read_use([gpu])[0].memory_used_bytes


def _held_bytes(gpu: Gpu, first_pid: int | None, before_bytes: int) -> int:
    """Return what our processes hold by NVML's count or, if it cannot tell them apart, what the GPU lost since."""
    by_pid = gpus.read_processes(gpu)
    ours = family(first_pid) & by_pid.keys() if first_pid else set()
    return sum(by_pid[pid] for pid in ours) if ours else max(0, _device_bytes(gpu) - before_bytes)


def family(first: int) -> set[int]:
    """Return a process of this host and all its descendants."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # has ended
            status = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])
    family = {first}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family
