"""Every function of the cuda.h in use has been judged: does it take device memory, and is it counted then?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import CHECKOUT
from vgpurun.docs.memory_functions import (
    Judgement,
    caught_symbols,
    disagreements,
    judgements,
    symbols_of,
    without_version,
)


@pytest.fixture(scope="module")
def symbols(cuda_includes: list[str]) -> set[str]:
    return symbols_of(cuda_includes)


def test_every_function_is_judged_and_what_is_counted_is_caught(symbols: set[str]) -> None:
    assert len(symbols) > 600 and {"cuMemAlloc_v2", "cuMemAllocAsync_ptsz", "cuMemcpyDtoH_v2_ptds"} <= symbols
    assert disagreements(symbols, caught_symbols(), judgements()) == []


def test_what_is_caught_exists(symbols: set[str]) -> None:
    """An older cuda.h lacks the newest, which hook/hooks.h declares itself then."""
    declared = set(re.findall(r"CUDAAPI (cu\w+)\(", (CHECKOUT / "lib/src/hook/hooks.h").read_text()))
    assert caught_symbols() - symbols - declared == set()


def test_only_functions_that_are_not_about_memory_are_judged_by_pattern() -> None:
    for judgement in judgements():
        patterns = [name for name in judgement.functions if "*" in name]
        assert not patterns or judgement.verdict == "not about memory"
        assert all(len(pattern.replace("*", "")) >= len("cuLogs") for pattern in patterns)


def test_what_is_found_wrong() -> None:
    judged = [Judgement("counted", "", ("cuMemAlloc",)), Judgement("not about memory", "", ("cuMemcpy*",))]
    found = disagreements({"cuMemAlloc", "cuMemAlloc_v2", "cuMemcpyDtoH_v2_ptds"}, {"cuMemAlloc"}, judged)
    assert found == ["cuMemAlloc_v2: said to be counted, but hooks.h does not catch it"]
    passed_on = Judgement("passed on", "", ("cuMemFreeHost",))
    found = disagreements({"cuMemFreeHost"}, {"cuMemFreeHost"}, [passed_on])
    assert found == ["cuMemFreeHost: said to be passed on, but hooks.h catches it"]
    [line] = disagreements({"cuMemAllocNovel_v2"}, set(), judged)
    assert line.startswith("cuMemAllocNovel_v2: nobody has judged")
    [line] = disagreements({"cuMemcpyDtoH"}, set(), [*judged, Judgement("passed on", "", ("cuMemcpyDtoH",))])
    assert line == "cuMemcpyDtoH: judged more than once: not about memory, passed on"


@pytest.mark.parametrize("symbol", ["cuMemAlloc", "cuMemAlloc_v2", "cuMemAlloc_v3_ptds", "cuMemAlloc_ptsz"])
def test_versions_are_one_function(symbol: str) -> None:
    assert without_version(symbol) == "cuMemAlloc"


@pytest.mark.parametrize(
    "text", ["counted: []", "counted: []\npassed_on: []\nnot_possible: []\nnot_memory: [{why: x}]"]
)
def test_a_file_of_another_form_is_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "functions.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match="functions"):
        judgements(path)
