"""The memory of contexts besides allocations: modules, libraries, stacks and heaps, streams."""

from __future__ import annotations

import ctypes
from tempfile import NamedTemporaryFile

import pytest
from refusals import MIB, OUT_OF_MEMORY, refused, used_mib
from sandbox import Sandbox

from cuda_driver import LIMIT_MALLOC, LIMIT_PRINTF, LIMIT_STACK, STREAM_NON_BLOCKING, Driver, byref, ptx

LOADERS = {  # and what each takes after the image
    "cuModuleLoadData": (),
    "cuModuleLoadDataEx": (0, None, None),
    "cuModuleLoadFatBinary": (),
    "cuModuleLoad": (),
}
LIBRARY_LOADERS = ("cuLibraryLoadData", "cuLibraryLoadFromFile")
IN_FILES = ("cuModuleLoad", "cuLibraryLoadFromFile")


def started(device: int = 0) -> tuple[Driver, int]:
    """Return the driver, and what is used at the start in MiB."""
    d = Driver.started(device)
    return d, used_mib(d)


def load(d: Driver, loader: str, image: bytes, *more: object) -> int | None:
    """Return the module or library that a function makes of an image, or of the file that has it."""
    made = ctypes.c_void_p()
    with NamedTemporaryFile() as file:
        file.write(image)
        file.flush()
        d.call(loader, byref(made), file.name.encode() if loader in IN_FILES else image, *more)
    return made.value


@pytest.mark.parametrize("loader", LOADERS)
def test_a_module_that_passes_the_limit_is_unloaded_and_refused(sandbox: Sandbox, loader: str) -> None:
    more = LOADERS[loader]

    def program() -> None:
        d, base = started()
        small = load(d, loader, ptx(512 * MIB), *more)
        assert used_mib(d) - base == 512
        assert refused(load, d, loader, ptx(1024 * MIB), *more) == OUT_OF_MEMORY
        assert used_mib(d) - base == 512
        d.module_unload(small)
        assert used_mib(d) == base
        d.module_unload(load(d, loader, ptx(1024 * MIB), *more))
        assert refused(d.mem_alloc, 1500 * MIB) == "granted"

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")


@pytest.mark.parametrize("loader", LIBRARY_LOADERS)
def test_a_library_that_is_loaded_lazily_counts_from_its_first_use(sandbox: Sandbox, loader: str) -> None:
    def program() -> None:
        d, base = started()
        library = load(d, loader, ptx(1024 * MIB), None, None, 0, None, None, 0)
        assert used_mib(d) == base
        d.call("cuLibraryGetModule", byref(ctypes.c_void_p()), library)
        assert refused(d.mem_alloc, 1024 * MIB) == OUT_OF_MEMORY
        d.call("cuLibraryUnload", library)
        assert used_mib(d) == base
        assert refused(d.mem_alloc, 1024 * MIB) == "granted"

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_stacks_that_pass_the_limit_are_refused_before_they_exist(sandbox: Sandbox) -> None:
    def program() -> None:
        d, base = started()
        d.context_set_limit(LIMIT_STACK, 3072)
        assert used_mib(d) - base == 2048 * 132 * 2048 // MIB
        assert refused(d.context_set_limit, LIMIT_STACK, 65536) == OUT_OF_MEMORY
        assert d.context_limit(LIMIT_STACK) == 3072
        d.context_set_limit(LIMIT_STACK, 1024)
        assert used_mib(d) == base
        for limit in (LIMIT_PRINTF, LIMIT_MALLOC):
            assert refused(d.context_set_limit, limit, 1600 * MIB) == OUT_OF_MEMORY
            d.context_set_limit(limit, 512 * MIB)
            assert d.context_limit(limit) == 512 * MIB
        assert refused(d.context_set_limit, 99, 1) == "CUDA_ERROR_UNSUPPORTED_LIMIT"

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_a_green_context_counts_and_is_destroyed_past_the_limit(sandbox: Sandbox) -> None:
    def program() -> None:
        d = Driver()
        d.init()
        green = d.green_context()
        assert refused(d.green_context, 1) == OUT_OF_MEMORY
        d.set_current(d.green_context_converted(green))
        assert refused(d.mem_alloc, 1600 * MIB) == OUT_OF_MEMORY
        base = used_mib(d)
        assert base == 518
        d.mem_alloc(1400 * MIB)
        assert used_mib(d) - base == 1400
        d.green_context_destroy(green)
        d.primary_context()
        assert used_mib(d) == base
        assert refused(d.mem_alloc, 1400 * MIB) == "granted"

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT_0="2g", CUDA_DEVICE_MEMORY_LIMIT_1="64m")


def test_a_stream_of_a_green_context_needs_room_on_its_device(sandbox: Sandbox) -> None:
    def program() -> None:
        d, _ = started(1)
        green = d.green_context()
        d.set_current(d.green_context_converted(green))
        d.mem_alloc((2048 - used_mib(d)) * MIB)
        d.set_current(0)
        assert refused(d.green_context_stream, green) == OUT_OF_MEMORY
        d.primary_context(1)
        assert refused(d.green_context_stream, green) == OUT_OF_MEMORY

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_a_stream_needs_room_for_a_block(sandbox: Sandbox) -> None:
    def program() -> None:
        d, _ = started()
        d.mem_alloc(1528 * MIB)
        streams = [d.stream() for _ in range(50)] + [d.stream_with_priority(-1) for _ in range(50)]
        for stream in streams:
            d.stream_synchronize(stream)
            d.stream_destroy(stream)
        with d.capture(d.stream(STREAM_NON_BLOCKING)):
            d.stream_destroy(d.stream())
        last = d.mem_alloc(2 * MIB)
        assert refused(d.stream) == refused(d.stream_with_priority, -1) == OUT_OF_MEMORY
        d.mem_free(last)
        assert refused(d.stream) == "granted"

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")
