"""Calls the driver's checkpoint functions for another process, which gives this one up if a call does not return.

    python -I -S checkpoint_calls.py LIBCUDA

reads lines: state PID, lock PID MILLISECONDS, checkpoint PID, restore PID [OLD=NEW...], unlock PID. Each is answered by
the driver's result code, for `state` also by the state. It is a program of its own, without the rest of vgpurun.
"""

import ctypes
import os
import sys

_SYMBOL_NOT_FOUND = 500
_PREFIX = "cuCheckpointProcess"


def _answer(driver: ctypes.CDLL, words: list[str]) -> str:
    verb, pid, *rest = words
    try:
        if verb == "state":
            state = ctypes.c_int(-1)
            code = driver[f"{_PREFIX}GetState"](int(pid), ctypes.byref(state))
            return f"{code} {state.value}"
        return str(driver[f"{_PREFIX}{verb.capitalize()}"](int(pid), _arguments(driver, verb, rest)))
    except AttributeError:
        return str(_SYMBOL_NOT_FOUND)


def _arguments(driver: ctypes.CDLL, verb: str, rest: list[str]) -> object:
    """Return the 64 bytes that the function takes; what is reserved in them is zero."""
    arguments = (ctypes.c_uint64 * 8)()
    if verb == "lock":
        arguments[0] = int(rest[0])
    elif verb == "restore":
        driver.cuInit(0)  # or the GPUs would have to be in persistence mode
        if rest:
            pairs = b"".join(bytes.fromhex(uuid) for pair in rest for uuid in pair.split("="))
            kept = ctypes.create_string_buffer(pairs, len(pairs))
            arguments[0], arguments[1] = ctypes.addressof(kept), len(rest)
            arguments.kept = kept  # type: ignore[attr-defined]  # lives as long as they do
    return arguments


def _say(line: str) -> None:
    """Write a line. Exit where nobody reads it, since the one that asked was killed meanwhile."""
    try:
        os.write(1, f"{line}\n".encode())
    except BrokenPipeError:
        sys.exit()


def main() -> None:
    """Answer lines until there are no more."""
    try:
        driver = ctypes.CDLL(sys.argv[1])
    except OSError as error:
        _say(f"! {error}")
        return
    _say("ready")
    for line in sys.stdin:
        _say(_answer(driver, line.split()))


if __name__ == "__main__":
    main()
