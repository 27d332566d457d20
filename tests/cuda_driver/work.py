"""Modules, kernels, streams and events."""

from ctypes import byref, c_float, c_void_p

from cuda_driver.calls import Calls, CudaError
from cuda_driver.constants import ERROR_NOT_READY, SUCCESS
from cuda_driver.structures import LaunchConfig


def ptx(array_bytes: int) -> bytes:
    """A module with one variable of this size and one kernel, for any GPU since Volta."""
    text = f""".version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 large[{array_bytes}];
.visible .entry nothing() {{ ret; }}
"""
    return text.encode()


class Work(Calls):
    """Kernels, and the streams and events that order them."""

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

    def stream_with_priority(self, priority: int) -> int:
        stream = c_void_p()
        self.call("cuStreamCreateWithPriority", byref(stream), 0, priority)
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
