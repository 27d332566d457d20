"""The import of docker-py goes without what it has no use for here, and nobody else notices."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

AT_SOCKET, ELSEWHERE = {"DOCKER_HOST": "unix:///run/docker.sock"}, {"DOCKER_HOST": "tcp://127.0.0.1:2376"}
_REPORT = """
import sys
{first}
import vgpurun.engine.client
print("charset_normalizer" in sys.modules, None in sys.modules.values())
import charset_normalizer
from docker.errors import APIError
"""
# As a requests of old is: it cannot be imported without.
_OLD_REQUESTS = """
class Old:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "requests" and sys.modules.get("charset_normalizer", sys) is None:
            raise ImportError(name)
sys.meta_path.insert(0, Old)
"""
# As a docker-py may be some day: it uses something of requests that we have not.
_NEW_DOCKER = """
class New:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "docker.api.image":
            import requests
            requests.sessions
sys.meta_path.insert(0, New)
"""
_AFTERWARDS = """
import docker.transport, http.client, logging, requests, urllib3
assert http.client.HTTPSConnection and logging.Logger and urllib3.PoolManager and requests.sessions.Session
assert None not in sys.modules.values()
"""


def run(code: str, environment: dict[str, str], *arguments: object) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env={**own, **environment}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("first", "is_loaded"), [("", False), ("import charset_normalizer", True), (_OLD_REQUESTS, True)]
)
def test_docker_is_imported_without_what_guesses_encodings(first: str, is_loaded: bool) -> None:
    assert run(_REPORT.format(first=first), ELSEWHERE) == f"{is_loaded} False\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "config", "is_loaded"),
    [
        ({}, None, False),
        ({}, '{"auths": {}}', False),
        ({}, '{"currentContext": "default"}', False),
        ({}, '{"currentContext": "other"}', True),
        ({}, "[]", False),
        ({"DOCKER_CONTEXT": "other"}, None, True),
        ({**AT_SOCKET, "DOCKER_CONTEXT": "other"}, None, False),
        (ELSEWHERE, None, True),
    ],
)
def test_requests_and_tls_are_imported_where_the_engine_may_need_them(
    tmp_path: Path, environment: dict[str, str], config: str | None, is_loaded: bool
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    code = "import sys, vgpurun.engine.client, vgpurun.launch.container; print({'requests', 'ssl'} & set(sys.modules))"
    found = run(code, {"DOCKER_CONFIG": str(tmp_path), **environment})
    assert found == ("set()\n" if not is_loaded else found)
    assert "ssl" in found or not is_loaded
    assert "requests" in found or not is_loaded


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "import http.client, logging", "import requests", "import docker"])
def test_others_find_the_real_modules(first: str) -> None:
    run(f"import sys\n{first}\nimport vgpurun.engine.client\n{_AFTERWARDS}", AT_SOCKET)


def test_a_release_that_needs_more_gets_the_real_modules() -> None:
    code = f"import sys\n{_NEW_DOCKER}\nimport vgpurun.engine.docker_py as ours, requests\n{_AFTERWARDS}"
    code += "assert issubclass(ours.APIClient, requests.Session) and issubclass(ours.APIError, ours.RequestException)"
    run(code, AT_SOCKET)


def test_a_registry_gets_what_docker_login_has_written(tmp_path: Path) -> None:
    login = {"username": "me", "password": "secret"}
    word = base64.b64encode(b"me:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"registry.test": {"auth": word}}}))
    code = """
import sys
from vgpurun.engine.docker_py import APIClient
client = APIClient("unix:///engine.sock", version="1.45")
print({"docker.auth", "docker.credentials"} & set(sys.modules))
client._post = lambda url, **given: sys.exit(print(given["headers"]["X-Registry-Auth"].decode()))
client.pull("registry.test/image")
"""
    imported, header = run(code, {**AT_SOCKET, "DOCKER_CONFIG": str(tmp_path)}).splitlines()
    assert imported == "set()"
    assert login.items() <= json.loads(base64.urlsafe_b64decode(header)).items()


def test_ps_imports_what_reads_containers_when_there_are_some() -> None:
    code = """
import sys
from vgpurun.util.seldom_used import _SELDOM_USED, postpone
postpone()
def imported():
    return {name for name in _SELDOM_USED if vars(sys.modules[name])["__spec__"]}
import pathlib
for_it = imported()  # fnmatch, in Python 3.12
import vgpurun.cli.commands.ps, vgpurun.cli.views.ps, vgpurun.engine.client
print(imported() - for_it)
print({"vgpurun.admission", "vgpurun.host.gpus", "vgpurun.inventory.usage", "vgpurun.slices"} & set(sys.modules))
"""
    assert run(code, AT_SOCKET).splitlines() == ["set()", "set()"]


def test_paramiko_is_not_imported_where_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "paramiko.py").write_text("raise SystemExit('imported')")
    for environment in (AT_SOCKET, ELSEWHERE):
        run("import sys; sys.path.insert(0, sys.argv[1]); import vgpurun.engine.client", environment, tmp_path)


def test_what_few_runs_use_is_imported_when_it_is_used() -> None:
    run(
        """
import sys
from vgpurun.util.seldom_used import _SELDOM_USED, postpone
postpone()
import vgpurun.engine.docker_py
from docker.utils import parse_host
letters = sys.modules["string"].ascii_letters
assert parse_host("unix:///engine.sock") and "Template" not in vars(sys.modules["string"])
import click, inspect, subprocess, tarfile
from click.testing import CliRunner
assert inspect.cleandoc("  one ") == "one " and inspect.cleandoc("one\\n    two\\n") == "one\\ntwo"
assert subprocess.run(["true"]).returncode == 0 and tarfile.TarFile
assert sys.modules["inspect"].signature and inspect.signature is sys.modules["inspect"].signature
import platform, gettext, random, tempfile, string, bz2, lzma, ipaddress, zlib
assert string.digits and sys.modules["string"].ascii_letters == letters
assert platform.system() == "Linux" and platform.machine() and gettext.ngettext("a", "b", 2) == "b"
assert random.random() < 1 and tempfile.gettempdir() and string.digits and bz2.compress(b"") and lzma.compress(b"")
import array, base64, csv, fnmatch, grp, math, mmap, ntpath, queue, selectors, shlex, shutil, socket
assert array.array("i", [1])[0] == 1 and base64.b64decode("YQ==") == b"a" and csv.reader and fnmatch.fnmatch("a", "?")
assert grp.getgrgid(0).gr_gid == 0 and math.pi > 3 and math.inf == float("inf")
assert mmap.mmap and ntpath.isabs("c:\\\\a")
waiting = queue.SimpleQueue()
assert queue.Queue(1).empty() and type(waiting) is queue.SimpleQueue and selectors.DefaultSelector().close() is None
assert shlex.split("a b") == ["a", "b"] and shutil.get_terminal_size() and socket.socketpair()[0].close() is None
assert ipaddress.ip_address("::1").is_loopback and zlib.decompress(zlib.compress(b"a")) == b"a"
import datetime, pickle, uuid
assert pickle.loads(pickle.dumps(datetime.datetime(2025, 1, 31))).day == 31 and uuid.uuid4().version == 4
assert datetime.datetime.strptime("2025", "%Y").year == 2025
""",
        AT_SOCKET,
    )
