"""Devices and contexts."""

import ctypes
from ctypes import byref, c_int, c_size_t, c_void_p

from cuda_driver.calls import Calls
from cuda_driver.constants import GREEN_DEFAULT_STREAM, STREAM_NON_BLOCKING


class Devices(Calls):
    """The driver, its devices, and their contexts."""

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
        """Return the UUID as NVML writes it: GPU- and 8-4-4-4-12 hex digits."""
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

    def green_context(self, device: int = 0) -> int:
        """Make one of no description, which only the simulated driver does."""
        green = c_void_p()
        self.call("cuGreenCtxCreate", byref(green), None, device, GREEN_DEFAULT_STREAM)
        return green.value or 0

    def green_context_destroy(self, green: int) -> None:
        self.call("cuGreenCtxDestroy", green)

    def green_context_converted(self, green: int) -> int:
        context = c_void_p()
        self.call("cuCtxFromGreenCtx", byref(context), green)
        return context.value or 0

    def green_context_stream(self, green: int) -> int:
        stream = c_void_p()
        self.call("cuGreenCtxStreamCreate", byref(stream), green, STREAM_NON_BLOCKING, 0)
        return stream.value or 0

    def set_current(self, context: int) -> None:
        self.call("cuCtxSetCurrent", context or None)

    def start(self, device: int = 0) -> None:
        """Begin as most programs do: cuInit and a current primary context."""
        self.init()
        self.primary_context(device)

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    def context_limit(self, limit: int) -> int:
        value = c_size_t()
        self.call("cuCtxGetLimit", byref(value), limit)
        return value.value

    def context_set_limit(self, limit: int, value: int) -> None:
        self.call("cuCtxSetLimit", limit, value)
