"""The documentation as a site: built strictly, and looked at at the widths of a desk and of a phone."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browser import Browser

import vgpurun
from support import CHECKOUT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "MAKEFLAGS": "", "VIRTUAL_ENV": ""}
    made = subprocess.run(
        ["make", "-s", "site", f"SITE={folder}"], cwd=CHECKOUT, capture_output=True, text=True, env=environment
    )
    assert (made.returncode, made.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Serve it: its programs ask for the search's index, which a page that is a file may not."""
    handler = partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.mark.parametrize(
    ("page", "width", "scheme"),
    [
        ("index.html", 1280, "light"),
        ("reference.html", 390, "dark"),
        *(
            pytest.param(*view, marks=pytest.mark.exhaustive)
            for view in (
                ("index.html", 390, "dark"),
                ("reference.html", 1280, "light"),
                ("dev/compute.html", 1280, "light"),
                ("dev/compute.html", 390, "dark"),
            )
        ),
    ],
)
def test_a_page_fits_the_screen_and_asks_nobody(
    browser: Browser, address: str, page: str, width: int, scheme: str
) -> None:
    browser.show(f"{address}/{page}", width, scheme=scheme)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert all(url.startswith(address) for url in browser.requests())
    broken = (
        "return [...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src)"
    )
    assert browser.run(broken) == []
    if folder := os.environ.get("PAGES_DIR"):
        browser.picture(Path(folder, f"site-{page.replace('/', '-')}-{width}.png"))


def test_a_page_names_the_version_that_it_is_of(site: Path) -> None:
    assert f"vgpurun {vgpurun.__version__}" in (site / "install.html").read_text()


def test_the_search_knows_the_pages(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    assert "Failed to initialize NVML" in index and "lab-server.html" in index
