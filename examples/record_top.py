"""Records `vgpurun top` beside two containers that want all of one simulated GPU, at 30 and 70 %, as an animated SVG.

    python examples/record_top.py IMAGE [FILE]      IMAGE has python3; FILE is docs/pictures/top.svg by default

Needs a Docker Engine. It draws what the program printed, look for look.
"""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from fcntl import ioctl
from html import escape
from pathlib import Path
from select import select
from termios import TIOCSWINSZ
from uuid import uuid4

from rich.color import Color
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME as THEME
from rich.text import Text

HERE = Path(__file__).resolve().parent
COLUMNS, ROWS, LOOKS = 100, 17, 14
TENANTS = {"alice-train": ("4g", "70"), "bob-notebook": ("2g", "30")}
LETTER, LINE, EDGE = 8.4, 19, 14  # the picture's, in pixels
FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
BACKGROUND, INK = "#16191d", "#d5d9de"
VGPURUN = [sys.executable, "-m", "vgpurun"]


def start_tenants(image: str, undo: ExitStack) -> None:
    """Start both containers, to be removed at the end."""
    program = f"{HERE / 'demo_program.py'}:/demo_program.py:ro"
    for name, (memory, share) in TENANTS.items():
        undo.callback(subprocess.run, ["docker", "rm", "-f", name], stdout=subprocess.DEVNULL)
        limits = ["--driver", "sim", "--mem", memory, "--sm", share, "--gpus", "device=0"]
        options = ["-d", "--rm", "--name", name, "--network", "none", "-v", program, *limits]
        command = [*VGPURUN, "run", *options, image, "python3", "/demo_program.py", "work", "600"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def looks() -> list[list[Text]]:
    """Return what top printed at each of its looks, as lines."""
    near, far = pty.openpty()
    ioctl(far, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": ""}
    command = [*VGPURUN, "top", "--driver", "sim", "--interval", "1"]
    process = subprocess.Popen(command, stdin=far, stdout=far, env=environment)
    output, ends_s = b"", time.monotonic() + LOOKS + 1.5
    while (left_s := ends_s - time.monotonic()) > 0:
        if select([near], [], [], left_s)[0]:
            output += os.read(near, 65536)
    os.write(near, b"q")
    while process.poll() is None:
        if select([near], [], [], 0.1)[0]:
            os.read(near, 65536)
    drawn = re.split(r"\x1b\[H", output.decode())[1:]
    whole = [each for each in drawn if each.count("\n") == ROWS - 1]
    return [[Text.from_ansi(line.rstrip("\r")) for line in each.split("\n")] for each in whole[-LOOKS:]]


def colour(found: Color | None, otherwise: str) -> str:
    return otherwise if found is None or found.is_default else found.get_truecolor(THEME).hex


def drawn(line: Text, row: int) -> str:
    """Return a line's letters, a run of one style after the other."""
    pieces, y = [], EDGE + (row + 0.75) * LINE
    for start, end, style in runs(line):
        letters = line.plain[start:end]
        if not letters.strip() and not style.reverse:
            continue
        ink, x = colour(style.color, INK), EDGE + start * LETTER
        look = f'fill="{ink}"' + ' font-weight="bold"' * bool(style.bold) + ' opacity=".55"' * bool(style.dim)
        if style.reverse:
            width = (end - start) * LETTER
            pieces.append(f'<rect x="{x:.1f}" y="{y - 14:.1f}" width="{width:.1f}" height="{LINE}" {look}/>')
            look = f'fill="{BACKGROUND}"'
        width = (end - start) * LETTER
        pieces.append(f'<text x="{x:.1f}" y="{y:.1f}" textLength="{width:.1f}" {look}>{escape(letters)}</text>')
    return "".join(pieces)


def runs(line: Text) -> list[tuple[int, int, Style]]:
    """Return the spans of one style."""
    ends = sorted({0, len(line.plain), *(end for span in line.spans for end in (span.start, span.end))})
    styles = [
        Style.combine(
            [Style(), *(Style.parse(str(each.style)) for each in line.spans if each.start <= start < each.end)]
        )
        for start in ends
    ]
    return [(start, end, style) for start, end, style in zip(ends, ends[1:], styles, strict=False) if start < end]


def animated(found: Sequence[Sequence[Text]]) -> str:
    """Return the picture. A line that stays the same over several looks is in it once."""
    count = len(found)
    pieces, shown = [], set()
    for row in range(ROWS):
        lines = [drawn(look[row], row) for look in found]
        first = 0
        for number in range(1, count + 1):
            if number == count or lines[number] != lines[first]:
                if lines[first]:
                    shown.add((first, number))
                    pieces.append(f'<g class="l{first}-{number}">{lines[first]}</g>')
                first = number
    rules = [rule(first, last, count) for first, last in sorted(shown)]
    still = "".join(
        f".l{first}-{last}{{visibility:{'visible' if last == count else 'hidden'}}}" for first, last in shown
    )
    width, height = COLUMNS * LETTER + 2 * EDGE, ROWS * LINE + 2 * EDGE
    style = f"{''.join(rules)}@media (prefers-reduced-motion){{g{{animation:none!important}}{still}}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'aria-label="vgpurun top: two containers at 70 and 30 percent of one GPU">'
        f"<style>text{{white-space:pre;font:14px {FONTS}}}"
        f'{style}</style><rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>{"".join(pieces)}</svg>\n'
    )


def rule(first: int, last: int, count: int) -> str:
    """Return the style of what is there from one look to another."""
    name = f"l{first}-{last}"
    if (first, last) == (0, count):
        return ""
    begin, end = 100 * first / count, 100 * last / count
    before = f"0%,{begin - 0.01:.2f}%{{visibility:hidden}}" if first else ""
    after = f"{end + 0.01:.2f}%,100%{{visibility:hidden}}" if last < count else ""
    steps = f"{before}{begin:.2f}%,{end:.2f}%{{visibility:visible}}{after}"
    return f"@keyframes {name}{{{steps}}}.{name}{{animation:{name} {count}s step-end infinite}}"


def main() -> None:
    image = sys.argv[1]
    file = Path(sys.argv[2]) if len(sys.argv) > 2 else HERE.parent / "docs" / "pictures" / "top.svg"
    with ExitStack() as undo:
        folder = undo.enter_context(tempfile.TemporaryDirectory())
        config = Path(folder, "sim.yaml")
        config.write_text(f"devices:\n- uuid: GPU-{uuid4()}\n  name: Simulated GPU\n  memory_mib: 8192\n")
        os.environ |= {"VGPUSIM_CONFIG": str(config), "VGPURUN_STATE_DIR": folder}
        start_tenants(image, undo)
        time.sleep(3)
        file.write_text(animated(looks()))


main()
