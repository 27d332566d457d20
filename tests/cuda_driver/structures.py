"""The structures that calls take."""

import ctypes
from ctypes import c_int, c_size_t, c_uint, c_uint64, c_void_p


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


class ArrayMapInfo(ctypes.Structure):
    """CUarrayMapInfo, of a sparse level."""

    _fields_ = [
        ("resource_type", c_int),
        ("resource", c_void_p),
        ("subresource_type", c_int),
        ("subresource", c_uint64 * 4),
        ("operation", c_int),
        ("handle_type", c_int),
        ("handle", c_uint64),
        ("offset", c_uint64),
        ("device_mask", c_uint),
        ("flags", c_uint),
        ("reserved", c_uint * 2),
    ]


class MulticastProperties(ctypes.Structure):
    """CUmulticastObjectProp."""

    _fields_ = [("devices", c_uint), ("size", c_size_t), ("handle_types", c_uint64), ("flags", c_uint64)]
