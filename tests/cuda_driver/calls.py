"""How a function of the driver is found and called."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_void_p

from cuda_driver.constants import SUCCESS
from cuda_driver.prototypes import PROTOTYPES

TYPE_CHECKING = False  # typing's own takes long to import, and so does what is imported here
if TYPE_CHECKING:
    from collections.abc import Callable


class CudaError(Exception):
    """A driver call that did not return CUDA_SUCCESS: `code` and `name` say what it returned."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.call = call
        self.code = code
        self.name = name


class Calls:
    """Calls of any function, by its name."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self.library = ctypes.CDLL(library)

    def function(self, symbol: str) -> Callable[..., int]:
        """The raw function, which returns a CUresult."""
        function = getattr(self.library, symbol)
        if symbol in PROTOTYPES:
            function.argtypes = PROTOTYPES[symbol]
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
