"""docker-py without TLS, a tenth of its import, where the engine is at a unix socket.

For a verb whose process speaks with nobody but the engine, to be imported first: Python's own http.client and urllib3
are without https from then on. Modules that are loaded already stay as they are.
"""

from contextlib import suppress

from vgpurun.engine.address import is_at_socket
from vgpurun.engine.missing import missing

_TLS = ("ssl", "OpenSSL")  # the latter is what requests looks for when the former is missing

with missing(*(_TLS if is_at_socket() else ())), suppress(ImportError):  # else it is imported with all
    import vgpurun.engine.docker_py  # noqa: F401
