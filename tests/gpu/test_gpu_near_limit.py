"""At the refusal NVML's figure for the container is no more than the limit, and hardly less."""

from __future__ import annotations

import json

import pytest
from runners import Local

from support import CHECKOUT

LIMIT_MIB = 6144
SLACK_MIB = 32


@pytest.mark.parametrize(("processes", "contexts"), [(1, 1), (2, 1), (8, 1), (1, 4)])
def test_at_the_refusal(python: str, processes: int, contexts: int) -> None:
    program = str(CHECKOUT / "tests" / "near_limit.py")
    result = Local(python).run(
        ["--mem", f"{LIMIT_MIB}m"], [python, program, str(LIMIT_MIB), str(processes), str(contexts)]
    )
    assert result.returncode == 0, result.stdout + result.stderr
    held_mib = json.loads(result.stdout.splitlines()[-1])
    outside = {kind: held for kind, held in held_mib.items() if not LIMIT_MIB - SLACK_MIB <= held <= LIMIT_MIB}
    assert len(held_mib) == 9 and not outside
