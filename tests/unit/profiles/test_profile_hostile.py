"""Profiles that were written, damaged or crafted by a program that means no good: they are read, and bounded."""

from __future__ import annotations

import ctypes
import io
import json
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

import support.made_profiles as made
from support import command_line
from support.profile_maker import OFFSET_NS, add_kernel, chunk, new_file, record, write
from vgpurun.cli.views.report import print_summary
from vgpurun.errors import ProfileError
from vgpurun.profiles import alnair, demangling, layout, report_tables, trace
from vgpurun.profiles.described import describe
from vgpurun.profiles.names import kernel_name
from vgpurun.profiles.reader import FileProfile, read_profiles
from vgpurun.profiles.summary import summarize

RECORDS = 500
KINDS = (layout.CALL, layout.SPAN, layout.WAIT, layout.SAMPLE, layout.SAMPLE_MORE)


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def random_chunk(chance: random.Random) -> bytes:
    """Records of known kinds with random values, of which some are small."""
    records = []
    for _ in range(RECORDS):
        start_ns, duration_ns, value = (chance.getrandbits(chance.choice((20, 35, 64))) for _ in range(3))
        device, copy = chance.choice((0, 1, 31, 255)), chance.randrange(16)
        kind = chance.choice(KINDS)
        records.append(record(kind, start_ns, duration_ns, value, chance.getrandbits(32), 300, device, copy))
    return chunk(chance.getrandbits(64), chance.getrandbits(32), records, used=chance.getrandbits(32))


def random_file(chance: random.Random) -> bytes:
    """Random from the first byte that may be; now and then the header, or its times, are good ones."""
    good = bytes(new_file(["cuInit"], ["GPU-a"]))
    kept = chance.choice((12, 48, ctypes.sizeof(layout.Header)))
    return good[:kept] + chance.randbytes(len(good) - kept)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_files_are_reported(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    for number in range(2):
        content = random_file(chance).ljust(layout.CHUNKS_OFFSET, b"\0") + random_chunk(chance) + chance.randbytes(99)
        (tmp_path / f"{number}{layout.SUFFIX}").write_bytes(content)
    profiles = read_profiles(tmp_path)
    summary = summarize(profiles)
    shown = io.StringIO()
    print_summary(summary, shown)
    assert all(letter.isprintable() or letter == "\n" for letter in shown.getvalue())
    json.dumps(describe(summary))
    traced, timeline = io.StringIO(), io.StringIO()
    trace.write(profiles, traced)
    assert len(json.loads(traced.getvalue())["traceEvents"]) > RECORDS // 2
    alnair.write_metrics(profiles, io.StringIO())
    written = alnair.write_timeline(profiles, timeline)
    assert written == timeline.getvalue().count("\n") == sum(1 for profile in profiles for _ in profile.calls())
    assert all(table.rows is not None for table in (report_tables.apis(summary), report_tables.kernels(summary)))


def test_texts_steer_nothing(tmp_path: Path) -> None:
    file = new_file(["cuInit\x1b[2J"], ["GPU-\x1b]0;owned\x07"])
    file.header.command = b"python \x9b2J\x1b[2J\nimport torch"
    add_kernel(file, b"kernel\r\x1b[1A", 1, 10)
    file.totals[0][0] = layout.Total(1, 0, 0, 5, 5)
    write(tmp_path / f"a{layout.SUFFIX}", file)
    text = io.StringIO()
    summary = summarize(read_profiles(tmp_path))
    print_summary(summary, text)
    for shown in (text.getvalue(), json.dumps(describe(summary), ensure_ascii=False)):
        assert all(letter.isprintable() or letter == "\n" for letter in shown)


def nested(levels: int) -> str:
    """A symbol that is short, and stands for a name that doubles with each level."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "_Z1f1pIiiE" + "".join(f"S_IS{digits[level]}_S{digits[level]}_E" for level in range(levels))


@pytest.mark.slow
def test_a_symbol_cannot_take_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demangling.Demangler, "only", demangling.Demangler())
    monkeypatch.setattr(demangling, "_PATIENCE_S", 20)
    assert kernel_name("_Z4gemmPfi") == "gemm(float*, int)"
    assert len(kernel_name(nested(12))) == 2001
    monkeypatch.setattr(demangling, "_PATIENCE_S", 0.5)
    assert kernel_name(nested(32)) == nested(32)  # 40 GB of letters
    monkeypatch.setattr(demangling, "_PATIENCE_S", 20)
    assert kernel_name("_Z4axpyPfi") == "axpy(float*, int)"
    demangling.Demangler.only.end()


def test_symbols_that_take_too_long_stay_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = tmp_path / "silent.py"
    silent.write_text("import sys\nfor line in sys.stdin: pass\n")
    before, tried = children(), demangling.Demangler()
    monkeypatch.setattr(demangling, "_PROGRAM", silent)
    monkeypatch.setattr(demangling, "_PATIENCE_S", 0.05)
    assert [tried.ask(f"_Z1{letter}v") for letter in "abcde"] == [f"_Z1{letter}v" for letter in "abcde"]
    assert tried.started == 3 and children() == before


def test_the_demangler_goes_when_the_report_does() -> None:
    code = (
        "import os, pathlib; from vgpurun.profiles import names; names.kernel_name('_Z1fv');"
        "print(pathlib.Path(f'/proc/self/task/{os.getpid()}/children').read_text())"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path(f"/proc/{done.stdout.strip()}").exists()


def test_names_that_overlap_are_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    file = new_file(["cuInit"])
    for index, each in enumerate(file.kernels):
        each.name_offset, each.name_length, file.launches[0][index] = 0, 2**32 - 1, 1
    file.header.kernel_count = 2**32 - 1
    kernels = FileProfile(write(tmp_path / "a", file)).kernels
    assert len(kernels) == layout.MAX_KERNELS
    assert sum(len(kernel.name) for kernel in kernels) == layout.NAMES_SIZE


@pytest.mark.slow
def test_a_large_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    chunks = [chunk(serial, 1, [record(layout.CALL, serial, 5)] * 2000) for serial in range(1, 65)]
    profile = FileProfile(write(tmp_path / "a", new_file(["cuInit"]), chunks))
    del chunks
    tracemalloc.start()
    assert sum(1 for _ in profile.calls()) == 64 * 2000
    assert sum(1 for _ in profile.spans()) == 0
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2 << 20  # the file has 4 MiB of records


@pytest.mark.slow
def test_many_processes_take_little_memory(tmp_path: Path) -> None:
    file = new_file(["cuInit", "cuMemAlloc_v2"], ["GPU-a"])
    file.totals[0][0] = layout.Total(1, 0, 0, 5, 5)
    for number in range(64):
        write(tmp_path / f"{number}{layout.SUFFIX}", file, [chunk(1, 1, [record(layout.CALL, 1, 5)])])
    tracemalloc.start()
    profiles = read_profiles(tmp_path)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(profiles) == 64
    assert kept_bytes < 64 * 16_000  # each file has 2 MB


def test_the_end_is_that_of_the_last_record_also_behind_samples(tmp_path: Path) -> None:
    samples = [record(layout.SAMPLE, 500, device=0), record(layout.SAMPLE_MORE, 9, 9, 9, device=0)] * 2
    records = [record(layout.CALL, 400, 100), *samples]
    profile = FileProfile(write(tmp_path / "a", new_file(["cuInit"], ["GPU-a"]), [chunk(1, 4, records)]))
    assert profile.last_ns == OFFSET_NS + 500


def test_a_file_that_is_none_hides_no_other(tmp_path: Path) -> None:
    """A process that is killed while it makes its file leaves one that is empty, or has only zeros."""
    folder = made.save([made.training(2)], tmp_path / "run")
    for name, content in (("empty", b""), ("begun", b"\0" * layout.CHUNKS_OFFSET)):
        (folder / f"{name}{layout.SUFFIX}").write_bytes(content)
    command = ["report", "--format", "text", str(folder)]
    done = command_line.run(command, os.environ)
    assert done.returncode == 0 and done.stdout.startswith("python train.py\n")
    start = f"vgpurun: warning: left out: {folder}"
    said = [f"{start}/{name}{layout.SUFFIX} is not a profile" for name in ("begun", "empty")]
    assert [line.partition(",")[0] for line in done.stderr.splitlines()] == said
    for path in folder.glob("*-*"):
        path.unlink()
    done = command_line.run(command, os.environ)
    assert (done.returncode, done.stdout) == (125, "") and done.stderr.count("\n") == 1


def test_a_pipe_is_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"a{layout.SUFFIX}")
    with pytest.raises(ProfileError, match="not a regular file"):
        read_profiles(tmp_path)


def test_a_link_to_the_profile_of_another_is_not_read(tmp_path: Path) -> None:
    """The report would show it to all who may read the folder."""
    others = made.save([made.training(2)], tmp_path / "others")
    (tmp_path / f"a{layout.SUFFIX}").symlink_to(next(others.iterdir()))
    with pytest.raises(ProfileError, match="symbolic link"):
        read_profiles(tmp_path)


def test_holes_of_a_file_are_not_gone_through(tmp_path: Path) -> None:
    file = new_file(["cuInit"])
    path = write(tmp_path / "a", file, [chunk(1, 1, [record(layout.CALL, 1, 5)])])
    far = layout.CHUNKS_OFFSET + layout.CHUNK_SIZE * 2**24
    with path.open("r+b") as opened:
        opened.truncate(2**43)
        opened.seek(far)
        opened.write(chunk(2, 1, [record(layout.CALL, 9, 5)]))
    assert [call.start_ns - OFFSET_NS for call in FileProfile(path).calls()] == [1, 9]


@pytest.mark.slow
def test_pictures_follow_no_link(tmp_path: Path) -> None:
    """The profiled program may have put links where the report will write."""
    folder, precious = made.save([made.training(2)], tmp_path / "run"), tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    command = ["report", "--format", "svg", str(folder)]
    (folder / "pictures").symlink_to(precious)
    done = command_line.run(command, os.environ)
    assert done.returncode == 125 and done.stderr == (
        f"vgpurun: {folder}/pictures is a link; --output names another place\n"
    )
    (folder / "pictures").unlink()
    (folder / "pictures").mkdir()
    (folder / "pictures" / "timeline.svg").symlink_to(precious / "file")
    assert command_line.run(command, os.environ).returncode == 0
    assert [path.name for path in precious.iterdir()] == ["file"] and (precious / "file").read_text() == "mine"
    assert (folder / "pictures" / "timeline.svg").read_text().startswith("<?xml")


def test_a_file_that_goes_while_it_is_read_is_said(tmp_path: Path) -> None:
    folder = made.save([made.training(2)], tmp_path / "run")
    (profile,) = read_profiles(folder)
    next(folder.iterdir()).unlink()
    done = command_line.run(["report", str(folder)], os.environ)
    assert (done.returncode, done.stdout) == (125, "") and done.stderr.count("\n") == 1
    with pytest.raises(ProfileError, match="No such file"):
        list(profile.calls())
