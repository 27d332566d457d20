"""At the refusal the device holds no more than the limit, and hardly less: for every size, with many processes."""

from __future__ import annotations

import json
import sys

import pytest
from sandbox import Sandbox

from support import CHECKOUT

pytestmark = pytest.mark.slow

LIMIT_MIB = 6144
SLACK_MIB = 32


@pytest.mark.parametrize(("processes", "contexts"), [(1, 1), (2, 1), (8, 1), (1, 4)])
def test_at_the_refusal(sandbox: Sandbox, processes: int, contexts: int) -> None:
    command = [sys.executable, CHECKOUT / "tests" / "near_limit.py", str(LIMIT_MIB), str(processes), str(contexts)]
    result = sandbox.run(command, CUDA_DEVICE_MEMORY_LIMIT=f"{LIMIT_MIB}m", timeout_s=110)
    assert result.returncode == 0, result.stdout + result.stderr
    held_mib = json.loads(result.stdout)
    outside = {kind: held for kind, held in held_mib.items() if not LIMIT_MIB - SLACK_MIB <= held <= LIMIT_MIB}
    assert len(held_mib) == 9 and not outside
