"""The CUDA driver API through ctypes: as much of it as the tests need.

The functions are looked up by dlsym in `libcuda.so.1`, as a program that loads the driver at run time does, so that a
preloaded library sees every look-up. Sizes are bytes; times are what the method's name says.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

SUCCESS = 0
ERROR_INVALID_VALUE = 1
ERROR_OUT_OF_MEMORY = 2
ERROR_NOT_INITIALIZED = 3
ERROR_NOT_READY = 600

CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED = 0, 1, 2
STREAM_NON_BLOCKING = 1
EVENT_DISABLE_TIMING = 2
GET_PROC_ADDRESS_LEGACY, GET_PROC_ADDRESS_PER_THREAD = 1, 2

FORMAT_FLOAT = 0x20

POSIX_DESCRIPTOR = 1
LIMIT_STACK, LIMIT_PRINTF, LIMIT_MALLOC = 0, 1, 2

GRAPH_AUTO_FREE, GRAPH_UPLOAD = 1, 2
GRAPH_MEMORY_USED, GRAPH_MEMORY_RESERVED = 0, 2

POOL_RELEASE_THRESHOLD, POOL_RESERVED_CURRENT, POOL_RESERVED_HIGH, POOL_USED_CURRENT, POOL_USED_HIGH = 4, 5, 6, 7, 8

# Argument types by symbol. ctypes would pass a Python int as a 32-bit int, which cuts an address in half.
_PROTOTYPES: dict[str, list[type]] = {
    "cuInit": [c_uint],
    "cuDriverGetVersion": [c_void_p],
    "cuGetErrorName": [c_int, c_void_p],
    "cuGetProcAddress": [c_char_p, c_void_p, c_int, c_uint64],
    "cuGetProcAddress_v2": [c_char_p, c_void_p, c_int, c_uint64, c_void_p],
    "cuDeviceGetCount": [c_void_p],
    "cuDeviceGet": [c_void_p, c_int],
    "cuDeviceGetName": [c_char_p, c_int, c_int],
    "cuDeviceGetUuid_v2": [c_char_p, c_int],
    "cuDeviceTotalMem_v2": [c_void_p, c_int],
    "cuDeviceGetAttribute": [c_void_p, c_int, c_int],
    "cuDevicePrimaryCtxRetain": [c_void_p, c_int],
    "cuDevicePrimaryCtxRelease_v2": [c_int],
    "cuDevicePrimaryCtxReset_v2": [c_int],
    "cuCtxCreate_v2": [c_void_p, c_uint, c_int],
    "cuCtxDestroy_v2": [c_void_p],
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxGetCurrent": [c_void_p],
    "cuCtxSynchronize": [],
    "cuMemAlloc_v2": [c_void_p, c_size_t],
    "cuMemAllocPitch_v2": [c_void_p, c_void_p, c_size_t, c_size_t, c_uint],
    "cuMemAllocManaged": [c_void_p, c_size_t, c_uint],
    "cuMemFree_v2": [c_uint64],
    "cuMemGetInfo_v2": [c_void_p, c_void_p],
    "cuMemAllocAsync": [c_void_p, c_size_t, c_void_p],
    "cuMemAllocFromPoolAsync": [c_void_p, c_size_t, c_void_p, c_void_p],
    "cuMemFreeAsync": [c_uint64, c_void_p],
    "cuDeviceGetDefaultMemPool": [c_void_p, c_int],
    "cuDeviceSetMemPool": [c_int, c_void_p],
    "cuMemPoolCreate": [c_void_p, c_void_p],
    "cuMemPoolDestroy": [c_void_p],
    "cuMemPoolTrimTo": [c_void_p, c_size_t],
    "cuMemPoolGetAttribute": [c_void_p, c_int, c_void_p],
    "cuMemPoolSetAttribute": [c_void_p, c_int, c_void_p],
    "cuMemCreate": [c_void_p, c_size_t, c_void_p, c_uint64],
    "cuMemRelease": [c_uint64],
    "cuMemAddressReserve": [c_void_p, c_size_t, c_size_t, c_uint64, c_uint64],
    "cuMemAddressFree": [c_uint64, c_size_t],
    "cuMemMap": [c_uint64, c_size_t, c_size_t, c_uint64, c_uint64],
    "cuMemUnmap": [c_uint64, c_size_t],
    "cuIpcGetMemHandle": [c_void_p, c_uint64],
    "cuIpcCloseMemHandle": [c_uint64],
    "cuMemExportToShareableHandle": [c_void_p, c_uint64, c_int, c_uint64],
    "cuMemImportFromShareableHandle": [c_void_p, c_void_p, c_int],
    "cuArrayCreate_v2": [c_void_p, c_void_p],
    "cuArray3DCreate_v2": [c_void_p, c_void_p],
    "cuArrayDestroy": [c_void_p],
    "cuMipmappedArrayCreate": [c_void_p, c_void_p, c_uint],
    "cuMipmappedArrayDestroy": [c_void_p],
    "cuPointerGetAttribute": [c_void_p, c_int, c_uint64],
    "cuMemcpyHtoD_v2": [c_uint64, c_void_p, c_size_t],
    "cuMemcpyDtoH_v2": [c_void_p, c_uint64, c_size_t],
    "cuMemsetD8_v2": [c_uint64, ctypes.c_ubyte, c_size_t],
    "cuModuleLoadData": [c_void_p, c_char_p],
    "cuCtxSetLimit": [c_int, c_size_t],
    "cuCtxGetLimit": [c_void_p, c_int],
    "cuLibraryLoadData": [c_void_p, c_char_p, c_void_p, c_void_p, c_uint, c_void_p, c_void_p, c_uint],
    "cuLibraryUnload": [c_void_p],
    "cuLibraryGetModule": [c_void_p, c_void_p],
    "cuModuleLoadDataEx": [c_void_p, c_char_p, c_uint, c_void_p, c_void_p],
    "cuModuleLoadFatBinary": [c_void_p, c_char_p],
    "cuModuleUnload": [c_void_p],
    "cuModuleGetFunction": [c_void_p, c_void_p, c_char_p],
    "cuLaunchKernel": [c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p],
    "cuLaunchKernel_ptsz": [c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p],
    "cuLaunchKernelEx": [c_void_p, c_void_p, c_void_p, c_void_p],
    "cuLaunchKernelEx_ptsz": [c_void_p, c_void_p, c_void_p, c_void_p],
    "cuLaunchCooperativeKernel": [c_void_p, *[c_uint] * 7, c_void_p, c_void_p],
    "cuStreamCreate": [c_void_p, c_uint],
    "cuStreamCreateWithPriority": [c_void_p, c_uint, c_int],
    "cuStreamDestroy_v2": [c_void_p],
    "cuStreamQuery": [c_void_p],
    "cuStreamSynchronize": [c_void_p],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "cuStreamBeginCapture_v2": [c_void_p, c_int],
    "cuStreamEndCapture": [c_void_p, c_void_p],
    "cuStreamIsCapturing": [c_void_p, c_void_p],
    "cuThreadExchangeStreamCaptureMode": [c_void_p],
    "cuEventCreate": [c_void_p, c_uint],
    "cuEventDestroy_v2": [c_void_p],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventQuery": [c_void_p],
    "cuEventSynchronize": [c_void_p],
    "cuEventElapsedTime": [c_void_p, c_void_p, c_void_p],
    "cuDeviceGetGraphMemAttribute": [c_int, c_int, c_void_p],
    "cuDeviceGraphMemTrim": [c_int],
    "cuGraphCreate": [c_void_p, c_uint],
    "cuGraphClone": [c_void_p, c_void_p],
    "cuGraphAddChildGraphNode": [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p],
    "cuGraphAddMemAllocNode": [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p],
    "cuGraphAddMemFreeNode": [c_void_p, c_void_p, c_void_p, c_size_t, c_uint64],
    "cuGraphInstantiateWithParams": [c_void_p, c_void_p, c_void_p],
    "cuGraphExecUpdate_v2": [c_void_p, c_void_p, c_void_p],
    "cuGraphUpload_ptsz": [c_void_p, c_void_p],
    "cuGraphUpload": [c_void_p, c_void_p],
    "cuGraphInstantiateWithFlags": [c_void_p, c_void_p, c_uint64],
    "cuGraphLaunch": [c_void_p, c_void_p],
    "cuGraphLaunch_ptsz": [c_void_p, c_void_p],
    "cuGraphDestroy": [c_void_p],
    "cuGraphExecDestroy": [c_void_p],
}


def ptx(array_bytes: int) -> bytes:
    """A module with one variable of this size and one kernel, for any GPU since Volta."""
    text = f""".version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 large[{array_bytes}];
.visible .entry nothing() {{ ret; }}
"""
    return text.encode()


class CudaError(Exception):
    """A driver call that did not return CUDA_SUCCESS: `code` and `name` say what it returned."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.call = call
        self.code = code
        self.name = name


class Location(ctypes.Structure):
    """CUmemLocation; type 1 is a device."""

    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp; type 1 is pinned."""

    _fields_ = [
        ("type", c_int),
        ("requested_handle_types", c_int),
        ("location", Location),
        ("win32_metadata", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


class PoolProperties(ctypes.Structure):
    """CUmemPoolProps; type 1 is pinned."""

    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32_attributes", c_void_p),
        ("maximum_bytes", c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]


class AllocationNode(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS."""

    _fields_ = [
        ("pool", PoolProperties),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("size_bytes", c_size_t),
        ("address", c_uint64),
    ]


class InstantiateParameters(ctypes.Structure):
    """CUDA_GRAPH_INSTANTIATE_PARAMS."""

    _fields_ = [("flags", c_uint64), ("upload_stream", c_void_p), ("error_node", c_void_p), ("result", c_int)]


class GraphUpdate(ctypes.Structure):
    """CUgraphExecUpdateResultInfo."""

    _fields_ = [("result", c_int), ("error_node", c_void_p), ("error_from_node", c_void_p)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    ]


class ArrayDescriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_uint), ("channels", c_uint)]


class Array3DDescriptor(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = [
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_uint),
        ("channels", c_uint),
        ("flags", c_uint),
    ]


class Driver:
    """Driver calls that raise CudaError. Handles are ints; a stream of 0 is the default stream."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self.library = ctypes.CDLL(library)

    def function(self, symbol: str) -> Callable[..., int]:
        """The raw function, which returns a CUresult."""
        function = getattr(self.library, symbol)
        if symbol in _PROTOTYPES:
            function.argtypes = _PROTOTYPES[symbol]
        return function  # type: ignore[no-any-return]

    def call(self, symbol: str, *arguments: object) -> None:
        code = self.function(symbol)(*arguments)
        if code != SUCCESS:
            raise CudaError(symbol, code, self.error_name(code))

    def result(self, symbol: str, *arguments: object) -> str:
        """The name of what a call returns, for tests that expect an error."""
        return self.error_name(self.function(symbol)(*arguments))

    def error_name(self, code: int) -> str:
        name = c_char_p()
        if self.function("cuGetErrorName")(code, byref(name)) != SUCCESS or name.value is None:
            return f"unknown error {code}"
        return name.value.decode()

    def proc_address(self, name: str, version: int = 13000, flags: int = 0) -> tuple[int, int]:
        """The address and the status that cuGetProcAddress_v2 gives; the address is 0 when there is none."""
        address, status = c_void_p(), c_int(-1)
        self.call("cuGetProcAddress_v2", name.encode(), byref(address), version, flags, byref(status))
        return address.value or 0, status.value

    def address_of(self, symbol: str) -> int:
        return ctypes.cast(getattr(self.library, symbol), c_void_p).value or 0

    # Devices and contexts

    def init(self) -> None:
        self.call("cuInit", 0)

    def version(self) -> int:
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        return version.value

    def device_count(self) -> int:
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        return count.value

    def device_name(self, device: int = 0) -> str:
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, len(name), device)
        return name.value.decode()

    def device_uuid(self, device: int = 0) -> str:
        """As NVML writes it: GPU- and 8-4-4-4-12 hex digits."""
        raw = ctypes.create_string_buffer(16)
        self.call("cuDeviceGetUuid_v2", raw, device)
        digits = raw.raw.hex()
        return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def device_total_mem(self, device: int = 0) -> int:
        total = c_size_t()
        self.call("cuDeviceTotalMem_v2", byref(total), device)
        return total.value

    def device_attribute(self, attribute: int, device: int = 0) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), attribute, device)
        return value.value

    def primary_context(self, device: int = 0) -> int:
        """Retains the device's primary context and makes it current."""
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        return context.value or 0

    def primary_context_release(self, device: int = 0) -> None:
        self.call("cuDevicePrimaryCtxRelease_v2", device)

    def context_create(self, device: int = 0, flags: int = 0) -> int:
        context = c_void_p()
        self.call("cuCtxCreate_v2", byref(context), flags, device)
        return context.value or 0

    def context_destroy(self, context: int) -> None:
        self.call("cuCtxDestroy_v2", context)

    def set_current(self, context: int) -> None:
        self.call("cuCtxSetCurrent", context or None)

    def start(self, device: int = 0) -> None:
        """What every test begins with: cuInit and a current primary context."""
        self.init()
        self.primary_context(device)

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    # Memory

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

    def mem_create(self, size_bytes: int, device: int = 0, handle_types: int = 0) -> int:
        """Physical memory, in multiples of 2 MiB; needs cuInit but no context."""
        handle = c_uint64()
        properties = AllocationProperties(type=1, requested_handle_types=handle_types, location=Location(1, device))
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
        """Of four floats an element."""
        array = c_void_p()
        self.call("cuArrayCreate_v2", byref(array), byref(ArrayDescriptor(width, height, FORMAT_FLOAT, 4)))
        return array.value or 0

    def array_3d(self, width: int, height: int, depth: int = 0) -> int:
        array = c_void_p()
        descriptor = Array3DDescriptor(width, height, depth, FORMAT_FLOAT, 4, 0)
        self.call("cuArray3DCreate_v2", byref(array), byref(descriptor))
        return array.value or 0

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

    # Work

    def module(self, image: bytes = b"simulated") -> int:
        """Loads an image; the simulated driver takes any."""
        module = c_void_p()
        self.call("cuModuleLoadData", byref(module), image)
        return module.value or 0

    def module_unload(self, module: int) -> None:
        self.call("cuModuleUnload", module)

    def library_load(self, image: bytes) -> int:
        library = c_void_p()
        self.call("cuLibraryLoadData", byref(library), image, None, None, 0, None, None, 0)
        return library.value or 0

    def library_unload(self, library: int) -> None:
        self.call("cuLibraryUnload", library)

    def context_limit(self, limit: int) -> int:
        value = c_size_t()
        self.call("cuCtxGetLimit", byref(value), limit)
        return value.value

    def context_set_limit(self, limit: int, value: int) -> None:
        self.call("cuCtxSetLimit", limit, value)

    def kernel(self, name: str, module: int | None = None) -> int:
        """A kernel of a module; without one, of a new module. The simulated driver reads its time from the name."""
        function = c_void_p()
        self.call("cuModuleGetFunction", byref(function), self.module() if module is None else module, name.encode())
        return function.value or 0

    def launch(
        self,
        function: int,
        stream: int = 0,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (1, 1, 1),
        symbol: str = "cuLaunchKernel",
    ) -> None:
        self.call(symbol, function, *grid, *block, 0, stream, None, None)

    def launch_ex(self, function: int, stream: int = 0, symbol: str = "cuLaunchKernelEx") -> None:
        config = LaunchConfig(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)
        self.call(symbol, byref(config), function, None, None)

    def launch_cooperative(self, function: int, stream: int = 0) -> None:
        self.call("cuLaunchCooperativeKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, None)

    def stream(self, flags: int = 0) -> int:
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), flags)
        return stream.value or 0

    def stream_destroy(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", stream)

    def stream_synchronize(self, stream: int = 0) -> None:
        self.call("cuStreamSynchronize", stream)

    def stream_is_done(self, stream: int = 0) -> bool:
        code = self.function("cuStreamQuery")(stream)
        if code not in (SUCCESS, ERROR_NOT_READY):
            raise CudaError("cuStreamQuery", code, self.error_name(code))
        return code == SUCCESS

    def stream_wait_event(self, stream: int, event: int) -> None:
        self.call("cuStreamWaitEvent", stream, event, 0)

    def event(self, flags: int = 0) -> int:
        event = c_void_p()
        self.call("cuEventCreate", byref(event), flags)
        return event.value or 0

    def event_record(self, event: int, stream: int = 0) -> None:
        self.call("cuEventRecord", event, stream)

    def event_synchronize(self, event: int) -> None:
        self.call("cuEventSynchronize", event)

    def event_is_done(self, event: int) -> bool:
        code = self.function("cuEventQuery")(event)
        if code not in (SUCCESS, ERROR_NOT_READY):
            raise CudaError("cuEventQuery", code, self.error_name(code))
        return code == SUCCESS

    def event_elapsed_ms(self, start: int, end: int) -> float:
        milliseconds = c_float()
        self.call("cuEventElapsedTime", byref(milliseconds), start, end)
        return milliseconds.value

    # Graphs

    def begin_capture(self, stream: int, mode: int = CAPTURE_GLOBAL) -> None:
        self.call("cuStreamBeginCapture_v2", stream, mode)

    def end_capture(self, stream: int) -> int:
        graph = c_void_p()
        self.call("cuStreamEndCapture", stream, byref(graph))
        return graph.value or 0

    @contextmanager
    def capture(self, stream: int, mode: int = CAPTURE_GLOBAL) -> Iterator[list[int]]:
        """Captures what the block puts into the stream; the list then holds the graph."""
        graphs: list[int] = []
        self.begin_capture(stream, mode)
        yield graphs
        graphs.append(self.end_capture(stream))

    def is_capturing(self, stream: int) -> int:
        """0: no, 1: yes, 2: yes, but the capture is invalid."""
        status = c_int()
        self.call("cuStreamIsCapturing", stream, byref(status))
        return status.value

    def exchange_capture_mode(self, mode: int) -> int:
        """Sets this thread's mode and returns the one before."""
        value = c_int(mode)
        self.call("cuThreadExchangeStreamCaptureMode", byref(value))
        return value.value

    def graph_instantiate(self, graph: int, flags: int = 0) -> int:
        executable = c_void_p()
        self.call("cuGraphInstantiateWithFlags", byref(executable), graph, flags)
        return executable.value or 0

    def graph_instantiate_uploaded(self, graph: int, stream: int = 0) -> int:
        executable = c_void_p()
        parameters = InstantiateParameters(flags=GRAPH_UPLOAD, upload_stream=stream)
        self.call("cuGraphInstantiateWithParams", byref(executable), graph, byref(parameters))
        return executable.value or 0

    def graph_update(self, executable: int, graph: int) -> None:
        outcome = GraphUpdate()
        self.call("cuGraphExecUpdate_v2", executable, graph, byref(outcome))

    def graph_upload(self, executable: int, stream: int = 0) -> None:
        self.call("cuGraphUpload", executable, stream)

    def graph(self) -> int:
        graph = c_void_p()
        self.call("cuGraphCreate", byref(graph), 0)
        return graph.value or 0

    def graph_add_alloc(self, graph: int, size_bytes: int, after: int = 0, device: int = 0) -> tuple[int, int]:
        """A node that allocates, after another one; the node and the address."""
        node = c_void_p()
        parameters = AllocationNode(pool=PoolProperties(type=1, location=Location(1, device)), size_bytes=size_bytes)
        before = (c_void_p * 1)(after)
        self.call("cuGraphAddMemAllocNode", byref(node), graph, before, 1 if after else 0, byref(parameters))
        return node.value or 0, parameters.address

    def graph_add_free(self, graph: int, address: int, after: int) -> int:
        node = c_void_p()
        self.call("cuGraphAddMemFreeNode", byref(node), graph, (c_void_p * 1)(after), 1, address)
        return node.value or 0

    def memory_graph(self, *sizes_bytes: int, free: bool = True) -> int:
        """A graph that allocates these, one after the other, each freed before the next unless `free` is false."""
        graph, last = self.graph(), 0
        for size_bytes in sizes_bytes:
            last, address = self.graph_add_alloc(graph, size_bytes, last)
            if free:
                last = self.graph_add_free(graph, address, last)
        return graph

    def graph_run_alloc(self, size_bytes: int, stream: int = 0) -> int:
        """Launches a graph that allocates and does not free; the address is the caller's to free."""
        graph = self.graph()
        _, address = self.graph_add_alloc(graph, size_bytes)
        executable = self.graph_instantiate(graph)
        try:
            self.graph_launch(executable, stream)
        finally:
            self.graph_exec_destroy(executable)
            self.graph_destroy(graph)
        return address

    def graph_memory(self, attribute: int = GRAPH_MEMORY_RESERVED, device: int = 0) -> int:
        value = c_uint64()
        self.call("cuDeviceGetGraphMemAttribute", device, attribute, byref(value))
        return value.value

    def graph_memory_trim(self, device: int = 0) -> None:
        self.call("cuDeviceGraphMemTrim", device)

    def graph_launch(self, executable: int, stream: int = 0) -> None:
        self.call("cuGraphLaunch", executable, stream)

    def graph_destroy(self, graph: int) -> None:
        self.call("cuGraphDestroy", graph)

    def graph_exec_destroy(self, executable: int) -> None:
        self.call("cuGraphExecDestroy", executable)

    def kernel_graph(self, function: int, count: int) -> int:
        """An executable graph of so many launches of a kernel."""
        stream = self.stream(STREAM_NON_BLOCKING)
        with self.capture(stream) as graphs:
            for _ in range(count):
                self.launch(function, stream)
        executable = self.graph_instantiate(graphs[0])
        self.graph_destroy(graphs[0])
        self.stream_destroy(stream)
        return executable
