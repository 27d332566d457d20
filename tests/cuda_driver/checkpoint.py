"""Taking another process off its GPUs, and bringing it back."""

import ctypes
from ctypes import byref, c_int

from cuda_driver.calls import Calls

STATES = ("RUNNING", "LOCKED", "CHECKPOINTED", "FAILED")


class Checkpoints(Calls):
    """The checkpoint calls, which need no cuInit. Each returns the name of its result."""

    def process_state(self, pid: int) -> str:
        state = c_int(-1)
        self.call("cuCheckpointProcessGetState", pid, byref(state))
        return STATES[state.value]

    def lock(self, pid: int, timeout_ms: int = 10_000) -> str:
        return self.result("cuCheckpointProcessLock", pid, (c_int * 16)(timeout_ms))

    def checkpoint(self, pid: int) -> str:
        return self.result("cuCheckpointProcessCheckpoint", pid, None)

    def restore(self, pid: int, pairs: dict[str, str] | None = None) -> str:
        """`pairs`: onto which GPU each that the process had, by UUID."""
        uuids = "".join(uuid for pair in (pairs or {}).items() for uuid in pair).replace("GPU-", "")
        content = ctypes.create_string_buffer(bytes.fromhex(uuids.replace("-", "")))
        arguments = (ctypes.c_uint64 * 8)(ctypes.addressof(content), len(pairs or {}))
        return self.result("cuCheckpointProcessRestore", pid, arguments)

    def unlock(self, pid: int) -> str:
        return self.result("cuCheckpointProcessUnlock", pid, None)
