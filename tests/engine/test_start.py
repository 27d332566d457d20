"""Containers that have ended and are started again: what they had reserved may be another's by now."""

from __future__ import annotations

import json

from cli import Cli


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
