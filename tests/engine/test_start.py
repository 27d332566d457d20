"""Containers that have ended and are started again: what they had reserved may be another's by now."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from cli import Cli
from docker_command import docker_command
from support import wait_until


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


def test_a_start_that_is_attached(vgpurun: Cli, debian: str) -> None:
    sim = vgpurun.driver
    script = "read line; echo read $line; exit 4"
    assert vgpurun("run", *sim, "-i", "--name", "asks", "--mem", "5g", debian, "sh", "-c", script).exit_code == 4
    again = vgpurun("start", *sim, "-a", "-i", "asks", stdin="this\n")
    assert (again.exit_code, again.stdout) == (4, "read this\n")
    assert vgpurun("run", *sim, "--name", "says", debian, "sh", "-c", "echo said; exit 5").exit_code == 5
    shown = vgpurun("start", *sim, "--attach", "says")
    assert (shown.exit_code, shown.stdout) == (5, "said\n")
    assert vgpurun("start", *sim, "-a", "asks", "asks").exit_code == 1
    refused = vgpurun("start", *sim, "-ai", "--detach-keys", "bad", "asks")
    assert refused.exit_code == 1 and "invalid detach keys (bad)" in refused.stderr
    ticks = ("sh", "-c", "while :; do echo tick; sleep 0.1; done")
    assert vgpurun.run("-d", "--name", "second", "--mem", "5g", debian, *ticks).exit_code == 0
    refused = vgpurun("start", *sim, "-a", "asks")
    assert refused.exit_code == 125 and "no room" in refused.stderr
    with vgpurun.started("start", *sim, "-a", "second") as attached:
        assert attached.stdout is not None and attached.stdout.readline() == "tick\n"
        assert vgpurun("kill", "second").exit_code == 0
        assert attached.wait(60) == 137, "one that runs is attached to"


def test_an_attached_start_passes_signals_on(vgpurun: Cli, debian: str) -> None:
    script = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    options = ("-d", "--name", "traps", "--mem", "1g")
    assert vgpurun.run(*options, debian, "sh", "-c", script).exit_code == 0
    assert vgpurun("kill", "traps").exit_code == 0
    with vgpurun.started("start", *vgpurun.driver, "-a", "traps") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert (process.communicate(timeout=60)[0], process.returncode) == ("caught\n", 9)


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


def test_a_restart_keeps_the_place_of_what_runs(vgpurun: Cli, debian: str) -> None:
    sim = vgpurun.driver
    first = vgpurun.run("-d", "--name", "first", "--mem", "5g", debian, "sleep", "600").stdout.strip()
    with vgpurun.started("run", *sim, "--mem", "5g", "--wait=60s", debian, "true") as waiting:
        wait_until(lambda: "--mem 5g" in vgpurun("queue", *sim).stdout, "the launch in the queue")
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
    assert subprocess.run(command, env=vgpurun.environment, capture_output=True, text=True, timeout=60).returncode == 0
    assert vgpurun("cp", "first:/etc/debian_version", str(tmp_path)).exit_code == 0
    assert (tmp_path / "debian_version").exists()
    assert vgpurun("port", "first", "80/tcp").exit_code == 1
    with vgpurun.started("wait", "first") as waiting:
        assert vgpurun("kill", "first").exit_code == 0
        assert waiting.wait(30) == 0
