"""Another user of this machine, which takes root to be."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

UID = 1234
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


def does(act: Callable[[], object], folder: Path | None = None) -> None:
    """Let a process of another user do this, in a folder that it may not have reached by its path; then it ends."""
    child = os.fork()
    if not child:
        try:
            os.chdir(folder or "/")
            os.setgroups([])
            os.setgid(UID)
            os.setuid(UID)
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "see what it has printed"
