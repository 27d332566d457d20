"""vgpurun's command line, waited for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support import WITH_ADMIN_FILE


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path = Path(),
    *,
    admin_file: Path | None = None,
    timeout_s: float = 60,
) -> subprocess.CompletedProcess[str]:
    """`vgpurun ARGUMENTS` in a folder, without input; with another file in place of the administrator's."""
    command = ["-m", "vgpurun"] if admin_file is None else ["-c", WITH_ADMIN_FILE, str(admin_file)]
    return subprocess.run(
        [sys.executable, *command, *arguments], env=environment, cwd=folder, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=timeout_s,
    )  # fmt: skip
