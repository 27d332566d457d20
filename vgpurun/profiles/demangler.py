"""A process that turns C++ symbols into names: a line in, a line out. Started by demangling.py, and on its own file.

It uses the C++ library's own demangler, which is on nearly every host.
"""

import contextlib
import ctypes
import ctypes.util
import resource
import sys

_MOST_MEMORY_BYTES = 256 << 20
_MOST_CPU_S = 5
_MOST_LETTERS = 4096


def main() -> None:
    """Answer until nobody asks any more. Ends at once where there is no C++ library."""
    library = ctypes.CDLL(ctypes.util.find_library("stdc++") or "libstdc++.so.6")
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    demangle = library.__cxa_demangle
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    for line in sys.stdin.buffer:
        symbol = line.rstrip(b"\n")
        address = demangle(symbol, None, None, ctypes.byref(ctypes.c_int()))
        name = ctypes.string_at(address, _length(address)) if address else symbol
        free(address)
        sys.stdout.buffer.write(name.replace(b"\n", b" ") + b"\n")
        sys.stdout.buffer.flush()


def _length(address: int) -> int:
    strnlen = ctypes.CDLL(None).strnlen
    strnlen.restype, strnlen.argtypes = ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_size_t]
    length: int = strnlen(address, _MOST_LETTERS)
    return length


if __name__ == "__main__":
    with contextlib.suppress(OSError, AttributeError, MemoryError, KeyboardInterrupt):
        main()
