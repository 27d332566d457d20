"""The findings about a run, in sentences that all reports share."""

from datetime import datetime, timezone

from vgpurun.limits.quota import show_size
from vgpurun.profiles.model import MOST_KERNELS, OTHER_KERNELS
from vgpurun.profiles.names import api_name
from vgpurun.profiles.summary import DeviceSummary, Summary
from vgpurun.profiles.units import show_count, show_share, show_time
from vgpurun.util.printable import printable

NO_LIMIT = "no limit"


def title(summary: Summary) -> str:
    """Return the command; of several, the first with the number of the others."""
    commands = list(dict.fromkeys(short_command(process.command) for process in summary.processes))
    return commands[0] if len(commands) == 1 else f"{commands[0]} and {plural(len(commands) - 1, 'other command')}"


def short_command(command: str, most: int = 72) -> str:
    """Return a command on one line: its program without the folder, and as much of the rest as there is room for."""
    program, _, arguments = printable(" ".join(command.split())).partition(" ")
    text = f"{program.rpartition('/')[2]} {arguments}".rstrip()
    return text if len(text) <= most else f"{text[: most - 1]}…"


def outline(summary: Summary) -> str:
    """Return the run in one sentence."""
    processes = plural(len(summary.processes), "process", "processes")
    gpus = plural(len(summary.devices), "GPU") if summary.devices else "no GPU"
    return f"{begin(summary)}: {processes} on {gpus} for {show_time(summary.duration_ns)}."


def begin(summary: Summary) -> str:
    """Return when the run began, as UTC."""
    moment = datetime.fromtimestamp(summary.fine.begin_ns / 1e9, timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def notices(summary: Summary) -> list[str]:
    """Return what a reader must know before the figures: what is missing, and what went wrong."""
    found = []
    if gone := summary.unended:
        pids = ", ".join(str(process.pid) for process in gone[:5]) + (", ..." if len(gone) > 5 else "")
        them, their = f"{len(gone)} processes ({pids}) have", "their"
        if len(gone) == 1:
            them, their = f"Process {pids} has", "its"
        how = "killed, ended by _exit, or still running"
        found.append(f"{them} no end: {how}. GPU work of {their} last moments may be missing.")
    if dropped := sum(process.dropped for process in summary.processes):
        found.append(
            f"{show_count(dropped)} of the oldest records were dropped, since the profile had reached its size: "
            "the tables of APIs and kernels count all, what is shown over time is of the rest."
        )
    if others := sum(kernel.launches for kernel in summary.kernels if kernel.name == OTHER_KERNELS):
        found.append(
            f"A profile has room for the names of {show_count(MOST_KERNELS)} kernels: "
            f"{plural(others, 'launch', 'launches')} of others are listed together as {OTHER_KERNELS}."
        )
    if failed := [f"{api_name(api.api)} {_times(api.failed)}" for api in summary.apis if api.failed]:
        found.append(f"Calls that failed: {', '.join(failed[:6])}.")
    if not summary.apis:
        found.append("No call of the CUDA driver was recorded.")
    return found


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{show_count(count)} times")


def memory_limit(device: DeviceSummary) -> str:
    """Return a device's memory limit."""
    return NO_LIMIT if device.memory_limit_bytes is None else show_size(device.memory_limit_bytes)


def sm_limit(device: DeviceSummary) -> str:
    """Return a device's compute limit."""
    return NO_LIMIT if device.sm_limit_percent >= 100 else f"{device.sm_limit_percent} %"


def memory(device: DeviceSummary) -> str:
    """Return what there is to see in a device's memory over time."""
    at = show_time(device.peak_at_ns)
    used = f"Memory peaked at {show_size(device.peak_bytes)} after {at}"
    if device.memory_limit_bytes:
        return f"{used}: {show_share(device.peak_bytes / device.memory_limit_bytes)} of the limit"
    return f"{used}, without a limit"


def compute(device: DeviceSummary) -> str:
    """Return what there is to see in a device's share over time."""
    assert device.share is not None
    used = f"The GPU worked {show_share(device.share)} of the time"
    return used if device.sm_limit_percent >= 100 else f"{used}, the limit is {device.sm_limit_percent} %"


def copies(summary: Summary) -> str:
    """Return what there is to see in copies over time."""
    size_bytes = sum(copy.size_bytes for copy in summary.copies)
    calls = sum(copy.calls for copy in summary.copies)
    return f"{plural(calls, 'copy', 'copies')} of {show_size(size_bytes)} in all"


def waits(summary: Summary) -> str:
    """Return what there is to say about waits."""
    one = summary.waits
    mean = show_time(one.total_ns / one.count)
    waits = f"{plural(one.count, 'wait')} for the limit, {mean} each"
    return f"{waits}: {show_time(one.total_ns)} in all, the longest {show_time(one.longest_ns)}"


def plural(number: int, singular: str, several: str = "") -> str:
    """Return a number with its noun."""
    return f"{show_count(number)} {singular if number == 1 else several or singular + 's'}"
