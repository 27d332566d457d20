"""The advice that `vgpurun advise` makes of profiles, and the profiles that it refuses."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from support.profile_maker import OFFSET_NS, add_kernel, new_file, write
from vgpurun import abi
from vgpurun.errors import ProfileError
from vgpurun.profiles import advice, layout
from vgpurun.profiles.advice import Use

S = 1_000_000_000
GPU, OTHER_GPU = "GPU-5a1e0b52-0000-0000-0000-000000000000", "GPU-5a1e0b52-0000-0000-0000-000000000001"


def process(
    folder: Path, host: str, kernels: tuple[tuple[int, int, int], ...], life: tuple[int, int] = (0, 10), gpu: str = GPU
) -> Path:
    """Save the profile of a process; of each kernel its GPU time, for how much the fill is known, and how much."""
    folder.mkdir(exist_ok=True)
    file = new_file(["cuInit"], [gpu] if gpu else [])
    file.header.started_ns, file.header.ended_ns = (OFFSET_NS + at * S for at in life)
    for number, (gpu_s, known_s, filled_s) in enumerate(kernels):
        add_kernel(file, b"kernel%d" % number, 1, gpu_s * S, (known_s * S, filled_s * S))
    return write(folder / f"{host}-1-{len(list(folder.iterdir()))}{layout.SUFFIX}", file)


def container(name: str, host: str, folder: Path | None, uts: str = "") -> dict[str, Any]:
    """Return what the engine says of a container."""
    mounts = [{"Source": "/x", "Destination": "/y"}]
    if folder:
        mounts.append({"Source": str(folder), "Destination": abi.CONTAINER_PROFILE})
    return {"Name": f"/{name}", "Config": {"Hostname": host}, "HostConfig": {"UTSMode": uts}, "Mounts": mounts}


def read(name: str, host: str, folder: Path | None, is_member: bool = False) -> Use:
    said: list[str] = []
    use = advice.read_use(container(name, host, folder), is_member, said.append)
    assert said == []
    return use


def refusal(name: str, host: str, folder: Path | None) -> str:
    with pytest.raises(ProfileError) as caught:
        read(name, host, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def uses(folder: Path, *asked: tuple[float, float]) -> list[Use]:
    """Return containers that are busy for such parts of their time, and fill such parts of the GPU then."""
    return [
        Use(f"c{i}", GPU, i, i + 1, busy, fill, 1, False, frozenset({folder / str(i)}))
        for i, (busy, fill) in enumerate(asked)
    ]


@pytest.mark.parametrize(
    ("asked", "together", "in_turns"),
    [
        (((1, 1 / 8), (1, 1 / 8)), 1, 1 / 2),
        (((1, 1), (1, 1)), 1 / 2, 1 / 2),
        (((1, 1 / 2), (1, 1)), 2 / 3, 1 / 2),
        (((1 / 4, 1), (1 / 2, 1)), 1, 1),
        (((1, 1 / 2),) * 4, 1 / 2, 1 / 4),
    ],
)
def test_paces(tmp_path: Path, asked: tuple[tuple[float, float], ...], together: float, in_turns: float) -> None:
    found = advice.estimate(uses(tmp_path, *asked))
    assert found == pytest.approx((together, in_turns))
    assert found.sentence.endswith("there is nothing to gain.") == (together == in_turns)
    assert (
        f"about {round(100 * together)} % of its pace alone at best; one after the other {round(100 * in_turns)} %"
        in found.sentence
    )


def test_a_container_s_processes_count_together(tmp_path: Path) -> None:
    """Its time is that in which there was one of them; other containers may have the folder as well."""
    process(tmp_path / "p", "host", ((2, 2, 1), (1, 1, 1)), (0, 8))
    process(tmp_path / "p", "host", ((1, 0, 0),), (4, 10))
    process(tmp_path / "p", "host", ((6, 6, 6),), (100, 110))
    process(tmp_path / "p", "host-2", ((10, 10, 10),), (0, 10))
    use = read("a", "host", tmp_path / "p")
    assert (use.name, use.gpu, use.busy, use.fill, use.known) == ("a", GPU, 0.5, 8 / 9, 0.9)
    assert (use.began_ns, use.ended_ns) == (OFFSET_NS, OFFSET_NS + 110 * S)
    assert len(use.files) == 3
    assert read("b", "host-2", tmp_path / "p").busy == 1


def test_a_container_may_have_the_host_s_name(tmp_path: Path) -> None:
    process(tmp_path / "p", socket.gethostname(), ((2, 2, 1),))
    assert advice.read_use(container("a", "985cd6b7721d", tmp_path / "p", "host"), False, print).busy == 0.2


def test_times_of_processes_that_work_at_once_are_no_more_than_all(tmp_path: Path) -> None:
    for _ in range(3):
        process(tmp_path / "p", "host", ((10, 10, 5),))
    assert read("a", "host", tmp_path / "p").busy == 1


def test_no_profile(tmp_path: Path) -> None:
    assert refusal("a", "host", None) == "container a is not profiled; start it by `vgpurun run --profile DIR`"
    assert "No such file" in refusal("a", "host", tmp_path / "gone")
    process(tmp_path / "p", "other", ((1, 1, 1),))
    assert "has no profile of host host: did the program use the GPU?" in refusal("a", "host", tmp_path / "p")


def test_profiles_that_tell_too_little(tmp_path: Path) -> None:
    process(tmp_path / "idle", "host", ())
    assert "has no work on a GPU yet" in refusal("a", "host", tmp_path / "idle")
    process(tmp_path / "graphs", "host", ((4, 4, 1), (6, 0, 0)))
    assert "how full the GPU was for 60% of its GPU time" in refusal("a", "host", tmp_path / "graphs")
    process(tmp_path / "two", "host", ((4, 4, 1),))
    process(tmp_path / "two", "host", ((4, 4, 1),), gpu=OTHER_GPU)
    assert "has 2 GPUs in its profile" in refusal("a", "host", tmp_path / "two")
    process(tmp_path / "none", "host", ((4, 4, 1),), gpu="")
    assert "has 0 GPUs" in refusal("a", "host", tmp_path / "none")


@pytest.mark.parametrize("life", [(0, 0), (10, 0), (10, -(2**33))])
def test_lives_that_cannot_be(tmp_path: Path, life: tuple[int, int]) -> None:
    process(tmp_path / "p", "host", ((4, 4, 1),), life)
    assert "has no work on a GPU yet" in refusal("a", "host", tmp_path / "p")


def test_damaged_files_are_left_out(tmp_path: Path) -> None:
    whole = process(tmp_path / "p", "host", ((4, 4, 1),))
    (tmp_path / "p" / f"host-9-9{layout.SUFFIX}").write_bytes(os.urandom(layout.CHUNKS_OFFSET))
    (tmp_path / "p" / f"host-9-8{layout.SUFFIX}").symlink_to(whole)
    (tmp_path / "p" / f"host-\n\x1b[2J-9{layout.SUFFIX}").write_bytes(b"")
    said: list[str] = []
    use = advice.read_use(container("a", "host", tmp_path / "p"), False, said.append)
    assert (use.busy, use.fill) == (0.4, 0.25)
    assert len(said) == 2 and all("left out" in each and "\x1b" not in each for each in said)
    whole.unlink()
    with pytest.raises(ProfileError):
        advice.read_use(container("a", "host", tmp_path / "p"), False, said.append)


def test_whose_a_profile_is_must_be_known(tmp_path: Path) -> None:
    process(tmp_path / "p", "host", ((4, 4, 1),))
    both = [read(name, "host", tmp_path / "p") for name in "ab"]
    with pytest.raises(ProfileError, match="containers a and b cannot be told apart"):
        advice.check(both)
    advice.check(uses(tmp_path, (1, 1), (1, 1)))


def test_what_the_estimate_leaves_out_is_said(tmp_path: Path) -> None:
    process(tmp_path / "p", "a", ((9, 9, 1), (1, 0, 0)), (0, 10))
    process(tmp_path / "p", "b", ((4, 4, 1),), (5, 15))
    process(tmp_path / "p", "c", ((4, 4, 1),), (15, 25))
    process(tmp_path / "p", "d", ((4, 4, 1),), (5, 15), OTHER_GPU)
    a, b, c, d = (read(name, name, tmp_path / "p", name == "c") for name in "abcd")

    def about(*uses: Use) -> list[str]:
        *before, last = advice.notes(uses)
        assert "bandwidth" in last
        return before

    beside, members = "beside each other", "Together with others already: c."
    assert about(b, c)[0].startswith(members) and len(about(b, c)) == 1
    (partly, also) = about(a, b)
    assert partly == "How full a has the GPU is known of 90% of its GPU time alone." and beside in also
    (only,) = about(b, d)
    assert only.startswith("They are on different GPUs")
    assert [each for each in about(a, b, c) if beside in each]
