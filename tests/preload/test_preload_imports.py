"""Memory that one process made and another one uses: counted once, wherever it is."""

from __future__ import annotations

from sandbox import Sandbox

# Both processes are in one container. The child imports, and waits for a line before each step.
PRELUDE = """
import array, os, socket, sys
from cuda_driver import *
MIB = 1 << 20
here, there = socket.socketpair()
here.settimeout(20), there.settimeout(20)
child = os.fork()
d = Driver(); d.start()
used = lambda: d.mem_used() // MIB
def refused(call, *arguments):
    try:
        call(*arguments)
    except CudaError as error:
        return error.name
    return "granted"
def tell(data=b"go"):
    (here if child else there).send(data)
def hear():
    return (here if child else there).recv(100)
def send_descriptor(descriptor):
    here.sendmsg([b"fd"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
def receive_descriptor():
    _, ancillary, _, _ = there.recvmsg(100, 100)
    return array.array("i", ancillary[0][2])[0]
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
CONTEXTS = 2 * 518
"""


def test_an_opened_handle_counts_once_and_with_its_importer_when_its_maker_has_freed_it(sandbox: Sandbox) -> None:
    code = """
if not child:
    address = d.ipc_open(hear())
    assert refused(d.mem_alloc, 1000 * MIB) == OUT_OF_MEMORY
    held = d.mem_alloc(400 * MIB)
    d.mem_free(held)
    tell()
    hear()
    d.ipc_close(address)
    tell()
    os._exit(0)
address = d.mem_alloc(1000 * MIB)
tell(d.ipc_handle(address))
hear()
# 1036 of contexts and 1000 shared by the two.
d.mem_free(address)
assert refused(d.mem_alloc, 600 * MIB) == OUT_OF_MEMORY, "the importer still has it"
assert refused(d.mem_alloc, 400 * MIB) == "granted"
tell()
hear()
os.waitpid(child, 0)
assert refused(d.mem_alloc, 1000 * MIB) == "granted"
"""
    sandbox.python(PRELUDE + code, CUDA_DEVICE_MEMORY_LIMIT="2500m")


def test_imported_descriptors(sandbox: Sandbox) -> None:
    code = """
if not child:
    handle = d.mem_import(receive_descriptor())
    address = d.address_reserve(1000 * MIB)
    d.mem_map(address, 1000 * MIB, handle)
    assert refused(d.mem_alloc, 600 * MIB) == OUT_OF_MEMORY
    assert refused(d.mem_alloc, 400 * MIB) == "granted"
    tell()
    hear()
    d.mem_unmap(address, 1000 * MIB)
    d.mem_release(handle)
    tell()
    hear()
    os._exit(0)
handle = d.mem_create(1000 * MIB, handle_types=POSIX_DESCRIPTOR)
send_descriptor(d.mem_export(handle))
hear()
d.mem_release(handle)
assert refused(d.mem_alloc, 600 * MIB) == OUT_OF_MEMORY, "the importer still has it"
tell()
hear()
assert refused(d.mem_alloc, 600 * MIB) == "granted"
tell()
"""
    sandbox.python(PRELUDE + code, CUDA_DEVICE_MEMORY_LIMIT="2500m")


def test_memory_that_is_imported_where_it_was_made(sandbox: Sandbox) -> None:
    code = """
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
"""
    sandbox.python(PRELUDE + code, CUDA_DEVICE_MEMORY_LIMIT="2200m")
