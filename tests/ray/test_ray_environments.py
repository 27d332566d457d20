"""Workers in conda environments, which have neither vgpurun nor what it asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray_node import TIMEOUT_S, RayNode

from support import CHECKOUT

pytestmark = pytest.mark.timeout(TIMEOUT_S + 20)
# In the place of conda, which neither PyPI nor Debian has: its environments are virtual ones of Python's.
CONDA = """\
#!/bin/sh
case "$1 $2" in
  "info --json" | "env list") echo '{{"conda_prefix": "{home}", "envs": ["{home}/envs/lab"]}}' ;;
  "env create") exec {python} -m venv --without-pip "$6" ;;
esac
"""
ACTIVATE = """\
conda() {{
  case "$2" in /*) prefix=$2 ;; *) prefix={home}/envs/$2 ;; esac
  PATH=$prefix/bin:$PATH
}}
"""


def fake_conda(home: Path) -> None:
    (home / "bin").mkdir(parents=True)
    (home / "etc" / "profile.d").mkdir(parents=True)
    (home / "bin" / "conda").write_text(CONDA.format(home=home, python=sys.executable))
    (home / "bin" / "conda").chmod(0o755)
    (home / "etc" / "profile.d" / "conda.sh").write_text(ACTIVATE.format(home=home))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "envs" / "lab"], check=True)


@pytest.mark.exhaustive  # test_ray_jobs.py has what a worker may need
def test_conda_environments_need_no_vgpurun_of_their_own(node: RayNode) -> None:
    home = node.folder / "conda"
    fake_conda(home)
    (node.folder / "site").mkdir()  # what the environments have besides Python
    (node.folder / "site" / "cuda_driver").symlink_to(CHECKOUT / "tests" / "cuda_driver")
    path = os.pathsep.join([str(node.packages), str(node.folder / "site")])
    found, _ = node.run("environments.py", RAY_CONDA_HOME=str(home), PYTHONPATH=path)
    for name, prefix in (("named", home / "envs" / "lab"), ("made", node.folder)):
        its_prefix, vgpurun, seen = found[name]
        assert its_prefix.startswith(str(prefix)) and its_prefix != sys.prefix, name
        assert Path(vgpurun).is_relative_to(node.state / "ray" / "python"), name
        assert (seen["mib"], seen["had"]) == (4096, True), name
