"""The configuration: what it sets, and one clear line for what is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from simulated import MIB, Machine, driver

from support import CHECKOUT


def describe() -> None:
    driver.init()
    devices = range(driver.device_count())
    print(driver.version(), *[(driver.device_name(i), driver.device_total_mem(i) // MIB) for i in devices])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devicez:\n", ":1: unknown key 'devicez'"),
        ("devices:\n  - nam: x\n", ":2: unknown key 'nam'"),
        ("devices:\n  - memory_mib: 8g\n", ":2: memory_mib is a number from 16 to 16777216, not '8g'"),
        ("devices:\n  - memory_mib: 0\n", ":2: memory_mib is a number from"),
        ("devices:\n  - memory_mib: -5\n", ":2: memory_mib is a number from"),
        ("devices:\n  - memory_mib: 99999999999999999999999\n", ":2: memory_mib is a number from"),
        ("devices:\n  - memory_mib:\n", ":2: no value for 'memory_mib'"),
        ("devices:\n  - uuid: GPU-123\n", ":2: expected GPU-xxxxxxxx-xxxx"),
        ("devices: 3\n", ":1: expected a list"),
        ("devices:\n", ":1: no device in the list of devices"),
        ("devices: [a, b]\n", ":1: expected a plain or a quoted value"),
        ("devices:\n  name: x\n", ":2: expected '- key: value'"),
        ("devices:\n  - name: x\n     memory_mib: 100\n", ":3: the indentation does not match"),
        ("devices:\n  - name: x\n    name: y\n", ":3: a second 'name'"),
        ("devices:\n  - name: x\ndevices:\n  - name: y\n", ":3: a second 'devices'"),
        ("cuda_version: thirteen\n", ":1: expected a version such as 13.0, not 'thirteen'"),
        ("cuda_version: 99.0\n", ":1: expected a version"),
        ("state_file: relative\n", ":1: expected an absolute path, not 'relative'"),
        ("kernels:\n  - duration_us: 5\n", ":2: a kernel without a name"),
        ("kernels:\n  - name: a\n    duration_us: 1.23456\n", ":3: duration_us is a number"),
        ("nvidiactl: yes\n", ":1: expected true or false, not 'yes'"),
        ("default_kernel_us: 1e3\n", ":1: default_kernel_us is a number"),
        ("\tname: x\n", ":1: a tab in the indentation"),
        ("just words\n", ":1: expected 'key: value'"),
        ("driver_version: 'open\n", ":1: expected a plain or a quoted value"),
        ("driver_version: " + "x" * 3000 + "\n", ":1: the line is too long"),
        ("driver_version: " + "x" * 300 + "\n", ":1: the value is too long for 'driver_version'"),
        ("devices:\n" + "  - name: x\n" * 17, ":18: more than 16 devices"),
        (
            "devices:\n" + "  - uuid: GPU-aaaaaaaa-0000-0000-0000-000000000000\n" * 2,
            ": two devices with the UUID 'GPU-aaaaaaaa-0000-0000-0000-000000000000'",
        ),
    ],
)
def test_one_line_for_a_mistake(machine: Machine, text: str, message: str) -> None:
    machine.configure(text)
    code = "from cuda_driver import Driver; print(Driver().result('cuInit', 0))"
    result = machine.run(sys.executable, "-c", code)
    assert result.stdout == "CUDA_ERROR_INVALID_VALUE\n"
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("vgpusim: ")
    assert message in result.stderr


def test_a_file_that_is_not_there(machine: Machine) -> None:
    Path(machine.environment["VGPUSIM_CONFIG"]).unlink()
    result = machine.run(sys.executable, "-c", "from cuda_driver import Driver; print(Driver().result('cuInit', 0))")
    assert result.stdout == "CUDA_ERROR_INVALID_VALUE\n"
    assert result.stderr.endswith("sim.yaml: No such file or directory\n")


@pytest.mark.parametrize("data", [b"\x7fELF\x00\x00\x01", bytes(range(256)), b"a: b\x00c\n", b"devices:\n\xff\xfe"])
def test_what_is_not_text(machine: Machine, data: bytes) -> None:
    Path(machine.environment["VGPUSIM_CONFIG"]).write_bytes(data)
    result = machine.run(sys.executable, "-c", "from cuda_driver import Driver; print(Driver().result('cuInit', 0))")
    assert result.stdout == "CUDA_ERROR_INVALID_VALUE\n"
    assert len(result.stderr.splitlines()) == 1


def test_comments_quotes_and_defaults(machine: Machine) -> None:
    machine.configure("""---
# a comment
cuda_version: "12.4"  # the driver's

devices:
- name: 'A # not a comment'
  memory_mib: 1024
- memory_mib: 2048.0
""")
    assert machine.python(describe, start=False) == "12040 ('A # not a comment', 1024) ('Simulated GPU', 2048)"


def test_without_a_file_there_is_one_device(machine: Machine) -> None:
    assert machine.python(describe, start=False, VGPUSIM_CONFIG="") == "13000 ('Simulated GPU', 8192)"


def test_the_example(machine: Machine) -> None:
    example = CHECKOUT / "lib" / "sim" / "example.yaml"
    expected = "13000 ('Simulated GPU A', 8192) ('Simulated GPU B', 8192)"
    assert machine.python(describe, start=False, VGPUSIM_CONFIG=str(example)) == expected


def test_the_state_file_of_the_configuration(machine: Machine) -> None:
    state = machine.folder / "other.state"
    machine.configure(f"state_file: {state}\n")

    def program() -> None:
        pass

    machine.python(program, VGPUSIM_STATE="")
    assert state.stat().st_size > 0


def test_a_state_file_that_cannot_be_used(machine: Machine) -> None:
    link, foreign, folder = machine.folder / "link", machine.folder / "foreign", machine.folder / "folder"
    link.symlink_to(machine.folder / "target")
    foreign.write_bytes(b"something else")
    folder.mkdir()
    code = "from cuda_driver import Driver; print(Driver().result('cuInit', 0))"
    missing = machine.folder / "missing" / "state"
    for path in (str(link), str(foreign), str(folder), str(missing), "relative", "/dev/null"):
        result = machine.run(sys.executable, "-c", code, VGPUSIM_STATE=path)
        assert result.stdout == "CUDA_ERROR_OPERATING_SYSTEM\n", path
        assert len(result.stderr.splitlines()) == 1
        assert path in result.stderr
    assert not (machine.folder / "target").exists()
    assert foreign.read_bytes() == b"something else"
