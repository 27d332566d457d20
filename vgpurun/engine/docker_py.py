"""docker-py, as far as every start uses it. Its import is most of a start, so this is the place where it happens.

Left out of that is what requests guesses the encoding of texts by, a tenth of the import: the engine's texts are UTF-8,
which is what requests takes them for when it has nothing to guess by. And what takes docker-py to engines over a proxy,
on Windows or by ssh; the latter imports paramiko, as much as the rest, where that is installed.
"""

import warnings
from contextlib import suppress

from vgpurun.engine.missing import missing

_UNUSED = ("chardet", "charset_normalizer", "docker.transport.npipeconn", "docker.transport.sshconn", "socks")

warnings.filterwarnings("ignore", "Unable to find acceptable character detection")
# A requests older than 2.32 cannot do without. All is imported below then.
with missing(*_UNUSED), suppress(ImportError):
    import docker  # noqa: F401

from docker import APIClient  # noqa: E402
from docker.constants import DEFAULT_TIMEOUT_SECONDS  # noqa: E402
from docker.errors import APIError, DockerException, ImageNotFound, NotFound  # noqa: E402
from docker.utils import version_lt  # noqa: E402
from requests.exceptions import RequestException  # noqa: E402
from urllib3.exceptions import HTTPError  # noqa: E402

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
