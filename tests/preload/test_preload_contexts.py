"""The memory of contexts besides allocations: modules, libraries, stacks and heaps, streams."""

from __future__ import annotations

import ctypes

import pytest
from refusals import MIB, OUT_OF_MEMORY, refused, used_mib
from sandbox import Sandbox

from cuda_driver import LIMIT_MALLOC, LIMIT_PRINTF, LIMIT_STACK, STREAM_NON_BLOCKING, Driver, byref, ptx

LOADERS = {  # and what each takes after the image
    "cuModuleLoadData": (),
    "cuModuleLoadDataEx": (0, None, None),
    "cuModuleLoadFatBinary": (),
}


def started() -> tuple[Driver, int]:
    """Return the driver, and what is used at the start in MiB."""
    d = Driver()
    d.start()
    return d, used_mib(d)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_module_that_passes_the_limit_is_unloaded_and_refused(sandbox: Sandbox, loader: str) -> None:
    more = LOADERS[loader]

    def program() -> None:
        d, base = started()

        def load_module(image: bytes) -> int | None:
            module = ctypes.c_void_p()
            d.call(loader, byref(module), image, *more)
            return module.value

        small = load_module(ptx(512 * MIB))
        assert used_mib(d) - base == 512
        assert refused(load_module, ptx(1024 * MIB)) == OUT_OF_MEMORY
        assert used_mib(d) - base == 512
        d.module_unload(small)
        assert used_mib(d) == base
        d.module_unload(load_module(ptx(1024 * MIB)))
        assert refused(d.mem_alloc, 1500 * MIB) == "granted"

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")


def test_a_library_that_is_loaded_lazily_counts_from_its_first_use(sandbox: Sandbox) -> None:
    def program() -> None:
        d, base = started()
        library = d.library_load(ptx(1024 * MIB))
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


def test_a_stream_needs_room_for_a_block(sandbox: Sandbox) -> None:
    def program() -> None:
        d, _ = started()
        d.mem_alloc(1528 * MIB)
        streams = [d.stream() for _ in range(50)]
        for stream in streams:
            d.stream_synchronize(stream)
            d.stream_destroy(stream)
        with d.capture(d.stream(STREAM_NON_BLOCKING)):
            d.stream_destroy(d.stream())
        last = d.mem_alloc(2 * MIB)
        assert refused(d.stream) == OUT_OF_MEMORY
        d.mem_free(last)
        assert refused(d.stream) == "granted"

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2g")
