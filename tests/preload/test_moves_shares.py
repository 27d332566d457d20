"""Shares of a GPU's time that go along when one of their tenants is moved."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support import CHECKOUT, assert_measured
from support.suspension import Host

RATES = CHECKOUT / "tests" / "sim" / "programs" / "rates.py"
WINDOWS = 2


@pytest.fixture
def tenants(host: Host) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Two on GPU 0 and one on GPU 1, whose limits are weights: beside others alone."""
    running = {}
    with ExitStack() as stack:
        for name, gpu, percent in (("moved", 0, 30), ("left", 0, 70), ("found", 1, 70)):
            limits = ("--mem", "500m", "--sm", str(percent), "--sm-policy", "burst", "--gpus", f"device={gpu}")
            running[name] = host.start("local", "--driver", "sim", *limits, "--", sys.executable, str(RATES))
            stack.callback(running[name].wait)
            stack.callback(running[name].kill)
        yield running


def shares(tenants: dict[str, subprocess.Popen[str]]) -> dict[str, float]:
    """Return what each takes of its GPU's time, over a second."""
    found = {}
    for name, process in tenants.items():
        lines = [float(process.stdout.readline()) for _ in range(WINDOWS)]
        found[name] = sum(lines) / WINDOWS
    return found


def are_near(found: dict[str, float], expected: dict[str, float]) -> bool:
    return all(abs(found[name] - share) < 0.1 for name, share in expected.items())


@pytest.mark.real_time
def test_shares_go_along(host: Host, tenants: dict[str, subprocess.Popen[str]]) -> None:
    shares(tenants)
    assert_measured(lambda: shares(tenants), lambda found: are_near(found, {"moved": 0.3, "left": 0.7, "found": 1}))
    done = host.vgpurun("move", "--driver", "sim", "--gpus", "1", "--process", str(tenants["moved"].pid))
    assert done.returncode == 0, done.stderr
    shares(tenants)
    assert_measured(lambda: shares(tenants), lambda found: are_near(found, {"moved": 0.3, "left": 1, "found": 0.7}))
