"""vgpurun answers as docker's own command line does: exit code, output, words, and what the engine is asked for.

Both run against an engine that only records; no container is made. test_docker_run.py compares on a real one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from docker_command import docker_version, documented_flags
from recorder import Recorder, recorder
from support import command_line, own_gpu_config
from vgpurun.cli.commands.run import run
from vgpurun.options.devices import gpus
from vgpurun.options.table import DEPRECATED, FLAGS, LEFT_OUT

OURS = ("--gpus", "--help")
HIDDEN = {"--disable-content-trust"}  # by docker 29
REPEATED_KINDS = ("list", "map", "mount", "ulimit", "network")
LINES = (Path(__file__).parent / "command_lines.txt").read_text().splitlines()
FILES = {
    "variables": b"# comment\nA=file\nFILE=1\nX\nNOT_SET\n",
    "labels": b"from.file=1\nboth=file\nalone\n",
    "bom": b"\xef\xbb\xbfa=1\n",
    "crlf": b"a=1\r\nb=2\r\n",
    "separators": "a=1\x0cb=2\rc=3\u2028d=4\n".encode(),
    "quotes": b"a=\"x y\"\nb='z'\n",
    "spaces": b"  a=1\n\tb= 2 \n\n   \n  # c\n;d=1 # e",
    "blank": b"a b=1\n",
    "nameless": b"=1\n",
    "latin": b"a=\xe9\n",
    "empty": b"",
    "profile.json": b'{"defaultAction":  "SCMP_ACT_ALLOW",\n "x": [1, 1.0, 1e3, "\\u00e9 <"]}',
    "broken.json": b'{"a":',
}
NOWHERE = {"DOCKER_HOST": "unix:///no/engine.sock"}
CREATED = "only recorded"  # the answer to every request for a container


def marked(lines: list[str]) -> list[object]:
    """All lines but the first for options of one kind are for `make test-all`; test_options.py has each."""
    kinds = {
        name: (flag.parse, flag.gather)
        for flag in FLAGS.values() for name in (*flag.names.split(", "), *flag.aliases)
    }  # fmt: skip
    seen = Counter[object]()
    found = []
    for line in lines:
        option = line.partition(" ")[0].partition("=")[0]
        kind = kinds.get(option, option)
        seen[kind] += 1
        found.append(pytest.param(line, id=line, marks=[pytest.mark.exhaustive] * (seen[kind] > 1)))
    return found


@dataclass
class Answer:
    """How a command line ended, and what it asked the engine for."""

    exit_code: int
    stdout: str
    stderr: str
    requests: list[tuple[dict[str, str], Any]]


@dataclass
class Witness:
    """Runs docker's command line and ours side by side, each in a folder of its own with the same files."""

    docker: str
    engines: tuple[Recorder, Recorder]
    folders: tuple[Path, Path]
    environment: dict[str, str]

    def ask(self, arguments: list[str], **variables: str) -> tuple[Answer, Answer]:
        """The answers of both, docker's first."""
        (their_engine, our_engine), (theirs, ours) = self.engines, self.folders
        common = self.environment | variables
        process = subprocess.Popen(
            [self.docker, "run", *arguments], env=common | {"DOCKER_HOST": their_engine.host}, cwd=theirs, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        result = command_line.run(["run", *arguments], common | {"DOCKER_HOST": our_engine.host}, ours)
        stdout, stderr = process.communicate(timeout=30)
        requests = json.loads(json.dumps(their_engine.take()).replace(str(theirs), str(ours)))
        for folder in self.folders:
            (folder / "new.id").unlink(missing_ok=True)
        said = stderr.replace(str(theirs), str(ours))
        return (
            Answer(process.returncode, stdout, said, [(query, body) for query, body in requests]),
            Answer(result.returncode, result.stdout, result.stderr, our_engine.take()),
        )


@pytest.fixture(scope="module")
def witness(docker_cli: str, built_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    del built_library
    home = tmp_path_factory.mktemp("witness")
    folders = home / "theirs", home / "ours"
    for folder in folders:
        (folder / "folder").mkdir(parents=True)
        for name, content in FILES.items():
            (folder / name).write_bytes(content)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "X": "x", "LANG": "C.UTF-8", "VGPURUN_DRIVER": "sim",
        "VGPURUN_STATE_DIR": str(home / "state"), "VGPUSIM_CONFIG": own_gpu_config(home),
    }  # fmt: skip
    with recorder(folders[0]) as theirs, recorder(folders[1]) as ours:
        yield Witness(docker_cli, (theirs, ours), folders, environment)


@pytest.fixture(scope="module")
def added(witness: Witness) -> Any:
    """The request for a container without options, which has nothing but what vgpurun adds."""
    ((_, body),) = witness.ask(["image"])[1].requests
    return body


def of_user(body: Any, added: Any) -> Any:
    """Return what a request says, without what vgpurun adds, and without what is not set: docker sends zeros."""
    host, added_host = body["HostConfig"], added["HostConfig"]
    ours = {entry.partition("=")[0] for entry in added["Env"] or ()}
    environment = {entry.partition("=")[0]: entry for entry in body["Env"] or ()}  # the last counts
    body["Env"] = sorted(entry for name, entry in environment.items() if name not in ours)
    body["Labels"] = sorted(f"{name}={value}" for name, value in body["Labels"].items() if name not in added["Labels"])
    for key, place in (("Mounts", "Target"), ("Devices", "PathInContainer")):
        ours = {each[place] for each in added_host[key] or ()}
        host[key] = [each for each in host.get(key) or () if each[place] not in ours]
    host["Binds"] = sorted(host["Binds"] or ())  # docker's order is random
    return said(body)


def said(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: said(each) for name, each in value.items()}
        return {name: each for name, each in kept.items() if each not in (None, 0, "", [], {})}
    return [said(each) for each in value] if isinstance(value, list) else value


def words(text: str) -> str:
    """Return what a message says, without capitals and spaces, Go's own words, and how it should have been written."""
    said = (line for line in text.splitlines() if line and CREATED not in line)
    line = next((line for line in said if not line.startswith(("Run '", "See '", "Usage:"))), "")
    line = re.sub(
        r'^(docker|WARNING): (error parsing specified platform: )?|^time=.* msg="|strconv\.\w+: |"$', "", line
    )
    line = re.split(r"\. The correct format|, error:|: too many colons|: invalid argument|: address|: \[\d", line)[0]
    return " ".join(line.lower().removesuffix("invalid syntax").strip(" .").split())


@pytest.mark.parametrize("line", marked(LINES))
def test_the_answer_is_dockers(witness: Witness, added: Any, line: str) -> None:
    theirs, ours = witness.ask([*shlex.split(line), "image", "command", "-x"])
    assert (ours.exit_code, ours.stdout) == (theirs.exit_code, theirs.stdout), (theirs, ours)
    assert words(theirs.stderr) in " ".join(ours.stderr.lower().split()), (theirs, ours)
    assert bool(words(ours.stderr)) == bool(words(theirs.stderr)), (theirs, ours)
    nothing = {"Env": [], "Labels": {}, "HostConfig": {"Mounts": [], "Devices": []}}
    assert [(query, of_user(body, added)) for query, body in ours.requests] == [
        (query, of_user(body, nothing)) for query, body in theirs.requests
    ]


GPUS = (
    "all", "-1", "-7", "+1", "01", "count=all", "count=-1", "count=1", "device=0", "device=GPU-1", '"device=0,1"',
    "device=nvidia.com/gpu=0", "driver=nvidia", "driver=", "capabilities=utility", 'all,"capabilities=video,utility"',
    '1,driver=nvidia,"capabilities=compute,utility","options=foo=bar,baz=qux"', '"options=foo=bar",count=all',
    "count=x", "count=", "1.5,count=1", "all,all", "memory=2g", "driver=nvidia,driver=nvidia", '"device=0', "",
)  # fmt: skip


@pytest.mark.parametrize("text", GPUS)
def test_gpus_are_read_as_docker_reads_them(witness: Witness, text: str) -> None:
    theirs, ours = witness.ask(["--gpus", text, "image"])
    if not theirs.requests:
        assert (theirs.exit_code, ours.exit_code, ours.requests) == (125, 125, []), (theirs, ours)
        with pytest.raises(ValueError, match=r"."):
            gpus(text)
        return
    ((_, body),) = theirs.requests
    (wanted,) = body["HostConfig"]["DeviceRequests"]
    read = gpus(text)
    count = "all" if wanted["Count"] < 0 else str(wanted["Count"])
    names = [each.removeprefix("nvidia.com/gpu=") for each in wanted["DeviceIDs"] or ()]
    assert read.choice == (f"device={','.join(names)}" if names else count)
    assert [*filter(None, read.capabilities.split(",")), "gpu"] == wanted["Capabilities"][0]
    assert {*filter(None, read.options.split(","))} == {"=".join(each) for each in wanted["Options"].items()}
    assert (len(ours.requests) == 1) == (read.choice in ("1", "all", "device=0")), ours
    assert ("--gpus options=foo=bar" in ours.stderr) == bool(read.options), ours


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DOCKER_DEFAULT_PLATFORM", "amd64"),
        ("DOCKER_DEFAULT_PLATFORM", "a/b/c/d"),
        ("DOCKER_DEFAULT_PLATFORM", ""),
        ("DOCKER_API_VERSION", "1.44"),
        ("DOCKER_API_VERSION", "1.99"),
        ("DOCKER_CONTENT_TRUST", "0"),
    ],
)
def test_a_variable_counts_as_for_docker(witness: Witness, name: str, value: str) -> None:
    theirs, ours = witness.ask(["image"], **{name: value})
    assert (ours.exit_code, words(theirs.stderr) in ours.stderr.lower()) == (theirs.exit_code, True), (theirs, ours)
    assert [query for query, _ in ours.requests] == [query for query, _ in theirs.requests]
    if name == "DOCKER_API_VERSION":
        assert [engine.api_version for engine in witness.engines] == [f"v{value}"] * 2


@pytest.mark.parametrize(
    ("options", "image", "is_refused"),
    [((), "image", True), (("--disable-content-trust",), "image", False), ((), f"image@sha256:{'0' * 64}", False)],
)
def test_an_image_whose_signature_would_be_needed(
    witness: Witness, options: tuple[str, ...], image: str, is_refused: bool
) -> None:
    """Docker 26 and 28 ask a server for it, which is not there."""
    theirs, ours = witness.ask(
        [*options, image], DOCKER_CONTENT_TRUST="1", DOCKER_CONTENT_TRUST_SERVER="https://[::1]:1"
    )
    assert bool(ours.requests) == (not is_refused)
    assert ("--disable-content-trust" in ours.stderr) == is_refused
    if docker_version(witness.docker) < 29:
        assert (bool(theirs.requests), theirs.exit_code) == (not is_refused, ours.exit_code)


def test_an_engine_that_cannot_be_reached(witness: Witness) -> None:
    theirs, ours = (
        subprocess.run([*command, "image"], env=witness.environment | NOWHERE, capture_output=True, text=True)
        for command in ((witness.docker, "run"), (sys.executable, "-m", "vgpurun", "run"))
    )
    assert ours.returncode == 1, "as with docker 29, and as with all other verbs of any"
    assert docker_version(witness.docker) < 29 or theirs.returncode == 1
    assert NOWHERE["DOCKER_HOST"] in theirs.stderr
    assert NOWHERE["DOCKER_HOST"].removeprefix("unix://") in ours.stderr


def test_without_an_image(witness: Witness) -> None:
    theirs, ours = witness.ask([])
    assert (ours.exit_code, ours.stdout) == (theirs.exit_code, theirs.stdout) == (1, "")
    assert "requires at least 1 argument" in theirs.stderr
    assert "requires at least 1 argument: IMAGE" in ours.stderr


@pytest.mark.parametrize("content", ['{"auths": {', "rubbish"])
def test_a_broken_configuration_is_warned_of(witness: Witness, tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    theirs, ours = witness.ask(["image"], DOCKER_CONFIG=str(tmp_path))
    assert re.search(r"WARNING: Error (loading|parsing) config file", theirs.stderr)
    assert f"warning: Error parsing config file ({tmp_path}/config.json): " in ours.stderr
    assert len(ours.requests) == len(theirs.requests) == 1


def test_detach_keys_of_the_configuration_that_cannot_be(witness: Witness, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"detachKeys": "bad"}')
    _, ours = witness.ask(["image"], DOCKER_CONFIG=str(tmp_path))
    assert (ours.exit_code, ours.requests) == (1, [])
    assert "invalid detach keys (bad)" in ours.stderr


# The differences that docs/from-docker-run.md lists: the command line, our exit code, and our words.
ON_PURPOSE = [
    ("--network name=Own,alias=Up", 125, CREATED),
    ("-v data:there", 125, "mount path must be absolute"),
    ("-v there", 125, "mount path must be absolute"),
    ("--mount type=bind,src=/a,dst=there", 125, "mount path must be absolute"),
    ("--detach-keys bad", 1, "invalid detach keys (bad)"),
    ("--use-api-socket", 1, "the engine's socket"),
    ("--device nvidia.com/gpu=0", 125, "--gpus"),
    ("-l vgpurun.x=y", 125, "vgpurun's own"),
    ("-v /a:/.vgpurun", 125, "would hide"),
]


@pytest.mark.parametrize(("line", "exit_code", "message"), ON_PURPOSE, ids=[line for line, _, _ in ON_PURPOSE])
def test_what_differs_on_purpose(witness: Witness, line: str, exit_code: int, message: str) -> None:
    _, ours = witness.ask([*shlex.split(line), "image"])
    assert (ours.exit_code, ours.stdout) == (exit_code, "")
    assert message in ours.stderr


def test_a_network_keeps_its_case(witness: Witness) -> None:
    """Docker's command line makes it small in the long syntax, and then does not find it."""
    _, ours = witness.ask(["--network", "name=Own,alias=Up", "image"])
    assert ours.requests[0][1]["NetworkingConfig"] == {"EndpointsConfig": {"Own": {"Aliases": ["Up"]}}}


def test_every_option_of_docker_is_there_or_refused(docker_cli: str) -> None:
    known = {flag.names: flag for flag in (*FLAGS.values(), *LEFT_OUT, *DEPRECATED)}
    documented = [flag for flag in documented_flags(docker_cli) if flag.names not in OURS]
    assert len(documented) > 90
    assert [flag.names for flag in documented if flag.names not in known] == []
    for flag in documented:
        ours = known[flag.names]
        assert bool(ours.value) == bool(flag.kind) or ours.is_on, flag
        assert ours.repeats == (flag.kind in REPEATED_KINDS) or ours in LEFT_OUT, flag


def test_no_option_is_made_up_and_none_of_ours_hides_one_of_dockers(docker_cli: str) -> None:
    documented = {flag.names for flag in documented_flags(docker_cli)}
    flags = (*FLAGS.values(), *LEFT_OUT, *DEPRECATED)
    assert {flag.names for flag in FLAGS.values()} - documented <= HIDDEN
    names = {name for flag in flags for name in (*flag.names.split(", "), *flag.aliases)}
    own = {name for option in run.params for name in option.opts} - names
    taken = {name for flag in documented for name in flag.split(", ")} - set(OURS)
    assert {"--mem", "--sm"} <= own
    assert not taken & own
