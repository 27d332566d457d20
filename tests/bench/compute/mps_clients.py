"""Programs beside an MPS daemon of our own. vgpurun keeps limited programs out of it, since no limit holds there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from cases import Case, Options
from report import Must, Row
from runs import Bench, Launch

CONTROL = "nvidia-cuda-mps-control"
PROGRAM = "50us"
TIMEOUT_S = 20


def cases(options: Options) -> Iterator[Case]:
    """Two tenants at 50, and natively as clients of the daemon."""
    yield Case("mps", PROGRAM, partial(_measure, seconds=options.seconds))


def _ask(command: str, environment: Mapping[str, str]) -> str:
    answer = subprocess.run(
        [CONTROL], input=command + "\n", env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return answer.stdout.strip()


@contextmanager
def _daemon(uuid: str) -> Iterator[dict[str, str]]:
    """The variables of its clients, while it runs. Raises RuntimeError when it cannot be started."""
    if shutil.which(CONTROL) is None:
        raise RuntimeError(f"{CONTROL} is not installed")
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        client = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipes", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in client.values():
            Path(path).mkdir()
        environment = {**os.environ, **client, "CUDA_VISIBLE_DEVICES": uuid}
        started = subprocess.run(
            [CONTROL, "-d"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if started.returncode != 0:
            raise RuntimeError(f"{CONTROL} -d ended with {started.returncode}: {_last_line(Path(folder) / 'log')}")
        try:
            yield client
        finally:
            _ask("quit", environment)


def _last_line(log: Path) -> str:
    lines = [line for file in sorted(log.glob("*.log")) for line in file.read_text(errors="replace").splitlines()]
    return lines[-1] if lines else "no log"


def _servers(client: Mapping[str, str]) -> str:
    """Yield the server of MPS clients: none, where no program came as one."""
    servers = _ask("get_server_list", {**os.environ, **client}).split()
    return f"{len(servers)} MPS server" if servers else "no MPS server was needed"


def _measure(bench: Bench, seconds: float) -> Iterator[Row]:
    native = bench.native()
    alone = bench.run(PROGRAM, seconds, native).per_second
    with _daemon(bench.gpus[0].uuid) as client:
        for library in bench.libraries:
            limited = bench.limited(50, library)
            launch = Launch(limited.prefix, {**limited.environment, **client})
            runs = bench.together([PROGRAM] * 2, [launch] * 2, seconds)
            shares = [100 * run.per_second / alone for run in runs]
            musts = [Must("share", share, 49, 51) for share in shares]
            yield Row(PROGRAM, "50 / 50", library, shares, musts, None, (), alone, f"kept out: {_servers(client)}")
        launch = Launch((), {**native.environment, **client})
        runs = bench.together([PROGRAM] * 2, [launch] * 2, seconds)
        shares = [100 * run.per_second / alone for run in runs]
        yield Row(PROGRAM, "native / native", "", shares, (), None, (), alone, f"clients: {_servers(client)}")
