"""The import of docker-py goes without what it has no use for here, and nobody else notices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("first", "is_loaded"), [("", False), ("import charset_normalizer", True), (_OLD_REQUESTS, True)]
)
def test_docker_is_imported_without_what_guesses_encodings(first: str, is_loaded: bool) -> None:
    command = [sys.executable, "-c", _REPORT.format(first=first)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{is_loaded} False\n"


@pytest.mark.parametrize(
    ("environment", "config", "is_loaded"),
    [
        ({}, None, False),
        ({}, '{"auths": {}}', False),
        ({}, '{"currentContext": "default"}', False),
        ({}, '{"currentContext": "other"}', True),
        ({}, "[]", False),
        ({"DOCKER_CONTEXT": "other"}, None, True),
        ({"DOCKER_HOST": "unix:///run/docker.sock", "DOCKER_CONTEXT": "other"}, None, False),
        ({"DOCKER_HOST": "tcp://127.0.0.1:2376"}, None, True),
    ],
)
def test_tls_is_imported_where_the_engine_may_need_it(
    tmp_path: Path, environment: dict[str, str], config: str | None, is_loaded: bool
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    code = "import sys, vgpurun.engine.without_tls, vgpurun.launch.container; print('ssl' in sys.modules)"
    own = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    result = subprocess.run(
        [sys.executable, "-c", code], env={**own, "DOCKER_CONFIG": str(tmp_path), **environment}, capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    assert (result.stdout, result.stderr) == (f"{is_loaded}\n", "")


@pytest.mark.parametrize("first", ["ssl, vgpurun.engine.without_tls", "vgpurun.engine.client"])
def test_tls_is_there_where_it_was_imported_before_and_for_other_verbs(first: str) -> None:
    code = f"import {first}, ssl, http.client, urllib3.connection; "
    code += "assert http.client.HTTPSConnection and urllib3.connection.ssl is ssl"
    environment = {**os.environ, "DOCKER_HOST": "unix:///run/docker.sock"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)


def test_paramiko_is_not_imported_where_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "paramiko.py").write_text("raise SystemExit('imported')")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import vgpurun.engine.client"
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, timeout=60)
