"""Does one verb to a local program again and again, with a disk that breaks one step later each time.

    disk_breaks.py PID suspend|resume|move full|read-only STATE

A line of JSON says how each ended, and the next begins after a line of input. Between the two the disk is sound, and
the program is brought back.
"""

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vgpurun.errors import VgpurunError
from vgpurun.host.checkpoints import Checkpoints
from vgpurun.host.visible import libcuda, visible_gpus
from vgpurun.limits import limits_file
from vgpurun.suspend import record
from vgpurun.suspend.processes import find
from vgpurun.suspend.resuming import bring_back, move_over
from vgpurun.suspend.targets import process_numbered
from vgpurun.suspend.transition import Wishes, gpus_of, suspend

STEPS = (
    *((Checkpoints, name) for name in ("lock", "checkpoint", "restore", "unlock")),
    *((record, name) for name in ("write", "forget")),
    *((limits_file, name) for name in ("set_suspended", "write_gpus")),
)


class Disk:
    """Breaks before the step with a number."""

    def __init__(self, kind: str, state: Path) -> None:
        self.kind, self.state = kind, state
        self.breaks_at, self.steps, self.is_broken = -1, 0, False
        for owner, name in STEPS:
            setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            if self.steps == self.breaks_at:
                self._break()
            self.steps += 1
            return function(*arguments, **named)

        return counted

    def _break(self) -> None:
        self.is_broken = True
        if self.kind == "full":
            try:
                with (self.state / "filler").open("wb", buffering=0) as filler:
                    while True:
                        filler.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        else:
            subprocess.run(["mount", "--bind", self.state, self.state], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", self.state], check=True)

    def mend(self) -> None:
        self.breaks_at = -1
        if self.is_broken and self.kind == "full":
            (self.state / "filler").unlink()
        elif self.is_broken:
            subprocess.run(["umount", self.state], check=True)


def main() -> None:
    pid, verb, kind, state = sys.argv[1:]
    gpus, target, disk = visible_gpus(True), process_numbered(pid), Disk(kind, Path(state))
    (process,) = find(target.limits_folder, gpus)
    is_broken, step = True, 0
    while is_broken:
        with Checkpoints(libcuda(True)) as driver:
            if verb == "resume":
                suspend(target, gpus, driver, Wishes(is_held=True))
            disk.breaks_at, disk.steps, disk.is_broken, said = step, 0, False, ""
            try:
                if verb == "suspend":
                    suspend(target, gpus, driver, Wishes(is_held=True))
                elif verb == "resume":
                    bring_back(target, gpus, driver, None)
                else:
                    own = gpus_of(target, gpus)
                    move_over(target, gpus, driver, [gpu for gpu in gpus if gpu not in own], None, Wishes())
            except (VgpurunError, OSError) as error:
                said = str(error)
            at = driver.state(process.pid)
            assert at is not None
            is_broken, step = disk.is_broken, step + 1
            disk.mend()
            bring_back(target, gpus, driver, None)
        print(json.dumps({"step": step - 1, "broken": is_broken, "state": at.name, "said": said}), flush=True)
        sys.stdin.readline()


main()
