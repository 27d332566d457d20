"""A machine of its own (node-root), in which tests run commands as an administrator or a user would."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent


class OwnMachine:
    """The machine, by the process that its namespaces belong to. `environment` and `user` are those of its commands."""

    def __init__(self, pid: int, user: str = "root", **environment: str) -> None:
        self.pid = pid
        self.user = user
        standard = {"PATH": "/usr/local/bin:/usr/bin:/usr/sbin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment = {**standard, **environment}

    def path(self, path: str) -> Path:
        """Return where this process finds a file of the machine's."""
        return Path(f"/proc/{self.pid}/root{path}")

    def start(self, command: str, user: str = "", **settings: object) -> subprocess.Popen[str]:
        """Start a shell's command line there."""
        return subprocess.Popen(
            self._command(command, user), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, **settings,
        )  # fmt: skip

    def run(self, command: str, user: str = "", timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a shell's command line there."""
        return subprocess.run(
            self._command(command, user), text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s
        )

    def ask(self, command: str, user: str = "", timeout_s: float = 60) -> str:
        """Run one that has to succeed, and return its output."""
        done = self.run(command, user, timeout_s)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def _command(self, command: str, user: str) -> list[str]:
        user = user or self.user
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--uts", "--ipc"]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user != "root" else []
        environment = ["env", "-i", *(f"{name}={value}" for name, value in self.environment.items())]
        return [*enter, *become, *environment, "bash", "-c", f"cd /tmp; {command}"]


@contextmanager
def own_machine(packages: Path, order: str, shared: Sequence[Path], *command: str | Path) -> Iterator[int]:
    """Run `command` in one, with packages as node-root has them, and yield its process once it has said `ready`."""
    with tempfile.TemporaryDirectory(prefix="vgpurun-machine-") as root:
        process = subprocess.Popen(
            [HERE / "node-root", root, packages, order, *shared, "--", *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            said = iter(process.stdout.readline, "")
            assert any(line == "ready\n" for line in said), "the machine does not start"
            yield int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
        finally:
            process.kill()  # and so everything in its namespaces
            process.communicate()
