"""The policy of the library, compiled with sanitizers and run: no driver, no GPU, clocks of its own."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LIB = ROOT / "lib"

METER = [
    "device_state",
    "history",
    "gate",
    "meter",
    "meter_settle",
    "meter_streams",
]
TURNS = ["claim", "log", "shared_file", "signals", "turns", "turns_file"]
MODEL = ["gpu_model", "gpu_model_driver", "gpu_model_library", "gpu_model_programs", "gpu_model_time", "gpu_model_work"]
SOURCES = {
    "limits": ["limits", "log"],
    "ledger": ["claim", "ledger"],
    "interleaving": ["claim"],  # includes ledger.c
    "corrections": ["claim"],  # likewise
    "table": ["table"],
    "bucket": [],
    "spans": [],
    "seconds": ["history"],
    "timeline": [],
    "meter": [*METER, *TURNS],
    "starts": [*METER, *TURNS],
    "claims": [*METER, *TURNS],
    "turns": TURNS,
    "hand_over": TURNS,
    "shares": [*METER, *TURNS],
    "windows": [*METER, *TURNS],
    "tenants": [*METER, *TURNS],
    "strangers": [*METER, *TURNS],
    "priorities": [*METER, *TURNS],
    "alone": [*METER, *TURNS],
    "company": [*METER, *TURNS],
    "evasions": [*METER, *TURNS],
    "spins": [*METER, *TURNS],
    "utilization": ["utilization"],
    "wait_times": ["history"],
    "profile": ["log", "profile_disk", "profile_kernels", "profile_records"],
    "quick_clock": ["quick_clock"],
}
TABLES = ["alone", "company", "evasions", "spins"]  # of cases: rows.h
HELPERS = dict.fromkeys(("shares", "windows", "tenants", "strangers", "priorities", *TABLES), MODEL)  # beside the test
ARGUMENTS = {"limits": [str(ROOT / "tests" / "limit_cases.tsv")]}
SANITIZERS = {
    "": ["-O2"],  # many seconds of the model's time
    "address-undefined": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-fsanitize=thread"],
}
THREADED = ["ledger", "table", "claims", "turns", "profile", "quick_clock"]


def run(name: str, sanitizer: str, folder: Path) -> None:
    program = folder / name
    compile_command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror"]
    compile_command += [*SANITIZERS[sanitizer], f"-I{LIB}", f"-I{HERE}", str(HERE / f"{name}_test.c")]
    compile_command += [str(HERE / f"{helper}.c") for helper in HELPERS.get(name, [])]
    compile_command += [str(LIB / f"{source}.c") for source in SOURCES[name]]
    compile_command += ["-lpthread", "-lm", "-o", str(program)]
    subprocess.run(compile_command, check=True)
    # The tests keep what the library keeps until its process ends; what it loses shows under the simulated driver.
    result = subprocess.run(
        [program, *ARGUMENTS.get(name, [])],
        env={"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout[-20000:] + result.stderr[-2000:]


@pytest.mark.parametrize("name", [name for name in SOURCES if name not in TABLES])
def test_policy(name: str, tmp_path: Path) -> None:
    run(name, "address-undefined", tmp_path)


@pytest.mark.parametrize("name", TABLES)
def test_policy_by_tables(name: str, tmp_path: Path) -> None:
    run(name, "", tmp_path)


@pytest.mark.parametrize("name", THREADED)
def test_policy_of_many_threads(name: str, tmp_path: Path) -> None:
    run(name, "thread", tmp_path)
