"""Memory that one process made and another one uses: counted once, wherever it is."""

from __future__ import annotations

import os
import socket

from refusals import MIB, OUT_OF_MEMORY, refused
from sandbox import Sandbox

from cuda_driver import POSIX_DESCRIPTOR, Driver


def two_started() -> tuple[int, socket.socket, Driver]:
    """Return in each of two processes in one container the child's PID or 0, a line to the other, and the driver.

    The child imports, and waits for a message before each step.
    """
    here, there = socket.socketpair()
    here.settimeout(20)
    there.settimeout(20)
    child = os.fork()
    d = Driver.started()
    return child, here if child else there, d


def hear(line: socket.socket) -> bytes:
    data = line.recv(100)
    assert data, "the other process has ended"
    return data


def test_an_opened_handle_counts_once_and_with_its_importer_when_its_maker_has_freed_it(sandbox: Sandbox) -> None:
    def program() -> None:
        child, line, d = two_started()
        if not child:
            address = d.ipc_open(hear(line))
            assert refused(d.mem_alloc, 1000 * MIB) == OUT_OF_MEMORY
            held = d.mem_alloc(400 * MIB)
            d.mem_free(held)
            line.send(b"go")
            hear(line)
            d.ipc_close(address)
            line.send(b"go")
            os._exit(0)
        address = d.mem_alloc(1000 * MIB)
        line.send(d.ipc_handle(address))
        hear(line)
        # 1036 of contexts and 1000 shared by the two.
        d.mem_free(address)
        assert refused(d.mem_alloc, 600 * MIB) == OUT_OF_MEMORY, "the importer still has it"
        assert refused(d.mem_alloc, 400 * MIB) == "granted"
        line.send(b"go")
        hear(line)
        os.waitpid(child, 0)
        assert refused(d.mem_alloc, 1000 * MIB) == "granted"

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2500m")


def test_imported_descriptors(sandbox: Sandbox) -> None:
    def program() -> None:
        child, line, d = two_started()
        if not child:
            _, (descriptor,), _, _ = socket.recv_fds(line, 100, 1)
            handle = d.mem_import(descriptor)
            address = d.address_reserve(1000 * MIB)
            d.mem_map(address, 1000 * MIB, handle)
            assert refused(d.mem_alloc, 600 * MIB) == OUT_OF_MEMORY
            assert refused(d.mem_alloc, 400 * MIB) == "granted"
            line.send(b"go")
            hear(line)
            d.mem_unmap(address, 1000 * MIB)
            d.mem_release(handle)
            line.send(b"go")
            hear(line)
            os._exit(0)
        handle = d.mem_create(1000 * MIB, handle_types=POSIX_DESCRIPTOR)
        socket.send_fds(line, [b"fd"], [d.mem_export(handle)])
        hear(line)
        d.mem_release(handle)
        assert refused(d.mem_alloc, 600 * MIB) == OUT_OF_MEMORY, "the importer still has it"
        line.send(b"go")
        hear(line)
        assert refused(d.mem_alloc, 600 * MIB) == "granted"
        line.send(b"go")

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2500m")


def test_memory_that_is_imported_where_it_was_made(sandbox: Sandbox) -> None:
    def program() -> None:
        child, _, d = two_started()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        handle = d.mem_create(1000 * MIB, handle_types=POSIX_DESCRIPTOR)
        again = d.mem_import(d.mem_export(handle))
        assert again != handle
        assert refused(d.mem_alloc, 600 * MIB) == "granted", "it is there once"
        d.mem_release(handle)
        assert refused(d.mem_alloc, 200 * MIB) == OUT_OF_MEMORY, "and still is"
        d.mem_release(again)
        assert refused(d.mem_alloc, 1000 * MIB) == "granted"

    sandbox.python(program, CUDA_DEVICE_MEMORY_LIMIT="2200m")
