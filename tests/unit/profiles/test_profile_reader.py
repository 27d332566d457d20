"""The reader of profiles, on files made by hand: whole, growing, torn and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.profile_maker import OFFSET_NS, add_kernel, chunk, new_file, record, write
from vgpurun.errors import ProfileError
from vgpurun.profiles import layout
from vgpurun.profiles.model import ApiTotal, Call, CopyKind, GateWait, GpuSpan, KernelTotal, Sample
from vgpurun.profiles.reader import FileProfile, read_profiles

APIS = ["cuInit", "cuMemcpyHtoD_v2"]


def test_calls_are_those_of_all_threads_and_each_threads_in_order(tmp_path: Path) -> None:
    copy = record(layout.CALL, 200, 30, 4096, stream=7, api=1, device=0, copy=layout.HOST_TO_DEVICE)
    chunks = [
        chunk(3, 11, [record(layout.CALL, 300, 5, api=0)]),
        b"\0" * layout.CHUNK_SIZE,
        chunk(1, 11, [record(layout.CALL, 100, 5, api=0)]),
        chunk(2, 12, [copy]),
    ]
    profile = FileProfile(write(tmp_path / "a", new_file(APIS, ["GPU-a"]), chunks))
    assert list(profile.calls()) == [
        Call("cuInit", OFFSET_NS + 100, 5, 0, None, 11, -1, 0),
        Call("cuMemcpyHtoD_v2", OFFSET_NS + 200, 30, 4096, CopyKind.HOST_TO_DEVICE, 12, 0, 7),
        Call("cuInit", OFFSET_NS + 300, 5, 0, None, 11, -1, 0),
    ]
    assert profile.last_ns == OFFSET_NS + 305


def test_the_other_records(tmp_path: Path) -> None:
    records = [
        record(layout.SPAN, 10, 90, value=80 << 16 | 17, stream=5, device=0),
        record(layout.SPAN, 10, 90, value=91 << 16 | 1, stream=5, device=0),
        record(layout.WAIT, 20, 30, device=0),
        record(layout.SAMPLE, 50, value=1000, stream=40, device=0),
        record(layout.SAMPLE_MORE, 900, 2**64 - 1, value=77, device=0),
        record(layout.SAMPLE, 60, value=1001, stream=100, device=0),
        record(layout.SAMPLE_MORE, 901, 5000, value=78, device=0),
    ]
    profile = FileProfile(write(tmp_path / "a", new_file(APIS, ["GPU-a"]), [chunk(1, 4, records)]))
    spans = [GpuSpan(0, 5, OFFSET_NS + 10, 90, 17, 80), GpuSpan(0, 5, OFFSET_NS + 10, 90, 1, 90)]
    assert list(profile.spans()) == spans  # no part is more than the whole
    assert list(profile.waits()) == [GateWait(0, OFFSET_NS + 20, 30, 4)]
    assert list(profile.samples()) == [
        Sample(0, OFFSET_NS + 50, 1000, 900, None, 77, 40),
        Sample(0, OFFSET_NS + 60, 1001, 901, 5000, 78, 100),
    ]


def test_totals_are_the_sums_over_the_slots(tmp_path: Path) -> None:
    file = new_file(APIS)
    file.totals[0][1] = layout.Total(3, 1, 100, 50, 20)
    file.totals[15][1] = layout.Total(1, 0, 11, 60, 60)
    profile = FileProfile(write(tmp_path / "a", file))
    assert list(profile.totals) == [ApiTotal("cuMemcpyHtoD_v2", 4, 1, 111, 110, 60)]


def test_kernels_have_their_names(tmp_path: Path) -> None:
    file = new_file(APIS)
    add_kernel(file, b"gemm", 10, 5000)
    add_kernel(file, b"never launched", 0, 0)
    add_kernel(file, b"softmax", 2, 70)
    file.launches[15][0] = 3  # by other threads
    profile = FileProfile(write(tmp_path / "a", file))
    assert list(profile.kernels) == [KernelTotal("gemm", 13, 5000), KernelTotal("softmax", 2, 70)]


def test_how_much_of_the_gpu_kernels_filled_is_never_more_than_their_time(tmp_path: Path) -> None:
    file = new_file(APIS)
    add_kernel(file, b"half", 1, 5000, (4000, 2000))
    add_kernel(file, b"nonsense", 1, 70, (2**64 - 1, 2**64 - 2))
    profile = FileProfile(write(tmp_path / "a", file))
    assert list(profile.kernels) == [KernelTotal("half", 1, 5000, 4000, 2000), KernelTotal("nonsense", 1, 70, 70, 70)]


def test_a_process_that_ended_says_when(tmp_path: Path) -> None:
    file = new_file(APIS)
    assert FileProfile(write(tmp_path / "a", file)).ended_ns is None
    file.header.ended_ns = OFFSET_NS + 9
    profile = FileProfile(write(tmp_path / "a", file))
    assert (profile.ended_ns, profile.last_ns) == (OFFSET_NS + 9, OFFSET_NS + 9)


def test_what_a_record_cannot_mean_is_bounded(tmp_path: Path) -> None:
    odd = record(layout.CALL, 1, 1, api=300, device=31, copy=15)
    profile = FileProfile(write(tmp_path / "a", new_file(APIS, ["GPU-a"]), [chunk(1, 4, [odd], used=2**32 - 1)]))
    first = next(profile.calls())
    assert (first.api, first.device, first.kind) == ("api 300", -1, None)
    assert len(list(profile.calls())) == 1  # the rest of the chunk holds nothing


def test_half_a_chunk_at_the_end_is_left_out(tmp_path: Path) -> None:
    whole = chunk(1, 4, [record(layout.CALL, 1)])
    path = write(tmp_path / "a", new_file(APIS), [whole, chunk(2, 4, [record(layout.CALL, 2)])[:1000]])
    assert len(list(FileProfile(path).calls())) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a profile"),
        (b"x" * layout.CHUNKS_OFFSET, "is not a profile"),
        (bytes(new_file(APIS))[:-1], "is not a profile"),
        (bytes(new_file(APIS))[:8] + b"\x09\0\0\0" + bytes(new_file(APIS))[12:], "another version"),
    ],
)
def test_what_is_no_profile_is_said_to_be_none(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ProfileError, match=words):
        FileProfile(tmp_path / "a")


def test_a_folder_has_profiles_or_the_user_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="No such file"):
        read_profiles(tmp_path / "missing")
    with pytest.raises(ProfileError, match="did the program use the GPU"):
        read_profiles(tmp_path)
    (tmp_path / "notes.txt").write_text("not a profile")
    later, earlier = new_file(APIS), new_file(APIS)
    later.header.started_ns += 1
    write(tmp_path / f"a{layout.SUFFIX}", later)
    write(tmp_path / f"b{layout.SUFFIX}", earlier)
    assert [profile.path.stem for profile in read_profiles(tmp_path)] == ["b", "a"]
