"""Everything that libvgpu.so and the host share: names, paths and the layout of two files. The C side is lib/src/abi.h.

tests/unit/test_abi.py compiles lib/src/abi.h and compares every value, size and offset with this file.
"""

import ctypes
from typing import Final

ABI_VERSION: Final = 3

CONTAINER_DIR: Final = "/.vgpurun"
CONTAINER_LIBRARY: Final = "/.vgpurun/libvgpu.so"
CONTAINER_LIMITS: Final = "/.vgpurun/etc/limits"
CONTAINER_USAGE: Final = "/.vgpurun/run/usage"
CONTAINER_PRESENCE: Final = "/.vgpurun/run/presence"
CONTAINER_TENANTS: Final = "/.vgpurun/tenants"
CONTAINER_PROFILE: Final = "/.vgpurun/profile"
LOCK_DIR: Final = "/var/tmp/vgpulock"
PRESENCE_NAME: Final = "presence1"
PRESENCE_BYTES: Final = 65536

ENV_MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
ENV_OVERSUBSCRIBE: Final = "CUDA_OVERSUBSCRIBE"
ENV_MEMORY_SHARE: Final = "CUDA_DEVICE_MEMORY_SHARE"
ENV_SM_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
ENV_USAGE_FILE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
ENV_LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
ENV_WRAPPER_MEMORY: Final = "WRAPPER_MAX_MEMORY"
ENV_ALNAIR_SM: Final = "ALNAIR_VGPU_COMPUTE_PERCENTILE"
ENV_SM_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
ENV_PRIORITY: Final = "CUDA_TASK_PRIORITY"
ENV_LIMITS_FILE: Final = "VGPURUN_LIMITS_FILE"
ENV_PRESENCE_FILE: Final = "VGPURUN_PRESENCE_FILE"
ENV_LIMITS_TAKEN: Final = "VGPURUN_LIMITS_TAKEN"
ENV_PROFILE: Final = "PFLOG"
ENV_PROFILE_SIZE: Final = "VGPURUN_PROFILE_SIZE"
ENV_DISABLE_CONTROL: Final = "CUDA_DISABLE_CONTROL"

MAX_LEVELS: Final = 4
MAX_DEVICES: Final = 32
MAX_PROCESSES: Final = 1024
UUID_SIZE: Final = 48

LIMITS_MAGIC: Final = 0x53544D494C474356
USAGE_MAGIC: Final = 0x4547415355474356
NO_MEMORY_LIMIT: Final = 2**64 - 1
NO_SM_LIMIT: Final = 100
SECONDS: Final = 64

SM_HARD: Final = 0
SM_BURST: Final = 1
SM_OFF: Final = 2

NOT_SUSPENDED: Final = 0
SUSPENDING: Final = 1
SUSPENDED: Final = 2
SWAPPED: Final = 3

PRIORITY_HIGH: Final = 0
PRIORITY_LOW: Final = 1

NOT_ENFORCED_MEMORY: Final = 1
NOT_ENFORCED_SM: Final = 2

LIMITER_NONE: Final = 0
LIMITER_SCHEDULER: Final = 1
LIMITER_LAUNCHES: Final = 2

SLOT_LOCK_OFFSET: Final = 1 << 30
START_LOCK_OFFSET: Final = SLOT_LOCK_OFFSET - 2
MARKER_PREFIX: Final = "vgpurun-library version="


class DeviceLimit(ctypes.LittleEndianStructure):
    """struct vgpu_device_limit."""

    _fields_ = (
        ("uuid", ctypes.c_char * UUID_SIZE),
        ("memory_limit_bytes", ctypes.c_uint64),
        ("virtual_limit_bytes", ctypes.c_uint64),
        ("sm_limit_percent", ctypes.c_uint32),
        ("sm_policy", ctypes.c_uint32),
        ("priority", ctypes.c_uint32),
        ("paused", ctypes.c_uint32),
        ("guaranteed_bytes", ctypes.c_uint64),
        ("sms_percent", ctypes.c_uint32),
        ("reserved", ctypes.c_uint8 * 36),
    )


class Limits(ctypes.LittleEndianStructure):
    """struct vgpu_limits: the limits file."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("abi_version", ctypes.c_uint32),
        ("device_count", ctypes.c_uint32),
        ("may_disable", ctypes.c_uint32),
        ("suspended", ctypes.c_uint32),
        ("swap", ctypes.c_uint32),
        ("movable", ctypes.c_uint32),
        ("moves", ctypes.c_uint32),
        ("together", ctypes.c_uint32),
        ("reserved", ctypes.c_uint8 * 20),
        ("has_parent", ctypes.c_uint32),
        ("devices", DeviceLimit * MAX_DEVICES),
    )


class DeviceShared(ctypes.LittleEndianStructure):
    """struct vgpu_device_shared: one device, for all processes of a container. Times are nanoseconds."""

    _fields_ = (
        ("uuid", ctypes.c_char * UUID_SIZE),
        ("memory_limit_bytes", ctypes.c_uint64),
        ("sm_limit_percent", ctypes.c_uint32),
        ("not_enforced", ctypes.c_uint32),
        ("tokens_zero_at_ns", ctypes.c_int64),
        ("charged_until_ns", ctypes.c_int64),
        ("busy_ns", ctypes.c_uint64),
        ("throttled_ns", ctypes.c_uint64),
        ("launches", ctypes.c_uint64),
        ("refusals", ctypes.c_uint64),
        ("last_launch_ns", ctypes.c_int64),
        ("reserved0", ctypes.c_uint64),
        ("seconds", ctypes.c_uint64 * SECONDS),
        ("reserved", ctypes.c_uint8 * 384),
    )


class DeviceUsage(ctypes.LittleEndianStructure):
    """struct vgpu_device_usage: what one process holds on one device."""

    _fields_ = (
        ("allocated_bytes", ctypes.c_uint64),
        ("overhead_bytes", ctypes.c_uint64),
        ("managed_bytes", ctypes.c_uint64),
        ("context_bytes", ctypes.c_uint64),
        ("host_bytes", ctypes.c_uint64),
        ("counted_bytes", ctypes.c_uint64),
        ("limiter", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
    )


class ProcessUsage(ctypes.LittleEndianStructure):
    """struct vgpu_process_usage: a slot. It counts only while its owner holds the lock of its byte."""

    _fields_ = (
        ("pid", ctypes.c_uint32),
        ("pid_namespace", ctypes.c_uint32),
        ("shares_memory", ctypes.c_uint32),
        ("reserved", ctypes.c_uint8 * 52),
        ("devices", DeviceUsage * MAX_DEVICES),
    )


class UsageHead(ctypes.LittleEndianStructure):
    """struct vgpu_usage without its slots."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("abi_version", ctypes.c_uint32),
        ("slots_used", ctypes.c_uint32),
        ("asked_ns", ctypes.c_int64),
        ("reserved", ctypes.c_uint8 * 40),
        ("devices", DeviceShared * MAX_DEVICES),
    )


class Usage(UsageHead):
    """struct vgpu_usage: the usage file."""

    _fields_ = (("processes", ProcessUsage * MAX_PROCESSES),)  # type: ignore[assignment]  # beside the others
