"""docker-py, as far as every start uses it. Its import is most of a start, so this is the place where it happens.

Left out of that is what requests guesses the encoding of texts by, a tenth of the import: the engine's texts are UTF-8,
which is what requests takes them for when it has nothing to guess by. And where it is installed, paramiko, which takes
docker-py to engines by ssh: as much as the rest, and such engines are refused.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def _missing(*names: str) -> Iterator[None]:
    """Let these modules not be found meanwhile, unless they are loaded: Python's import looks here first."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None stands for a module that there is not
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


warnings.filterwarnings("ignore", "Unable to find acceptable character detection")
# A requests older than 2.32 cannot do without. All is imported below then.
with _missing("chardet", "charset_normalizer", "paramiko"), suppress(ImportError):
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
