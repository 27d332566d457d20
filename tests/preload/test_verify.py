"""`vgpurun verify` on the simulated GPU: it passes where limits hold, and fails where they do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support import LIBRARY, PYTHON_PATH, assert_measured, own_gpu_config, wait_until
from support.programs import text_of
from vgpurun.__main__ import main
from vgpurun.diagnostics import verify
from vgpurun.errors import VgpurunError
from vgpurun.host import gpus, library, simulation
from vgpurun.host.elf import glibc_version, read_elf
from vgpurun.limits import usage_file

pytestmark = pytest.mark.slow

GIB = 1 << 30
PROGRAM = LIBRARY.parent / "vgpurun-verify"
PATHS = {
    "cuMemAlloc", "cuMemAlloc, looked up", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync", "cuMemCreate", "cuArrayCreate", "cuArray3DCreate", "cuMipmappedArrayCreate",
    "graph memory", "cuCtxCreate", "two processes",
}  # fmt: skip
COMPUTE = ("launches", "graphs", "two processes")
COMPANY = ("launches", "launches on 4 streams", "graphs", "two processes", "beside another program")


@pytest.fixture
def environment(tmp_path: Path, built_library: Path) -> dict[str, str]:
    unwanted = ("CUDA_", "VGPU", "LD_", "DOCKER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return kept | {
        "VGPURUN_STATE_DIR": str(tmp_path),
        "VGPURUN_DRIVER": "sim",
        "VGPUSIM_CONFIG": own_gpu_config(tmp_path),
        "DOCKER_HOST": f"unix://{tmp_path}/no-engine.sock",
        "COLUMNS": "80",
    }


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL
    )


def verified(
    environment: dict[str, str], *options: str, start: Sequence[str] = ("-m", "vgpurun")
) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the checks by their names."""
    result = run(environment, *start, "verify", "--format", "json", *options)
    (found,) = json.loads(result.stdout)
    return result.returncode, {check["name"]: check for check in found["checks"]}


def test_memory_holds_on_the_simulated_gpu(environment: dict[str, str]) -> None:
    code, checks = verified(environment, "--mem", "2g")
    assert code == 0, checks
    assert {f"memory: {path}" for path in PATHS} <= set(checks)
    assert {check["status"] for name, check in checks.items() if "empty environment" not in name} == {"ok"}
    alloc = checks["memory: cuMemAlloc"]
    assert 2 * GIB - (4 << 20) <= alloc["used_bytes"] <= 2 * GIB


@pytest.mark.exhaustive
@pytest.mark.real_time
def test_compute_holds_on_the_simulated_gpu(environment: dict[str, str]) -> None:
    def measured() -> tuple[int, dict[str, float]]:
        code, checks = verified(environment, "--sm", "50", "--seconds", "0.5")
        return code, {work: checks[f"compute: {work}"]["share_percent"] for work in COMPUTE}

    assert_measured(measured, lambda seen: seen[0] == 0 and all(40 < share < 57 for share in seen[1].values()), tries=8)


def by_both(checks: dict[str, dict[str, Any]]) -> list[str]:
    """How the library's account of the GPU time was judged against the GPU's own, in each company."""
    return [checks[f"GPU time: {company}"]["status"] for company in COMPANY]


@pytest.mark.real_time
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone has the records")
def test_the_library_and_the_gpu_say_the_same(environment: dict[str, str]) -> None:
    def measured() -> dict[str, dict[str, Any]]:
        return verified(environment, "--sm", "50", "--seconds", "0.7")[1]

    def agree(checks: dict[str, dict[str, Any]]) -> bool:
        percents = [checks[f"GPU time: {company}"].get("gpu_percent", 0) for company in COMPANY]
        return by_both(checks) == ["ok"] * len(COMPANY) and all(20 < percent < 80 for percent in percents)

    assert_measured(measured, agree)
    assert not [*Path(environment["VGPURUN_STATE_DIR"], "containers").iterdir()], "nothing is left"


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone has the records")
@pytest.mark.parametrize("ratio", [0.7, 1.4])
def test_an_account_that_is_wrong_is_found(environment: dict[str, str], ratio: float) -> None:
    """A usage file whose GPU time is not what the processes had."""
    start = ["-c", text_of(lying), str(ratio)]
    code, checks = verified({**environment, "PYTHONPATH": PYTHON_PATH}, "--sm", "50", "--seconds", "0.7", start=start)
    assert code == 1 and by_both(checks) == ["fail"] * len(COMPANY), checks


def lying() -> None:
    ratio = float(sys.argv.pop(1))
    read = usage_file.read_usage

    def lie(*place: Any) -> list[Any]:
        return [replace(each, busy_ns=int(ratio * each.busy_ns)) for each in read(*place) or ()]

    usage_file.read_usage = lie  # type: ignore[assignment]
    main()


def test_it_says_which_limiter_holds_compute(environment: dict[str, str]) -> None:
    _, checks = verified(environment, "--sm", "50", "--seconds", "0.5")
    limiter = checks["compute: the limiter"]
    assert (limiter["status"], limiter["limiter"]) in (("ok", "scheduler"), ("warn", "launches")), limiter


def test_the_table_fits_a_terminal(environment: dict[str, str]) -> None:
    result = run(environment, "-m", "vgpurun", "verify", "--mem", "1200m")
    assert result.returncode == 0, result.stdout + result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert result.stdout.splitlines()[-1] == "14 hold"


def judged(environment: dict[str, str], limits: list[str], is_memory: bool) -> dict[str, tuple[str, str]]:
    """Judge a program under limits as if it had others: 1.5 GiB, or half a GPU."""

    def program() -> None:
        simulation.activate(library.find_simulated_driver(print))
        (gpu,) = gpus.list_gpus()

        def start(*options: str) -> list[str]:
            return ["local", "--gpus=device=0", *options, "--", str(library.find_verifier(print))]

        trial = verify.Trial(start("--overcommit"), start(*limits), False, lambda pid: pid)
        checks = verify.check_memory(trial, gpu, 1536 << 20) if is_memory else verify.check_compute(trial, gpu, 50, 0.7)
        print(json.dumps([[check.name, check.status, check.words] for check in checks]))

    result = run({**environment, "PYTHONPATH": PYTHON_PATH}, "-c", text_of(program))
    assert result.returncode == 0, result.stderr
    return {name: (status, words) for name, status, words in json.loads(result.stdout.splitlines()[-1])}


def test_memory_that_passes_its_limit_fails(environment: dict[str, str]) -> None:
    found = judged(environment, ["--mem=2g"], is_memory=True)
    wrong = {name.removeprefix("memory: ") for name, (status, _) in found.items() if status == "FAIL"}
    assert wrong == (PATHS | {"the size that it sees"}) - {"cuMemAllocManaged"}
    assert found["memory: cuMemAlloc"] == ("FAIL", "got 2048 of 1536 MiB by NVML")


@pytest.mark.exhaustive
@pytest.mark.real_time
def test_a_share_that_passes_its_limit_fails(environment: dict[str, str]) -> None:
    def measured() -> list[str]:
        found = judged(environment, ["--sm=80"], is_memory=False)
        return [found[f"compute: {work}"][0] for work in ("launches", "graphs")]

    assert_measured(measured, lambda seen: seen == ["FAIL", "FAIL"])


@contextmanager
def working(environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`vgpurun ARGUMENTS`, once its program has a context on the GPU."""
    command = [sys.executable, "-m", "vgpurun", *arguments]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_until(lambda: used_bytes(environment) > 0)
            yield process
        finally:
            process.kill()


def used_bytes(environment: dict[str, str]) -> int:
    (gpu,) = json.loads(run(environment, "-m", "vgpurun", "smi", "--format", "json").stdout)["gpus"]
    used: int = gpu["memory_used_bytes"]
    return used


@pytest.mark.exhaustive
@pytest.mark.real_time
def test_beside_others_no_share_is_too_large(environment: dict[str, str]) -> None:
    """A program with a limit gets as much of the memory that they leave as one without, whatever they reserve."""
    with working(environment, "local", "--mem", "2g", "--sm", "50", "--", str(PROGRAM), "compute", "100"):
        code, checks = verified(environment, "--sm", "50", "--seconds", "0.5")
    assert code == 0 and checks["compute: a GPU of its own"]["other_processes"] == 1
    assert not [check for check in checks.values() if check["status"] == "fail"]
    assert [check for check in checks.values() if check["what"].endswith("% of what the others left")], checks


def test_a_trial_ends_with_what_has_begun_it(environment: dict[str, str]) -> None:
    with working(environment, "verify", "--sm", "50", "--seconds", "100") as process:
        process.kill()
        wait_until(lambda: used_bytes(environment) == 0)


def test_no_room_has_no_way_out_that_it_lacks(environment: dict[str, str]) -> None:
    with working(environment, "local", "--mem", "15g", "--", str(PROGRAM), "compute", "100"):
        result = run(environment, "-m", "vgpurun", "verify", "--mem", "2g")
    assert result.returncode == 125 and result.stderr.strip().endswith("1 GiB is free; ask for less"), result.stderr


def test_no_room_for_a_context_is_no_verdict(environment: dict[str, str]) -> None:
    result = run(environment, "-m", "vgpurun", "verify", "--mem", "100m")
    assert result.returncode == 125 and len(result.stdout.splitlines()) == 1, result.stdout
    assert "no room for a CUDA context" in result.stderr and "the limit is too low" in result.stderr


def test_no_room_for_two_contexts_skips_what_needs_them(environment: dict[str, str]) -> None:
    _, checks = verified(environment, "--mem", "1g", "--sm", "50", "--seconds", "0.5")
    skipped = {name for name, check in checks.items() if "no room for two contexts" in check["what"]}
    assert skipped == {"memory: two processes", "compute: two processes"}
    assert {checks[name]["status"] for name in skipped} == {"skip"}


def test_a_program_that_cannot_start_is_one_line(environment: dict[str, str]) -> None:
    result = run(environment, "-m", "vgpurun", "verify", "IMAGE")
    assert result.returncode == 1 and "no-engine.sock" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    none = run(environment, "-m", "vgpurun", "verify", "--sm", "100")
    assert none.returncode == 125 and "no limit to try" in none.stderr


@pytest.mark.parametrize(
    ("changes", "status", "word"),
    [
        ({}, "ok", "refused at 1000 of 1000 MiB"),
        ({"used_bytes": 1001 << 20}, "FAIL", "got 1001 of 1000 MiB"),
        ({"answer": -2}, "FAIL", "not refused"),
        ({"answer": 999}, "FAIL", "with 999"),
        ({"again": 2}, "FAIL", "still after all was freed"),
        ({"answer": -1}, "skip", "does not have it"),
        ({"used_bytes": 500 << 20}, "ok", "refused after 900 MiB"),
        ({"used_bytes": 990 << 20, "granted_bytes": 0, "again": 2}, "skip", "no room beside the context"),
        ({"used_bytes": 500 << 20, "granted_bytes": 0, "again": 2}, "FAIL", "still after all was freed"),
    ],
)
def test_judging_memory(changes: dict[str, Any], status: str, word: str) -> None:
    figures = {"path": "p", "granted_bytes": 900 << 20, "answer": 2, "again": 0, "used_bytes": 1000 << 20}
    check = verify.judge_path({**figures, "limit_bytes": 1000 << 20, **changes})
    assert check.status == status and word in check.words


@pytest.mark.parametrize(
    ("rate", "least", "has_company", "status"),
    [
        (500, 500, False, "ok"),
        (550, 550, False, "ok"),
        (560, 560, False, "FAIL"),
        (560, 560, True, "warn"),
        (500, 500, True, "ok"),
        (400, 400, False, "warn"),
        (500, 100, False, "warn"),
        (500, 240, False, "ok"),
    ],
)
def test_judging_shares(rate: float, least: float, has_company: bool, status: str) -> None:
    limited = {"work": "w", "kernels_per_second": float(rate), "least_of_a_process": float(least)}
    assert verify.judge_share(limited, 1000.0, 50, has_company).status == status


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ("", ""),
        ("vgpurun: warning: w\nvgpurun: no room\nGPU HOLDER\n", "no room"),
        ("vgpurun: warning: v\nvgpurun: warning: no glibc\nexec /x: no such file\n", "exec /x: no such file; no glibc"),
        ("vgpurun: warning: w\n", "w"),
    ],
)
def test_why_it_cannot_be_run(errors: str, reason: str) -> None:
    assert verify.reason_of(errors) == reason


def test_the_program_runs_in_images_with_an_old_glibc() -> None:
    needed = glibc_version(read_elf(PROGRAM.read_bytes()).needed_versions)
    assert needed is not None and needed <= (2, 17)


@pytest.mark.parametrize(
    "program",
    [
        "echo '{}'; exec sleep 50",
        "echo '{}'; sleep 50 & exit 0",  # which has the output, and is told nothing
        "echo '{}'; trap '' TERM; while :; do sleep 1; done",
    ],
)
def test_what_gets_stuck_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    stuck = tmp_path / "stuck"
    stuck.write_text(f"#!/bin/sh\n{program}\n")
    stuck.chmod(0o755)
    monkeypatch.setattr(verify, "OWN_PROGRAM", f"import os; os.execv({str(stuck)!r}, [{str(stuck)!r}])")
    for name, value in (("_SILENT_S", 0.5), ("_AGAIN_S", 1), ("_END_S", 2)):
        monkeypatch.setattr(verify, name, value)
    began, said = time.monotonic(), []
    with pytest.raises(VgpurunError, match=r"nothing for 2 s|did not end in 2 s"):  # noqa: SIM117
        with verify.started([], 1.5) as running:
            said.extend(running.answers())
    assert said == [{}] and time.monotonic() - began < 40
