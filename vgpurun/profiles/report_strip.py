"""The picture of what ran when: a lane for each stream, thread and direction of copies, of each process."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vgpurun.profiles.lanes import Lane
from vgpurun.profiles.report_axes import drawn_in, over_time, step_area, time_axis
from vgpurun.profiles.report_style import COLOURS, GRID, MUTED, Shape
from vgpurun.profiles.series import Axis
from vgpurun.profiles.summary import Summary
from vgpurun.profiles.words import plural, short_command

_FULL_PROCESSES = 4  # beyond, only the GPU and the waits have lanes
_MOST_PROCESSES = 12
_BAND = 0.72  # a part of a row's height
_LEAST_PART = 0.18  # a part of a band's height, so that short bands can be seen

_STEPS = 10  # heights that are told apart
_NARROW_MERGED = 3  # bins

_Row = tuple[str, Lane | None]  # a lane, or the head of a process's lanes


def strip(summary: Summary, shape: Shape, title: str = "") -> Figure:
    """Draw the lanes: the height of each is the part of the time for which it was busy."""
    rows = _rows(summary)
    pitch = 34 if shape.is_narrow else 19
    with over_time(shape, pitch * len(rows), title) as (axes,):
        time_axis(axes, shape, summary.fine.duration_s)
        axes.set_ylim(len(rows), 0)
        axes.set_yticks([])
        for i, (text, lane) in enumerate(rows):
            if lane is None:
                axes.annotate(text, (0, i + 0.9), xycoords=("axes fraction", "data"), va="bottom", fontweight="bold")
            else:
                _draw(axes, summary.fine, lane, i, shape)
        if not shape.is_narrow:
            titled = [(i + 1 - _BAND / 2, lane.title) for i, (_, lane) in enumerate(rows) if lane]
            axes.set_yticks([at for at, _ in titled], [text for _, text in titled])
    return drawn_in(axes)


def left_out(summary: Summary) -> str:
    """Return what the picture has no room for."""
    processes = len({lane.process for lane in summary.lanes})
    if processes > _MOST_PROCESSES:
        more = plural(processes - _MOST_PROCESSES, "more process is", "more processes are")
        return f"GPU work and waits alone are drawn; {more} in the trace (--format trace)."
    if processes > _FULL_PROCESSES:
        return "GPU work and waits alone are drawn; calls and copies are in the trace (--format trace)."
    return ""


def _rows(summary: Summary) -> Sequence[_Row]:
    processes = sorted({lane.process for lane in summary.lanes})
    is_full = len(processes) <= _FULL_PROCESSES
    rows: list[_Row] = []
    for number in processes[:_MOST_PROCESSES]:
        lanes = [lane for lane in summary.lanes if lane.process == number]
        process = summary.processes[number]
        if not is_full:
            lanes = [joint for kind in ("gpu", "wait") if (joint := _joint(lanes, kind, process.pid))]
        elif len(processes) > 1:
            rows.append((f"{short_command(process.command, 40)} [{process.pid}]", None))
        rows += [("", lane) for lane in lanes]
    return rows


def _joint(lanes: Sequence[Lane], kind: str, pid: int) -> Lane | None:
    """Return all lanes of a kind as one."""
    found = [lane for lane in lanes if lane.kind == kind]
    if not found:
        return None
    parts = [min(1.0, sum(each)) for each in zip(*(lane.parts for lane in found), strict=True)]
    title = f"{pid}: {'GPU' if kind == 'gpu' else 'waits'}"
    return Lane(found[0].process, found[0].kind, title, sum(lane.total_ns for lane in found), parts)


def _draw(axes: Axes, axis: Axis, lane: Lane, row: int, shape: Shape) -> None:
    bottom = row + 0.96
    height = _BAND * (0.62 if shape.is_narrow else 1)
    merged = _NARROW_MERGED if shape.is_narrow else 1
    parts = [sum(lane.parts[i : i + merged]) / merged for i in range(0, axis.bins, merged)]
    axis = Axis(axis.begin_ns, axis.end_ns, len(parts))
    tops = [bottom - height * max(round(part * _STEPS) / _STEPS, _LEAST_PART if part > 0 else 0) for part in parts]
    axes.plot([0, axis.duration_s], [bottom, bottom], color=GRID, linewidth=0.8)
    step_area(axes, axis, tops, [bottom] * axis.bins, color=COLOURS[lane.kind][0])
    if shape.is_narrow:
        axes.annotate(
            lane.title, (0, bottom - height - 0.04), xycoords=("axes fraction", "data"), va="bottom", color=MUTED
        )
