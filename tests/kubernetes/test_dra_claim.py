"""A claim's allocation, and its meaning for this node's GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from api_server import check_schema
from claim_maker import CONFIG, DRIVER, NODE, claim, parameters, result
from vgpurun.errors import ClaimError
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.dra.claim import ClaimName, check_uid, quotas_of, read_claim
from vgpurun.limits.model import DeviceQuota
from vgpurun.limits.policies import Priority, SmPolicy
from vgpurun.limits.quota import Quota

GIB = 1 << 30
GPUS = [
    Gpu(i, f"GPU-{i:08d}-AAAA-bbbb-cccc-dddddddddddd", "Test GPU", 8 * GIB, i, f"00000000:0{i}:00.0") for i in range(3)
]


def quotas(made: dict[str, Any], gpus: list[Gpu] = GPUS) -> tuple[DeviceQuota, ...]:
    check_schema(made, "1.36")
    metadata = made["metadata"]
    named = ClaimName(metadata["uid"], metadata["namespace"], metadata["name"])
    return quotas_of(read_claim(named, made, NODE), gpus)


def only(made: dict[str, Any]) -> Quota:
    (each,) = quotas(made)
    return each.quota


@pytest.mark.parametrize(
    ("memory", "memory_bytes"),
    [("2Gi", 2 * GIB), ("2048Mi", 2 * GIB), ("1500M", 1_500_000_000), ("1048576", 1 << 20), ("0.5Gi", GIB // 2)],
)
def test_memory_is_a_quantity(memory: str, memory_bytes: int) -> None:
    assert only(claim(result(GPUS[0], memory))).memory_bytes == memory_bytes


@pytest.mark.parametrize(("compute", "sm_percent"), [("0", None), ("1", 1), ("50", 50), ("99", 99), ("100", None)])
def test_compute_is_a_percentage_and_0_and_100_are_no_limit(compute: str, sm_percent: int | None) -> None:
    assert only(claim(result(GPUS[0], "1Gi", compute))).sm_percent == sm_percent


def test_names_may_have_the_drivers_domain() -> None:
    capacity = {f"{DRIVER}/memory": "1Gi", f"{DRIVER}/compute": "20"}
    assert only(claim(result(GPUS[0], consumedCapacity=capacity))) == Quota(GIB, 20)


def test_several_gpus_come_in_the_order_of_nvml() -> None:
    made = claim(result(GPUS[2], "3Gi"), result(GPUS[0], "1Gi", "10"))
    assert quotas(made) == (DeviceQuota(GPUS[0], Quota(GIB, 10)), DeviceQuota(GPUS[2], Quota(3 * GIB)))


def test_results_on_one_gpu_add_up() -> None:
    made = claim(result(GPUS[0], "1Gi", "10", request="a"), result(GPUS[0], "2Gi", "20", request="b"))
    assert only(made) == Quota(3 * GIB, 30)


def test_other_drivers_results_are_not_ours() -> None:
    other = result("eth0", driver="nic.example.com")
    assert len(quotas(claim(other, result(GPUS[0])))) == 1


class TestParameters:
    def test_policy_and_priority(self) -> None:
        quota = only(claim(result(GPUS[0]), config=(parameters(smPolicy="burst", priority="low"),)))
        assert (quota.sm_policy, quota.priority) == (SmPolicy.BURST, Priority.LOW)

    def test_the_claims_go_over_the_classs_key_by_key_in_any_order(self) -> None:
        of_class = parameters("FromClass", smPolicy="burst", priority="low")
        of_claim = parameters("FromClaim", smPolicy="off")
        for config in ((of_class, of_claim), (of_claim, of_class)):
            quota = only(claim(result(GPUS[0]), config=config))
            assert (quota.sm_policy, quota.priority) == (SmPolicy.OFF, Priority.LOW)

    @pytest.mark.parametrize(("request_name", "is_meant"), [("gpu", True), ("gpu/big", True), ("other", False)])
    def test_those_of_other_requests_do_not_count(self, request_name: str, is_meant: bool) -> None:
        config = (parameters(requests=("gpu",), priority="low"),)
        quota = only(claim(result(GPUS[0], request=request_name), config=config))
        assert quota.priority == (Priority.LOW if is_meant else Priority.HIGH)

    def test_those_of_other_drivers_are_not_read(self) -> None:
        other = {"source": "FromClaim", "opaque": {"driver": "nic.example.com", "parameters": {"priority": 7}}}
        assert only(claim(result(GPUS[0]), config=(other,))).priority == Priority.HIGH

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"smPolicy": "soft"}, ("smPolicy", "soft", "hard, burst, off")),
            ({"priority": 1}, ("priority", "high, low")),
            ({"priority": ["low"]}, ("priority",)),
            ({"memory": "2Gi"}, ("memory", "smPolicy, priority and together")),
            ({"together": "yes"}, ("together", "yes", "true or false")),
            ({"together": True, "smPolicy": "burst"}, ("together", "lab/share", "smPolicy: hard")),
            ({"kind": "MigConfig"}, ("MigConfig", "GpuConfig")),
            ({"apiVersion": "gpu.vgpurun.io/v9"}, ("v9", "gpu.vgpurun.io/v1")),
        ],
    )
    def test_what_is_not_understood_is_refused(self, given: dict[str, Any], words: tuple[str, ...]) -> None:
        with pytest.raises(ClaimError) as raised:
            only(claim(result(GPUS[0]), config=(parameters(**given),)))
        assert all(word in str(raised.value) for word in words)

    def test_parameters_that_differ_on_one_gpu_are_refused(self) -> None:
        config = (parameters(requests=("a",), priority="low"),)
        with pytest.raises(ClaimError, match="different parameters"):
            quotas(claim(result(GPUS[0], request="a"), result(GPUS[0], request="b"), config=config))

    def test_together_is_never_the_default(self) -> None:
        assert not only(claim(result(GPUS[0]))).together
        assert only(claim(result(GPUS[0], "2Gi", "30"), config=(parameters(together=True),))) == Quota(
            2 * GIB, 30, together=True
        )
        of_class, of_claim = parameters("FromClass", together=True), parameters("FromClaim", together=False)
        assert not only(claim(result(GPUS[0]), config=(of_class, of_claim))).together

    @pytest.mark.parametrize(("compute", "requests"), [("50", ()), ("30", ("a",))], ids=["compute", "one request"])
    def test_one_server_is_for_all_gpus_alike(self, compute: str, requests: tuple[str, ...]) -> None:
        parts = result(GPUS[0], "1Gi", "30", request="a"), result(GPUS[1], "1Gi", compute, request="b")
        with pytest.raises(ClaimError, match=r"lab/share has together, .*: give it to every request, and as much"):
            quotas(claim(*parts, config=(parameters(requests=requests, together=True),)))
        parts[1]["consumedCapacity"]["compute"] = "30"
        assert len(quotas(claim(*parts, config=(parameters(together=True),)))) == 2


class TestRefused:
    @pytest.mark.parametrize(
        ("made", "words"),
        [
            (claim(), ("no device of gpu.vgpurun.io",)),
            (claim(result(GPUS[0], driver="gpu.example.com")), ("no device of gpu.vgpurun.io",)),
            (claim(result("gpu-of-another-node")), ("gpu-of-another-node", "does not have")),
            (claim(result(GPUS[0], pool="node-b")), ("node-b", NODE)),
            (claim(result(GPUS[0], adminAccess=True)), ("admin access",)),
            (claim(result(GPUS[0], consumedCapacity={})), ("DRAConsumableCapacity",)),
            (claim(result(GPUS[0], consumedCapacity={"memory": "1Gi"})), ("no compute",)),
            (claim(result(GPUS[0], "0")), ("no memory",)),
            (claim(result(GPUS[0], "9Gi")), ("9 GiB", "8 GiB")),
            (claim(result(GPUS[0], "5Gi"), result(GPUS[0], "4Gi")), ("9 GiB", "8 GiB")),
            (claim(result(GPUS[0], "1Gi", "101")), ("101 %",)),
            (claim(result(GPUS[0], "1Gi", "60"), result(GPUS[0], "1Gi", "50")), ("110 %",)),
            (claim(result(GPUS[0], "1Gi", "0.5")), ("0.5", "whole number")),
            (claim(result(GPUS[0], "-1Gi")), ("-1Gi", "whole number")),
            (claim(result(GPUS[0], "lots")), ("lots", "not a quantity")),
            (claim(result(GPUS[0], "NaN")), ("NaN", "not a quantity")),
            (claim(result(GPUS[0], "Infinity")), ("Infinity", "not a quantity")),
        ],
        ids=lambda value: None if isinstance(value, dict) else value[0].replace(" ", "-"),
    )
    def test_with_the_reason(self, made: dict[str, Any], words: tuple[str, ...]) -> None:
        with pytest.raises(ClaimError) as raised:
            quotas(made)
        assert "\n" not in str(raised.value)
        assert all(word in str(raised.value) for word in ("lab/share", *words)), raised.value

    def test_a_gpu_in_mig_mode(self) -> None:
        with pytest.raises(ClaimError, match="does not have"):
            quotas(claim(result(GPUS[0])), [replace(GPUS[0], mig_enabled=True)])

    def test_a_claim_that_has_been_made_anew(self) -> None:
        with pytest.raises(ClaimError, match="made anew"):
            read_claim(ClaimName("an-older-uid", "lab", "share"), claim(result(GPUS[0])), NODE)

    @pytest.mark.parametrize("status", [None, {}, {"allocation": None}, {"allocation": {}}])
    def test_a_claim_that_is_not_allocated(self, status: Any) -> None:
        made = claim() | {"status": status}
        with pytest.raises(ClaimError, match="no device"):
            read_claim(ClaimName(made["metadata"]["uid"], "lab", "share"), made, NODE)

    @pytest.mark.parametrize("results", [[{}], [None], [{"driver": DRIVER}], "gpu", [{"driver": DRIVER, "device": 7}]])
    def test_what_is_no_allocation_at_all(self, results: Any) -> None:
        made = claim() | {"status": {"allocation": {"devices": {"results": results}}}}
        with pytest.raises(ClaimError):
            read_claim(ClaimName(made["metadata"]["uid"], "lab", "share"), made, NODE)

    @pytest.mark.parametrize("given", [None, [], "low", {}, CONFIG | {"kind": None}])
    def test_parameters_that_are_no_parameters(self, given: Any) -> None:
        config = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": given}}
        made = claim(result(GPUS[0]), config=(config,))
        with pytest.raises(ClaimError, match="GpuConfig"):
            read_claim(ClaimName(made["metadata"]["uid"], "lab", "share"), made, NODE)

    @pytest.mark.parametrize("uid", ["", ".", "..", "../x", "a/b", "a b", "-a", "a-", "x" * 64, "a\n"])
    def test_a_uid_that_would_be_another_place(self, uid: str) -> None:
        with pytest.raises(ClaimError):
            check_uid(uid)
