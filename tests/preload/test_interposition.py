"""How calls are caught, and that nothing else is."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox import SIMULATED_DRIVER, Sandbox

from cuda_driver import Driver, byref, c_size_t, c_uint64
from support import CHECKOUT, LIBRARY
from support.programs import text_of

HOOKS = "".join((CHECKOUT / "lib/src/hook" / name).read_text() for name in ("hooks.h", "profiled_hooks.h"))


def caught(list_name: str) -> list[str]:
    """The symbols of one of the lists of hooks.h."""
    body = re.search(rf"#define {list_name}\(X\)(.*?)(?:\n\n|\Z)", HOOKS, re.DOTALL)
    return re.findall(r"X\((\w+)\)", body.group(1))


CAUGHT = caught("CUDA_LOOKUP") + caught("CUDA_CAUGHT") + caught("NVML_CAUGHT")


def dynamic_symbols(*flags: str) -> list[str]:
    return subprocess.run(["nm", "-D", *flags, LIBRARY], capture_output=True, text=True, check=True).stdout.splitlines()


def test_exports_the_hooks_and_nothing_else(built_library: Path) -> None:
    defined = {line.split()[-1].split("@")[0] for line in dynamic_symbols("--defined-only")}
    versions = {name for name in defined if name.startswith("GLIBC_")}
    assert defined - versions == {*CAUGHT, *caught("CUDA_PROFILED"), "dlopen", "dlsym", "dlvsym", "ioctl"}


def test_needs_libc_alone_and_an_old_one(built_library: Path) -> None:
    dynamic = subprocess.run(["readelf", "-dV", LIBRARY], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"\(NEEDED\).*\[(.+?)\]", dynamic)) == {"libc.so.6"}
    needs = dynamic.split(".gnu.version_r", 1)[1]
    assert max(tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([\d.]+)", needs)) <= (2, 17)


def test_constructs_nothing(built_library: Path) -> None:
    sections = subprocess.run(["readelf", "-SW", LIBRARY], capture_output=True, text=True, check=True).stdout
    # gcc's own frame_dummy is the one entry of 8 bytes that every shared library has.
    size = re.search(r"\.init_array\s+\S+\s+\S+\s+\S+\s+(\S+)", sections)
    assert size is None or int(size.group(1), 16) <= 8


def build_chain(compile_c: Callable[..., Path], *defines: str) -> str:
    first = compile_c("chain.c", "-shared", "-fPIC", '-DNAME="first"', "-DNEXT", *defines, output="first.so")
    second = compile_c("chain.c", "-shared", "-fPIC", '-DNAME="second"', *defines, output="second.so")
    return f"{LIBRARY}:{first}:{second}"


@pytest.mark.parametrize(
    "defines", [[], ["-DVERSIONED", "-Wl,--version-script=steps.map"], ["-DSTEP=cublasCreate_v2"], ["-DSTEP=nvmlStep"]]
)
def test_rtld_next_still_means_after_the_caller(
    sandbox: Sandbox,
    compile_c: Callable[..., Path],
    defines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "steps.map").write_text("STEPS { step; };\n")
    monkeypatch.chdir(tmp_path)
    chain = build_chain(compile_c, *defines)
    step = defines[0].removeprefix("-DSTEP=") if defines and "STEP" in defines[0] else "step"

    def program() -> None:
        getattr(ctypes.CDLL(None), step)()

    result = sandbox.run([sys.executable, "-c", text_of(program)], LD_PRELOAD=chain)
    assert result.stdout.split() == ["first", "second"], result.stderr


def test_a_wrapper_of_a_caught_function_goes_on_to_ours(sandbox: Sandbox, compile_c: Callable[..., Path]) -> None:
    wrapper = str(compile_c("wrapper.c", "-shared", "-fPIC", output="wrapper.so"))

    def program() -> None:
        Driver().start()
        wrapped = ctypes.CDLL(wrapper).cuMemAlloc_v2
        print([wrapped(byref(c_uint64()), c_size_t(1 << 30)) for _ in range(2)])

    preload = {"LD_PRELOAD": f"{LIBRARY}:{wrapper}"}
    assert sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g", **preload) == "[0, 2]"


def test_a_program_may_have_a_dl_iterate_phdr_of_its_own(sandbox: Sandbox, compile_c: Callable[..., Path]) -> None:
    program = compile_c("own_dl_iterate_phdr.c", "-rdynamic", "-ldl")
    result = sandbox.run([program])
    assert (result.returncode, result.stdout) == (0, "iterated\n"), result.stderr


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_a_sanitizer_finds_the_real_functions(sandbox: Sandbox, sanitizer: str, order: int) -> None:
    """A sanitizer has its own strcmp, mmap, dlopen and more, and asks dlsym for the real ones before they work."""
    name = {"address": "libasan.so", "thread": "libtsan.so"}[sanitizer]
    runtime = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    if not Path(runtime.strip()).is_absolute():
        pytest.skip(f"this gcc has no {name}")
    preload = ":".join([runtime.strip(), str(LIBRARY)][::order])
    result = sandbox.run(["true"], LD_PRELOAD=preload, ASAN_OPTIONS="verify_asan_link_order=0")
    assert (result.returncode, result.stderr) == (0, "")


def test_a_lookup_leaves_no_error_of_ours(sandbox: Sandbox, compile_c: Callable[..., Path]) -> None:
    """Programs ask dlerror whether dlsym succeeded; an old driver does not have all that we look for."""
    driver = str(compile_c("old_driver.c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", output="libcuda.so.1"))

    def program() -> None:
        libc = ctypes.CDLL(None)
        dlsym, dlerror = libc.dlsym, libc.dlerror
        dlsym.restype, dlsym.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
        dlerror.restype = ctypes.c_char_p
        handle = ctypes.CDLL(driver)._handle
        dlerror()
        print([(bool(dlsym(handle, name)), dlerror() is not None) for name in (b"cuMemAlloc_v2", b"cuMemCreate")])

    assert sandbox.python(program) == "[(True, False), (False, True)]"


def test_a_lookup_without_a_driver_leaves_no_error_either(sandbox: Sandbox) -> None:
    def program() -> None:
        libc = ctypes.CDLL(None)
        libc.dlerror.restype = ctypes.c_char_p
        libc.dlerror()
        print([(hasattr(libc, name), libc.dlerror()) for name in ("cuMemAlloc_v2", "nvmlDeviceGetMemoryInfo")])

    assert sandbox.python(program, LD_LIBRARY_PATH="") == "[(True, None), (True, None)]"


def look_up_everywhere(*names: str) -> None:
    """Print which are found by RTLD_DEFAULT, and whether an error says that one is not."""
    libc = ctypes.CDLL(None)
    libc.dlsym.restype, libc.dlsym.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
    libc.dlerror.restype = ctypes.c_char_p
    libc.dlerror()
    for name in names:
        found, error = libc.dlsym(None, name.encode()), libc.dlerror() or b""
        print(name, bool(found), f"undefined symbol: {name}".encode() in error)


@pytest.mark.parametrize("limits", [{}, {"CUDA_DEVICE_MEMORY_LIMIT": "2g"}], ids=["free", "limited"])
def test_rtld_default_finds_what_the_driver_has(
    sandbox: Sandbox, compile_c: Callable[..., Path], limits: dict[str, str]
) -> None:
    """We have it all: beside an old driver, one that only a library has opened for itself, and none."""
    driver = str(compile_c("old_driver.c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", output="libcuda.so.1"))
    mode = 0

    def program() -> None:
        ctypes.CDLL(driver, mode)
        look_up_everywhere("cuMemAlloc_v2", "cuMemCreate", "cuMemcpy")

    def without() -> None:
        look_up_everywhere("cuMemAlloc_v2", "nvmlDeviceGetMemoryInfo")

    lacking = ["cuMemCreate False True", "cuMemcpy False True"]
    assert sandbox.python(program, **limits).splitlines() == ["cuMemAlloc_v2 False True", *lacking]
    mode = ctypes.RTLD_GLOBAL
    assert sandbox.python(program, **limits).splitlines() == ["cuMemAlloc_v2 True False", *lacking]
    driver = "libcuda.so.1"
    names = ("cuMemAlloc_v2", "cuMemCreate", "cuMemcpy")
    assert sandbox.python(program, **limits).splitlines() == [f"{name} True False" for name in names]
    assert "True False" not in sandbox.python(without, LD_LIBRARY_PATH="", **limits)


def test_a_linked_program_is_limited(sandbox: Sandbox, compile_c: Callable[..., Path]) -> None:
    program = compile_c("linked.c", f"-L{SIMULATED_DRIVER}", "-lcuda")
    result = sandbox.run([program], CUDA_DEVICE_MEMORY_LIMIT="2g")
    assert result.stdout.split() == ["2048", str(2048 - 518), "0", "2"]
    assert sandbox.run([program]).stdout.split()[2:] == ["0", "0"]


def address(function: object) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def proc_address(cuda: ctypes.CDLL, name: str, version: int, flags: int) -> int | None:
    found, status = ctypes.c_void_p(), ctypes.c_int()
    error = cuda.cuGetProcAddress_v2(name.encode(), byref(found), version, c_uint64(flags), byref(status))
    return None if error else found.value


def addresses_of_ours() -> range:
    with open("/proc/self/maps") as maps:
        code = next(line for line in maps if "libvgpu.so" in line and "r-x" in line)
    return range(*(int(end, 16) for end in code.split()[0].split("-")))


def test_every_lookup_hands_out_the_hooks(sandbox: Sandbox) -> None:
    names = caught("CUDA_CAUGHT")

    def look_up_by_name() -> None:
        cuda, ours = ctypes.CDLL("libcuda.so.1"), addresses_of_ours()
        there = [name for name in names if hasattr(cuda, name)]
        print([name for name in there if address(getattr(cuda, name)) not in ours], sorted({*names} - {*there}))

    def ask_the_driver() -> None:
        cuda, ours = ctypes.CDLL("libcuda.so.1"), addresses_of_ours()
        assert cuda.cuInit(0) == 0
        asked = (
            "cuMemAlloc",
            "cuMemFree",
            "cuLaunchKernel",
            "cuLaunchKernelEx",
            "cuGraphLaunch",
            "cuMemAllocAsync",
            "cuStreamSynchronize",
            "cuMemGetInfo",
            "cuGetProcAddress",
        )
        calls = [(name, flags) for name in asked for flags in (0, 1, 2)]
        print([(name, flags) for name, flags in calls if proc_address(cuda, name, 12000, flags) not in ours])

    newer_than_the_simulated_driver = ["cuMulticastBindAddr_v2", "cuMulticastBindMem_v2"]
    assert sandbox.python(look_up_by_name) == f"[] {newer_than_the_simulated_driver}"
    assert sandbox.python(ask_the_driver) == "[]"


def test_lookups_keep_the_versions_apart(sandbox: Sandbox) -> None:
    def program() -> None:
        cuda = ctypes.CDLL("libcuda.so.1")
        assert cuda.cuInit(0) == 0
        print(
            proc_address(cuda, "cuMemAlloc", 2000, 0) == address(cuda.cuMemAlloc),
            proc_address(cuda, "cuMemAlloc", 12000, 0) == address(cuda.cuMemAlloc_v2),
            proc_address(cuda, "cuLaunchKernel", 12000, 2) == address(cuda.cuLaunchKernel_ptsz),
        )

    assert sandbox.python(program) == "True True True"


def test_other_symbols_are_left_alone(sandbox: Sandbox) -> None:
    def program() -> None:
        cuda = ctypes.CDLL("libcuda.so.1")
        print(
            address(cuda.cuDeviceGetCount) in addresses_of_ours(),
            hasattr(cuda, "curl_easy_init"),
            proc_address(cuda, "cuNoSuchThing", 12000, 0),
        )

    assert sandbox.python(program) == "False False None"


def test_a_program_without_cuda_is_untouched(sandbox: Sandbox) -> None:
    for limits in ({}, {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_SM_LIMIT": "50"}):
        result = sandbox.run(["sh", "-c", "ls /proc/self/fd; exit 3"], **limits)
        assert (result.returncode, result.stdout.split(), result.stderr) == (3, ["0", "1", "2", "3"], "")
    assert not (sandbox.folder / "usage").exists()


def test_signals_and_umask_stay_the_programs(sandbox: Sandbox, compile_c: Callable[..., Path]) -> None:
    program = compile_c("signals.c", f"-L{SIMULATED_DRIVER}", "-lcuda")
    result = sandbox.run([program], CUDA_DEVICE_MEMORY_LIMIT="2g", CUDA_DEVICE_SM_LIMIT="50")
    assert result.stdout == "unchanged\n", result.stderr


@pytest.mark.slow
def test_threads_that_are_cancelled_while_they_launch_hold_nobody_up(
    sandbox: Sandbox, compile_c: Callable[..., Path]
) -> None:
    program = compile_c("cancelled.c", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread")
    result = sandbox.run([program, "100"], CUDA_DEVICE_SM_LIMIT="50")
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 1000, "of some 15000"


@pytest.mark.parametrize("way", ["threads", "handler", "forked", "captures", "released"])
def test_a_program_ends_as_it_likes_to(sandbox: Sandbox, compile_c: Callable[..., Path], way: str) -> None:
    """Nothing holds its exit up, where work is measured that it has not waited for."""
    program = compile_c("exits.c", f"-L{SIMULATED_DRIVER}", "-lcuda", "-lpthread")
    for _ in range(5):
        result = sandbox.run([program, way], CUDA_DEVICE_SM_LIMIT="50")
        assert (result.returncode, result.stderr) == (3, "")


@pytest.mark.parametrize("profiled", [False, True])
def test_errno_stays_the_programs(
    sandbox: Sandbox, compile_c: Callable[..., Path], folder: Path, profiled: bool
) -> None:
    libraries = ["-l:libcuda.so.1", "-l:libnvidia-ml.so.1", "-ldl"]
    options = [f"-I{CHECKOUT / 'lib/src'}", "-rdynamic", "-Wl,--unresolved-symbols=ignore-all"]
    program = compile_c("errnos.c", *options, f"-L{SIMULATED_DRIVER}", *libraries)
    limits = {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_SM_LIMIT": "50"}
    if profiled:
        result = sandbox.run([program, "recorded"], **limits, PFLOG=str(folder))
    else:
        result = sandbox.run([program], **limits)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "", "functions that change errno"


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["x86_64-linux-gnu.2.17", "aarch64-linux-gnu.2.17", "x86_64-linux-musl"])
def test_builds_for_old_glibc_arm_and_musl(target: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="a cross compiler is in the extra `dev`: ziglang")
    compiler = f"{sys.executable} -m ziglang cc -target {target}"
    make = ["make", "-s", "-j2", "-C", str(CHECKOUT / "lib"), "library", f"CC={compiler}", f"BUILD={tmp_path}"]
    subprocess.run([*make, f"PYTHON={sys.executable}"], check=True, timeout=300)
    header = subprocess.run(["readelf", "-h", tmp_path / "libvgpu.so"], capture_output=True, text=True, check=True)
    assert {"x86_64": "X86-64", "aarch64": "AArch64"}[target.split("-")[0]] in header.stdout
