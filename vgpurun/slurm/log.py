"""slurmd's own log, for what a prolog or an epilog has to say: Slurm drops what a script prints that ends with 0."""

import syslog
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from vgpurun.errors import SlurmError
from vgpurun.slurm import conf
from vgpurun.util.printable import printable


def error(words: str, node: str) -> None:
    """Write a line where slurmd of this node writes its own, or into the system's log if that fails. Raises nothing."""
    line = f"vgpurun: {printable(' '.join(words.split()))}"  # may contain a user's text
    with suppress(OSError, SlurmError):
        name = conf.values(conf.slurm_conf()).get("slurmdlogfile", "")
        if name:
            _append(Path(name.replace("%n", node).replace("%h", conf.host())), line)
            return
    _to_syslog(line)


def _append(path: Path, line: str) -> None:
    now = datetime.now().isoformat(timespec="milliseconds")
    with path.open("a", encoding="utf-8") as file:
        file.write(f"[{now}] error: {line}\n")


def _to_syslog(line: str) -> None:
    syslog.syslog(syslog.LOG_DAEMON | syslog.LOG_ERR, line)
