"""Streams of the health of GPUs, to which kubelet listens for as long as a plugin serves it."""

from collections.abc import Iterator

import grpc

from vgpurun.kubernetes.gpu_health import Health


class HealthStreams:
    """The streams of one server."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._is_closed = False

    def close(self) -> None:
        """End the streams, so that nothing is left to wait for."""
        self._is_closed = True
        self._health.wake()

    def changes(self, context: grpc.ServicerContext, again_s: float | None = None) -> Iterator[None]:
        """Yield when kubelet is to be told: now, at every change, and when nothing has changed for `again_s`."""

        def is_over() -> bool:
            return self._is_closed or not context.is_active()

        context.add_callback(self._health.wake)
        version = self._health.wait(-1, is_over)
        while not is_over():
            yield
            version = self._health.wait(version, is_over, again_s)
