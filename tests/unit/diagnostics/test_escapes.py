"""How an attempt to pass a memory limit on purpose is judged."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fakes import GIB, MIB

from support import CHECKOUT
from vgpurun import abi
from vgpurun.diagnostics.escapes import TIME_WAYS, WAYS, Seen, judge_memory, judge_time
from vgpurun.diagnostics.verify import FAILED, OK, SKIPPED

NOTHING = Seen({}, 0, False, "", 0.0, "")


@pytest.mark.parametrize(
    ("seen", "status", "stopped_by", "words"),
    [
        (NOTHING._replace(said={"closed": "umount: no"}), OK, "the container", "the container: umount: no"),
        (NOTHING._replace(acted="frozen", acted_s=0.61, held_bytes=2 * GIB), OK, "the guard", "frozen 0.6 s after"),
        (NOTHING._replace(held_bytes=GIB + 3 * MIB, said={"answer": 0}), FAILED, "", "nothing: it holds 1"),
        (NOTHING._replace(held_bytes=GIB + 3 * MIB, said={"answer": 2}), FAILED, "", "nothing"),
        (NOTHING._replace(held_bytes=GIB, said={"answer": 2}, is_counted=True), OK, "the library", "refused at 1 GiB"),
        (NOTHING._replace(held_bytes=GIB, said={"answer": 2}), OK, "the driver's own limit", "refused at 1 GiB"),
        (NOTHING._replace(held_bytes=GIB, said={"answer": 999}), SKIPPED, "", "answered 999"),
        (NOTHING._replace(said={"answer": 2}), SKIPPED, "", "answered 2, and granted nothing"),
        (NOTHING, SKIPPED, "", "said nothing"),
        (NOTHING._replace(said={"error": "cuInit answered 3"}), SKIPPED, "", "cuInit answered 3"),
        (NOTHING._replace(errors="image x cannot be pulled"), SKIPPED, "", "image x cannot be pulled"),
    ],
)
def test_what_stopped_it(seen: Seen, status: str, stopped_by: str, words: str) -> None:
    found: Any = judge_memory("dlmopen", seen, GIB)
    assert (found.status, found.figures["stopped_by"]) == (status, stopped_by) and words in found.words


def test_the_program_knows_every_way() -> None:
    source = (CHECKOUT / "lib" / "verify" / "escapes.c").read_text()
    assert re.findall(r'^    \{"([^"]+)"', source, re.MULTILINE) == list(WAYS)
    assert {*TIME_WAYS} - {*WAYS} == {"short processes"} and '#define SHORT_LIVED "short processes"' in source


def test_the_program_knows_where_the_limit_is() -> None:
    source = (CHECKOUT / "lib" / "verify" / "escapes.c").read_text()
    at = abi.Limits.devices.offset + abi.DeviceLimit.memory_limit_bytes.offset
    assert (
        f"#define LIMIT_OFFSET {at} " in source
        and f"#define LIMIT_SIZE {abi.DeviceLimit.memory_limit_bytes.size}\n" in source
    )


@pytest.mark.parametrize(
    ("said", "acted", "status", "stopped_by", "words"),
    [
        ({"closed": "umount: no"}, "", OK, "the container", "the container: umount: no"),
        ({"kernels_per_second": 201.0}, "", OK, "the library", "it had 20.1 of 20 %"),
        ({"kernels_per_second": 260.0}, "held", OK, "the guard", "the guard: it had 26.0 of 20 %"),
        ({"kernels_per_second": 280.0}, "held", FAILED, "", "the guard, but it had 28.0 of 20 %"),
        ({"kernels_per_second": 990.0}, "", FAILED, "", "nothing: it had 99.0 of 20 %"),
        ({"error": "cuInit answered 3"}, "", SKIPPED, "", "cuInit answered 3"),
        ({}, "", SKIPPED, "", "said nothing"),
    ],
)
def test_what_stopped_it_in_time(said: dict[str, Any], acted: str, status: str, stopped_by: str, words: str) -> None:
    found: Any = judge_time("dlmopen", said, "", 1000.0, 20, acted)
    assert (found.status, found.figures["stopped_by"]) == (status, stopped_by) and words in found.words
