"""Plugins and the dynamic linker: whichever way a library is opened, and a function is looked up, the limits hold."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from sandbox import PROGRAMS, SIMULATED_DRIVER, Sandbox
from together import assert_shares

from support import LIBRARY
from support.programs import Program, text_of

pytestmark = pytest.mark.slow

# How a plugin may come to `dlsym`, in C (programs/plugin.c has the words).
DLSYM = {
    "its own": "dlsym",
    "the default": 'dlsym(RTLD_DEFAULT, "dlsym")',
    "the next": 'dlsym(RTLD_NEXT, "dlsym")',
    "libc's": 'dlsym(LIBC, "dlsym")',
    "libdl's": 'dlsym(LIBDL, "dlsym")',
    "the program's": 'dlsym(dlopen(NULL, RTLD_LAZY), "dlsym")',
    "the first version of libc's": 'dlvsym(LIBC, "dlsym", "GLIBC_2.2.5")',
    "the newest version of the next": 'dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34")',
    "by libc's dlvsym": '((dlvsym_function *)dlsym(LIBC, "dlvsym"))(LIBC, "dlsym", "GLIBC_2.2.5")',
    "by the next dlvsym": '((dlvsym_function *)dlsym(RTLD_NEXT, "dlvsym"))(LIBC, "dlsym", "GLIBC_2.2.5")',
    "by libc's dlsym": '((dlsym_function *)dlsym(LIBC, "dlsym"))(LIBC, "dlsym")',
}
DLOPEN = {
    "its own": "dlopen",
    "the default": 'dlsym(RTLD_DEFAULT, "dlopen")',
    "the next": 'dlsym(RTLD_NEXT, "dlopen")',
    "libc's": 'dlsym(LIBC, "dlopen")',
    "libdl's": 'dlsym(LIBDL, "dlopen")',
    "the first version of libc's": 'dlvsym(LIBC, "dlopen", "GLIBC_2.2.5")',
    "the newest version of the next": 'dlvsym(RTLD_NEXT, "dlopen", "GLIBC_2.34")',
    "by libc's dlsym": '((dlsym_function *)dlsym(LIBC, "dlsym"))(LIBC, "dlopen")',
}

Build = Callable[..., Path]


@pytest.fixture
def plugin(compile_c: Build) -> Build:
    """Compile plugin.c."""

    def build(*arguments: str, output: str = "plugin.so") -> Path:
        return compile_c("plugin.c", "-shared", "-fPIC", *arguments, output=output)

    return build


@pytest.fixture
def linked(plugin: Build) -> Path:
    return plugin(f"-L{SIMULATED_DRIVER}", "-lcuda", output="linked.so")


def holding(plugin: Path, mode: int) -> Program:
    """Return a program that prints how much a plugin is granted."""
    path = str(plugin)

    def program() -> None:
        print(ctypes.CDLL(path, mode=mode).held_mib())

    return program


def held_mib(sandbox: Sandbox, plugin: Path, mode: int) -> int:
    return int(sandbox.python(holding(plugin, mode), CUDA_DEVICE_MEMORY_LIMIT="2g"))


def computing(plugin: Path, mode: int) -> Program:
    """Return a program that prints for which part of the time a plugin's kernels run."""
    path = str(plugin)

    def program() -> None:
        opened = ctypes.CDLL(path, mode=mode)
        opened.seconds_of.restype = ctypes.c_double
        print(0.4 / opened.seconds_of(400))

    return program


def assert_limited(sandbox: Sandbox, plugins: Mapping[str, Path]) -> None:
    """In each mode, the plugins' kernels run for 30 % of the time under such a limit."""
    programs = {
        f"{name}, {mode}": (sys.executable, "-c", text_of(computing(plugin, MODES[mode])))
        for name, plugin in plugins.items() for mode in MODES
    }  # fmt: skip
    assert_shares(sandbox, programs, 0.2, 0.4, CUDA_DEVICE_SM_LIMIT="30")


MODES = {"now": os.RTLD_NOW, "deep": os.RTLD_NOW | os.RTLD_DEEPBIND}


@pytest.mark.parametrize("mode", MODES)
def test_a_plugin_that_is_linked_with_the_driver(sandbox: Sandbox, linked: Path, mode: str) -> None:
    assert held_mib(sandbox, linked, MODES[mode]) == 1280


@pytest.mark.real_time
def test_the_shares_of_plugins(sandbox: Sandbox, linked: Path, plugin: Build) -> None:
    assert_limited(sandbox, {"linked": linked, "its own": plugin(f"-DDLSYM={DLSYM['its own']}")})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", DLSYM)
def test_a_plugin_that_looks_the_driver_up(sandbox: Sandbox, plugin: Build, way: str, mode: str) -> None:
    assert held_mib(sandbox, plugin(f"-DDLSYM={DLSYM[way]}"), MODES[mode]) == 1280


@pytest.mark.exhaustive  # a way that leads to the limit of memory leads to that of compute
@pytest.mark.real_time
def test_the_shares_of_plugins_that_look_the_driver_up(sandbox: Sandbox, plugin: Build) -> None:
    built = {way: plugin(f"-DDLSYM={code}", output=f"{way}.so") for way, code in DLSYM.items()}
    for ways in (list(built)[::2], list(built)[1::2]):
        assert_limited(sandbox, {way: built[way] for way in ways})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", DLOPEN)
def test_a_plugin_that_opens_another(
    sandbox: Sandbox, plugin: Build, linked: Path, way: str, mode: str, tmp_path: Path
) -> None:
    """The other one is found by the RUNPATH of the first: dlopen knows who has called it."""
    (tmp_path / "inner").mkdir()
    linked.rename(tmp_path / "inner/linked.so")
    built = plugin(f"-DDLOPEN={DLOPEN[way]}", '-DOTHER="linked.so"', "-Wl,-rpath,$ORIGIN/inner")
    assert held_mib(sandbox, built, MODES[mode]) == 1280


@pytest.mark.exhaustive
def test_a_program_that_was_built_for_an_old_glibc(sandbox: Sandbox, linked: Path, tmp_path: Path) -> None:
    """The program has dlopen from libdl, at its first version."""
    pytest.importorskip("ziglang", reason="a compiler for old C libraries is in the extra `dev`: ziglang")
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.17"]
    program = tmp_path / "opener"
    subprocess.run([*compiler, str(PROGRAMS / "opener.c"), "-ldl", "-o", str(program)], check=True, timeout=300)
    assert sandbox.run([program, linked], CUDA_DEVICE_MEMORY_LIMIT="2g").stdout == "1280\n"


# How another preload finds the function `name` that it wraps. One that wraps dlsym cannot ask that.
REAL = {
    "the next": "dlsym(RTLD_NEXT, name)",
    "the first version of the next": 'dlvsym(RTLD_NEXT, name, "GLIBC_2.2.5")',
    "the newest version of the next": 'dlvsym(RTLD_NEXT, name, "GLIBC_2.34")',
    "libc's": 'dlvsym(LIBC, name, "GLIBC_2.2.5")',
}


@pytest.mark.parametrize("ours_at", [0, 1, 2])
@pytest.mark.parametrize("way", REAL)
def test_other_preloads_see_all_that_they_see_without_ours(
    sandbox: Sandbox, compile_c: Build, plugin: Build, way: str, ours_at: int
) -> None:
    defines = [f"-DREAL={REAL[way]}", *(["-DWRAPS_DLSYM"] if "dlvsym" in REAL[way] else [])]
    spies = [
        str(compile_c("spy.c", "-shared", "-fPIC", f'-DNAME="{name}"', *defines, output=f"{name}.so"))
        for name in ("first", "second")
    ]
    built = plugin("-DDLSYM=dlsym")

    def run(mode: str, preloads: list[str], **limits: str) -> tuple[str, set[str]]:
        command = [sys.executable, "-c", text_of(holding(built, MODES[mode]))]
        result = sandbox.run(command, LD_PRELOAD=":".join(preloads), **limits)
        return result.stdout, {line for line in result.stderr.splitlines() if "vgpurun" not in line}

    held, seen_without = run("now", spies)
    assert held == "7168\n" and f"first: dlopen {built}" in seen_without
    preloads = [*spies[:ours_at], str(LIBRARY), *spies[ours_at:]]
    held, seen = run("deep", preloads, CUDA_DEVICE_MEMORY_LIMIT="2g")
    assert held == "1280\n" and seen >= seen_without


def test_the_dynamic_linker_answers_as_without_ours(sandbox: Sandbox, compile_c: Build) -> None:
    """Functions that are found, functions that are not, and what dlerror says then."""
    program = compile_c("lookups.c", "-ldl")
    answers = sandbox.run([program], LD_PRELOAD="").stdout
    assert "next dlsym: 1 no error" in answers and "GLIBC_9" in answers
    assert sandbox.run([program]).stdout == answers


def test_threads_and_a_forked_child_open_and_look_up(sandbox: Sandbox, compile_c: Build) -> None:
    program = compile_c("lookups.c", "-ldl", "-lpthread")
    assert sandbox.run([program, "10"]).stdout == "done\n"
