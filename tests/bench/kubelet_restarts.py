"""Measures how soon a plugin that kubelet has registered is ready, and a node's offer is back after kubelet's start.

PYTHONPATH=tests:tests/kubernetes python tests/bench/kubelet_restarts.py [RUNS]    by default 20

Kubelet and the API server are the doubles of tests/kubernetes: what these take is in the figures, and what a real
kubelet takes until it has its socket is not. The DRA plugin looks as seldom as it does by default.
"""

from __future__ import annotations

import random
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from api_server import ApiServer
from dra_host import PluginHost
from node_names import COMPUTE, MEMORY
from node_of_test import node_of_test
from support import LIBRARY

PATIENCE_S = 60
SELDOM = ("--interval", "30")


def until_s(condition: Callable[[], Any]) -> float:
    """How long it takes until that is so."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < PATIENCE_S, "it takes too long"
        time.sleep(0.005)
    return time.monotonic() - began_s


def after_restarts(runs: int, restart: Callable[[], None], is_offered: Callable[[], Any]) -> list[float]:
    """How long after each restart the offer is back; the plugin may be at any point of its own round then."""
    found = []
    for _ in range(runs):
        time.sleep(random.uniform(1, 2))
        restart()
        found.append(until_s(is_offered))
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(port: int) -> bool:
    try:
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10).status == 200)
    except OSError:
        return False


def device_plugin(runs: int) -> tuple[list[float], list[float]]:
    """From its registration to ready, and from kubelet's start to the offer."""
    with node_of_test(LIBRARY) as node:
        kubelet, readied, names = node.kubelet, [], (MEMORY, COMPUTE)
        for _ in range(runs):
            node.stop_plugins()
            kubelet.registrations.clear()
            port = free_port()
            node.start_plugin("--health-port", str(port))
            until_s(lambda: len(kubelet.registrations) == len(names))
            readied.append(until_s(lambda port=port: is_ready(port)))
        kubelet.wait_for_resources(*names)
        kubelet.write_record()
        offers = lambda: all(name in kubelet.plugins and kubelet.plugins[name].healthy for name in names)  # noqa: E731
        return readied, after_restarts(runs, kubelet.restart, offers)


def dra_plugin(runs: int) -> tuple[list[float], list[float]]:
    """The same of the DRA plugin."""
    with tempfile.TemporaryDirectory(prefix="dra-", dir="/tmp") as folder, ApiServer().running() as server:
        host, readied = PluginHost(Path(folder), server), []
        for _ in range(runs):
            port = free_port()
            with host.running(*SELDOM, "--health-port", str(port)):
                until_s(host.kubelet.registered)
                readied.append(until_s(lambda port=port: is_ready(port)))
        with host.running(*SELDOM):
            until_s(lambda: server.watches)
            host.kubelet.registered()
            devices = host.devices()
            restart = lambda: host.kubelet.start(server, "node-a")  # noqa: E731
            return readied, after_restarts(runs, restart, lambda: host.devices() == devices)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(f"{f'of {runs}':44} {'median':>7} {'worst':>7}")
    for name, measure in (("device plugin", device_plugin), ("DRA plugin", dra_plugin)):
        with redirect_stdout(StringIO()):  # the node's log
            found = measure(runs)
        for what, times_s in zip(("registration to ready", "kubelet's start to the offer"), found, strict=True):
            print(f"{name + ', ' + what:44} {statistics.median(times_s):5.2f} s {max(times_s):5.2f} s", flush=True)


if __name__ == "__main__":
    main()
