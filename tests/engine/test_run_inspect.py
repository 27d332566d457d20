"""Docker shows a container made by vgpurun as it shows the same docker run, but for what is added."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import Any

import docker
import pytest

from cli import Cli
from support import wait_until

# Added by vgpurun to a container: variables, mounts, labels and device nodes.
ADDED_VARIABLES = ("CUDA_", "LD_", "VGPU", "NVIDIA_", "LIBCUDA_")
ADDED_TARGETS = ("/.vgpurun", "/etc/ld.so.preload", "/etc/ld-nix.so.preload", "/usr/lib", "/usr/lib64", "/usr/bin")
OF_EACH = ("Id", "Created", "Name", "LogPath", "ResolvConfPath", "HostnamePath", "HostsPath", "GraphDriver", "State")

# Options that take nothing from each other stand together: each line is two containers.
LINES = """
-l a=b -l c --restart on-failure:3 --stop-signal USR1 --stop-timeout 4 --annotation a=b --runtime runc -a stdout
--add-host a:1.2.3.4 --dns 1.1.1.1 --dns-option ndots:2 --dns-search a.example
-i -h box --domainname example.org --network none --no-healthcheck --sysctl net.ipv4.ip_forward=1
-it --detach-keys ctrl-a --rm --read-only --tmpfs /run:rw,size=1m --ipc shareable --cgroup-parent /own
--entrypoint /bin/sleep -w /srv -u 5:6 --group-add 10 --init -e A=1 -e B= -e A=2
--health-cmd 'test -e /x' --health-interval 5s --health-retries 2 --health-timeout 100ms --health-start-period 1h
-v /srv:/b -v data:/c:ro -v /anonymous --volume-driver local
--mount type=bind,source=/srv,target=/b,readonly --mount type=volume,source=volume,destination=/c --mount dst=/d
--mount type=tmpfs,dst=/b,tmpfs-size=1m,tmpfs-mode=1777 --network none
--network host --ipc host --pid host --uts host --cgroupns host
-p 8080:80 -p 127.0.0.1::90/udp -p 100-101:200-201 --expose 7000-7002 -P
--cap-add sys_admin --cap-add net_raw --cap-drop mknod --privileged
--security-opt no-new-privileges --security-opt seccomp=unconfined --security-opt systempaths=unconfined
--device /dev/null:/dev/z --device /dev/full:/dev/f:r --device-cgroup-rule 'c 1:3 rwm' --ulimit nofile=1024:2048
-m 1g --memory-reservation 512m --oom-score-adj 100 --shm-size 64m --cpu-period 50000 --cpu-quota 25000
--cpus .5 -c 512 --cpuset-cpus 0 --pids-limit 100 --log-driver json-file --log-opt max-size=1m --ulimit core=0
""".strip().splitlines()


@pytest.mark.parametrize("line", LINES)
def test_inspect_is_the_same(vgpurun: Cli, docker_cli: str, debian: str, line: str, docker_host: str) -> None:
    # The containers need a name to look at them by, and an end that leaves no time for a difference.
    arguments = [*shlex.split(line), debian, *(() if "--entrypoint" in line else ("sleep",)), "100"]
    arguments = arguments if "-a" in arguments else ["-d", *arguments]
    theirs = inspected(vgpurun.engine, "of-docker", [docker_cli, "run"], arguments, vgpurun.environment)
    ours = inspected(
        vgpurun.engine, "of-vgpurun", [*vgpurun.command, "run", *vgpurun.driver], arguments, vgpurun.environment
    )
    ours, theirs = flat(without_additions(ours)), flat(theirs)
    differing = sorted(path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path))
    assert [(path, ours.get(path), theirs.get(path)) for path in differing] == []


def inspected(
    engine: docker.DockerClient, name: str, command: list[str], arguments: list[str], environment: dict[str, str]
) -> Any:
    """Return the engine's words on a container that a command line makes, without what differs from run to run."""
    process = subprocess.Popen(
        [*command, "--name", name, *arguments], env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        if "-d" in arguments:
            assert process.wait(timeout=60) == 0, process.stdout and process.stdout.read()
        described = wait_until(lambda: running(engine, name), "running container")
    finally:
        for container in engine.containers.list(all=True, filters={"name": name}, ignore_removed=True):
            container.remove(force=True, v=True)
        process.communicate(timeout=20)
    return normalised(described)


def running(engine: docker.DockerClient, name: str) -> Any:
    try:
        described = engine.api.inspect_container(name)
    except docker.errors.NotFound:
        return None
    return described if described["State"]["Running"] else None


def normalised(described: dict[str, Any]) -> dict[str, Any]:
    """Without ids, names and times."""
    described = {name: value for name, value in described.items() if name not in OF_EACH}
    own_id = re.compile("[0-9a-f]{64}")
    described["Config"]["Env"].sort()
    (described["HostConfig"].get("Binds") or []).sort()  # docker ranges over a map
    network = described["NetworkSettings"]
    for name in ("SandboxID", "SandboxKey", "EndpointID"):
        network.pop(name, None)
    for endpoint in network["Networks"].values():
        endpoint.pop("EndpointID", None)
        endpoint.pop("DNSNames", None)
    if re.fullmatch("[0-9a-f]{12}", described["Config"]["Hostname"]):
        described["Config"]["Hostname"] = "of the id"
    for mount in described["Mounts"]:
        for name in ("Name", "Source"):
            mount[name] = own_id.sub("id", mount.get(name, ""))
    described["Mounts"].sort(key=lambda mount: mount["Destination"])
    return described


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """By paths, so that a difference is easy to see."""
    if not isinstance(value, dict):
        return {path: value}
    return {name: each for key in value for name, each in flat(value[key], f"{path}.{key}").items()}


def without_additions(described: dict[str, Any]) -> dict[str, Any]:
    """Without what vgpurun adds."""
    config, host = described["Config"], described["HostConfig"]
    config["Env"] = sorted(
        re.sub("(^PATH=.*):/.vgpurun/driver$", r"\1", entry)
        for entry in config["Env"]
        if not entry.startswith(ADDED_VARIABLES)
    )
    config["Labels"] = {name: value for name, value in config["Labels"].items() if not name.startswith("vgpurun.")}
    described["Mounts"] = [mount for mount in described["Mounts"] if not mount["Destination"].startswith(ADDED_TARGETS)]
    kept = [mount for mount in host.get("Mounts") or [] if not mount["Target"].startswith(ADDED_TARGETS)]
    host.pop("Mounts", None)
    if kept:
        host["Mounts"] = kept
    return described
