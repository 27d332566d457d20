"""/healthz and /readyz over HTTP, for kubelet's probes of a daemon's pod."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vgpurun.errors import OptionError


@contextmanager
def serving_health(port: int | None, is_alive: Callable[[], bool], is_ready: Callable[[], bool]) -> Iterator[int]:
    """Answer probes in the background, on all addresses; yields the port (0: a free one). None: not at all.

    Raises OptionError for a port that cannot be had.
    """
    if port is None:
        yield 0
        return
    checks = {"/healthz": is_alive, "/readyz": is_ready}

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            """Answer 200 or, where it is not so, 503."""
            check = checks.get(self.path)
            code, body = (404, b"there is /healthz and /readyz\n")
            if check is not None:
                code, body = (200, b"ok\n") if check() else (503, b"not yet, or no more\n")
            self.send_response(code)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a probe every few seconds is no news."""

    try:
        server = ThreadingHTTPServer(("", port), Handler)
    except OSError as error:
        raise OptionError(f"--health-port {port}: {error.strerror}; choose another port") from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
