"""The HTTP side of `vgpurun exporter`: /metrics, /healthz, and an index page."""

import errno
import html
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from vgpurun import __version__
from vgpurun.errors import OptionError

DEFAULT_LISTEN = "127.0.0.1:9487"
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^:\[\]]*):)?(?P<port>[0-9]{1,5})", re.ASCII)
_CLIENT_PATIENCE_S = 10.0  # for a request to come, and for an answer to be taken
_MAX_CLIENTS = 32  # at the same time
_PLACE_PATIENCE_S = 0.5  # for one more client, until a silent one loses its place
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>vgpurun exporter</title></head>
<body><h1>vgpurun exporter {version}</h1>
<ul><li><a href="/metrics">/metrics</a>: what GPUs and containers use, for Prometheus</li>
<li><a href="/healthz">/healthz</a>: whether the exporter runs</li></ul></body></html>
"""


def parse_listen(text: str) -> tuple[str, int]:
    """Read ADDR:PORT, [IPv6]:PORT, :PORT (all addresses) or PORT (this host alone). Raises OptionError."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or not int(match["port"]) < 1 << 16:
        raise OptionError(f"--listen '{text}' is not ADDRESS:PORT; use e.g. {DEFAULT_LISTEN}, [::1]:9487, or :9487")
    host = match["host"]
    return ("127.0.0.1" if host is None else host.strip("[]"), int(match["port"]))


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_PATIENCE_S  # for each part of a request: a client may send it byte by byte
    server: "_Server"

    def parse_request(self) -> bool:
        """Keep the place of a client that has asked."""
        is_request = super().parse_request()
        self.server.silent.pop(self.connection, None)
        return is_request

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a scrape every few seconds is no news."""

    def address_string(self) -> str:
        """Do not ask the DNS who scrapes."""
        return str(self.client_address[0])


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        self._places = threading.BoundedSemaphore(_MAX_CLIENTS)
        self.silent: dict[socket.socket, None] = {}  # clients with a place that have asked nothing, oldest first
        super().__init__(*args)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6 and self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # IPv4 as well
        TCPServer.server_bind(self)  # not HTTPServer's, which asks the DNS for this host's name
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a client a thread. Of too many, the one that has been silent for longest loses its place.

        The others wait in the kernel's queue meanwhile.
        """
        if not self._places.acquire(timeout=_PLACE_PATIENCE_S):
            self._end_silent()
            if not self._places.acquire(timeout=_PLACE_PATIENCE_S):
                self.shutdown_request(request)
                return
        self.silent[request] = None
        super().process_request(request, client_address)

    def _end_silent(self) -> None:
        for oldest in list(self.silent)[:1]:
            self.silent.pop(oldest, None)
            with suppress(OSError):  # already ended
                oldest.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.silent.pop(request, None)
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report a mistake of ours; a client that goes away is none."""
        del request, client_address
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"vgpurun: warning: a request failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def make_app(registry: CollectorRegistry) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """Return the WSGI application."""
    metrics = make_wsgi_app(registry)
    page = _PAGE.format(version=html.escape(__version__)).encode()

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if environ.get("REQUEST_METHOD") != "GET":
            return answer(start_response, "405 Method Not Allowed", b"only GET\n")
        if path == "/metrics":
            return metrics(environ, start_response)  # type: ignore[no-any-return]
        if path == "/healthz":
            return answer(start_response, "200 OK", b"ok\n")
        if path == "/":
            return answer(start_response, "200 OK", page, "text/html; charset=utf-8")
        return answer(start_response, "404 Not Found", b"there is /metrics, /healthz and /\n")

    def answer(
        start_response: Callable[..., Any], status: str, body: bytes, kind: str = "text/plain"
    ) -> Iterable[bytes]:
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]

    return app


@contextmanager
def serving(listen: str, registry: CollectorRegistry) -> Iterator[str]:
    """Serve in the background; yields the URL. Raises OptionError for an address that cannot be had."""
    host, port = parse_listen(listen)
    family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
    server_class = type("_FamilyServer", (_Server,), {"address_family": family})
    try:
        server = _open(server_class, host or "::", port)
    except (OSError, UnicodeError) as error:
        raise OptionError(f"--listen '{listen}': {_reason(error)}") from None
    server.set_app(make_app(registry))
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    try:
        shown = f"[{server.server_name}]" if ":" in server.server_name else server.server_name
        yield f"http://{shown}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _open(server_class: Any, host: str, port: int) -> Any:
    try:
        return server_class((host, port), _Handler)
    except OSError as error:
        if host != "::" or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        server_class.address_family = socket.AF_INET  # a host without IPv6
        return server_class(("0.0.0.0", port), _Handler)


def _reason(error: OSError | UnicodeError) -> str:
    ways_out = {
        errno.EADDRINUSE: "another program listens there; choose another port, or stop it",
        errno.EADDRNOTAVAIL: "this host has no such address",
        errno.EACCES: "this user may not listen there; choose a port above 1023",
    }
    if isinstance(error, socket.gaierror):
        return "there is no such host"
    if isinstance(error, OSError) and error.errno in ways_out:
        return ways_out[error.errno]
    return " ".join(str(error).split())
