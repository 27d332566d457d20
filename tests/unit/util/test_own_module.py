"""Commands that run modules of vgpurun find them where Python does not look, as in the .deb's /usr/lib/vgpurun."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

import vgpurun
from support import CHECKOUT

BARE = Path(sys.base_prefix) / "bin/python3"  # which has no vgpurun


@pytest.fixture
def printed(tmp_path: Path) -> Callable[[str], str]:
    """Return what a script prints that has vgpurun, and all that it needs, as the .deb's program has it."""
    if not BARE.exists() or not subprocess.run([BARE, "-I", "-c", "import vgpurun"], capture_output=True).returncode:
        pytest.skip("no Python here that lacks vgpurun")
    folder = tmp_path / "lib"
    folder.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "vgpurun" not in each.name:
            (folder / each.name).symlink_to(each)
    (folder / "vgpurun").symlink_to(CHECKOUT / "vgpurun")

    def run(script: str) -> str:
        found = f"import subprocess, sys\nsys.path[0] = {str(folder)!r}\n{script}"
        done = subprocess.run([BARE, "-sE", "-c", found], capture_output=True, text=True, cwd="/", timeout=60)
        return done.stdout or done.stderr

    return run


@pytest.mark.parametrize("name", ["vgpurun.cdi.hook", "vgpurun.cdi.together_hook", "vgpurun.kubernetes.dra.together"])
def test_an_engine_runs_the_hooks(printed: Callable[[str], str], name: str) -> None:
    script = f"""if True:
        from vgpurun.host import limits_device
        hook = limits_device.hook(None, {name!r}, "/slices/team")
        assert hook["args"][0] == hook["path"]
        print(subprocess.run(hook["args"], input="", capture_output=True, text=True, cwd="/").stderr)
    """
    assert printed(script).startswith("vgpurun: the engine does not say what")


def test_a_slice_s_user_makes_its_folder_of_pipes(printed: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    script = f"""if True:
        import os
        from pathlib import Path
        from vgpurun.together.offering import offered
        from vgpurun.util.users import current_user
        os.environ["VGPURUN_STATE_DIR"] = {str(tmp_path / "state")!r}
        print(offered(Path({str(tmp_path / "team")!r}), current_user()))
    """
    assert Path(printed(script).strip()).is_dir()


def test_the_program_itself_has_its_arguments(printed: Callable[[str], str]) -> None:
    script = """if True:
        from vgpurun.util import own_module
        print(subprocess.run(own_module.command("vgpurun", "--version"), capture_output=True, text=True).stdout)
    """
    assert vgpurun.__version__ in printed(script)
