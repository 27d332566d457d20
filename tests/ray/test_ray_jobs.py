"""Jobs with wishes of their own, without any, and those that cannot be held to limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ray_node import HOOK, PLUGINS, TIMEOUT_S, RayNode

from support import CHECKOUT

pytestmark = pytest.mark.timeout(TIMEOUT_S + 20)
GIB = 1 << 30
LOCAL = f"py_executable={sys.executable} -m vgpurun local --mem 25% --sm 25 -- {sys.executable}"


@pytest.mark.exhaustive
def test_a_wish_lowers_the_part_and_what_goes_wrong_is_said(node: RayNode) -> None:
    found, said = node.run("jobs.py")
    assert found["wish"] == ["has run", [["BURST", "LOW", GIB, 10], ["HARD", "HIGH", 0, None]]]
    for name, kind in (("too_small", "RayTaskError(ValueError)"), ("too_small_actor", "ActorDiedError")):
        assert found[name][0] == kind
        assert "vgpurun: num_gpus=0.001 is less than 1 % of a GPU" in found[name][1], said
    assert found["after_refusal"] == [GIB, 10]
    assert "runtime_env: vgpurun has no 'memory'; it has mem, sm, sm_policy, priority" in found["unknown"][1]
    ((pid, what, quotas),) = found["holders"]
    assert (pid, quotas) == (found["held_by"], [[GIB, 10]])
    assert what.startswith("ray")
    assert not found["is_left"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "variables",
    [
        pytest.param(
            {"RAY_RUNTIME_ENV_HOOK": "", "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR": "vgpurun.ray.worker.setup"},
            id="a job without limits, on a node with the hook of workers",
        ),
        pytest.param({"RAY_RUNTIME_ENV_PLUGINS": ""}, id="a node without the plugin", marks=pytest.mark.exhaustive),
    ],
)
def test_a_worker_without_limits_gets_no_gpu(node: RayNode, variables: dict[str, str]) -> None:
    found, _ = node.run("plain.py", **variables)
    assert found["found"][0] == "RayTaskError(ValueError)"
    assert "vgpurun: this worker has no limits, and gets no GPU" in found["found"][1]


@pytest.mark.slow
def test_what_is_mended_on_a_node_counts_without_a_new_start_of_ray(node: RayNode) -> None:
    found, said = node.run("appears.py", VGPURUN_LIBRARY=str(node.folder / "later.so"))
    assert found["without"][0] == "RuntimeEnvSetupError" and "later.so: No such file" in found["without"][1], said
    assert found["with"]["mib"] == 4096


@pytest.mark.slow
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has NVIDIA's driver")
def test_a_node_without_a_driver_has_tasks_that_ask_for_no_gpu(node: RayNode) -> None:
    found, said = node.run("plain.py", VGPURUN_DRIVER="")
    assert found["without_gpu"] is None
    assert found["found"][0] == "WorkerCrashedError" and "this node has no GPU '0'" in said


@pytest.mark.slow
def test_vgpurun_local_around_workers_is_refused_where_limits_go_by_num_gpus(node: RayNode) -> None:
    """The two ways of docs/ray.md meet."""
    found, _ = node.run("plain.py", LOCAL)
    assert found["found"][0] == "RuntimeEnvSetupError"
    assert "vgpurun: runtime_env: py_executable runs vgpurun local, but on this node limits go" in found["found"][1]


def test_vgpurun_local_says_that_a_worker_has_no_gpu_yet(node: RayNode) -> None:
    """A script may run it where the runtime_env does not show it."""
    found, _ = node.run("container.py")
    command = [sys.executable, "-m", "vgpurun", "local", "--mem", "25%", "--", "true"]
    done = subprocess.run(
        command, env=node.environment | found["variables"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == f"vgpurun: this share has no GPU of which it could give a part: {node.state}/ray/unassigned\n"


@pytest.mark.exhaustive
def test_without_the_plugin_a_job_runs_under_vgpurun_local(node: RayNode) -> None:
    """The way that docs/ray.md has first."""
    found, _ = node.run("plain.py", LOCAL, **{HOOK: "", PLUGINS: ""})
    assert found["found"]["mib"] == 2048


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ("utils.set_visible_accelerator_ids", "this Ray has no ray._private.utils.set_visible_accelerator_ids"),
        ("worker.Worker.record_task_log_start", "this Ray's worker has no record_task_log_start"),
    ],
)
def test_a_ray_without_a_patched_function_is_refused_in_words(node: RayNode, lacking: str, words: str) -> None:
    code = f"from ray._private import utils, worker; del {lacking}; from vgpurun.ray.worker import setup; setup()"
    done = subprocess.run([sys.executable, "-c", code], env=node.environment, capture_output=True, text=True)
    assert f"LimitError: {words}" in done.stderr


def test_the_worker_needs_no_package_but_ray(tmp_path: Path) -> None:
    """A conda environment has Ray, and neither vgpurun nor what it asks for. Each start waits for what it imports."""
    (tmp_path / "vgpurun").symlink_to(CHECKOUT / "vgpurun")
    code = "import sys, vgpurun.ray.worker; sys.exit('vgpurun.host.nvml' in sys.modules)"
    command = [sys.executable, "-S", "-c", code]
    subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, check=True)


def test_a_worker_in_a_container_brings_library_and_files(node: RayNode) -> None:
    """The command by which this Ray's podman starts a worker, as Ray itself makes it; no container is started."""
    found, _ = node.run("container.py")
    command, image = found["command"], found["command"].index("the-image")
    variables = dict(
        command[i + 1].split("=", 1) if command[i] == "--env" else command[i].removeprefix("--env=").split("=", 1)
        for i in range(image)
        if command[i].startswith("--env")
    )
    volumes = [each.removeprefix("--volume=") for each in command[:image] if each.startswith("--volume=")]
    assert f"{node.state}:{node.state}" in volumes
    assert any(each == f"{variables['LD_PRELOAD']}:{variables['LD_PRELOAD']}" for each in volumes)
    assert variables["VGPURUN_LIMITS_FILE"] == f"{node.state}/ray/unassigned/etc/limits"
    assert command[image - 2 :] == ["--entrypoint", "python", "the-image"]
    assert found["allowed"]
