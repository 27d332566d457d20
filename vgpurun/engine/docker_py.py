"""Imports docker-py, as far as every start uses it. The import is most of a start, so it happens only here.

Where the engine is at a unix socket, docker-py gets `unix_http.py` instead of requests and urllib3, which are three
quarters of its import. Elsewhere requests is imported without what it guesses the encoding of texts by: the engine's
texts are UTF-8, which requests assumes where it cannot guess. Left out too is docker-py's way to engines over a proxy,
on Windows or by ssh; the last imports paramiko, as large as all the rest, where that is installed.

Code that imports requests later gets the real one.
"""

import sys
import warnings
from collections.abc import Mapping
from types import ModuleType

from vgpurun.engine.address import is_at_socket
from vgpurun.engine.unix_http import stand_ins
from vgpurun.util.modules import replaced

_UNUSED = dict.fromkeys(
    ("chardet", "charset_normalizer", "docker.transport.npipeconn", "docker.transport.sshconn", "socks")
)


def _can_be_imported(modules: Mapping[str, ModuleType | None]) -> bool:
    """Import docker-py with these modules. A release that cannot do with them is forgotten again."""
    before = set(sys.modules)
    try:
        with replaced(modules):
            import docker  # noqa: F401
    except (ImportError, AttributeError):
        for name in [name for name in sys.modules if name not in before and name.partition(".")[0] == "docker"]:
            del sys.modules[name]
        return False
    return True


warnings.filterwarnings("ignore", module="docker|requests")
_others = stand_ins() if is_at_socket() and not {"docker", "requests"} & set(sys.modules) else {}
if not (_others and _can_be_imported(_others)):
    _others = {}
    _can_be_imported(_UNUSED)  # with a requests older than 2.32 it cannot: all is imported below then

with replaced(_others):
    from docker import APIClient
    from docker.constants import DEFAULT_TIMEOUT_SECONDS
    from docker.errors import APIError, DockerException, ImageNotFound, NotFound
    from docker.utils import version_lt
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

__all__ = [
    "DEFAULT_TIMEOUT_SECONDS",
    "APIClient",
    "APIError",
    "DockerException",
    "HTTPError",
    "ImageNotFound",
    "NotFound",
    "RequestException",
    "version_lt",
]
