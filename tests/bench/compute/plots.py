"""The shares as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from report import Record, distance

TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)  # points


def draw(records: Sequence[Record], path: Path) -> bool:
    """How far each share is from its limit, a panel for each library, as an SVG. False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    shares = [record for record in records if record["table"] == "shares"]
    libraries = list(dict.fromkeys(record["library"] for record in shares))
    programs = list(dict.fromkeys(record["case"] for record in shares))
    limits = sorted({int(record["limits"]) for record in shares})
    if not shares:
        return True
    figure = Figure(figsize=(8, 4.5 * len(libraries)), layout="constrained")
    for number, library in enumerate(libraries, 1):
        axes = figure.add_subplot(len(libraries), 1, number)
        axes.axhspan(-1, 1, color="0.92", label="what must hold")
        axes.axhline(0, color="0.6", linewidth=0.8)
        for place, program in enumerate(programs):
            own = [each for each in shares if (each["case"], each["library"]) == (program, library)]
            across = [limits.index(int(each["limits"])) + (place - len(programs) / 2) / 16 for each in own]
            axes.plot(across, [distance(each) for each in own], "osD^v<>Px*h"[place % 11], markersize=5, label=program)
        axes.set_xticks(range(len(limits)), [f"{limit} %" for limit in limits])
        axes.set_yscale("symlog", linthresh=2)  # distant points leave room for the others
        axes.set_yticks(TICKS, [f"{tick:+d}" if tick else "0" for tick in TICKS])
        axes.set_ylim(min(TICKS), max(TICKS))
        axes.set(xlabel="limit", ylabel="share minus limit, points", title=f"How exact --sm is ({library})")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False)
    figure.savefig(path)
    return True
