"""The exporter's HTTP server when many ask at once."""

from __future__ import annotations

import socket
import threading
import urllib.request

import pytest

prometheus_client = pytest.importorskip("prometheus_client")

from vgpurun.metrics import server  # noqa: E402


def test_one_more_client_than_places_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_CLIENTS", 1)
    monkeypatch.setattr(server, "_PLACE_PATIENCE_S", 60)
    monkeypatch.setattr(server._Handler, "timeout", 60)
    registry = prometheus_client.CollectorRegistry()
    with server.serving("127.0.0.1:0", registry) as url:
        port = int(url.split(":")[-1].split("/")[0])
        health = url.replace("/metrics", "/healthz")
        silent = socket.create_connection(("127.0.0.1", port))
        answers: list[bytes] = []
        asking = [
            threading.Thread(target=lambda: answers.append(urllib.request.urlopen(health, timeout=60).read()))
            for _ in range(5)
        ]
        for thread in asking:
            thread.start()
        assert answers == []
        silent.close()
        for thread in asking:
            thread.join()
    assert answers == [b"ok\n"] * 5


def test_a_client_that_asks_gets_the_place_of_one_that_sends_a_byte_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_MAX_CLIENTS", 2)
    monkeypatch.setattr(server, "_PLACE_PATIENCE_S", 0.1)
    with server.serving("127.0.0.1:0", prometheus_client.CollectorRegistry()) as url:
        port = int(url.split(":")[-1].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as oldest, socket.create_connection(("127.0.0.1", port)):
            oldest.send(b"GET / HTTP/1.0\r\n")
            assert urllib.request.urlopen(url.replace("/metrics", "/healthz"), timeout=60).read() == b"ok\n"
            oldest.settimeout(60)
            assert oldest.recv(1) == b""
