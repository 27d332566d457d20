"""vgpurun asks the engine for what docker's own command line asks it for, and refuses what that refuses.

Docker's command line runs against an engine that only records; no container is made.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from docker_command import docker_command, docker_version, documented_flags
from private_engine import EngineError
from recorder import Recorder, recorder
from support import is_set, unavailable
from vgpurun.cli.run import run
from vgpurun.engine.images import PullOptions
from vgpurun.errors import VgpurunError
from vgpurun.launch.container_body import options_body
from vgpurun.options.build import container_options
from vgpurun.options.table import FLAGS, LEFT_OUT

OURS = ("--gpus", "--help")
REPEATED_KINDS = ("list", "map", "mount", "ulimit", "network")


@pytest.fixture(scope="session")
def docker() -> str:
    try:
        return docker_command()
    except EngineError as error:
        unavailable(str(error), required=is_set("REQUIRE_ENGINE"))


@dataclass
class Witness:
    """Runs docker's command line, in a folder of the test's own."""

    docker: str
    version: int
    engine: Recorder
    folder: Path

    def run(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "DOCKER_HOST": self.engine.host, "X": "x"}
        done = subprocess.run(
            [self.docker, "run", *arguments], env=environment, cwd=self.folder, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=30,
        )  # fmt: skip
        if ("--nope" not in arguments and "unknown flag" in done.stderr) or (
            "unexpected key" in done.stderr and "colour" not in " ".join(arguments)
        ):
            pytest.skip(f"this docker does not know it: {done.stderr.splitlines()[0]}")
        return done


@pytest.fixture
def witness(docker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Witness]:
    (tmp_path / "variables").write_text("# comment\nA=file\nFILE=1\nX\nNOT_SET\n")
    (tmp_path / "labels").write_text("from.file=1\nboth=file\n")
    (tmp_path / "profile.json").write_text('{"defaultAction":  "SCMP_ACT_ALLOW"}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("X", "x")
    monkeypatch.delenv("NOT_SET", raising=False)
    with recorder(tmp_path) as engine:
        yield Witness(docker, docker_version(docker), engine, tmp_path)


def our_request(arguments: list[str]) -> tuple[dict[str, str], Any]:
    """What vgpurun would send of the user's options alone."""
    given = run.make_context("run", list(arguments)).params
    options = container_options(given["image"], given["command"], given)
    PullOptions.read(given["pull"], given["quiet"], options.platform)
    query = {"name": options.name, "platform": options.platform}
    return {name: value for name, value in query.items() if value}, options_body(options)


def said(value: Any) -> Any:
    """What a request says, without what is not set: docker sends zeros, vgpurun leaves most of them out."""
    if isinstance(value, dict):
        kept = {name: said(each) for name, each in value.items()}
        return {name: each for name, each in kept.items() if each not in (None, 0, "", [], {})}
    return [said(each) for each in value] if isinstance(value, list) else value


# A number is the version of docker that first does it like this.
REQUESTS = """
-d
-i
-t
-di
-a stdin -a stdout -i
-a stderr
-a STDIN
--name box -l a=b -l c -l a=d -l both=option --label-file labels --annotation x=1 --annotation y
--cidfile box.id --restart on-failure:3 --stop-signal USR1 --stop-timeout 4
--restart always
--rm --restart no
--rm=false -d=false --sig-proxy=false -m=2g -p=80:80 -e=A=1
-td=false --sig-proxy
--log-driver json-file --log-opt max-size=1m --log-opt compress
--entrypoint ''
--entrypoint 'a program' -w /srv -u 5:6 --group-add audio --group-add 5 --init
--health-cmd 'test -e /x' --health-interval 5s --health-retries 2 --health-timeout 100ms --health-start-period 1h1m1.5s
--health-start-interval 1m
--no-healthcheck
-e A=1 -e B= -e X -e NOT_SET -e A=2 --env-file variables
28: -v /a:/b -v data:/c:ro -v /anonymous -v ./labels:/d -v ..:/p -v /e:/e:z,ro --volume-driver local --volumes-from x:ro
--volumes-from x --volumes-from y
--mount type=bind,src=/a,dst=/b
--mount type=bind,source=/a,target=/b,readonly --mount type=volume,source=v,destination=/c,ro=true
--mount type=bind,src=/a,dst=/b,bind-recursive=disabled,bind-propagation=rslave
--mount type=bind,src=/a,dst=/b,bind-recursive=readonly,bind-propagation=rprivate,ro
--mount type=bind,src=/a,dst=/b,bind-recursive=enabled
--mount type=bind,src=./labels,dst=/b,consistency=cached
--mount type=volume,src=v,dst=/b,volume-nocopy,volume-opt=a=b,volume-opt=c=d,volume-label=x=y,volume-driver=local
--mount type=volume,src=v,dst=/b,volume-nocopy=false,volume-subpath=sub
--mount type=tmpfs,dst=/b,tmpfs-size=1m,tmpfs-mode=1777
28: --mount type=image,src=other,dst=/b,image-subpath=x
--mount dst=/b
--mount '"type=bind","src=/a,b",dst=/b'
--tmpfs /run:rw,size=1m --tmpfs /x --read-only --storage-opt size=1G
--network none
--network host
--network container:other
--net own --net-alias z --network-alias y
--network own --ip 10.1.2.3 --ip6 fd00::5 --link-local-ip 169.254.1.1 --mac-address 02:42:ac:11:00:02
--network own --network name=second,alias=q,alias=r,ip=10.2.2.2,driver-opt=a=b
28: --network name=own,gw-priority=3,mac-address=02:42:ac:11:00:03,link-local-ip=169.254.2.2,ip6=fd00::6
--mac-address 02:42:ac:11:00:02
--link a:b --link c
--network own --link a:b
-p 8080:80 -p 127.0.0.1::90/udp -p 100-101:200-201 -p '[::1]:5:6' -p 70/sctp -P
-p 8000-8005:80
-p 81:80 -p 82:80
-p published=81,target=82,protocol=udp
-p 7000-7001
--expose 80 --expose 90-92/udp -p 1000:80
-h box --domainname example.org --add-host a:1.2.3.4 --add-host b=::1 --add-host c:host-gateway --add-host 'd:[::1]'
--dns 1.1.1.1 --dns ::1 --dns-option ndots:2 --dns-opt rotate --dns-search a.example --dns-search .
--ipc host --pid host --uts host --userns host --cgroupns host --cgroup-parent /x --privileged
--ipc container:x --pid container:x --cgroupns private
28: --cap-add sys_admin --cap-add CAP_NET_RAW --cap-add net_raw --cap-drop all
--security-opt label=disable --security-opt no-new-privileges --security-opt seccomp:unconfined
--security-opt seccomp=profile.json
--security-opt systempaths=unconfined --security-opt apparmor=unconfined
--sysctl net.ipv4.ip_forward=1 --sysctl kernel.shmmax=1000
--device /dev/null --device /dev/zero:/dev/z --device /dev/full:/dev/f:r --device /dev/null:rw
--device vendor.com/class=one --device other.com/class=two
--device-cgroup-rule 'c 1:3 rwm' --device-cgroup-rule 'b *:* r'
--runtime other
-m 1g --memory-reservation 512m --memory-swap -1 --memory-swappiness 5 --oom-kill-disable --oom-score-adj -100
--memory-swap 1.5GiB --shm-size 64000 --memory-swappiness 0
--cpus 1.5 -c 512 --cpuset-cpus 0-1 --cpuset-mems 0
--cpus .25
--cpu-period 50000 --cpu-quota 25000 --cpu-rt-period 10 --cpu-rt-runtime 20 --pids-limit -1
--ulimit nofile=10:20 --ulimit core=0 --ulimit nproc=5 --ulimit core=-1
--blkio-weight 300 --blkio-weight-device /dev/sda:200
28: --device-read-bps /dev/sda:1mb --device-read-iops /dev/sda:100 --device-write-bps /dev/sda:1k
28: --device-write-iops /dev/sda:5 --device-read-bps /dev/sdb:2gb
--platform linux/arm64
--pull missing -q --detach-keys ctrl-a
""".strip().splitlines()


@pytest.mark.parametrize("line", REQUESTS)
def test_the_engine_is_asked_for_the_same(witness: Witness, line: str) -> None:
    since, colon, line = line.rpartition(": ")
    if colon and witness.version < int(since):
        pytest.skip(f"docker {witness.version} does it otherwise")
    arguments = [*shlex.split(line), "image", "command", "-x"]
    ours = our_request(arguments)
    done = witness.run(arguments)
    assert "only recorded" in done.stderr, done
    query, body = witness.engine.take()
    body["Env"] = sorted({entry.partition("=")[0]: entry for entry in body["Env"] or ()}.values())  # the last counts
    ours[1]["Env"].sort()
    body["HostConfig"]["Binds"] = sorted(body["HostConfig"]["Binds"] or [])  # docker's order is random
    ours[1]["HostConfig"]["Binds"] = sorted(ours[1]["HostConfig"]["Binds"] or [])
    assert said(ours[1]) == said(body)
    assert ours[0] == query


REFUSALS = """
--memory x
--memory 1x
--shm-size -1
--cpus x
--cpus 1.0000000001
--health-interval 5
--health-interval soon
--ulimit x
--ulimit foo=1
--ulimit nofile=20:10
--rm=maybe
--blkio-weight 70000
--blkio-weight-device x
--blkio-weight-device /dev/a:5
--device-read-bps x
--device-read-bps /dev/a:x
--device-write-iops /dev/a:x
--add-host x
--add-host a:b
--dns x
--dns-search a..b
--device a:b:c:d
--device foo
--device /dev/null:/x:q
--device-cgroup-rule x
-p x
-p 99999:80
-p 80-81:80-82
--expose 90-80
--expose 1:2
--memory-swappiness 200
--restart on-failure:x
--rm --restart always
--mac-address x
--network ''
--network a=b
--network name=own,x=y
--network own --network own
--network-alias x
--attach foo
-v :/b
-v ''
--mount type=bind,src=/a
--mount type=bind,src=/a,dst=/b,colour=blue
--mount type=bind,src=/a,dst=/b,readonly=maybe
--mount type=bind,src=/a,dst=/b,tmpfs-size=1
--mount type=bind,src=/a,dst=/b,rubbish
--sysctl vm.x=1
--storage-opt x
--link a:b:c
--stop-timeout x
--pids-limit x
--pull maybe
--env-file missing
--label-file missing
-e =x
-l =x
-l 'a b=c'
--security-opt apparmor
--security-opt seccomp=missing.json
--pid foo
--uts container:x
--userns foo
--cgroupns foo
--health-cmd x --no-healthcheck
--health-retries -1
-d -a stdout
--nope
-z
-itz
""".strip().splitlines()


@pytest.mark.parametrize("line", REFUSALS)
def test_what_docker_refuses_is_refused_in_its_words(witness: Witness, line: str) -> None:
    arguments = [*shlex.split(line), "image"]
    done = witness.run(arguments)
    assert done.returncode != 0
    assert witness.engine.requests == []
    words = done.stderr.splitlines()[0].removeprefix("docker: ")
    words = re.sub(r"strconv\.\w+: ", "", words).removesuffix("invalid syntax").split(". The correct format")[0]
    with pytest.raises((VgpurunError, click.UsageError)) as caught:
        our_request(arguments)
    if witness.version >= 28:  # older ones have other words
        assert words in str(caught.value)


def test_every_option_of_docker_is_there_or_refused(docker: str) -> None:
    known = {flag.names: flag for flag in (*FLAGS.values(), *LEFT_OUT)}
    documented = [flag for flag in documented_flags(docker) if flag.names not in OURS]
    assert len(documented) > 90
    assert [flag.names for flag in documented if flag.names not in known] == []
    for flag in documented:
        ours = known[flag.names]
        assert bool(ours.value) == bool(flag.kind) or ours.is_on, flag
        assert ours.repeats == (flag.kind in REPEATED_KINDS) or ours in LEFT_OUT, flag


def test_no_option_is_made_up(docker: str) -> None:
    documented = {flag.names for flag in documented_flags(docker)}
    assert {flag.names for flag in FLAGS.values()} <= documented
