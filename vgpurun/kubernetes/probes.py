"""/healthz and /readyz over HTTP, for kubelet's probes of a daemon's pod."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vgpurun.errors import OptionError


class Pulse:
    """The answer to probes. A daemon that has not turned round for so long is stuck, and is to be started again."""

    def __init__(self, stuck_after_s: float) -> None:
        self._stuck_after_s = stuck_after_s
        self._beaten_s = time.monotonic()
        self._is_ready = False

    def beat(self, is_ready: bool) -> None:
        """Say that the daemon has turned round, and whether it does what it is for."""
        self._beaten_s = time.monotonic()
        self._is_ready = is_ready

    def is_alive(self) -> bool:
        """Whether it turns round."""
        return time.monotonic() - self._beaten_s < self._stuck_after_s

    def is_ready(self) -> bool:
        """Whether it does what it is for."""
        return self._is_ready


@contextmanager
def serving_health(port: int | None, pulse: Pulse) -> Iterator[None]:
    """Answer probes in the background, on all addresses; without a port not at all.

    Raises OptionError for a port that cannot be had.
    """
    if port is None:
        yield
        return
    checks = {"/healthz": pulse.is_alive, "/readyz": pulse.is_ready}

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
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
