"""Workers in environments of pip's, uv's and conda's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ray_node import NEWEST, OLDEST, TIMEOUT_S, RayNode, ray_node

from support import CHECKOUT
from support.python_packages import packages

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
LAB_TOOL = {
    "lab_tool.py": "",
    "lab_tool-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: lab-tool\nVersion: 1.0\n",
    "lab_tool-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "lab_tool-1.0.dist-info/RECORD": "",
}


def check_limits(found: dict[str, Any]) -> None:
    assert (found["mib"], found["had"]) == (4096, [True, "CUDA_ERROR_OUT_OF_MEMORY"])


def virtual_environment(node: RayNode) -> Path:
    """Make one for the node's Ray, which makes those of pip and uv from the one that it is in.

    Ray looks for itself there without PYTHONPATH, and wants virtualenv, and uv, which it does not bring.
    """
    folder = node.folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    paths = (node.packages, packages("virtualenv-uv", "virtualenv", "uv"), CHECKOUT, CHECKOUT / "tests")
    (site / "lab.pth").write_text("".join(f"{path}\n" for path in paths))
    node.python = folder / "bin" / "python"
    return folder


@pytest.mark.exhaustive  # test_ray_jobs.py has what a worker may need
@pytest.mark.timeout(TIMEOUT_S + 120)  # two environments are made in that time
@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_workers_in_environments_of_pip_and_uv(version: str, built_library: Path) -> None:
    with ray_node(version) as node:
        wheels, own = node.folder / "wheels", virtual_environment(node)
        wheels.mkdir()
        with zipfile.ZipFile(wheels / "lab_tool-1.0-py3-none-any.whl", "w") as wheel:
            for name, content in LAB_TOOL.items():
                wheel.writestr(name, content)
        wants = ["--no-index", f"--find-links={wheels}", "lab-tool"]
        environments = {"pip": {"pip": wants}, "uv": {"uv": wants}}
        found, said = node.run("environments.py", json.dumps(environments), PYTHONPATH="")
    for name in environments:
        assert isinstance(found[name], dict), f"{found}\n{said}"
        assert found[name]["has_lab_tool"] and found[name]["prefix"] != str(own), name
        check_limits(found[name])


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
    (node.folder / "site").mkdir()  # packages of the environments besides Python
    (node.folder / "site" / "cuda_driver").symlink_to(CHECKOUT / "tests" / "cuda_driver")
    path = os.pathsep.join([str(node.packages), str(node.folder / "site")])
    environments = json.dumps({"named": {"conda": "lab"}, "made": {"conda": {"dependencies": ["pip"]}}})
    found, _ = node.run("environments.py", environments, RAY_CONDA_HOME=str(home), PYTHONPATH=path)
    for name, prefix in (("named", home / "envs" / "lab"), ("made", node.folder)):
        assert found[name]["prefix"].startswith(str(prefix)) and found[name]["prefix"] != sys.prefix, name
        assert Path(found[name]["vgpurun"]).is_relative_to(node.state / "ray" / "python"), name
        check_limits(found[name])
