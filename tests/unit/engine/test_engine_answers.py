"""Answers of an engine in a form that is not the Docker Engine's."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from support import own_gpu_config
from vgpurun.engine.answers import check
from vgpurun.errors import EngineError

CONTAINER = {"Id": "a", "Name": "/a", "State": {"Status": "running"}, "Config": {}}
LISTED = {"Id": "a", "Labels": {}}


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1.45/info", {"Runtimes": None}),
        ("/v1.45/containers/json?all=1", []),
        ("/v1.45/containers/json", [{**LISTED, "Names": ["/a"], "Created": 5, "Mounts": None}]),
        ("/v1.45/containers/a/json", {**CONTAINER, "Args": ["b"], "More": 5}),
        ("/v1.45/images/registry/name:tag/json", {"Id": "a", "Config": None}),
        ("/v1.45/exec/a/json", {"Running": False, "ExitCode": None}),
        ("/v1.45/of/a/later/version", 5),
    ],
)
def test_what_is_understood(path: str, answer: object) -> None:
    check(f"http+docker://localhost{path}", answer)


@pytest.mark.parametrize(
    ("path", "answer", "fault"),
    [
        ("/info", [], "/info .*: the whole is not an object"),
        ("/containers/json", {"Id": 5}, "/containers/json .*: the whole is not a list"),
        ("/containers/json", [5], "an entry of the whole is not an object"),
        ("/containers/json", [{"Id": "a"}], "Labels is not an object"),
        ("/containers/json", [{**LISTED, "Names": "a"}], "Names is not a list"),
        ("/containers/json", [{**LISTED, "Created": True}], "Created is not a number"),
        ("/containers/a/json", {**CONTAINER, "State": {}}, "Status is not a text"),
        ("/containers/a/json", {**CONTAINER, "Args": [5]}, "an entry of Args is not a text"),
        ("/containers/create", None, "the whole is not an object"),
        ("/images/a/json", {}, "Id is not a text"),
    ],
)
def test_what_is_not(path: str, answer: object, fault: str) -> None:
    with pytest.raises(EngineError, match=fault):
        check(f"http+docker://localhost/v1.45{path}", answer)


class Answer(BaseHTTPRequestHandler):
    """Answers everything but a ping with a number."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b"OK" if self.path.endswith("/_ping") else b"5"
        self.send_response(200)
        self.send_header("Api-Version", "1.45")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def no_engine(tmp_path: Path) -> Iterator[str]:
    with ThreadingUnixStreamServer(str(tmp_path / "s"), Answer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"unix://{tmp_path}/s"
        server.shutdown()


@pytest.fixture
def asked(
    run: Callable[..., subprocess.CompletedProcess[str]], no_engine: str, built_library: Path, tmp_path: Path
) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a command line that asks such an engine."""
    variables = {"DOCKER_HOST": no_engine, "VGPURUN_DRIVER": "sim", "VGPUSIM_CONFIG": own_gpu_config(tmp_path)}
    return lambda command: run(*command.split(), **variables)


@pytest.mark.parametrize(
    "command", ["ps", "stop aa", "inspect aa", "update --mem 1g aa", "run --mem 1g aa", "suspend aa"]
)
def test_a_verb_says_which_answer_is_not_understood(
    asked: Callable[[str], subprocess.CompletedProcess[str]], command: str
) -> None:
    done = asked(command)
    assert (done.returncode, done.stdout) == (125, "")
    (line,) = done.stderr.splitlines()
    assert "json is not understood: " in line and "docker version" in line


@pytest.mark.parametrize("text", ["[]", '{"proxies": []}', '{"auths": {"registry": {"auth": "no base64"}}}'])
def test_a_configuration_of_docker_that_is_not_understood(
    run: Callable[..., subprocess.CompletedProcess[str]], no_engine: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(text)
    done = run("ps", DOCKER_HOST=no_engine, DOCKER_CONFIG=str(tmp_path))
    assert f"docker's configuration {tmp_path}/config.json is not understood: " in done.stderr, done
    assert (done.returncode, len(done.stderr.splitlines())) == (125, 1)


@pytest.mark.parametrize("version", ["newest", "1.10"])
def test_a_version_that_is_none_or_too_old(
    run: Callable[..., subprocess.CompletedProcess[str]], no_engine: str, version: str
) -> None:
    done = run("ps", DOCKER_HOST=no_engine, DOCKER_API_VERSION=version)
    assert f"DOCKER_API_VERSION says '{version}', which is not a version of Docker's API from 1.24 on" in done.stderr
    assert (done.returncode, len(done.stderr.splitlines())) == (125, 1)


@pytest.mark.parametrize("command", ["smi", "free", "top --once"])
def test_what_only_looks_goes_on(asked: Callable[[str], subprocess.CompletedProcess[str]], command: str) -> None:
    done = asked(command)
    assert done.returncode == 0 and "Simulated" in done.stdout
    assert "json is not understood: " in done.stderr and len(done.stderr.splitlines()) == 1
