"""On a real engine vgpurun ends as docker run does: exit code, output, words, and the container that is left."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from cli import OF_ENGINE, Cli, Result
from support import command_line, wait_until

LIMITS = ("--driver", "sim", "--mem", "1g", "--sm", "50")
LINES = """
IMAGE true
IMAGE sh -c 'echo out; echo err >&2; exit 3'
IMAGE no-such-command
IMAGE /etc/passwd
-d IMAGE true
-d IMAGE no-such-command
--entrypoint '' -w /srv/new -u 1:2 -h box --domainname there IMAGE sh -c 'id -u; pwd; hostname'
-e A=1 -e B -l a=b -l c --annotation x=y IMAGE sh -c 'echo $A'
-v /tmp:/t:ro -v /tmp:/t:ro -v /anonymous -v named:/n --tmpfs /x:size=1m --mount type=tmpfs,dst=/y IMAGE true
-m 256m --cpus 0.5 --pids-limit 50 --ulimit nofile=100:200 --shm-size 1m --oom-score-adj 5 IMAGE sh -c 'ulimit -n'
--init --read-only --cap-drop ALL --security-opt no-new-privileges --stop-timeout 3 --stop-signal USR1 IMAGE touch /a
--network none --add-host a:1.2.3.4 --health-cmd true --health-interval 5s IMAGE grep 1.2.3.4 /etc/hosts
--restart on-failure:1 IMAGE sh -c 'exit 3'
--network none --dns 1.1.1.1 --dns 127.0.0.53 IMAGE true
-a stdin -i IMAGE sh -c 'echo out; exit 4'
-a stderr IMAGE sh -c 'echo out; echo err >&2'
-a stdout IMAGE sh -c 'echo out; echo err >&2; exit 3'
-a STDOUT -a stderr IMAGE sh -c 'echo out; echo err >&2'
-i -a stdout IMAGE cat
-it IMAGE true
-d -a stdout IMAGE true
--cidfile missing/id IMAGE true
--device /dev/no-such-device IMAGE true
--device /dev/null:/dev/x:r IMAGE ls /dev/x
--mount type=bind,src=/no/such/folder,dst=/b IMAGE true
--network no-such-network IMAGE true
--memory 1m IMAGE true
--name -x IMAGE true
--pull never no-such-image:1 true
Upper:x true
""".strip().splitlines()
# The engine's own refusals, as of the unknown network above.
ALIKE = """
-v 'a b:/c' IMAGE true
--log-opt no-such-option=1 IMAGE true
--runtime no-such-runtime IMAGE true
--ipc odd IMAGE true
--volumes-from no-such-container IMAGE true
--blkio-weight 5 IMAGE true
--restart odd IMAGE true
--stop-signal odd IMAGE true
--isolation odd IMAGE true
--log-driver no-such-driver IMAGE true
""".strip().splitlines()  # docker looks for a driver of that name for 15 s, twice
# Values that each container has for itself: times, names that the engine makes up, and paths.
OWN = re.compile(
    r"Id|Created|Name|(Hostname|Hosts|ResolvConf|Log)Path|GraphDriver|NetworkSettings|Pid|(Started|Finished)At|Hostname|"
    r"ContainerIDFile|ConsoleSize|Source|LastEventId|Health"
)


@dataclass
class Ended:
    """How a command line ended, and the container that it left, if any."""

    result: Result
    container: dict[str, Any] | None


def ended(engine: docker.DockerClient, run: Callable[[], Result]) -> Ended:
    """Run a command line, wait until nothing runs that it has started, and take away what it has left."""
    before = {container.id for container in engine.containers.list(all=True, ignore_removed=True)}

    def left() -> list[Any]:
        found = engine.containers.list(all=True, ignore_removed=True)
        return [container for container in found if container.id not in before]

    result = run()
    wait_until(lambda: not any(each.status in ("running", "restarting") for each in left()), "end of the container")
    containers = left()
    assert len(containers) <= 1
    for container in containers:
        container.remove(force=True, v=True)
    return Ended(result, containers[0].attrs if containers else None)


def lacking(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Return what docker's container has and ours has not, which has more."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        names = [name for name in theirs if not OWN.fullmatch(name)]
        return [each for name in names for each in lacking(ours.get(name), theirs[name], f"{where}.{name}")]
    if isinstance(theirs, list) and isinstance(ours, list):
        return [f"{where}: {each}" for each in theirs if all(lacking(one, each) for one in ours) and not is_path(each)]
    return [] if theirs == ours or theirs in (None, [], {}) else [f"{where}: {theirs}, ours has {ours}"]


def is_path(each: Any) -> bool:
    """Whether it is the variable to which ours adds the driver's programs."""
    return isinstance(each, str) and each.startswith("PATH=")


def words(stderr: str) -> str:
    """Return what docker says is wrong, without who says so to whom."""
    line = next((line for line in stderr.splitlines() if line and not line.startswith(("WARNING: IPv4", "Run '"))), "")
    line = re.sub(r"^(docker: |WARNING: )?(Error response from daemon: )?(failed to .*?container process: )?", "", line)
    return re.sub(r"[0-9a-f]{64}", "ID", line.strip(" .").removesuffix(": unknown"))


def as_result(done: subprocess.CompletedProcess[str]) -> Result:
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("line", [*LINES, *(pytest.param(line, marks=pytest.mark.exhaustive) for line in ALIKE)])
def test_it_ends_as_dockers(docker_cli: str, vgpurun: Cli, debian: str, tmp_path: Path, line: str) -> None:
    arguments = [debian if word == "IMAGE" else word for word in shlex.split(line)]

    def of_docker() -> Result:
        done = subprocess.run(
            [docker_cli, "run", *arguments], env=vgpurun.environment, cwd=tmp_path, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return as_result(done)

    def of_ours() -> Result:
        return as_result(command_line.run(["run", *LIMITS, *arguments], vgpurun.environment, tmp_path))

    theirs, ours = ended(vgpurun.engine, of_docker), ended(vgpurun.engine, of_ours)
    assert ours.result.exit_code == theirs.result.exit_code, (theirs.result, ours.result)
    assert words(theirs.result.stderr) in re.sub(r"[0-9a-f]{64}", "ID", ours.result.stderr)
    was_started = theirs.container is None or theirs.container["State"]["Status"] != "created"
    if was_started:
        assert re.sub(r"[0-9a-f]{64}", "ID", ours.result.stdout) == re.sub(r"[0-9a-f]{64}", "ID", theirs.result.stdout)
        assert bool(ours.result.stderr.replace(OF_ENGINE, "")) == bool(words(theirs.result.stderr))
        assert lacking(ours.container, theirs.container) == []
    assert (ours.container is None) == (theirs.container is None or not was_started)  # a failed start leaves nothing
