"""Containers that have ended and are started again: what they had reserved may be another's by now."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from cli import Cli
from docker_command import docker_command
from support.scraping import wait_for


def test_a_container_is_started_again_where_there_is_room(vgpurun: Cli, debian: str) -> None:
    sim = vgpurun.driver
    first = vgpurun.run("-d", "--name", "first", "--mem", "5g", debian, "sleep", "600").stdout.strip()
    assert vgpurun("stop", "-t", "0", "first").exit_code == 0
    assert vgpurun.run("-d", "--name", "second", "--mem", "5g", debian, "sleep", "600").exit_code == 0
    refused = vgpurun("start", *sim, "first")
    assert refused.exit_code == 125 and "no room" in refused.stderr and "second" in refused.stderr
    assert vgpurun.engine.containers.get(first).status == "exited"
    assert vgpurun("rm", "-f", "second").exit_code == 0
    assert vgpurun("start", *sim, "first").stdout == "first\n"
    assert vgpurun("ps", *sim, "--format", "{{.Names}} {{.MemoryLimit}}", "-f", "name=first").stdout == "first 5 GiB\n"
    assert vgpurun("start", *sim, "first").exit_code == 0, "that it runs already is no error, as with docker start"


def test_past_admission_it_is_doctor_who_says_so(vgpurun: Cli, debian: str) -> None:
    sim = vgpurun.driver
    first = vgpurun.run("-d", "--name", "first", "--mem", "5g", debian, "sleep", "600").stdout.strip()
    assert vgpurun("stop", "-t", "0", "first").exit_code == 0
    assert vgpurun.run("-d", "--name", "second", "--mem", "5g", debian, "sleep", "600").exit_code == 0
    assert "reservations" not in vgpurun("doctor", *sim).stdout
    vgpurun.engine.containers.get(first).start()
    findings = json.loads(vgpurun("doctor", *sim, "--format", "json").stdout)
    (found,) = (each for each in findings if "reservations" in each["name"])
    assert found["status"] == "warn" and "10 GiB of 8 GiB" in json.dumps(found)


def test_a_container_that_is_not_there(vgpurun: Cli) -> None:
    result = vgpurun("start", *vgpurun.driver, "nobody")
    assert result.exit_code != 0 and "nobody" in result.stderr


def test_a_restart_keeps_the_place_of_what_runs(vgpurun: Cli, debian: str) -> None:
    sim = vgpurun.driver
    first = vgpurun.run("-d", "--name", "first", "--mem", "5g", debian, "sleep", "600").stdout.strip()
    with vgpurun.started("run", *sim, "--mem", "5g", "--wait=60s", debian, "true") as waiting:
        wait_for(lambda: "--mem 5g" in vgpurun("queue", *sim).stdout, "the launch in the queue")
        before = vgpurun.engine.containers.get(first).attrs["State"]["StartedAt"]
        for _ in range(3):
            assert vgpurun("restart", *sim, "-t", "0", "first").stdout == "first\n"
        assert waiting.poll() is None, "nobody has taken its place"
        assert vgpurun.engine.containers.get(first).attrs["State"]["StartedAt"] > before
        (gpu,) = json.loads(vgpurun("free", *sim, "--format", "json").stdout)["gpus"]
        assert gpu["memory_reserved_bytes"] == 5 << 30 and gpu["largest_launch"]["memory_bytes"] == 3 << 30
        assert vgpurun("stop", "-t", "0", "first").exit_code == 0
        assert waiting.wait(60) == 0
    assert vgpurun("restart", *sim, "first").stdout == "first\n", "a stopped one is started"
    assert vgpurun.engine.containers.get(first).status == "running"


def test_dockers_own_verbs_and_its_plugin(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    docker = Path(docker_command())
    plugin = tmp_path / "config" / "cli-plugins" / "docker-vgpurun"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(f"#!{sys.executable}\nfrom vgpurun.__main__ import main\nmain()\n")
    plugin.chmod(0o755)
    vgpurun.environment |= {"PATH": f"{docker.parent}:{os.environ['PATH']}", "DOCKER_CONFIG": str(tmp_path / "config")}
    command = [
        docker,
        "vgpurun",
        "run",
        *vgpurun.driver,
        "-d",
        "--name",
        "first",
        "--mem",
        "1g",
        debian,
        "sleep",
        "600",
    ]
    done = subprocess.run(command, env=vgpurun.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert vgpurun("cp", "first:/etc/debian_version", str(tmp_path)).exit_code == 0
    assert (tmp_path / "debian_version").exists()
    assert vgpurun("port", "first", "80/tcp").exit_code == 1
    with vgpurun.started("wait", "first") as waiting:
        assert vgpurun("kill", "first").exit_code == 0
        assert waiting.wait(30) == 0
