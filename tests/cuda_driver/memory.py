"""Memory: allocated, from pools, shared between processes, mapped, and of arrays."""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from cuda_driver.calls import Calls, CudaError
from cuda_driver.constants import ARRAY_SPARSE, FORMAT_FLOAT, POSIX_DESCRIPTOR, SUCCESS
from cuda_driver.structures import (
    AllocationProperties,
    Array3DDescriptor,
    ArrayDescriptor,
    ArrayMapInfo,
    IpcHandle,
    Location,
    MulticastProperties,
    PoolProperties,
)


class Memory(Calls):
    """Allocations, and the copies to and from them."""

    def mem_alloc(self, size_bytes: int) -> int:
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), size_bytes)
        return address.value

    def mem_alloc_pitch(self, width_bytes: int, height: int, element_size_bytes: int = 4) -> tuple[int, int]:
        """The address and the pitch in bytes."""
        address, pitch = c_uint64(), c_size_t()
        self.call("cuMemAllocPitch_v2", byref(address), byref(pitch), width_bytes, height, element_size_bytes)
        return address.value, pitch.value

    def mem_alloc_managed(self, size_bytes: int) -> int:
        address = c_uint64()
        self.call("cuMemAllocManaged", byref(address), size_bytes, 1)
        return address.value

    def mem_free(self, address: int) -> None:
        self.call("cuMemFree_v2", address)

    def mem_get_info(self) -> tuple[int, int]:
        """Free and total bytes of the current context's device."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def mem_used(self) -> int:
        free, total = self.mem_get_info()
        return total - free

    def mem_alloc_async(self, size_bytes: int, stream: int = 0, pool: int | None = None) -> int:
        """From the device's current pool, or from the pool that is given."""
        address = c_uint64()
        if pool is None:
            self.call("cuMemAllocAsync", byref(address), size_bytes, stream)
        else:
            self.call("cuMemAllocFromPoolAsync", byref(address), size_bytes, pool, stream)
        return address.value

    def mem_free_async(self, address: int, stream: int = 0) -> None:
        self.call("cuMemFreeAsync", address, stream)

    def default_pool(self, device: int = 0) -> int:
        pool = c_void_p()
        self.call("cuDeviceGetDefaultMemPool", byref(pool), device)
        return pool.value or 0

    def pool_create(self, device: int = 0, maximum_bytes: int = 0) -> int:
        pool = c_void_p()
        properties = PoolProperties(type=1, location=Location(1, device), maximum_bytes=maximum_bytes)
        self.call("cuMemPoolCreate", byref(pool), byref(properties))
        return pool.value or 0

    def pool_attribute(self, pool: int, attribute: int) -> int:
        value = c_uint64()
        self.call("cuMemPoolGetAttribute", pool, attribute, byref(value))
        return value.value

    def pool_set_attribute(self, pool: int, attribute: int, value: int) -> None:
        self.call("cuMemPoolSetAttribute", pool, attribute, byref(c_uint64(value)))

    def ipc_handle(self, address: int) -> bytes:
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", byref(handle), address)
        return bytes(handle)

    def ipc_open(self, handle: bytes) -> int:
        address = c_uint64()
        open_handle = self.library.cuIpcOpenMemHandle_v2
        open_handle.argtypes = [c_void_p, IpcHandle, c_uint]
        code = open_handle(byref(address), IpcHandle.from_buffer_copy(handle), 1)
        if code != SUCCESS:
            raise CudaError("cuIpcOpenMemHandle_v2", code, self.error_name(code))
        return address.value

    def ipc_close(self, address: int) -> None:
        self.call("cuIpcCloseMemHandle", address)

    def mem_export(self, handle: int) -> int:
        """A file descriptor."""
        descriptor = c_int()
        self.call("cuMemExportToShareableHandle", byref(descriptor), handle, POSIX_DESCRIPTOR, 0)
        return descriptor.value

    def mem_import(self, descriptor: int) -> int:
        handle = c_uint64()
        self.call("cuMemImportFromShareableHandle", byref(handle), descriptor, POSIX_DESCRIPTOR)
        return handle.value

    def mem_create(self, size_bytes: int, device: int = 0, handle_types: int = 0, tile_pool: bool = False) -> int:
        """Physical memory, in multiples of 2 MiB; needs cuInit but no context."""
        handle = c_uint64()
        properties = AllocationProperties(type=1, requested_handle_types=handle_types, location=Location(1, device))
        properties.flags[2] = tile_pool
        self.call("cuMemCreate", byref(handle), size_bytes, byref(properties), 0)
        return handle.value

    def mem_release(self, handle: int) -> None:
        self.call("cuMemRelease", handle)

    def address_reserve(self, size_bytes: int) -> int:
        address = c_uint64()
        self.call("cuMemAddressReserve", byref(address), size_bytes, 0, 0, 0)
        return address.value

    def mem_map(self, address: int, size_bytes: int, handle: int) -> None:
        self.call("cuMemMap", address, size_bytes, 0, handle, 0)

    def mem_unmap(self, address: int, size_bytes: int) -> None:
        self.call("cuMemUnmap", address, size_bytes)

    def array(self, width: int, height: int) -> int:
        """Make an array of four floats an element."""
        array = c_void_p()
        self.call("cuArrayCreate_v2", byref(array), byref(ArrayDescriptor(width, height, FORMAT_FLOAT, 4)))
        return array.value or 0

    def array_3d(self, width: int, height: int, depth: int = 0) -> int:
        array = c_void_p()
        descriptor = Array3DDescriptor(width, height, depth, FORMAT_FLOAT, 4, 0)
        self.call("cuArray3DCreate_v2", byref(array), byref(descriptor))
        return array.value or 0

    def sparse_array(self, width: int, height: int) -> int:
        """Make an array that has no memory before tiles are mapped."""
        array = c_void_p()
        descriptor = Array3DDescriptor(width, height, 0, FORMAT_FLOAT, 4, ARRAY_SPARSE)
        self.call("cuArray3DCreate_v2", byref(array), byref(descriptor))
        return array.value or 0

    def map_tiles(self, array: int, handle: int) -> None:
        """All tiles of a sparse array onto this memory, or with 0 onto none."""
        info = ArrayMapInfo(resource=array, operation=1 if handle else 2, handle=handle, device_mask=1)
        self.call("cuMemMapArrayAsync", byref(info), 1, None)

    def multicast(self, size_bytes: int) -> int:
        """An object for the first device alone."""
        handle = c_uint64()
        self.call("cuMulticastCreate", byref(handle), byref(MulticastProperties(devices=1, size=size_bytes)))
        self.call("cuMulticastAddDevice", handle, 0)
        return handle.value

    def array_destroy(self, array: int) -> None:
        self.call("cuArrayDestroy", array)

    def mipmapped_array(self, width: int, height: int, levels: int) -> int:
        array = c_void_p()
        descriptor = Array3DDescriptor(width, height, 0, FORMAT_FLOAT, 4, 0)
        self.call("cuMipmappedArrayCreate", byref(array), byref(descriptor), levels)
        return array.value or 0

    def mipmapped_array_destroy(self, array: int) -> None:
        self.call("cuMipmappedArrayDestroy", array)

    def copy_to_device(self, address: int, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", address, ctypes.c_char_p(data), len(data))

    def copy_from_device(self, address: int, size_bytes: int) -> bytes:
        data = ctypes.create_string_buffer(size_bytes)
        self.call("cuMemcpyDtoH_v2", data, address, size_bytes)
        return data.raw
