"""starter.py SOCKET MODULE...    starts vgpurun again and again, each time as a process that has imported modules

Each message brings the socket of one more starter, which is forked and runs one at a time. There a request is one
message: [PROGRAM AND ARGUMENTS, ENVIRONMENT, FOLDER, ADMIN_FILE or null] in JSON, with the standard streams. It is
answered by the number of the process, and then by how that ended. The end of a socket is the end of who reads it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from vgpurun.__main__ import main


def _fork_starters(requests: socket.socket, modules: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name in modules:
        with suppress(ImportError):
            import_module(name)
    while True:
        message, sockets, _, _ = socket.recv_fds(requests, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _serve(socket.socket(fileno=sockets[0]))
            os._exit(0)
        os.close(sockets[0])


def _serve(requests: socket.socket) -> None:
    while True:
        message, streams, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not message:
            return
        number = os.fork()
        if number == 0:
            requests.close()
            try:
                _become(streams, *json.loads(message))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        for stream in streams:
            os.close(stream)
        requests.send(str(number).encode())
        requests.send(str(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])).encode())


def _become(
    streams: list[int], arguments: list[str], environment: dict[str, str], folder: str, admin_file: str | None
) -> None:
    for standard, stream in enumerate(streams):
        os.dup2(stream, standard)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = arguments
    if admin_file is not None:
        from vgpurun.config import values

        values.ADMIN_FILE = Path(admin_file)
    main()


if __name__ == "__main__":
    _fork_starters(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
