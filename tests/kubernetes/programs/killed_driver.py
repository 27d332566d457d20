"""Prepares and gives back a claim, killed with SIGKILL at every step that changes a file, and looks what is left.

Arguments: a folder. Prints how many steps were tried for each.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent)]

from claim_maker import claim, result  # noqa: E402
from claim_node import GPUS, ClaimNode, OneClaim, named  # noqa: E402

# Audit events, which Python raises before it acts: each is a place to die.
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree", "fcntl.flock")
steps_left = -1


def die_at_the_last_step(event: str, arguments: tuple[Any, ...]) -> None:
    global steps_left
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if steps_left > 0 and (writes or event in CHANGES):
        steps_left -= 1
        if steps_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def is_killed(act: Callable[[], object], step: int) -> bool:
    """Whether `act`, in a process of its own, came to that step."""
    global steps_left
    child = os.fork()
    if child == 0:
        steps_left = step
        act()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, status
    return os.WIFSIGNALED(status)


def main(folder: Path) -> None:
    made = claim(result(GPUS[0], "6Gi"), result(GPUS[1], "6Gi"))
    node = ClaimNode(folder, OneClaim(made))
    uid = made["metadata"]["uid"]
    whole = {uid, f"vgpurun.io-claim-{uid}.json"}

    step = 1
    while is_killed(lambda: node.driver().prepare(named(made)), step):
        node.driver().resume()
        assert node.left() in (set(), whole), (step, node.left())
        again = node.driver().prepare(named(made))
        assert len(again) == 2
        assert node.left() == whole, (step, node.left())
        assert [each["name"] for each in (node.specification(uid) or {})["devices"]] == [
            each.cdi_name.partition("=")[2] for each in again
        ]
        node.driver().unprepare(named(made))
        assert node.left() == set(), (step, node.left())
        step += 1
    node.driver().unprepare(named(made))

    back_step = 1
    node.driver().prepare(named(made))
    while is_killed(lambda: node.driver().unprepare(named(made)), back_step):
        node.driver().resume()
        assert node.left() in (set(), whole), (back_step, node.left())
        node.driver().unprepare(named(made))
        assert node.left() == set(), (back_step, node.left())
        node.driver().prepare(named(made))
        back_step += 1
    print(step - 1, back_step - 1)


sys.addaudithook(die_at_the_last_step)
main(Path(sys.argv[1]))
