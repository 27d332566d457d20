"""examples/report: the page of a real run loads nothing and names no machine, and its summary is of the same run."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from support import CHECKOUT

FOLDER = CHECKOUT / "examples" / "report"
PAGE = FOLDER / "report.html"
LOADING = {"src", "srcset", "href", "xlink:href", "action", "data", "poster", "background"}
MOST_BYTES = 400_000


class Contents(HTMLParser):
    """Return the parts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.addresses: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in LOADING or name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.words += data.split()


@pytest.fixture(scope="module")
def contents() -> Contents:
    found = Contents()
    found.feed(PAGE.read_text())
    return found


def test_the_page_loads_nothing(contents: Contents) -> None:
    assert contents.elements >= {"svg", "table", "h1"}
    assert not contents.elements & {"script", "iframe", "object", "embed", "base"}
    assert all(address == "data:," or address.startswith("#") for address in contents.addresses)
    text = PAGE.read_text()
    assert "@import" not in text and all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


@pytest.mark.parametrize("name", ["report.html", "summary.txt", "README.md"])
def test_no_machine_is_named(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not re.findall(r"(?<![\w.<])/(?:home|root|work|tmp|opt|usr|mnt|srv|var)\b[^\s<]*", text)
    assert set(re.findall(r"GPU-[0-9a-f]{8}-[0-9a-f-]*", text)) <= {"GPU-00000000-0000-4000-8000-000000000000"}
    assert ".vgpuprofile" not in text  # its name has the host's


def test_the_summary_has_the_figures_of_the_page(contents: Contents) -> None:
    summary = (FOLDER / "summary.txt").read_text()
    title, outline = summary.splitlines()[:2]
    words = " ".join(contents.words)
    assert title in words and outline in words
    tables = [line for line in summary.splitlines() if re.match(r"cu[A-Z]|Host to|Device to", line)]
    assert len(tables) > 10
    for line in tables:
        for figure in re.split(r"\s{2,}", line):
            assert figure in words, line


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES
