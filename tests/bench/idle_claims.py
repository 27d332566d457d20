"""Measures what a node's DRA plugin asks of the API server and takes of the node while its claims are idle.

PYTHONPATH=tests:tests/kubernetes python tests/bench/idle_claims.py [CLAIMS [SECONDS]]    by default 1000 and 60

Kubelet and the API server are the doubles of tests/kubernetes. The plugin looks as seldom as it does by default. The
claims were prepared an hour ago: pods have them, and no process in them uses a GPU.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from pathlib import Path

from api_server import ApiServer
from claim_maker import result
from dra_host import DRIVER, PluginHost
from pod_resources import PodResources
from support import short_folder

AGE_S = 3600
SETTLED_S = 40  # after its start it looks once more at all


def prepare(host: PluginHost, count: int) -> None:
    """Claims of a pod each."""
    devices = host.devices()
    with host.kubelet.plugin(DRIVER) as plugin:
        for i in range(count):
            answers = plugin.prepare(host.add(result(devices[i % 2], "8Mi"), name=f"idle-{i}"))
            assert not any(each.error for each in answers.values()), answers
    long_ago_s = time.time() - AGE_S
    for owner in host.claims.glob("*/owner"):
        os.utime(owner, (long_ago_s, long_ago_s))


def peak_mib(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    count, seconds = (int(each) for each in [*sys.argv[1:], "1000", "60"][:2])
    with short_folder("idle-") as folder, ApiServer().running() as server:
        host = PluginHost(folder, server)
        pods = PodResources(host.kubelet.folder)
        pods.pods = {("lab", f"idle-{i}"): {"main": {"claims": [f"idle-{i}"]}} for i in range(count)}
        with pods.running(), host.running("--interval", "30") as process:
            prepare(host, count)
            time.sleep(SETTLED_S)
            before, cpu_before_s = Counter(server.requests), cpu_s(process.pid)
            time.sleep(seconds)
            asked = server.requests - before
            cpu_percent = (cpu_s(process.pid) - cpu_before_s) / seconds * 100
            print(f"{count} idle claims: {asked.total() / seconds:.2f} requests a second {dict(asked)},")
            print(f"{cpu_percent:.1f} % of a core, {peak_mib(process.pid):.0f} MiB at most")


if __name__ == "__main__":
    main()
