"""Measures what the parts of Kubernetes nodes take, and brings it into docs/platform.csv and docs/platform.md.

PYTHONPATH=tests:tests/kubernetes python tests/bench/cluster_costs.py             measure, some 8 minutes
PYTHONPATH=tests:tests/kubernetes python tests/bench/cluster_costs.py --check     exit with 1 where page and file differ
PYTHONPATH=tests:tests/kubernetes python tests/bench/cluster_costs.py --page      write the page's tables anew

Kubelet and the API server are the doubles of tests/kubernetes, the GPUs are simulated. Of a cluster's nodes, only what
they ask of the API server runs, by the plugin's own code, and for each node exactly what a whole plugin has asked.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import yaml
from kubernetes.utils.quantity import parse_quantity

from api_server import ApiServer
from claim_maker import result
from dra_host import DRIVER, PluginHost
from node_names import COMPUTE, MEMORY
from node_of_test import NodeOfTest, node_of_test
from pod_resources import PodResources
from support import CHECKOUT, LIBRARY, short_folder, wait_until
from support.scraping import free_port
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.dra.cluster import Cluster
from vgpurun.kubernetes.dra.publish import Publisher
from vgpurun.kubernetes.dra.watch import SliceWatch
from vgpurun.storage import tenants

CSV, PAGE = CHECKOUT / "docs" / "platform.csv", CHECKOUT / "docs" / "platform.md"
MANIFESTS = CHECKOUT / "examples" / "kubernetes"
IDLE_S = 60
SETTLED_S = 10
CLAIMS = CONTAINERS = 16
SIZES = (10, 200, 1000)
SCRAPES = 20
SCRAPED_EVERY_S = 30
LOOKS_EVERY_S = 30  # the plugin's --interval, by default
AT_START, IDLE, AT_END = "requests at the start", "requests in an idle minute", "requests when the watches end"
PLUGIN = "DRA plugin"
WATCHES, ANSWER = "open watches", "answer to a scrape"
GPUS = [
    Gpu(i, f"GPU-{i:08d}-cccc-dddd-eeee-ffffffffffff", "Some GPU", 80 << 30, i, f"00000000:{i:02x}:00.0")
    for i in range(2)
]


class Figure(NamedTuple):
    """A row of the file. `part` is what runs or is kept, `what` is measured of it."""

    part: str
    what: str
    value: str
    unit: str


class Process(NamedTuple):
    """Measure what a process has taken by now."""

    pid: int

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> str:
        (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return f"{int(kib) / 1024:.0f}"


@contextmanager
def probed(port: int) -> Iterator[None]:
    """Ask each second whether it is ready, as kubelet does by the manifests."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(1):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20).close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def idle_percent(process: Process) -> str:
    before_s = process.cpu_s()
    time.sleep(IDLE_S)
    return f"{(process.cpu_s() - before_s) / IDLE_S * 100:.1f}"


def on_disk_kib(*paths: Path) -> int:
    """Measure what files and folders take of a disk."""
    found = [each for path in paths for each in (path, *(path.rglob("*") if path.is_dir() else ()))]
    return sum(each.lstat().st_blocks for each in found) // 2


def dra_plugin() -> Iterator[Figure]:
    part = PLUGIN
    with ExitStack() as stack:
        server = stack.enter_context(ApiServer().running())
        host = PluginHost(stack.enter_context(short_folder("dra-")), server)
        pods = PodResources(host.kubelet.folder)
        stack.enter_context(pods.running())
        port = free_port()
        process = Process(stack.enter_context(host.running(f"--interval={LOOKS_EVERY_S}", f"--health-port={port}")).pid)
        stack.enter_context(probed(port))
        plugin = stack.enter_context(host.kubelet.plugin(DRIVER))
        time.sleep(SETTLED_S)
        yield Figure(part, AT_START, str(server.requests.total()), "")
        before, cpu_before_s = server.requests.total(), process.cpu_s()
        made = [host.add(result(host.devices()[i % 2], "64Mi"), name=f"claim-{i}") for i in range(CLAIMS)]
        for each in made:
            assert not any(answer.error for answer in plugin.prepare(each).values())
        pods.pods = {("lab", f"claim-{i}"): {"c": {"claims": [f"claim-{i}"]}} for i in range(CLAIMS)}
        yield Figure(part, "requests for a claim", f"{(server.requests.total() - before) / CLAIMS:g}", "")
        yield Figure(part, "processor time for a claim", f"{(process.cpu_s() - cpu_before_s) / CLAIMS * 1e3:.0f}", "ms")
        uid = made[0]["metadata"]["uid"]
        kept = (host.claims / uid, tenants.folder_of(host.claims / uid), host.cdi / f"vgpurun.io-claim-{uid}.json")
        yield Figure("claim", "disk", str(on_disk_kib(*kept)), "KiB")
        yield Figure("node", "disk", str(on_disk_kib(LIBRARY)), "KiB")
        before = server.requests.total()
        yield Figure(part, "processor, idle", idle_percent(process), "% of a core")
        yield Figure(part, IDLE, str(server.requests.total() - before), "")
        before = server.requests.total()
        server.close_watches()
        time.sleep(SETTLED_S)
        yield Figure(part, AT_END, str(server.requests.total() - before), "")
        yield Figure(part, "memory", process.peak_mib(), "MiB")
        assert not any(plugin.unprepare(*made).values())


def admit(node: NodeOfTest, pods: PodResources) -> None:
    """Containers with units, and in kubelet's word of them."""
    for i in range(CONTAINERS):
        node.kubelet.admit(f"pod-{i}", {"c": {MEMORY: 1, COMPUTE: 5}})
        node.kubelet.start_container(f"pod-{i}", "c")
        units = {name: given.ids for name, given in node.kubelet.containers[f"pod-{i}", "c"].items()}
        pods.pods["lab", f"pod-{i}"] = {"c": {"units": units}}


def device_plugin() -> Iterator[Figure]:
    port = free_port()
    with node_of_test(LIBRARY) as node:
        pods = PodResources(node.kubelet.folder.parent)
        process = Process(node.start_plugin(f"--health-port={port}").pid)
        node.kubelet.wait_for_resources(MEMORY, COMPUTE)
        before_s = process.cpu_s()
        admit(node, pods)
        per_container_s = (process.cpu_s() - before_s) / CONTAINERS
        with probed(port):
            yield Figure("device plugin", "processor time for a container", f"{per_container_s * 1e3:.0f}", "ms")
            folder = next((node.state / "kubernetes").glob("units-*"))
            yield Figure("container", "disk", str(on_disk_kib(folder, tenants.folder_of(folder))), "KiB")
            yield Figure("device plugin", "processor, idle", idle_percent(process), "% of a core")
            yield Figure("device plugin", "memory", process.peak_mib(), "MiB")
        with pods.running():
            yield from node_agent(node)


def node_agent(node: NodeOfTest) -> Iterator[Figure]:
    part, log = "node agent", node.folder / "agent"
    command = [sys.executable, "-m", "vgpurun", "node-agent", "--driver", "sim", "--listen", "127.0.0.1:0"]
    with log.open("wb") as output:
        command += ["--kubelet-dir", str(node.kubelet.folder.parent)]
        started = subprocess.Popen(command, env=node.environment, stdout=output, stderr=output)
    try:
        url = wait_until(lambda: next(iter(re.findall(r"http\S+", log.read_text())), None), "URL")
        process = Process(started.pid)
        urllib.request.urlopen(url, timeout=20).read()
        before_s = process.cpu_s()
        answers = [urllib.request.urlopen(url, timeout=20).read().decode() for _ in range(SCRAPES)]
        yield Figure(part, "processor time for a scrape", f"{(process.cpu_s() - before_s) / SCRAPES * 1e3:.0f}", "ms")
        series = [line for line in answers[-1].splitlines() if line and not line.startswith("#")]
        assert any('pod="pod-0"' in line for line in series)
        yield Figure(part, "series", str(len(series)), "")
        yield Figure(part, ANSWER, f"{len(answers[-1]) / 1024:.0f}", "KiB")
        yield Figure(part, "processor, idle", idle_percent(process), "% of a core")
        yield Figure(part, "memory", process.peak_mib(), "MiB")
    finally:
        started.kill()
        started.wait()


class Asking:
    """The part of a node that asks the API server, as kubernetes/dra/plugin.py has it."""

    def __init__(self, kubeconfig: str, node: str) -> None:
        cluster = Cluster(kubeconfig)
        self._publisher = Publisher(cluster, node)
        self.said: list[str] = []
        self.watch = SliceWatch(cluster, node, self.said.append)

    def look(self) -> None:
        has_news = self.watch.has_news.is_set()
        self.watch.has_news.clear()
        self._publisher.publish(GPUS, "610.10.1", self.watch.slices(), checks_shares=has_news)


def cluster(size: int) -> Iterator[Figure]:
    part = f"{size} nodes"
    with short_folder("nodes-") as folder, ApiServer().running() as server:
        names = [f"node-{i}" for i in range(size)]
        server.nodes = {name: {"metadata": {"name": name, "uid": f"uid-{name}"}} for name in names}
        nodes = [Asking(server.kubeconfig(folder), name) for name in names]
        look(nodes)
        for each in nodes:
            each.watch.start()
        wait_until(lambda: server.watches == size, "watches", 300)
        look(nodes)
        yield Figure(part, AT_START, str(server.requests.total()), "")
        yield Figure(part, WATCHES, str(server.watches), "")
        asked = server.requests.total()
        for _ in range(60 // LOOKS_EVERY_S):
            look(nodes)
        yield Figure(part, IDLE, str(server.requests.total() - asked), "")
        asked = server.requests.total()
        server.close_watches()
        wait_until(lambda: server.requests.total() == asked + size and server.watches == size, "watches", 300)
        look(nodes)
        yield Figure(part, AT_END, str(server.requests.total() - asked), "")
        assert not any(each.said for each in nodes)
        for each in nodes:
            each.watch.stop()


def look(nodes: Sequence[Asking]) -> None:
    for each in nodes:
        each.look()


def measured() -> Iterator[Figure]:
    """All figures. Raises SystemExit where nodes of a cluster ask for something else than a whole plugin does."""
    of_node = list(dra_plugin())
    yield from of_node
    one = {
        each.what: int(each.value) for each in of_node if each.part == PLUGIN and each.what in (IDLE, AT_START, AT_END)
    }
    yield from device_plugin()
    for size in SIZES:
        for each in cluster(size):
            most = size * one.get(each.what, 0)
            # A plugin whose watch is open before its first look need not look again.
            if each.what in one and not most <= int(each.value) <= (most * 1.5 if each.what == AT_START else most):
                raise SystemExit(f"{each}, but one node: {one[each.what]}")
            yield each


Figures = Mapping[tuple[str, str], Figure]


def read() -> Figures:
    with CSV.open(newline="") as file:
        return {(row["part"], row["what"]): Figure(**row) for row in csv.DictReader(file)}


def write(figures: Iterable[Figure]) -> None:
    with CSV.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(Figure._fields)
        for each in figures:
            print(*each, flush=True)
            rows.writerow(each)


def requested(way: str, container: str, resource: str) -> Decimal:
    """Read what a container requests by the manifests, in cores or bytes."""
    (daemon_set,) = yaml.safe_load_all((MANIFESTS / way / "daemonset.yaml").read_text())
    containers = {each["name"]: each for each in daemon_set["spec"]["template"]["spec"]["containers"]}
    return Decimal(parse_quantity(containers[container]["resources"]["requests"][resource]))


def node_table(found: Figures) -> list[list[str]]:
    lines = [["Container", "Memory, at most", "it requests", "Processor, idle", "it requests", "for each"]]
    for part, way, container, of_what in (
        (PLUGIN, "dra", "plugin", "claim"),
        ("device plugin", "device-plugin", "plugin", "container"),
        ("node agent", "dra", "agent", "scrape"),
    ):
        more = found[part, f"processor time for a {of_what}"]
        cells = [found[part, "memory"], found[part, "processor, idle"]]
        memory, cores = requested(way, container, "memory") / 2**20, requested(way, container, "cpu") * 100
        row = [
            part,
            shown(cells[0]),
            f"{memory:.0f} MiB",
            shown(cells[1]),
            f"{cores:.0f} %",
            f"{of_what}: {shown(more)}",
        ]
        lines.append(row)
    return lines


def disk_table(found: Figures) -> list[list[str]]:
    return [
        ["Folder of the node", "What it takes", "Until"],
        ["`/var/lib/vgpurun/lib`", f"{shown(found['node', 'disk'])} for each version", "you remove it"],
        [
            "`/var/lib/vgpurun/claims`, `/var/run/cdi`, `/var/tmp/vgpulock`",
            f"{shown(found['claim', 'disk'])} for each prepared claim",
            "the claim is unprepared",
        ],
        [
            "`/var/lib/vgpurun/kubernetes`, `/var/tmp/vgpulock`",
            f"{shown(found['container', 'disk'])} for each container of the device plugin",
            "the agent finds that its pod is gone",
        ],
    ]


def cluster_table(found: Figures) -> list[list[str]]:
    agent = {what: Decimal(each.value) for (part, what), each in found.items() if part == "node agent"}
    idle = sum(Decimal(found[part, "processor, idle"].value) for part in (PLUGIN, "node agent"))
    idle += agent["processor time for a scrape"] / SCRAPED_EVERY_S / 10
    memory = sum(requested("dra", each, "memory") for each in ("plugin", "agent")) / 2**30
    return [
        ["Nodes", *map(str, SIZES)],
        *(
            [what, *(found[f"{size} nodes", what].value for size in SIZES)]
            for what in (AT_START, IDLE, AT_END, WATCHES)
        ),
        ["memory that they request", *(f"{memory * size:.1f} GiB" for size in SIZES)],
        ["processor that they take, idle and scraped", *(f"{idle * size / 100:.2f} cores" for size in SIZES)],
        ["series in Prometheus", *(str(agent["series"] * size) for size in SIZES)],
        ["bytes a second to Prometheus", *(f"{agent[ANSWER] * size / SCRAPED_EVERY_S:.0f} KiB" for size in SIZES)],
    ]


TABLES: dict[str, Callable[[Figures], list[list[str]]]] = {
    "node": node_table,
    "disk": disk_table,
    "cluster": cluster_table,
}


def shown(figure: Figure) -> str:
    return f"{figure.value} {figure.unit}"


def filled(page: str, found: Figures) -> str:
    """The page with its tables, which stand between markers."""
    for name, table in TABLES.items():
        head, *rows = (f"| {' | '.join(line)} |" for line in table(found))
        text = "\n".join([head, "|---" * head.count(" | ") + "|---|", *rows])
        marked = rf"(<!-- {name} of platform.csv -->\n).*?(<!-- end -->)"
        page, count = re.subn(marked, lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page, flags=re.DOTALL)
        assert count == 1, name
    return page


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        raise SystemExit(filled(PAGE.read_text(), read()) != PAGE.read_text())
    if sys.argv[1:] != ["--page"]:
        write(measured())
    PAGE.write_text(filled(PAGE.read_text(), read()))


if __name__ == "__main__":
    main()
