"""The import of docker-py goes without what it has no use for here, and nobody else notices."""

from __future__ import annotations

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


def test_paramiko_is_not_imported_where_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "paramiko.py").write_text("raise SystemExit('imported')")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import vgpurun.engine.client"
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, timeout=60)
