"""Programs suspended before a reboot are brought back after it: clocks and process numbers have begun anew."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from support import unavailable
from support.suspension import PATTERNS, Guard, Host, Program

# A time namespace has the clocks of a host that has run for 30 days longer; the boot id is another file.
BOOT_BEFORE = """
mount --bind "$0" /proc/sys/kernel/random/boot_id
exec unshare --time --monotonic 2592000 --boottime 2592000 --fork --kill-child "$@"
"""


class BootBefore:
    """The host before its reboot."""

    def __init__(self, host: Host) -> None:
        boot_id = host.folder / "boot_id"
        boot_id.write_text("00000000-0000-4000-8000-000000000001\n")
        self._host = host
        self._before = ["unshare", "--mount", "sh", "-ec", BOOT_BEFORE, str(boot_id)]
        if subprocess.run([*self._before, "true"], capture_output=True).returncode:
            unavailable("time namespaces cannot be made: not root, or before Linux 5.6")

    def does(self, *words: str) -> None:
        with self._start(*words) as command:
            _, said = command.communicate(timeout=60)
            assert command.returncode == 0, said

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Keep a guard, which ends as all do that a reboot ends."""
        with self._start("guard", "--driver", "sim") as guard:
            assert guard.stderr and "memory above a limit" in guard.stderr.readline()
            yield
            guard.kill()

    def _start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._before, sys.executable, "-m", "vgpurun", *words], env=self._host.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


@pytest.mark.parametrize("turns", [(), ("--swap",)], ids=["suspended", "in turns"])
def test_a_slice_that_was_suspended_before_a_reboot_is_woken(host: Host, turns: tuple[str, ...]) -> None:
    guard = Guard(host)  # which gives the first turn
    made = host.vgpurun("slice", "create", "team", "--driver", "sim", "--mem", "1g", "--gpus", "device=0", *turns)
    assert made.returncode == 0, made.stderr
    folder = host.folder / "state" / "slices" / "team"
    program = Program(host, "--slice", "team")
    guard.end()
    before = BootBefore(host)
    with before.guard() if turns else nullcontext():
        for verb in ("suspend", "resume") if turns else ("suspend",):  # a program with turns now waits for its next one
            before.does(verb, "--driver", "sim", "--slice", "team")
    program.kill()
    assert json.loads((folder / "suspension").read_text())["since_ns"] > 2592000 * 10**9
    guard = Guard(host)
    joining = ("local", "--driver", "sim", "--slice", "team", "--", sys.executable, "-u", str(PATTERNS))
    joined = host.start(*joining, is_group=True)
    try:
        assert select.select([joined.stdout], [], [], 20)[0], guard.said.read_text()
        assert joined.stdout.readline() == "ready\n"
    finally:
        os.killpg(joined.pid, signal.SIGKILL)
        joined.communicate()
        guard.end()


def test_no_process_of_this_boot_passes_for_one_of_the_boot_before(host: Host) -> None:
    program = Program(host, "--mem", "1g", "--gpus", "device=0")
    folder = program.folder
    BootBefore(host).does("suspend", "--driver", "sim", "--process", program.pid)
    ((pid, _, boot_id),) = json.loads((folder / "suspension").read_text())["processes"]
    assert pid == program.child()
    assert boot_id == "00000000-0000-4000-8000-000000000001"
    back = program.resume()
    assert program.state() == "CHECKPOINTED", (back, "the record is about another process with its number")
    program.kill()
