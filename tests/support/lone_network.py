"""Brings up the loopback device of a network of its own, with 127.0.0.1 and 10.0.0.1.

The C library finds a machine to have no addresses where 127.0.0.1 is the only one.
"""

import fcntl
import socket
import struct

UP = struct.pack("16sh", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
ADDRESS = struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, socket.inet_aton("10.0.0.1"))

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, UP)  # SIOCSIFFLAGS
    fcntl.ioctl(any_socket, 0x8916, ADDRESS)  # SIOCSIFADDR
