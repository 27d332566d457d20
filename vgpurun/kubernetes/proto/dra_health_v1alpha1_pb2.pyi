from vgpurun.kubernetes.proto import dra_health_pb2 as _dra_health_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
