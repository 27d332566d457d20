"""Workers in containers (`image_uri`), as Ray starts them by podman."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator

import pytest
from ray_node import TIMEOUT_S, RayNode

from images import debian_tar
from private_engine import fetched_engine
from support import CHECKOUT
from support.debian_packages import tool

pytestmark = [pytest.mark.timeout(TIMEOUT_S + 20), pytest.mark.exhaustive]
OOM = "CUDA_ERROR_OUT_OF_MEMORY"
SIMULATED = CHECKOUT / "lib" / "build" / "sim"
# Podman refuses that option as root, where users are the same anyway. It is found by its name once more (support).
PODMAN = """\
#!/bin/sh
for word do
  shift
  [ "$word" = --userns=keep-id ] || set -- "$@" "$word"
done
PATH=${{PATH#*:}} exec {podman} "$@"
"""
# Ray comes from outside, since the image has Python alone, and so does what a node's podman brings of its GPUs.
CONTAINERS = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=20000:20000"]
env = ["PYTHONPATH={packages}"]
netns = "host"
volumes = [{volumes}]
[engine]
runtime = "of-tests"
[engine.runtimes]
of-tests = ["{engine}/bin/runc"]
"""
STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/podman/root"
runroot = "{folder}/podman/run"
"""


@pytest.fixture
def containers(node: RayNode) -> Iterator[dict[str, str]]:
    """The variables by which Ray's agent finds a podman with the image and with the GPUs of the node."""
    if os.geteuid() != 0 or platform.machine() != "x86_64":
        pytest.skip("podman runs here as root, on x86-64")
    own, gpus = node.folder / "podman", node.folder / "gpus"
    (own / "bin").mkdir(parents=True)
    gpus.mkdir()
    (gpus / "sim.yaml").write_text((node.folder / "sim.yaml").read_text())
    (own / "python").write_text('#!/bin/sh\nexec python3 "$@"\n')
    (own / "bin" / "podman").write_text(PODMAN.format(podman=tool("podman", "podman")))
    for script in (own / "python", own / "bin" / "podman"):
        script.chmod(0o755)
    volumes = [f"{each}:{each}:ro" for each in (node.packages, CHECKOUT / "tests")]
    volumes += [f"{own}/python:/usr/bin/python:ro", f"{gpus}:{gpus}"]
    volumes += [f"{SIMULATED}/{each}:/usr/lib/{each}:ro" for each in ("libcuda.so.1", "libnvidia-ml.so.1")]
    text = CONTAINERS.format(
        packages=node.packages, engine=fetched_engine(), volumes=", ".join(f'"{each}"' for each in volumes)
    )
    (own / "containers.conf").write_text(text)
    (own / "storage.conf").write_text(STORAGE.format(folder=node.folder))
    variables = {
        "CONTAINERS_CONF": f"{own}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{own}/storage.conf",
        "PATH": f"{own}/bin:{os.environ['PATH']}",
        "VGPUSIM_CONFIG": f"{gpus}/sim.yaml",
        "VGPUSIM_STATE": f"{gpus}/sim.state",
    }
    podman, environment = own / "bin" / "podman", node.environment | variables
    subprocess.run([podman, "import", "--quiet", debian_tar(), "vgpurun-test"], env=environment, check=True)
    yield variables
    subprocess.run([podman, "rm", "--all", "--force", "--time", "0"], env=environment, check=False)
    subprocess.run([podman, "system", "reset", "--force"], env=environment, check=False)


def test_workers_in_containers_are_held_to_their_parts(node: RayNode, containers: dict[str, str]) -> None:
    found, said = node.run("image.py", **containers)
    assert isinstance(found["fits"][1], dict), (found, said)
    for name, mib, had in (
        ("fits", 4096, True), ("more", 4096, OOM), ("quarter", 2048, True), ("actor", 2048, True)
    ):  # fmt: skip
        in_container, seen = found[name]
        assert (in_container, seen["mib"], seen["had"]) == (True, mib, had), name
    assert found["beside"][0] is False and found["beside"][1]["mib"] == 2048
    assert found["none"][0] is True and found["none"][1]["error"] in (OOM, "CUDA_ERROR_NO_DEVICE")
