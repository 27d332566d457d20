"""docs/ray.md, step by step: from a node with Ray to the last command of the page."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_node import HOOK, NEWEST, PLUGINS, PROGRAMS, REFUSING, TIMEOUT_S, ray_packages

from support import CHECKOUT
from support.empty_node import empty_node
from support.own_machine import OwnMachine
from support.page_steps import Steps, text_of_page, without_remark
from support.python_packages import add_script, virtual_environment, wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 20)]
REPLACED = {
    "ray job submit": "Ray's dashboard, which takes jobs, is another 300 MB; a driver on the node has its variables",
    "python -I -S -c pass": "no step: what a start of Python is measured by",
}
GPU = "devices:\n  - memory_mib: 8192\n"
GIB = 1 << 30
RAY = "#!/opt/ray/bin/python\nfrom ray.scripts.scripts import main\nmain()\n"  # pip's form
# A reader's own options.
HEAD = "--head --node-ip-address=127.0.0.1 --num-cpus=1 --object-store-memory=80000000 --include-dashboard=false"


class Shell:
    """The shell of a node's administrator, with what has been exported in it."""

    def __init__(self, machine: OwnMachine) -> None:
        self.machine = machine
        self._exports: list[str] = []

    def export(self, command: str) -> None:
        self._exports.append(command)

    def run(self, command: str) -> str:
        return self.machine.ask("\n".join(["cd /node", *self._exports, without_remark(command)]), timeout_s=100)

    def drive(self, line: str, *fractions: str, cleared: str = "") -> dict[str, Any]:
        """Run a driver that begins with a line of Python, and return what its tasks with these num_gpus have found."""
        found = self.machine.path("/node/tmp/found")
        found.unlink(missing_ok=True)
        without = f"unset {cleared}; " if cleared else ""
        self.run(f"{without}exec python {PROGRAMS}/page.py {shlex.quote(line)} {' '.join(fractions)}")
        told: dict[str, Any] = {}
        for each in found.read_text().splitlines():
            told |= json.loads(each)
        return told


@pytest.fixture
def shell(built_library: Path, tmp_path: Path) -> Iterator[Shell]:
    """A node of one GPU with Ray in a Python of its own, and with vgpurun in another."""
    settings = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    settings |= {"RAY_TMPDIR": "/node/tmp", "PYTHONPATH": "/node/site"}
    settings |= {"PIP_NO_INDEX": "1", "PIP_NO_COMPILE": "1"}
    packages = ray_packages(NEWEST)
    with empty_node(GPU, "/opt/ray/bin:/opt/vgpurun/bin", **settings) as machine:
        for folder in ("tmp", "site"):
            machine.path(f"/node/{folder}").mkdir()
        machine.path("/node/site/cuda_driver").symlink_to(CHECKOUT / "tests" / "cuda_driver")
        shutil.copy(wheel(tmp_path), machine.path("/node"))
        virtual_environment(machine, "/opt/vgpurun")
        machine.ask("/opt/vgpurun/bin/pip install --quiet --no-deps /node/vgpurun-*.whl")
        virtual_environment(machine, "/opt/ray", packages)
        add_script(machine, "/opt/ray/bin/ray", RAY)
        yield Shell(machine)


def test_from_a_node_with_ray_to_the_last_command(shell: Shell) -> None:
    steps = Steps(text_of_page("ray.md"), REPLACED)
    found = shell.drive(steps.next("py_executable"), "0.25")
    assert found["0.25"]["mib"] == 2048, found
    shell.run(steps.next("pip install"))
    for name in (PLUGINS, HOOK, "BAD_RUNTIME_ENV_CACHE_TTL_SECONDS"):
        shell.export(steps.next(f"export {name}="))
    start = steps.next("ray start ...").replace("...", HEAD)
    shell.run(start)
    found = shell.drive("ray.init()", "0.5", "0.25")
    assert found["0.5"]["limits"] == [[4 * GIB, 50, "HARD", "HIGH"]], found
    assert (found["0.5"]["mib"], found["0.25"]["mib"]) == (4096, 2048)
    shell.export(steps.next(f"export {REFUSING}="))
    shell.run(f"ray stop --force; {start}")  # stops Ray on this machine of its own alone
    found = shell.drive("ray.init()", "0.5", cleared=HOOK)
    assert "vgpurun: this worker has no limits, and gets no GPU" in found["0.5"][1], found
    found = shell.drive(steps.next('"vgpurun": {'), "0.75")
    assert found["0.75"]["limits"] == [[4 * GIB, 10, "BURST", "LOW"]], found
    steps.end()
