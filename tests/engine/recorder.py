"""An engine that has every image and makes no container: it keeps what it is asked to make.

So two command lines can be compared.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

API_VERSION = "1.48"


@dataclass
class Recorder:
    """Return the containers that the engine was asked to make: the query of each request, and its body."""

    host: str
    requests: list[tuple[dict[str, str], Any]] = field(default_factory=list)
    api_version: str = ""  # the last request's for a container

    def take(self) -> list[tuple[dict[str, str], Any]]:
        """The requests since the last call."""
        taken = list(self.requests)
        self.requests.clear()
        return taken


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 50
    recorder: Recorder

    def handle_error(self, *connection: object) -> None:
        """A client that has its answer may be gone before it has read the rest."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        self._answer(200, b"")

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        answer: Any = {"ApiVersion": API_VERSION, "MinAPIVersion": "1.24", "Os": "linux", "Arch": "amd64"}
        if "/images/" in path:
            answer = {"Id": "sha256:1", "Os": "linux", "Architecture": "amd64", "Config": {}}
        elif path.endswith("/containers/json"):
            answer = []
        self._answer(200, json.dumps(answer).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        if parts.path.endswith("/containers/create"):
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            self.server.recorder.requests.append((query, json.loads(body)))
            self.server.recorder.api_version = parts.path.split("/")[1]
        self._answer(400, b'{"message":"only recorded"}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Api-Version", API_VERSION)
        self.send_header("Ostype", "linux")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if body:
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass

    def address_string(self) -> str:
        return "unix"


@contextmanager
def recorder(folder: Path) -> Iterator[Recorder]:
    """Run such an engine, with its socket in a folder."""
    path = folder / "recorder.sock"
    with _Server(str(path), _Handler) as server:
        server.recorder = Recorder(f"unix://{path}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server.recorder
        finally:
            server.shutdown()
