"""An image for machines that cannot pull one: empty, with this machine's own programs mounted into it, read-only.

python examples/host_image.py           make it, and print its name and the options that it needs
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import docker

NAME, TAG = "vgpurun-host", "latest"
ROOT_FOLDERS = ("bin", "sbin", "lib", "lib64")


def make(engine: docker.DockerClient) -> str:
    """Import the image and return its name. It holds folders to mount into, and links such as /bin -> usr/bin."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("usr", "etc", "tmp", *_folders()):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        for name in ROOT_FOLDERS:
            if Path("/", name).is_symlink():
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, str(Path("/", name).readlink())
                tar.addfile(link)
    engine.api.import_image_from_data(archive.getvalue(), repository=NAME, tag=TAG)
    return f"{NAME}:{TAG}"


def remove(engine: docker.DockerClient) -> None:
    """Remove the image. The folders that were mounted into it are this machine's and stay."""
    engine.images.remove(f"{NAME}:{TAG}", force=True)


def options() -> list[str]:
    """The options of docker or vgpurun that put this machine's programs into the image, this Python among them."""
    paths = ["/usr", *(f"/{name}" for name in _folders())]
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        paths.append(sys.base_prefix)
    return [option for path in paths for option in ("-v", f"{path}:{path}:ro")]


def python() -> str:
    """The path of this Python in a container of the image."""
    return str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"))


def _folders() -> list[str]:
    """Return those of /bin, /lib and so on that are folders of their own, not links into /usr."""
    return [name for name in ROOT_FOLDERS if Path("/", name).is_dir() and not Path("/", name).is_symlink()]


if __name__ == "__main__":
    print(make(docker.from_env()), *options())
