"""--oversubscribe: what a program sees beyond its share of a device."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import make_gpus

from vgpurun.errors import LimitError
from vgpurun.limits import limits_file, update
from vgpurun.limits.model import DeviceQuota, Limits, quotas_from_json, quotas_to_json
from vgpurun.limits.oversubscription import oversubscribe, parse_oversubscription
from vgpurun.limits.quota import Quota

GIB = 1 << 30
GPUS = make_gpus(2)
SHARE = Quota(memory_bytes=2 * GIB)


def test_for_all_or_for_some() -> None:
    assert oversubscribe(GPUS, [SHARE, SHARE], None) == [SHARE, SHARE]
    assert [each.virtual_bytes for each in oversubscribe(GPUS, [SHARE, SHARE], parse_oversubscription("8g"))] == [
        8 * GIB
    ] * 2
    assert [each.virtual_bytes for each in oversubscribe(GPUS, [SHARE, Quota()], parse_oversubscription("0=8g"))] == [
        8 * GIB,
        None,
    ]
    (half,) = oversubscribe(GPUS[:1], [SHARE], parse_oversubscription("50%"))
    assert half.virtual_bytes == GPUS[0].memory_bytes // 2


@pytest.mark.parametrize(
    ("share", "text", "words"),
    [
        (Quota(), "8g", "--oversubscribe 8g needs a share of GPU 0 that it goes beyond; give --mem too"),
        (SHARE, "2g", "--oversubscribe 2g is not more than the share of GPU 0, 2 GiB; raise it, or leave it out"),
        (SHARE, "1g", "is not more than the share"),
        (SHARE, "lots", "'lots' is not a size"),
        (SHARE, "7=8g", "--oversubscribe: no GPU '7' among"),
    ],
)
def test_errors(share: Quota, text: str, words: str) -> None:
    with pytest.raises(LimitError) as error:
        oversubscribe(GPUS[:1], [share], parse_oversubscription(text))
    assert words in str(error.value)


def test_the_files_and_the_label_keep_it(tmp_path: Path) -> None:
    (seen,) = oversubscribe(GPUS[:1], [SHARE], parse_oversubscription("8g"))
    (tmp_path / "limits").write_bytes(limits_file.limits_bytes([(GPUS[0].uuid, seen), (GPUS[1].uuid, SHARE)]))
    label = quotas_to_json([DeviceQuota(GPUS[0], seen), DeviceQuota(GPUS[1], SHARE)])
    assert quotas_from_json(label) == [(GPUS[0].uuid, seen), (GPUS[1].uuid, SHARE)]
    assert limits_file.read_limits(tmp_path / "limits") == [(GPUS[0].uuid, seen), (GPUS[1].uuid, SHARE)]


def test_it_is_lifted_from_a_container_that_runs(tmp_path: Path) -> None:
    container, path = SimpleNamespace(id="c", name="c", limits_folder=tmp_path), tmp_path / "etc" / "limits"
    path.parent.mkdir()
    path.write_bytes(limits_file.limits_bytes([(GPUS[0].uuid, Quota(GIB, virtual_bytes=4 * GIB))]))
    for limits, expected in (
        (Limits.read(sm="50"), Quota(GIB, 50, virtual_bytes=4 * GIB)),
        (Limits.read(oversubscribe="none"), Quota(GIB, 50)),
    ):
        (change,) = update.update(container, GPUS[:1], limits, lambda *_: nullcontext())
        assert change.after == expected and limits_file.read_limits(path) == [(GPUS[0].uuid, expected)]
