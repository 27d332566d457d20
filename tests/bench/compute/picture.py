"""Draws what two tenants get of one GPU, from docs/compute.csv: docs/pictures/tenants-light.svg and -dark.svg.

python tests/bench/compute/picture.py [--check]

--check only says whether the pictures are what docs/compute.csv makes of them.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from report import Record, read_csv

from page import CSV, DOCS

PICTURES = DOCS / "pictures"
REMARK = "percent of what one does alone; kernels of 50 µs on an {gpu}; dashed: the limit of the first"
CASE = "50us"  # the case that the fewest were measured with: like is set beside like
WIDTH, TOP, BAR, STEP, LEFT, RIGHT = 760, 64, 26, 74, 196, 24


class Shown(NamedTuple):
    """A bar of two parts: what is said of it, and the row of docs/compute.csv that it shows."""

    title: str
    remark: str
    limits: str
    library: str


BARS = (
    Shown("vgpurun", "--sm 30 and --sm 70", "30 / 70", "main"),
    Shown("HAMi-core", "limits 30 and 70", "30 / 70", "HAMi-core"),
    Shown("GPU's time-slicing", "takes no limits", "native / native", ""),
)


class Scheme(NamedTuple):
    """Colours. The two tenants' are told apart in grey, too."""

    ink: str
    muted: str
    first: str
    second: str
    on_first: str
    on_second: str


SCHEMES = {
    "light": Scheme("#1f2328", "#59636e", "#0b5cad", "#8ec5f5", "#ffffff", "#0b2540"),
    "dark": Scheme("#e6edf3", "#9198a1", "#3d8bdb", "#1d4064", "#ffffff", "#dcecfb"),
}


def find(records: list[Record], shown: Shown) -> Record:
    (found,) = (
        each
        for each in records
        if (each["table"], each["case"], each["limits"]) == ("tenants", CASE, shown.limits)
        and each["library"] == shown.library
    )
    return found


def gpu_of(records: list[Record]) -> str:
    """Return the GPU that all bars were measured on. Raises ValueError for several."""
    (gpu,) = {find(records, shown)["gpu"] for shown in BARS}
    return gpu.partition("NVIDIA ")[2].partition(",")[0]


def draw(records: list[Record], scheme: Scheme) -> str:
    """Return the picture. A full bar would be what one program does alone."""
    full = WIDTH - LEFT - RIGHT
    height = TOP + len(BARS) * STEP
    label = "What two programs that want all of one GPU get of it"
    pieces = [
        f'<text x="0" y="20" class="t">{label}</text>',
        f'<text x="0" y="42" class="m">{REMARK.format(gpu=gpu_of(records))}</text>',
    ]
    for number, shown in enumerate(BARS):
        y = TOP + number * STEP
        first, second = (float(part) for part in find(records, shown)["share %"].split(" / "))
        x = LEFT + full * first / 100
        pieces += [
            f'<text x="0" y="{y + 18}" class="n">{shown.title}</text>',
            f'<text x="{LEFT}" y="{y + BAR + 18}" class="m">{shown.remark}; together {first + second:.0f} %</text>',
            f'<rect x="{LEFT}" y="{y}" width="{full}" height="{BAR}" fill="none" stroke="{scheme.muted}"/>',
            f'<rect x="{LEFT}" y="{y}" width="{x - LEFT:.1f}" height="{BAR}" fill="{scheme.first}"/>',
            f'<rect x="{x:.1f}" y="{y}" width="{full * second / 100:.1f}" height="{BAR}" fill="{scheme.second}"/>',
            f'<text x="{LEFT + 8}" y="{y + 18}" fill="{scheme.on_first}">{first:.0f} %</text>',
            f'<text x="{x + 8:.1f}" y="{y + 18}" fill="{scheme.on_second}">{second:.0f} %</text>',
        ]
        if shown.limits != "native / native":
            limit = LEFT + full * int(shown.limits.split(" / ")[0]) / 100
            dashes = 'stroke-width="2" stroke-dasharray="3 2"'
            pieces.append(f'<path d="M{limit:.1f} {y - 6}v{BAR + 12}" stroke="{scheme.ink}" {dashes}/>')
    style = (
        f"text{{font:14px system-ui,'Segoe UI',Helvetica,Arial,sans-serif}}text:not([fill]){{fill:{scheme.ink}}}"
        f".t{{font-size:17px;font-weight:600}}.n{{font-weight:600}}text.m{{font-size:12px;fill:{scheme.muted}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
        f"<style>{style}</style>{''.join(pieces)}</svg>\n"
    )


def main() -> None:
    records = read_csv([CSV])
    for name, scheme in SCHEMES.items():
        path, picture = PICTURES / f"tenants-{name}.svg", draw(records, scheme)
        if "--check" in sys.argv[1:]:
            if path.read_text() != picture:
                sys.exit(f"{path} is not what docs/compute.csv makes of it: python {sys.argv[0]}")
        else:
            path.write_text(picture)


if __name__ == "__main__":
    main()
