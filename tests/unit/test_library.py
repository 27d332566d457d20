"""Finding and checking libvgpu.so, and whether an image can load it."""

from __future__ import annotations

import platform
import threading
from pathlib import Path

import pytest
from elf_maker import AARCH64, X86_64, make_elf

import vgpurun
from lock_holder import held_by_process
from vgpurun import abi, cli
from vgpurun.cli.build import DEFAULT_BASE_IMAGE
from vgpurun.engine.image_libc import check_image
from vgpurun.errors import ImageError, LibraryError
from vgpurun.host import library
from vgpurun.host.library import Library

HERE = {"x86_64": X86_64, "aarch64": AARCH64}[platform.machine()]


def marker(version: str = vgpurun.__version__, abi_version: int = abi.ABI_VERSION) -> bytes:
    return f"\0{abi.MARKER_PREFIX}{version} abi={abi_version}\0".encode()


def write(path: Path, extra: bytes, machine: int = HERE) -> Path:
    path.write_bytes(
        make_elf(needed=("GLIBC_2.17", "GLIBC_2.3"), defined=("GLIBC_2.34",), machine=machine, extra=extra)
    )
    return path


def test_a_good_library(tmp_path: Path) -> None:
    path = write(tmp_path / "libvgpu.so", marker())
    assert library.check(path) == Library(path, vgpurun.__version__, platform.machine(), (2, 17))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (b"", "not libvgpu.so of vgpurun"),
        (marker("9.9.9"), "version 9.9.9"),
        (marker(abi_version=99), "ABI 99"),
    ],
)
def test_a_library_that_is_not_ours(tmp_path: Path, extra: bytes, words: str) -> None:
    with pytest.raises(LibraryError, match=words):
        library.check(write(tmp_path / "libvgpu.so", extra))


def test_a_library_for_another_machine(tmp_path: Path) -> None:
    other = AARCH64 if HERE == X86_64 else X86_64
    with pytest.raises(LibraryError, match=f"this host is {platform.machine()}"):
        library.check(write(tmp_path / "libvgpu.so", marker(), other))


def test_a_library_that_this_host_cannot_load(monkeypatch: pytest.MonkeyPatch) -> None:
    too_new = Library(Path("/x.so"), vgpurun.__version__, platform.machine(), (9, 1))
    with pytest.raises(LibraryError, match=r"/x\.so needs glibc 9\.1, but this host has 2\."):
        library.check_host(too_new)
    library.check_host(Library(Path("/x.so"), vgpurun.__version__, platform.machine(), (2, 17)))

    def no_glibc(name: str) -> str:
        raise ValueError(name)

    monkeypatch.setattr("os.confstr", no_glibc)
    with pytest.raises(LibraryError, match="not glibc"):
        library.check_host(too_new)


def test_what_is_no_library(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="No such file"):
        library.check(tmp_path / "missing.so")
    (tmp_path / "text.so").write_text("hello")
    with pytest.raises(LibraryError, match="ELF"):
        library.check(tmp_path / "text.so")


def test_a_named_library_is_used_or_refused_but_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "build", lambda: pytest.fail("built"))
    monkeypatch.setenv("VGPURUN_LIBRARY", str(write(tmp_path / "mine.so", marker())))
    assert library.find_or_build(print).path == tmp_path / "mine.so"
    monkeypatch.setenv("VGPURUN_LIBRARY", str(tmp_path / "missing.so"))
    with pytest.raises(LibraryError, match=r"missing\.so"):
        library.find_or_build(print)


@pytest.mark.parametrize("old", [None, "0.0.1"])
def test_a_missing_or_old_library_is_built_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str | None
) -> None:
    monkeypatch.delenv("VGPURUN_LIBRARY", raising=False)
    monkeypatch.setattr(library, "build_folder", lambda: tmp_path)
    if old:
        write(tmp_path / "libvgpu.so", marker(old))
    monkeypatch.setattr(library, "_make", lambda *_: write(tmp_path / "libvgpu.so", marker()))
    said: list[str] = []
    assert library.find_or_build(said.append).version == vgpurun.__version__
    assert len(said) == 1
    assert library.find_or_build(lambda _: pytest.fail("built again")).version == vgpurun.__version__


def test_an_installed_vgpurun_builds_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_PACKAGE", tmp_path / "vgpurun")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert library.build_folder() == tmp_path / "cache" / "vgpurun" / vgpurun.__version__
    with pytest.raises(LibraryError, match="reinstall"):
        library.sources()
    (tmp_path / "vgpurun" / "_lib").mkdir(parents=True)
    for name in ("abi.h", "Makefile"):
        (tmp_path / "vgpurun" / "_lib" / name).touch()
    assert library.sources() == tmp_path / "vgpurun" / "_lib"


def test_a_failed_build_shows_the_line_that_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "lib"
    sources.mkdir()
    (sources / "Makefile").write_text("library:\n\t@echo 'note' >&2; echo 'x.c:1: error: no such thing' >&2; exit 1\n")
    monkeypatch.setattr(library, "sources", lambda: sources)
    monkeypatch.setattr(library, "build_folder", lambda: tmp_path / "build")
    with pytest.raises(LibraryError, match=r"x\.c:1: error: no such thing; .*build-in-docker"):
        library.build()


def test_who_holds_the_build_folder_is_named_and_does_not_matter_once_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sources = tmp_path / "lib"
    sources.mkdir()
    (sources / "Makefile").write_text("library:\n\t@cp ../built $(BUILD)/libvgpu.so\n")
    write(tmp_path / "built", marker())
    (tmp_path / "build").mkdir()
    monkeypatch.setattr(library, "sources", lambda: sources)
    monkeypatch.setattr(library, "build_folder", lambda: tmp_path / "build")
    monkeypatch.setattr(library, "_BUILD_TAKES_S", 0.3)
    with held_by_process(tmp_path / "build") as holder:
        assert cli.main(["build"]) == 125
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith(
            f"vgpurun: {tmp_path}/build has not been free for 0 s, and is held by process {holder.pid}"
        )
        threading.Timer(0.3, holder.kill).start()
        monkeypatch.setattr(library, "_BUILD_TAKES_S", 30)
        assert cli.main(["build"]) == 0  # it has waited for the other one


def test_the_builders_default_image_is_the_dockerfiles() -> None:
    assert f"\nARG BASE_IMAGE={DEFAULT_BASE_IMAGE}\n" in library.dockerfile().read_text()


LIBRARY = Library(Path("/lib/libvgpu.so"), vgpurun.__version__, "x86_64", (2, 17))
DEBIAN_LIBC = "/lib/x86_64-linux-gnu/libc.so.6"


def glibc(*versions: str, machine: int = X86_64) -> bytes:
    return make_elf(defined=tuple(f"GLIBC_{version}" for version in versions), machine=machine)


@pytest.mark.parametrize("path", [DEBIAN_LIBC, "/lib64/libc.so.6", "/usr/lib64/libc.so.6", "/usr/lib/libc.so.6"])
def test_an_image_whose_glibc_is_new_enough(path: str) -> None:
    assert check_image("image", {path: glibc("2.2.5", "2.17")}.get, LIBRARY) == []
    assert check_image("image", {path: glibc("2.2.5", "2.36")}.get, LIBRARY) == []


@pytest.mark.parametrize("path", ["/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"])
def test_of_a_new_glibc_only_the_loader_is_read(path: str) -> None:
    assert check_image("image", {path: glibc("2.4", "2.35"), DEBIAN_LIBC: b"not read"}.get, LIBRARY) == []


@pytest.mark.parametrize("loader", [glibc("2.2.5", "2.4"), glibc("2.35", machine=AARCH64), b"nothing"])
def test_a_loader_that_does_not_tell_is_no_reason_to_refuse_nor_to_accept(loader: bytes) -> None:
    files = {"/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": loader}
    assert check_image("image", {**files, DEBIAN_LIBC: glibc("2.2.5", "2.31")}.get, LIBRARY) == []
    with pytest.raises(ImageError, match=r"has glibc 2\.9, but .* needs 2\.17"):
        check_image("image", {**files, DEBIAN_LIBC: glibc("2.2.5", "2.9")}.get, LIBRARY)


def test_an_image_whose_glibc_is_too_old_is_refused_with_both_versions() -> None:
    with pytest.raises(ImageError, match=r"image old has glibc 2\.9, but .* needs 2\.17"):
        check_image("old", {DEBIAN_LIBC: glibc("2.2.5", "2.9")}.get, LIBRARY)


def test_an_image_with_musl_is_refused() -> None:
    with pytest.raises(ImageError, match="image alpine is built on musl"):
        check_image("alpine", {"/lib/ld-musl-x86_64.so.1": b""}.get, LIBRARY)


def test_an_image_with_both_is_one_with_glibc() -> None:
    assert check_image("image", {"/lib/ld-musl-x86_64.so.1": b"", DEBIAN_LIBC: glibc("2.36")}.get, LIBRARY) == []


def test_an_image_without_a_c_library_is_a_warning() -> None:
    (warning,) = check_image("scratch", {}.get, LIBRARY)
    assert "scratch" in warning
    assert "not limited" in warning


def test_an_image_for_another_machine_or_with_a_damaged_libc() -> None:
    with pytest.raises(ImageError, match="aarch64"):
        check_image("arm", {DEBIAN_LIBC: glibc("2.36", machine=AARCH64)}.get, LIBRARY)
    with pytest.raises(ImageError, match="damaged"):
        check_image("bad", {DEBIAN_LIBC: b"nothing"}.get, LIBRARY)


def test_the_built_library_needs_no_new_glibc(built_library: Path) -> None:
    assert library.check(built_library).glibc <= (2, 17)
