"""Limits as people write them, by the one table that the library passes too, and what they mean on chosen GPUs."""

from __future__ import annotations

import re

import pytest
from fakes import GIB, make_gpus

from support import CHECKOUT
from vgpurun.errors import LimitError
from vgpurun.limits.model import Limits
from vgpurun.limits.quota import Quota, parse_limit, parse_per_device, parse_size, parse_sm, resolve

DEVICE_BYTES = 8 * GIB


def table(kind: str) -> list[tuple[str, str]]:
    cases = []
    for line in (CHECKOUT / "tests" / "limit_cases.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{kind}\t"):
            _, text, result = line.split("\t")
            cases.append((text[1:-1], result))
    assert len(cases) > 15
    return cases


@pytest.mark.parametrize(("text", "result"), table("memory"))
def test_memory_table(text: str, result: str) -> None:
    if result == "error":
        with pytest.raises(LimitError) as caught:
            parse_size(text).bytes_on(DEVICE_BYTES)
        assert f"'{text}'" in str(caught.value)
    else:
        assert parse_size(text).bytes_on(DEVICE_BYTES) == int(result)


@pytest.mark.parametrize(("text", "result"), table("sm"))
def test_sm_table(text: str, result: str) -> None:
    if result == "error":
        with pytest.raises(LimitError) as caught:
            parse_sm(text)
        assert f"'{text}'" in str(caught.value)
    else:
        assert parse_sm(text) == (None if result == "none" else int(result))


@pytest.mark.parametrize(
    "text", ["", " ", "9" * 5000, "0" * 5000, "1" + "0" * 30 + "%", "2bb", "2ib", "2\n", "\u0662g"]
)
def test_further_memory_errors(text: str) -> None:
    with pytest.raises(LimitError):
        parse_size(text)


@pytest.mark.parametrize("text", ["", " ", "9" * 5000, "5\n", "\u0665"])
def test_further_sm_errors(text: str) -> None:
    with pytest.raises(LimitError):
        parse_sm(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4", "'4' is 4 bytes, too little for any program; write 4g or 4m"),
        ("1048575", "write 1048575g or"),
        ("512k", "'512k' is 512 KiB, too little for any program; use a size such as 2g"),
        ("0.01%", "'0.01%' is 838.86 KiB"),
    ],
)
def test_a_limit_that_nothing_can_run_in_is_a_slip(text: str, words: str) -> None:
    if "%" not in text:
        with pytest.raises(LimitError, match=re.escape(words)):
            parse_limit(text)
    for given in ({"memory": text}, {"CUDA_DEVICE_MEMORY_LIMIT": text}):
        with pytest.raises(LimitError, match=re.escape(words)):
            quotas(**given)
    assert parse_limit("1m").bytes_on(DEVICE_BYTES) == 1 << 20


def test_leading_zeros_do_not_count() -> None:
    assert parse_size("0" * 100 + "2g").bytes_on(DEVICE_BYTES) == 2 * GIB
    assert parse_sm("0" * 100 + "50") == 50


def test_one_value_for_all_devices_or_one_for_each() -> None:
    assert parse_per_device("50", parse_sm).everywhere == 50
    assert parse_per_device("0=50, 1 = 20", parse_sm).by_device == (("0", 50), ("1", 20))


@pytest.mark.parametrize("text", ["0=2g,", "0=2g,3g", "=2g", "0=2g,0=3g", "0=", "2g,1=3g"])
def test_values_for_devices_that_cannot_be_read(text: str) -> None:
    with pytest.raises(LimitError):
        parse_per_device(text, parse_size)


def quotas(memory: str | None = None, sm: str | None = None, **environment: str) -> list[Quota]:
    limits = Limits.read(memory, sm)
    return resolve(make_gpus(2, first_index=2), limits.memory, limits.sm, environment, range(2))


def test_no_limit_at_all() -> None:
    assert quotas() == [Quota(), Quota()]


def test_limits_for_all_devices() -> None:
    assert quotas("50%", "30") == [Quota(4 * GIB, 30)] * 2


def test_devices_are_named_by_the_hosts_index_or_by_uuid() -> None:
    assert quotas("2=1g", "3=20") == [Quota(GIB, None), Quota(None, 20)]
    assert quotas("gpu-00000003=1g") == [Quota(), Quota(GIB)]


@pytest.mark.parametrize("memory", ["0=1g", "GPU-=1g", "GPU-0000=1g", "GPU-9=1g", "2=1g,GPU-00000002=2g"])
def test_devices_that_were_not_chosen_or_are_named_twice(memory: str) -> None:
    with pytest.raises(LimitError, match=r"--mem: no GPU|--mem: 'GPU-|--mem names device 'GPU-00000002' twice"):
        quotas(memory)
    with pytest.raises(LimitError, match="'GPU-0000' is the beginning of several UUIDs"):
        quotas("GPU-0000=1g")
    with pytest.raises(LimitError, match=r"--mem: no GPU '0' among 2, 3$"):
        quotas("0=1g")


def test_max_is_only_for_a_launch() -> None:
    with pytest.raises(LimitError, match="'max' is what a launch finds left, and of no use here; use a size"):
        quotas("max")


def test_a_limit_above_the_gpus_memory_names_what_it_has() -> None:
    with pytest.raises(LimitError, match=r"--mem 9g is more than GPU 2 has \(8 GiB\)"):
        quotas("9g")
    assert quotas("8g") == [Quota(8 * GIB)] * 2


def test_variables_limit_as_the_options_do_and_the_lower_limit_holds() -> None:
    assert quotas(CUDA_DEVICE_MEMORY_LIMIT="1g", CUDA_DEVICE_SM_LIMIT="40") == [Quota(GIB, 40)] * 2
    assert quotas("2g", "30", CUDA_DEVICE_MEMORY_LIMIT="1g", CUDA_DEVICE_SM_LIMIT="40") == [Quota(GIB, 30)] * 2
    assert quotas("1g", CUDA_DEVICE_MEMORY_LIMIT_1="512m") == [Quota(GIB), Quota(GIB // 2)]


def test_a_devices_own_variable_comes_before_the_general_one_and_that_before_an_alias() -> None:
    assert quotas(CUDA_DEVICE_MEMORY_LIMIT="1g", CUDA_DEVICE_MEMORY_LIMIT_0="2g", WRAPPER_MAX_MEMORY="1m") == [
        Quota(2 * GIB),
        Quota(GIB),
    ]
    assert quotas(WRAPPER_MAX_MEMORY="3g", ALNAIR_VGPU_COMPUTE_PERCENTILE="25") == [Quota(3 * GIB, 25)] * 2


def test_an_empty_variable_is_not_set_and_a_wrong_one_is_named() -> None:
    assert quotas(CUDA_DEVICE_MEMORY_LIMIT=" ") == [Quota(), Quota()]
    with pytest.raises(LimitError, match="CUDA_DEVICE_SM_LIMIT: compute limit 'fast'"):
        quotas(CUDA_DEVICE_SM_LIMIT="fast")
    with pytest.raises(LimitError, match="CUDA_DEVICE_MEMORY_LIMIT=16g is more than GPU 2 has"):
        quotas(CUDA_DEVICE_MEMORY_LIMIT="16g")


@pytest.mark.parametrize("zero", ["0", "0%", " 00 % "])
def test_a_zero_is_refused_of_memory_and_of_compute(zero: str) -> None:
    """A variable that HAMi-core's users have set to it still means no compute limit."""
    for limits in ({"memory": zero}, {"sm": zero}, {"sm": f"2=50,3={zero}"}):
        with pytest.raises(LimitError, match="leaves no"):
            quotas(**limits)
    assert quotas(CUDA_DEVICE_SM_LIMIT=zero) == [Quota(), Quota()]


def test_no_compute_limit_beside_one() -> None:
    assert quotas(sm="2=100%,3=100") == [Quota(), Quota()]
    assert quotas(sm="100", CUDA_DEVICE_SM_LIMIT="10") == [Quota(None, 10)] * 2
