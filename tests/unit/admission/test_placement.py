"""Tests where a launch goes, and when it is refused, by what is reserved and what is really free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import GIB, MIB, make_gpus

from vgpurun import abi
from vgpurun.admission.capacity import GpuCapacity, Share, capacities
from vgpurun.admission.grants import Grant
from vgpurun.admission.placement import Placement, place
from vgpurun.admission.request import Request
from vgpurun.config.schema import Maxima
from vgpurun.diagnostics import verify
from vgpurun.errors import GpuError, LimitError, NoRoomError, OptionError, QuotaError
from vgpurun.host.gpus import GpuUse
from vgpurun.inventory.reservations import Holder
from vgpurun.limits.model import Limits
from vgpurun.limits.quota import Quota, parse_size

GPUS = make_gpus(3)


def share(memory: int | None = None, sm: int | None = None, held: int | None = 0, user: str = "bob") -> Share:
    """Memory in GiB."""
    quota = Quota(None if memory is None else memory * GIB, sm)
    name = f"{user}'s"
    return Share(Holder("container", name, name, "", user, Path("/none"), ()), quota, held)


def in_turns(memory: int, sm: int | None = None, held: int = 0, state: int = abi.SWAPPED, user: str = "bob") -> Share:
    """Return a share that takes turns; memory in GiB, and `held` what its usage file says."""
    there = share(memory, sm, held, user)
    return replace(there, quota=replace(there.quota, takes_turns=True, suspended=state))


def capacity(index: int, *shares: Share, used: int = 0) -> GpuCapacity:
    return GpuCapacity(GPUS[index], shares, used)


def placed(
    *there: GpuCapacity, mem: str | None = None, sm: str | None = None, grant: Grant | None = None, **request: Any
) -> Placement:
    known = {each.gpu.index: each for each in there}
    everywhere = [known.get(gpu.index, GpuCapacity(gpu, (), 0)) for gpu in GPUS]
    return place(Request(Limits.read(mem, sm), **request), everywhere, grant or Grant("alice"))


def memory_of(placement: Placement) -> str | None:
    """Return --mem as it is after the placement."""
    return placement.limits.memory and placement.limits.memory.text


def indexes(*there: GpuCapacity, **request: Any) -> list[int]:
    return [gpu.index for gpu in placed(*there, **request).gpus]


FULL = share(8)


@pytest.mark.parametrize("limits", [{}, {"mem": "2g"}, {"sm": "50"}], ids=str)
def test_without_gpus_it_is_the_emptiest_one(limits: dict[str, str]) -> None:
    assert indexes(**limits) == [0]
    assert indexes(capacity(0, share(None, 10)), capacity(1, share(None)), sm="50") == [2]
    assert indexes(capacity(0, share(1)), capacity(1, share(2)), capacity(2, share(3)), mem="2g") == [0]


def test_binpack_takes_the_fullest_that_has_room() -> None:
    there = capacity(0, share(1)), capacity(1, share(5)), capacity(2, share(7))
    assert indexes(*there, mem="2g", policy="binpack") == [1]
    assert indexes(*there, mem="1g", policy="binpack") == [2]
    assert indexes(*there, mem="1g", sm="50", policy="spread") == [0]


def test_a_count_takes_that_many_and_names_are_among_them() -> None:
    there = capacity(0, FULL), capacity(1, share(1))
    assert indexes(*there, mem="2g", gpus="2") == [1, 2]
    assert indexes(*there, mem="2g", gpus="count=1") == [2]
    assert indexes(mem="1=2g", gpus="2") == [0, 1]
    assert indexes(mem="0=1g,2=50%") == [0, 2]
    assert indexes(mem="1=1g", sm="2=50") == [1, 2]
    assert indexes(mem="1g", gpus="all") == [0, 1, 2]
    assert indexes(mem="1g", gpus="device=2") == [2]
    with pytest.raises(OptionError, match="name 2 GPUs"):
        placed(mem="0=1g,1=1g", gpus="1")
    with pytest.raises(NoRoomError, match="on 3 GPUs"):
        placed(*there, mem="2g", gpus="3")


def refusal(*there: GpuCapacity, **request: Any) -> NoRoomError:
    with pytest.raises(NoRoomError) as caught:
        placed(*there, **request)
    return caught.value


def test_reservations_are_at_most_the_memory() -> None:
    assert indexes(capacity(0, share(6)), mem="2g", gpus="device=0") == [0]
    error = refusal(capacity(0, share(6)), mem=f"{2 * GIB + 1}", gpus="device=0")
    assert "no room" in str(error) and "2 GiB is free" in str(error) and "--wait" in str(error)
    assert [line.split() for line in error.details.splitlines()] == [
        ["GPU", "HOLDER", "USER", "MEMORY", "SM"],
        ["0", "bob's", "bob", "6", "GiB", "no", "limit"],
        ["0", "(free)", "2", "GiB", "100", "%"],
    ]


def test_compute_reservations_are_at_most_all_of_it() -> None:
    there = capacity(0, share(1, 60), share(1, None))
    assert indexes(there, mem="1g", sm="40", gpus="device=0") == [0]
    assert indexes(there, mem="1g", gpus="device=0") == [0], "a launch without --sm reserves no compute"
    assert "40 % of its time" in str(refusal(there, mem="1g", sm="41", gpus="device=0"))


def test_what_may_take_all_and_reservations_do_not_go_together() -> None:
    assert indexes(capacity(0, share(None)), gpus="device=0") == [0], "as without vgpurun"
    said = str(refusal(capacity(0, share(2)), gpus="device=0"))
    assert "without --mem it could take the 2 GiB" in said and "; give --mem, queue with --wait" in said
    error = refusal(capacity(0, share(None)), mem="1g", gpus="device=0")
    assert "may take all of it; limit that one, queue with --wait" in str(error)
    assert error.details.splitlines()[-1].split() == ["0", "(free)", "none", "100", "%"]
    assert "; ask for less," in str(refusal(capacity(0, share(2)), capacity(1, share(None)), mem="7g", gpus="2"))
    assert indexes(capacity(0, share(2))) == [1]
    assert indexes(capacity(0, share(None)), mem="1g") == [1]


def test_what_nvml_shows_beside_the_reservations_is_not_free() -> None:
    outside = capacity(0, share(2, held=2 * GIB), used=5 * GIB)
    assert outside.outside_bytes == 3 * GIB
    assert outside.free_bytes == 3 * GIB
    assert "3 GiB is free" in str(refusal(outside, mem="4g", gpus="device=0"))
    assert "(in use without a limit)" in refusal(outside, mem="4g", gpus="device=0").details
    assert indexes(outside, mem="3g", gpus="device=0") == [0]


def test_what_a_reservation_holds_already_is_not_counted_twice() -> None:
    assert capacity(0, share(4, held=3 * GIB), used=3 * GIB).free_bytes == 4 * GIB
    assert capacity(0, share(4, held=None), used=3 * GIB).free_bytes == 4 * GIB, "unknown: at most its reservation"
    lying = capacity(0, share(4, held=100 * GIB), used=6 * GIB)
    assert lying.outside_bytes == 2 * GIB, "a reading above its reservation hides nothing"
    assert capacity(0, share(None, held=3 * GIB), used=3 * GIB).outside_bytes == 3 * GIB


def test_little_outside_use_does_not_count_against_exact_shares() -> None:
    quarter = share(2, held=0)
    there = capacity(0, quarter, quarter, quarter, used=300 * MIB)
    assert indexes(there, mem="25%", gpus="device=0") == [0]
    assert memory_of(placed(there, mem="max", gpus="device=0")) == f"{GPUS[0].uuid}=1748m"
    assert "is free" in str(refusal(replace(there, used_bytes=500 * MIB), mem="25%", gpus="device=0"))


def test_max_is_all_that_is_left_on_each() -> None:
    there = capacity(0, share(6)), capacity(1, share(1))
    assert memory_of(placed(*there, mem="max", gpus="2")) == f"{GPUS[1].uuid}=7g,{GPUS[2].uuid}=8g"
    assert memory_of(placed(*there, mem="0=MAX,1=2g")) == f"{GPUS[0].uuid}=2g,{GPUS[1].uuid}=2g"
    for overcommit in (False, True):
        full = capacity(0, FULL)
        assert "nothing is free" in str(refusal(full, mem="max", gpus="device=0", is_overcommit=overcommit))


def test_overcommit_goes_where_there_is_room_first() -> None:
    there = capacity(0, share(7)), capacity(1, share(5)), capacity(2, share(6))
    assert indexes(*there, mem="2g", is_overcommit=True, policy="binpack") == [2]
    assert indexes(*there, mem="4g", is_overcommit=True, policy="binpack") == [1], "none has room: the emptiest"
    assert indexes(capacity(0, FULL), mem="8g", gpus="device=0", is_overcommit=True) == [0]


def test_a_change_asks_for_what_grows_alone() -> None:
    before = {GPUS[0].uuid: Quota(6 * GIB, 40)}
    there = capacity(0, share(8, 50))  # overcommitted: 14 of 8 GiB are reserved
    change = {"gpus": "device=0", "before": before}
    for mem, sm in [("6g", "50"), ("4g", "50"), ("6g", "40")]:
        assert indexes(there, mem=mem, sm=sm, **change) == [0]
    assert "0 bytes is free" in str(refusal(there, mem="7g", sm="40", **change))
    assert "without --mem" in str(refusal(there, sm="50", **change)), "no limit is more than any"
    assert "50 % of its time is free" in str(refusal(there, mem="6g", sm="60", **change))
    unlimited = {GPUS[0].uuid: Quota(None, 40)}
    assert indexes(there, sm="50", gpus="device=0", before=unlimited) == [0]
    assert "0 bytes is free" in str(refusal(there, mem="6g", sm="50", gpus="device=0")), "a launch has nothing yet"


def test_what_a_holder_uses_goes_with_it() -> None:
    mine, others = share(4, 40, held=3 * GIB, user="alice"), share(1, held=GIB)
    there = capacity(0, mine, others, used=5 * GIB)
    assert there.outside_bytes == GIB
    without = there.without(mine.holder.id)
    assert (without.shares, without.outside_bytes, without.free_bytes) == (there.shares[1:], GIB, 6 * GIB)
    assert there.without("nobody's") == there
    over = capacity(0, share(1, 40, held=3 * GIB, user="alice"), others, used=5 * GIB)
    assert over.without(mine.holder.id).outside_bytes == 3 * GIB, "a container may write what it likes"
    assert over.without(mine.holder.id, 3 * GIB).outside_bytes == GIB, "the driver knows"


def test_limits_of_the_environment_count() -> None:
    environment = {"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_MEMORY_LIMIT_0": "1g"}
    assert indexes(capacity(0, share(7)), environment=environment, gpus="device=0") == [0], "it is the program's GPU 0"
    there = capacity(0, share(7)), capacity(1, share(5)), capacity(2, share(4))
    assert indexes(capacity(2, share(7)), environment=environment, gpus="2", mem="8g") == [0, 1]
    assert indexes(*there, environment={"CUDA_DEVICE_MEMORY_LIMIT_2": "4g"}, mem="2=8g", is_local=True) == [2]


def test_what_can_never_be_is_said_as_such() -> None:
    with pytest.raises(LimitError, match="more than GPU 0 has"):
        placed(capacity(0, FULL), mem="9g")
    with pytest.raises(LimitError, match="not a size"):
        placed(mem="much")
    with pytest.raises(GpuError):
        placed(gpus="4")
    with pytest.raises(LimitError, match="'7'"):
        placed(mem="7=1g")


def test_a_gpu_that_is_too_small_or_in_mig_mode_is_passed_over() -> None:
    gpus = [replace(GPUS[0], memory_bytes=GIB), replace(GPUS[1], mig_enabled=True), GPUS[2]]
    there = [GpuCapacity(gpu, (), 0) for gpu in gpus]
    assert place(Request(Limits.read("2g")), there, Grant("alice")).gpus == (GPUS[2],)
    with pytest.raises(GpuError, match="MIG"):
        place(Request(Limits.read("1g"), "3"), there, Grant("alice"))


def granted(**maxima: Any) -> Grant:
    origins = {key: f"/etc/config.yaml:{number}" for number, key in enumerate(maxima)}
    return Grant("alice", Maxima(**maxima, origins=origins))


MINE = share(3, 30, user="alice")


@pytest.mark.parametrize(
    ("maxima", "request_", "words"),
    [
        ({"memory_per_gpu": parse_size("50%")}, {"mem": "5g"}, "5 GiB on GPU 0, more than the 4 GiB for user alice"),
        ({"memory_per_gpu": parse_size("4g")}, {}, "8 GiB on GPU 0"),
        ({"memory": parse_size("6g")}, {"mem": "4g", "gpus": "2"}, "8 GiB, more than the 6 GiB"),
        ({"sm_per_gpu": 50}, {"mem": "1g"}, "100 % on GPU 0, more than the 50 %"),
        ({"sm": 100}, {"sm": "60", "gpus": "2"}, "120 %, more than the 100 %"),
        ({"containers": 0}, {"mem": "1g"}, "may start no containers"),
        ({"gpus": ("2",)}, {"gpus": "device=0"}, "may not use GPU 0; allowed: 2"),
        ({"gpus": ("2",)}, {"gpus": "2"}, "may use 1 of the GPUs, not 2; allowed: 2"),
        ({"overcommit": False}, {"is_overcommit": True}, "may not use --overcommit"),
    ],
    ids=str,
)
def test_what_the_administrator_never_grants(maxima: dict, request_: dict, words: str) -> None:
    with pytest.raises(QuotaError) as caught:
        placed(grant=granted(**maxima), **request_)
    assert words in str(caught.value)
    assert "/etc/config.yaml:0" in str(caught.value)


@pytest.mark.parametrize(
    ("maxima", "words"),
    [
        ({"memory_per_gpu": parse_size("4g")}, "3 GiB of the 4 GiB"),
        ({"memory": parse_size("4g")}, "3 GiB of the 4 GiB"),
        ({"sm_per_gpu": 50}, "30 % of the 50 %"),
        ({"sm": 50}, "30 % of the 50 %"),
        ({"containers": 1}, "1 of the 1 for"),
    ],
    ids=str,
)
def test_what_the_user_has_already_counts_and_what_others_have_does_not(maxima: dict, words: str) -> None:
    wish = {"mem": "2g", "sm": "30", "gpus": "device=0", "grant": granted(**maxima)}
    assert words in str(refusal(capacity(0, MINE), **wish))
    assert indexes(capacity(0, share(3, 30, user="bob")), **wish) == [0]
    with pytest.raises(NoRoomError):
        placed(capacity(0, MINE), **wish, is_overcommit=True)


@pytest.mark.parametrize(
    "maxima",
    [
        {"memory_per_gpu": parse_size("4g")},
        {"memory": parse_size("4g")},
        {"memory": parse_size("2g")},
        {"containers": 1},
        {"containers": 0},
    ],
    ids=str,
)
def test_a_change_is_held_against_the_maxima_of_what_grows(maxima: dict) -> None:
    """A container that has more than a new quota of the administrator's keeps what it has."""
    wish = {"sm": "60", "gpus": "device=0", "before": {GPUS[0].uuid: Quota(3 * GIB, 40)}, "grant": granted(**maxima)}
    assert indexes(capacity(0, MINE), mem="3g", **wish) == [0]
    if "containers" not in maxima:
        with pytest.raises((NoRoomError, QuotaError)):
            placed(capacity(0, MINE), mem="3.5g", **wish)
    with pytest.raises((NoRoomError, QuotaError)):
        placed(capacity(0, MINE), mem="3g", **{**wish, "grant": granted(sm_per_gpu=50)})
    with pytest.raises((NoRoomError, QuotaError)):
        placed(capacity(0, MINE), mem="3g", **{**wish, "grant": granted(sm=80)})


def test_who_has_had_enough_waits_for_no_gpu() -> None:
    """Else a queue for what is free would grow behind somebody who may not have it."""
    grant = granted(memory_per_gpu=parse_size("4g"))
    assert list(refusal(capacity(0, MINE), mem="2g", gpus="device=0", grant=grant).gpus) == []
    assert list(refusal(capacity(0, MINE), mem="2g", gpus="device=0", grant=granted(containers=1)).gpus) == []
    there = capacity(0, MINE), capacity(1, FULL), capacity(2, FULL)
    assert list(refusal(*there, mem="2g", grant=grant).gpus) == [GPUS[1].uuid, GPUS[2].uuid]


def test_the_way_out_is_one_that_the_user_has() -> None:
    wish = {"mem": "2g", "gpus": "device=0"}
    assert "or share regardless with --overcommit" in str(refusal(capacity(0, FULL), **wish))
    assert str(refusal(capacity(0, FULL), **wish, grant=granted(overcommit=False))).endswith(
        "; ask for less, or queue with --wait"
    )
    own = granted(memory_per_gpu=parse_size("4g"))
    assert str(refusal(capacity(0, MINE), **wish, grant=own)).endswith("; end one, ask for less, or queue with --wait")
    for grant in (granted(), granted(overcommit=False), own):
        said = verify.reason_of(f"vgpurun: {refusal(capacity(0, FULL, MINE), **wish, grant=grant)}\nGPU  HOLDER\n")
        assert said.endswith("ask for less"), "verify has no such options"
    said = verify.reason_of(f"vgpurun: {refusal(capacity(0, share(None)), **wish)}\nGPU  HOLDER\n")
    assert said.endswith("limit that one")


def test_where_one_gpu_is_not_granted_another_is_taken() -> None:
    assert indexes(grant=granted(gpus=("2", "1")), mem="1g") == [1]
    assert indexes(capacity(0, MINE), grant=granted(memory_per_gpu=parse_size("4g")), mem="2g", policy="binpack") == [1]


def test_a_gpu_that_nobody_asked_for_is_not_named() -> None:
    """The refusal names what is wrong with the GPUs that a group has by `gpus`."""
    grant = granted(gpus=("2", "1"), memory_per_gpu=parse_size("4g"))
    with pytest.raises(QuotaError, match="5 GiB on GPU 1, more than the 4 GiB"):
        placed(grant=grant, mem="5g")
    with pytest.raises(QuotaError, match=r"may use 2 of the GPUs, not 3; allowed: 2, 1$"):
        placed(grant=grant, mem="1g", gpus="3")
    with pytest.raises(QuotaError, match=r"may use 0 of the GPUs, not 1; allowed: none"):
        placed(grant=granted(gpus=()), mem="1g")
    with pytest.raises(QuotaError, match="may not use GPU 0; allowed: 2, 1"):
        placed(grant=grant, mem="1g", gpus="device=0")
    full = refusal(capacity(1, FULL), capacity(2, FULL), mem="2g", grant=grant)
    assert "GPU 0" not in f"{full}" and [line.split()[0] for line in full.details.splitlines()[1:]] == [
        "1",
        "1",
        "2",
        "2",
    ]


def test_who_gets_hardly_any_time_without_sm_is_told() -> None:
    """The library gives one without a limit what the limits of others leave, and 1 % at least."""
    there = capacity(0, share(1, 70), share(1, 30, user="ann"))
    assert there.crowding(Quota(GIB)) == (
        "100 % of the time of GPU 0 is reserved: without --sm this gets 1 % while the others use theirs"
    )
    assert there.crowding(Quota(GIB, 1)) == "", "it was asked for"
    assert there.crowding(Quota(GIB), Quota(GIB)) == "", "that is how it was before the change"
    assert "gets 1 %" in there.crowding(Quota(GIB), Quota(GIB, 20)), "a limit is lifted"
    for shares, left in (((share(1, 91),), 9), ((share(1, 70), share(1), share(1), share(1)), 7)):
        assert f"gets {left} %" in capacity(0, *shares).crowding(Quota(GIB))
    for shares in ((share(1, 90),), (share(1, 70), share(1)), ()):
        assert capacity(0, *shares).crowding(Quota(GIB)) == ""


def test_shares_come_from_the_holders_of_each_gpu() -> None:
    both = Holder("container", "x", "x", "", "bob", Path("/none"), ((GPUS[0].uuid, Quota(GIB)), ("GPU-gone", Quota())))
    found = capacities(GPUS, [GpuUse(5, None)] * 3, [both])
    assert [len(each.shares) for each in found] == [1, 0, 0]
    assert found[0].shares[0] == Share(both, Quota(GIB), 0)


ALL_DEFAULT = frozenset(("mem", "sm", "overcommit"))


@pytest.mark.parametrize(
    ("maxima", "given", "expected", "words"),
    [
        (
            {"sm_per_gpu": 25},
            {"mem": "25%", "sm": "50"},
            ("25%", "25"),
            ["the default --sm is lowered to 25 %, the most for user alice"],
        ),
        ({"sm_per_gpu": 50}, {"mem": "25%", "sm": "50"}, ("25%", "50"), []),
        ({"sm": 30}, {"sm": "0=40"}, (None, "30"), ["the default --sm is lowered to 30 %"]),
        ({"sm": 30}, {"sm": "20", "gpus": "2"}, (None, "15"), ["the default --sm is lowered to 15 %"]),
        ({"sm_per_gpu": 25}, {"sm": "100"}, (None, "25"), ["the default --sm is lowered to 25 %"]),
        (
            {"memory_per_gpu": parse_size("25%")},
            {"mem": "4g"},
            ("2g", None),
            ["the default --mem is lowered to 2 GiB, the most for"],
        ),
        ({"memory_per_gpu": parse_size("3g")}, {"mem": "max"}, ("3g", None), []),
        ({"memory": parse_size("2g")}, {"mem": "100%"}, ("2g", None), ["the default --mem is lowered to 2 GiB"]),
        ({"overcommit": False}, {"is_overcommit": True}, (None, None), []),
    ],
    ids=str,
)
def test_a_default_is_lowered_to_what_the_user_may_have(
    maxima: dict[str, Any], given: dict[str, Any], expected: tuple[str | None, str | None], words: list[str]
) -> None:
    grant = Grant("alice", Maxima(**maxima))
    found = placed(**given, grant=grant, defaults=ALL_DEFAULT)
    texts = [each and each.text for each in (found.limits.memory, found.limits.sm)]
    assert tuple(text and text.rpartition("=")[2] for text in texts) == expected
    assert len(found.lowered) == len(words) and all(
        word in line for word, line in zip(words, found.lowered, strict=True)
    )
    again = placed(mem=texts[0], sm=texts[1], grant=grant, gpus=given.get("gpus"))
    assert again.limits == found.limits, "it is what can be reserved"


def test_what_was_asked_for_is_not_lowered() -> None:
    grant = Grant("alice", Maxima(sm_per_gpu=25, memory_per_gpu=parse_size("2g"), overcommit=False))
    for given in (
        {"mem": "4g", "sm": "25"},
        {"mem": "1g", "sm": "50"},
        {"mem": "1g", "sm": "1", "is_overcommit": True},
    ):
        with pytest.raises(QuotaError):
            placed(**given, grant=grant)
    with pytest.raises(QuotaError, match="--sm"):
        placed(mem="8g", sm="50", grant=grant, defaults=frozenset(("mem",)))


def test_a_default_is_not_lowered_to_what_is_left() -> None:
    """Else it would be another one at each launch."""
    grant = Grant("alice", Maxima(sm=25))
    with pytest.raises(NoRoomError, match="10 % of the 25 % for user alice"):
        placed(capacity(0, share(1, 10, user="alice")), sm="50", grant=grant, defaults=ALL_DEFAULT)


@pytest.mark.parametrize(
    ("mem", "sm", "asked"),
    [("1g", "50", "--sm 50"), ("9g", "20", "--mem 9g"), ("9g", "50", "--mem 9g --sm 50"), (None, "20", "--mem 100%")],
)
def test_a_change_is_refused_by_what_it_makes_larger(mem: str | None, sm: str, asked: str) -> None:
    gpu = replace(GPUS[0], memory_bytes=16 * GIB)
    there = [GpuCapacity(gpu, (share(8, 60),), 0)]
    request = Request(Limits.read(mem, sm), gpus=f"device={gpu.uuid}", before={gpu.uuid: Quota(GIB, 20)})
    with pytest.raises(NoRoomError, match=f"no room for {asked} on GPU 0: "):
        place(request, there, Grant("alice"))


def swapping(*there: GpuCapacity, mem: str, sm: str | None = None) -> Placement:
    known = {each.gpu.index: each for each in there}
    everywhere = [known.get(gpu.index, GpuCapacity(gpu, (), 0)) for gpu in GPUS]
    return place(Request(Limits.read(mem, sm, swap=True), gpus="device=0"), everywhere, Grant("alice"))


def test_those_that_take_turns_share_the_largest_of_their_reservations() -> None:
    there = capacity(0, in_turns(7, 50), in_turns(6, 80), share(1, 20))
    assert (there.reserved_bytes, there.reserved_sm_percent) == (8 * GIB, 100)
    assert there.free_bytes == 0 and there.free_for(takes_turns=True) == 7 * GIB
    assert swapping(there, mem="7g", sm="80").limits.swap
    with pytest.raises(NoRoomError, match="7 GiB is free"):
        swapping(there, mem="8g")
    with pytest.raises(NoRoomError, match="80 % of its time is free"):
        swapping(there, mem="1g", sm="81")
    with pytest.raises(NoRoomError, match="0 bytes is free"):
        placed(there, mem="1m", gpus="device=0")
    assert memory_of(swapping(there, mem="max")) == f"{GPUS[0].uuid}=7g"


def test_the_memory_of_turns_is_counted_once() -> None:
    """Memory that waits on the host is not on the GPU, whatever the usage file says, and the rest is not outside."""
    here = in_turns(7, held=6 * GIB, state=abi.NOT_SUSPENDED)
    there = capacity(0, here, in_turns(7, held=5 * GIB), used=6 * GIB)
    assert (there.outside_bytes, there.free_bytes) == (0, GIB)
    gone = there.without("nobody's")
    assert gone.outside_bytes == 0
    both = capacity(0, here, here, used=12 * GIB)  # for a moment, after docker start
    assert both.outside_bytes == 5 * GIB


def test_one_that_is_suspended_has_no_part_in_the_turns() -> None:
    (found,) = capacities(
        GPUS[:1], [GpuUse(0, None)],
        [Holder("container", "a", "a", "", "bob", Path("/none"), (
            (GPUS[0].uuid, Quota(7 * GIB, takes_turns=True, suspended=abi.SUSPENDED)),
        ))],
    )  # fmt: skip
    assert found.free_bytes == 8 * GIB


def test_turns_take_a_memory_limit_and_each_counts_for_the_quotas() -> None:
    with pytest.raises(LimitError, match="--swap takes turns with a memory limit"):
        place(Request(Limits.read(swap=True), gpus="device=0"), [GpuCapacity(GPUS[0], (), 0)], Grant("alice"))
    grant = granted(memory_per_gpu=parse_size("10g"))
    there = [capacity(0, in_turns(6, user=grant.user))]
    with pytest.raises(NoRoomError, match="6 GiB of the 10 GiB"):
        place(Request(Limits.read("6g", swap=True), gpus="device=0"), there, grant)


def test_a_limit_of_one_that_takes_turns_grows_into_what_others_have_in_theirs() -> None:
    there = capacity(0, in_turns(7))
    before = {GPUS[0].uuid: Quota(2 * GIB, takes_turns=True)}
    request = Request(Limits.read("6g", swap=True), gpus="device=0", before=before)
    assert place(request, [there], Grant("alice")).gpus == (GPUS[0],)
