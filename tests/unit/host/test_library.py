"""Finding and checking libvgpu.so, and whether an image can load it."""

from __future__ import annotations

import os
import platform
import threading
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import cast

import pytest
from elf_maker import AARCH64, X86_64, make_elf

import vgpurun
from support import unavailable
from support.lock_holder import held_by_process
from support.second_user import as_second_user, needs_two_users
from vgpurun import abi, cli
from vgpurun.cli.commands.build import DEFAULT_BASE_IMAGE
from vgpurun.engine.client import Image
from vgpurun.engine.image_libc import Libc, check_image
from vgpurun.engine.launches import LaunchEngine
from vgpurun.errors import ImageError, LibraryError
from vgpurun.host import library
from vgpurun.host.library import Library
from vgpurun.launch.image_look import ImageFiles, look
from vgpurun.options import ContainerOptions, Volume

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

    monkeypatch.setattr(library, "os", SimpleNamespace(confstr=no_glibc))
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


@pytest.fixture(autouse=True)
def _no_shared_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ROOT_FOLDER", tmp_path / "var")


def test_root_builds_for_all_users_and_whatever_its_umask_is(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ROOT_FOLDER", public / "var")
    if os.geteuid():
        unavailable("what root builds is trusted because it is root's")
    monkeypatch.delenv("VGPURUN_LIBRARY", raising=False)
    installed = public / "site" / "vgpurun" / "_lib"
    installed.mkdir(parents=True)
    (installed / "src").mkdir()
    write(installed / "built", marker())
    recipe = "install -D built $(BUILD)/libvgpu.so -m 755; mkdir -p $(BUILD)/sim; touch $(BUILD)/vgpurun-verify"
    parts = " ".join(f"$(BUILD)/{name}" for name in library.SIMULATED_DRIVER)
    (installed / "Makefile").write_text(f"all:\n\t@{recipe} {parts}\n")
    monkeypatch.setattr(library, "_PACKAGE", installed.parent)
    before = os.umask(0o077)
    try:
        assert cli.main(["build"]) == 0
    finally:
        os.umask(before)
    folder = public / "var" / "lib" / f"{vgpurun.__version__}-{abi.ABI_VERSION}"
    assert library.missing(library.PARTS) == []
    monkeypatch.setenv("XDG_CACHE_HOME", str(public / "cache"))
    with as_second_user():
        assert library.find().path == folder / "libvgpu.so" and library.missing(library.PARTS) == []
    assert folder.stat().st_mode & 0o777 == 0o755 and (folder / "vgpurun-verify").stat().st_mode & 0o777 == 0o644
    write(folder / "libvgpu.so", marker("0.0.1"))
    own = public / "cache" / "vgpurun" / vgpurun.__version__
    own.mkdir(parents=True)
    write(own / "libvgpu.so", marker())
    with as_second_user():
        assert library.find().path == own / "libvgpu.so", "one of another version is in nobody's way"


@needs_two_users
def test_an_installed_vgpurun_builds_into_the_cache(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_PACKAGE", public / "vgpurun")
    monkeypatch.setenv("XDG_CACHE_HOME", str(public / "cache"))
    with as_second_user():
        assert library.build_folder() == public / "cache" / "vgpurun" / vgpurun.__version__
    with pytest.raises(LibraryError, match="reinstall"):
        library.sources()
    (public / "vgpurun" / "_lib" / "src").mkdir(parents=True)
    (public / "vgpurun" / "_lib" / "Makefile").touch()
    assert library.sources() == public / "vgpurun" / "_lib"


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
    (sources / "Makefile").write_text("all:\n\t@cp ../built $(BUILD)/libvgpu.so\n")
    write(tmp_path / "built", marker())
    (tmp_path / "build").mkdir()
    monkeypatch.setattr(library, "sources", lambda: sources)
    monkeypatch.setattr(library, "build_folder", lambda: tmp_path / "build")
    monkeypatch.setattr(library, "_BUILD_TAKES_S", 0.3)
    (tmp_path / "build" / ".lock").touch(0o600)
    with held_by_process(tmp_path / "build" / ".lock") as holder:
        assert cli.main(["build"]) == 125
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith(
            f"vgpurun: {tmp_path}/build/.lock has not been free for 0 s, and is held by process {holder.pid}"
        )
        threading.Timer(0.3, holder.kill).start()
        monkeypatch.setattr(library, "_BUILD_TAKES_S", 30)
        assert cli.main(["build"]) == 0  # has waited for the other one


def test_the_builders_default_image_is_the_dockerfiles() -> None:
    assert f"\nARG BASE_IMAGE={DEFAULT_BASE_IMAGE}\n" in library.dockerfile().read_text()


LIBRARY = Library(Path("/lib/libvgpu.so"), vgpurun.__version__, "x86_64", (2, 17))
DEBIAN_LIBC = "/lib/x86_64-linux-gnu/libc.so.6"


def glibc(*versions: str, machine: int = X86_64) -> bytes:
    return make_elf(defined=tuple(f"GLIBC_{version}" for version in versions), machine=machine)


@pytest.mark.parametrize("path", [DEBIAN_LIBC, "/lib64/libc.so.6", "/usr/lib64/libc.so.6", "/usr/lib/libc.so.6"])
def test_an_image_whose_glibc_is_new_enough(path: str) -> None:
    folder = f"/usr{path.rpartition('/')[0].removeprefix('/usr')}"
    assert check_image("image", {path: glibc("2.2.5", "2.17")}.get, LIBRARY) == Libc(folder, (2, 17))
    assert check_image("image", {path: glibc("2.2.5", "2.36")}.get, LIBRARY) == Libc(folder, (2, 36))


@pytest.mark.parametrize("path", ["/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"])
def test_of_a_new_glibc_only_the_loader_is_read(path: str) -> None:
    folder = f"/usr{path.rpartition('/')[0]}"
    found = check_image("image", {path: glibc("2.4", "2.35"), DEBIAN_LIBC: b"not read"}.get, LIBRARY)
    assert found == Libc(folder, (2, 35))


def test_a_loader_of_debian_that_was_copied_into_an_empty_image() -> None:
    loader = glibc("2.4", "2.35") + b"/lib/x86_64-linux-gnu/\0/usr/lib/x86_64-linux-gnu/\0"
    found = check_image("image", {"/lib64/ld-linux-x86-64.so.2": loader}.get, LIBRARY)
    assert found.folder == "/usr/lib/x86_64-linux-gnu"


@pytest.mark.parametrize("loader", [glibc("2.2.5", "2.4"), glibc("2.35", machine=AARCH64), b"nothing"])
def test_a_loader_that_does_not_tell_is_no_reason_to_refuse_nor_to_accept(loader: bytes) -> None:
    files = {"/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": loader}
    found = check_image("image", {**files, DEBIAN_LIBC: glibc("2.2.5", "2.31")}.get, LIBRARY)
    assert found == Libc("/usr/lib/x86_64-linux-gnu", (2, 31))
    with pytest.raises(ImageError, match=r"has glibc 2\.9, but .* needs 2\.17"):
        check_image("image", {**files, DEBIAN_LIBC: glibc("2.2.5", "2.9")}.get, LIBRARY)


def test_an_image_whose_glibc_is_too_old_is_refused_with_both_versions() -> None:
    with pytest.raises(ImageError, match=r"image old has glibc 2\.9, but .* needs 2\.17"):
        check_image("old", {DEBIAN_LIBC: glibc("2.2.5", "2.9")}.get, LIBRARY)


def test_an_image_with_musl_is_refused() -> None:
    with pytest.raises(ImageError, match="image alpine is built on musl"):
        check_image("alpine", {"/lib/ld-musl-x86_64.so.1": b""}.get, LIBRARY)


def test_an_image_with_both_is_one_with_glibc() -> None:
    files = {"/lib/ld-musl-x86_64.so.1": b"", DEBIAN_LIBC: glibc("2.36")}
    assert check_image("image", files.get, LIBRARY).version == (2, 36)


def test_what_an_image_preloads_itself() -> None:
    files = {DEBIAN_LIBC: glibc("2.36"), "/etc/ld.so.preload": b"/lib/a.so:/lib/b.so\n/.vgpurun/libvgpu.so\n"}
    assert check_image("image", files.get, LIBRARY).preload == "/lib/a.so\n/lib/b.so\n"
    assert check_image("nix", {"/etc/ld-nix.so.preload": b"/nix/a.so"}.get, LIBRARY).preload == "/nix/a.so\n"


def test_the_libraries_of_a_driver_that_an_images_loader_finds_beside_its_own() -> None:
    """The cache goes before the folders into which the loader looks."""
    places = ("/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    others = ("/lib/x86_64-linux-gnu/libm.so.6", "/usr/local/cuda/compat/libcuda.so.1", "/lib64/x/libcuda.so.1")
    cache = b"glibc-ld.so.cache1.1\0\1" + b"".join(path.encode() + b"\0" for path in (*places, *others))
    found = check_image("image", {DEBIAN_LIBC: glibc("2.36"), "/etc/ld.so.cache": cache}.get, LIBRARY)
    assert found.driver == places


def test_an_image_without_a_c_library() -> None:
    assert check_image("scratch", {}.get, LIBRARY) == Libc("")


def test_an_image_for_another_machine_or_with_a_damaged_libc() -> None:
    with pytest.raises(ImageError, match="aarch64"):
        check_image("arm", {DEBIAN_LIBC: glibc("2.36", machine=AARCH64)}.get, LIBRARY)
    with pytest.raises(ImageError, match="damaged"):
        check_image("bad", {DEBIAN_LIBC: b"nothing"}.get, LIBRARY)


def test_the_built_library_needs_no_new_glibc(built_library: Path) -> None:
    assert library.check(built_library).glibc <= (2, 17)


class BareImage:
    """An engine whose images have these files; counts how often it was looked into one."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files
        self.looks = 0

    def create_to_read(self, image: str, platform: str | None) -> str:
        self.looks += 1
        return f"{image} {platform}"

    def read_file(self, _: str, path: str) -> bytes | None:
        return self._files.get(path)

    def remove(self, _: str) -> None:
        pass


@pytest.mark.parametrize("target", ["/lib/x86_64-linux-gnu", "/lib", "/", DEBIAN_LIBC])
def test_an_image_is_remembered_without_what_a_launch_mounts_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "state"))
    libc = (tmp_path / "mine").joinpath(*PurePosixPath(DEBIAN_LIBC).relative_to(target).parts)
    libc.parent.mkdir(parents=True, exist_ok=True)
    libc.write_bytes(glibc("2.31"))
    volume = Volume(str(tmp_path / "mine"), target, "ro")
    plain, mounted = ContainerOptions("image"), ContainerOptions("image", volumes=(volume,))
    engine = BareImage({DEBIAN_LIBC: glibc("2.36")})

    def version(options: ContainerOptions) -> tuple[int, ...]:
        image = Image("sha256:1", {})
        with ImageFiles(cast(LaunchEngine, engine), image, options) as files:
            return look(files, image, options, LIBRARY).version

    assert version(mounted) == (2, 31)
    assert version(plain) == (2, 36)
    assert version(mounted) == (2, 31)
    assert version(plain) == (2, 36) and engine.looks == (1 if target == "/" else 3)
