"""The page of `vgpurun report` in a real browser: on a desk, on a phone, in the dark, and printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import Browser

import support.made_profiles as made
from support import CHECKOUT
from support.debian_packages import tool
from vgpurun.profiles.model import ApiTotal, KernelTotal

INJECTED = (
    """</script></title></svg>'"><script>document.title = "owned"</script><img src=x onerror="owned = 1"><b id=b>"""
)


def hostile() -> made.MadeProfile:
    """A run whose every name tries to become a part of the page."""
    profile = made.training(3)
    profile.command = f"python {INJECTED}"
    profile.devices = (INJECTED[:47],)
    profile.kernels = [KernelTotal(f"kernel{INJECTED}", 10, 10**8), KernelTotal(f"k<{INJECTED}>({INJECTED})", 5, 10**7)]
    profile.totals.append(ApiTotal("<script>owned=1</script>", 10**9, 10**9, 2**40, 10**15, 10**12))
    profile.dropped = 10**12
    return profile


RUNS: dict[str, Callable[[], list[made.MadeProfile]]] = {
    "training": lambda: [made.training(5)],
    "short": lambda: [made.training(1.2)],
    "refused": lambda: [made.out_of_memory()],
    "killed": lambda: [made.killed()],
    "many": made.many,
    "few": lambda: made.many(4),
    "empty": lambda: [made.empty()],
    "hostile": lambda: [hostile()],
}

RECORDED = "recorded"
EXAMPLE = CHECKOUT / "examples" / "report" / "report.html"  # recorded on a real GPU
SHOWN = [*RUNS, RECORDED, "example"]
UNLIKE = ("training", "many", "empty", "hostile", "example")  # the others are laid out as one of these

# Pairs of texts that one would read through each other, and texts that are cut off by the sides of the window.
UNREADABLE = """
const texts = [...document.querySelectorAll("svg text, h1, h2, figcaption, th, td > *, dt, dd, p, li")]
  .filter(each => each.getClientRects().length && each.textContent.trim() && getComputedStyle(each).clipPath == "none"
                  && !each.closest("thead"));
const boxes = texts.map(each => {
  const range = document.createRange();
  range.selectNodeContents(each.querySelector("details:not([open]) > summary") ?? each);
  return range.getBoundingClientRect();
});
const found = [];
for (let i = 0; i < boxes.length; i++) {
  const one = boxes[i];
  if (one.left < -0.5 || one.right > document.documentElement.clientWidth + 0.5)
    found.push("cut off: " + texts[i].textContent.trim());
  for (let j = i + 1; j < boxes.length; j++) {
    const other = boxes[j];
    const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    if (wide > 1 && high > 3 && !texts[i].contains(texts[j]))
      found.push(texts[i].textContent.trim() + " | " + texts[j].textContent.trim());
  }
}
return found;
"""

# The least size of letters of what is shown, in pixels of the screen.
SMALLEST = """
return Math.min(...[...document.querySelectorAll("svg text")].filter(each => each.getClientRects().length)
  .map(each => parseFloat(getComputedStyle(each).fontSize) * each.getScreenCTM().a));
"""


class Pages(dict[str, Path]):
    """A page for each run, made by the command line when it is asked for."""

    def __init__(self, folder: Path, state: Path) -> None:
        super().__init__(example=EXAMPLE)
        self._folder, self._state = folder, state

    def __missing__(self, name: str) -> Path:
        folder = self._folder / name
        if name == RECORDED:
            record_demo(folder, self._state)
        else:
            made.save(RUNS[name](), folder)
        command = [sys.executable, "-m", "vgpurun", "report", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONWARNINGS": "error"})
        assert done.returncode == 0, done.stderr
        self[name] = folder / "report.html"
        return self[name]


@pytest.fixture(scope="session")
def pages(built_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """The pages. PAGES_DIR keeps them, with pictures of them."""
    kept = os.environ.get("PAGES_DIR")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("pages")
    return Pages(folder, tmp_path_factory.mktemp("state"))


def record_demo(folder: Path, state: Path) -> None:
    """Profile the demo's program under limits on the simulated GPU."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "vgpurun", "local", "--driver=sim", "--mem=2g", "--sm=50", "--", sys.executable]
    done = subprocess.run(
        [*command, CHECKOUT / "examples" / "demo_program.py", "all", "0.7"],
        env=os.environ | {"PFLOG": str(folder), "VGPURUN_STATE_DIR": str(state)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1280, "light"),
        (390, "dark"),
        *(
            pytest.param(*view, marks=pytest.mark.exhaustive)
            for view in ((1280, "dark"), (700, "light"), (390, "light"), (350, "light"))
        ),
    ],
)
@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=[pytest.mark.exhaustive] * (run not in UNLIKE)) for run in SHOWN]
)
def test_a_page_is_readable(browser: Browser, pages: Pages, run: str, width: int, scheme: str) -> None:
    browser.show(pages[run], width, scheme=scheme)
    if "PAGES_DIR" in os.environ and pages[run] != EXAMPLE:
        browser.picture(pages[run].parent / f"{width}-{scheme}.png")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(UNREADABLE) == []
    browser.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(UNREADABLE) == []
    if run != "empty":
        assert browser.run(SMALLEST) >= 9.5
    assert browser.complaints() == []
    assert browser.requests() == [pages[run].as_uri()]


def test_the_dark_is_dark(browser: Browser, pages: Pages) -> None:
    colours = []
    for scheme in ("light", "dark"):
        browser.show(pages["training"], 1280, scheme=scheme)
        colours.append(
            browser.run(
                "return [getComputedStyle(document.body).backgroundColor, "
                "getComputedStyle(document.querySelector('svg.wide text')).fill]"
            )
        )
    assert colours == [["rgb(254, 254, 254)", "rgb(87, 96, 107)"], ["rgb(21, 24, 29)", "rgb(162, 171, 182)"]]


def test_no_name_becomes_a_part_of_the_page(browser: Browser, pages: Pages) -> None:
    browser.show(pages["hostile"], 1280)
    assert browser.run("return document.querySelectorAll('script, img, b, iframe').length") == 0
    assert browser.run("return typeof owned") == "undefined"
    assert INJECTED in browser.run("return document.body.textContent")
    assert browser.run("return document.title").startswith("python </script>")


def test_every_picture_has_words(browser: Browser, pages: Pages) -> None:
    browser.show(pages["training"], 1280)
    names = browser.run(
        "return [...document.querySelectorAll('svg')].map(each => "
        "document.getElementById(each.getAttribute('aria-labelledby')).textContent)"
    )
    assert len(names) == 10 and all(names)
    ids = browser.run("return [...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(ids) == len(set(ids))
    tables = browser.run("return [...document.querySelectorAll('figure details table')].map(each => each.rows.length)")
    assert len(tables) == 4 and min(tables) > 4


def test_each_shape_is_shown_where_it_belongs(browser: Browser, pages: Pages) -> None:
    for width, shape in ((1280, "wide"), (390, "narrow")):
        browser.show(pages["training"], width)
        shown = browser.run(
            "return [...document.querySelectorAll('svg')].filter(each => each.getClientRects().length)"
            ".map(each => each.getAttribute('class'))"
        )
        assert set(shown) == {shape} and len(shown) == 5


def test_a_page_is_printed(browser: Browser, pages: Pages, tmp_path: Path) -> None:
    browser.show(pages["training"], 1280, scheme="dark")
    folder = Path(os.environ["PAGES_DIR"]) if "PAGES_DIR" in os.environ else tmp_path
    browser.print(folder / "report.pdf")
    text = subprocess.run(
        [tool("pdftotext", "poppler-utils"), "-layout", folder / "report.pdf", "-"], capture_output=True, text=True
    ).stdout
    for words in ("python train.py", "Memory and compute", "cuStreamSynchronize", "Waits for the limit", "limit 50 %"):
        assert words in text
    assert 2 <= text.count("\f") <= 5  # pages
    subprocess.run(
        [tool("pdftoppm", "poppler-utils"), "-r", "50", "-png", folder / "report.pdf", folder / "printed"], check=True
    )
    assert _mean_of_corner(folder / "printed-1.png") > 250  # ink is for the words


def test_the_longest_names_leave_room_on_paper(browser: Browser, pages: Pages, tmp_path: Path) -> None:
    browser.show(pages["example"], 1280)
    browser.print(tmp_path / "report.pdf")
    text = _text_of(tmp_path / "report.pdf")
    assert "cuDevicePrimaryCtxRetain" in text and "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT" in text
    assert text.count("\f") <= 5


def _text_of(page: Path) -> str:
    command = (tool("pdftotext", "poppler-utils"), "-layout", page, "-")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _mean_of_corner(path: Path) -> float:
    from PIL import Image, ImageStat

    return ImageStat.Stat(Image.open(path).convert("L").crop((0, 0, 20, 20))).mean[0]
