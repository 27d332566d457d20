"""`vgpurun build` and `vgpurun build-in-docker`: libvgpu.so from its sources."""

import io
import tarfile
from pathlib import Path

import click

from vgpurun import __version__
from vgpurun.cli.common import EngineCommand, GroupedCommand, option
from vgpurun.engine import progress
from vgpurun.errors import ImageError, LibraryError
from vgpurun.host import library
from vgpurun.host.library import Library, show_version
from vgpurun.storage.state import make_readable
from vgpurun.util.atomic_file import atomic_file

DEFAULT_BASE_IMAGE = "nvidia/cuda:12.8.1-devel-ubi8"

_GROUP = "Build"
_BUILT = "/build"


@click.command(cls=GroupedCommand, name="build")
@option("--verbose", is_flag=True, group=_GROUP, help="Show what make prints.")
def build(verbose: bool) -> None:
    """Build libvgpu.so, the simulated driver and the programs of `vgpurun verify`, with this host's gcc and make.

    The CUDA headers come from CUDA_HOME, /usr/local/cuda, or: pip install nvidia-cuda-runtime nvidia-nvml-dev. Root
    builds for all users of the host, into /var/lib/vgpurun/lib, any other user for itself. Each part is built by
    itself when it is first needed; this verb builds them again.
    """
    _report(library.build(verbose, "all"))


@click.command(cls=EngineCommand, name="build-in-docker")
@option(
    "--base-image",
    metavar="IMAGE",
    default=DEFAULT_BASE_IMAGE,
    show_default=True,
    group=_GROUP,
    help="An image with the CUDA headers. The older its glibc, the more images the library runs in.",
)
@option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    group=_GROUP,
    help="Where to put the library alone; by default all parts are put where vgpurun looks for them.",
)
def build_in_docker(base_image: str, output: Path | None) -> None:
    """Build the same in a container, for a host without a compiler or with too new a glibc."""
    from vgpurun.engine.launches import LaunchEngine

    engine = LaunchEngine.connect()
    tag = f"vgpurun-builder:{__version__}"
    events = engine.build(_context(), tag, {"BASE_IMAGE": base_image})
    try:
        progress.show(f"Building libvgpu.so in {base_image}", events)
    except ImageError as error:
        raise ImageError(f"{error}; another base: vgpurun build-in-docker --base-image IMAGE") from None
    container = engine.create_to_read(tag)
    try:
        parts = {name: engine.read_file(container, f"{_BUILT}/{name}") for name in library.PARTS}
    finally:
        engine.remove(container)
    if lacking := [name for name, content in parts.items() if content is None]:
        raise LibraryError(f"the builder image has no {_BUILT}/{lacking[0]}: the build did not make it")
    folder = library.build_folder()
    places = {library.LIBRARY: output.absolute()} if output else {name: folder / name for name in library.PARTS}
    for name, path in reversed(places.items()):
        _install(parts[name] or b"", path)
    _report(library.check(places[library.LIBRARY]))


def _context() -> bytes:
    """Return the sources and the Dockerfile as a tar file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(library.sources().rglob("*")):
            name = path.relative_to(library.sources())
            if path.is_file() and not name.parts[0].startswith("build"):
                tar.add(path, arcname=str(name))
        tar.add(library.dockerfile(), arcname="Dockerfile")
    return buffer.getvalue()


def _install(content: bytes, path: Path) -> None:
    """Check the library before it takes the place of another; containers keep the one that they have."""
    try:
        make_readable(path.parent)
        with atomic_file(path, 0o755) as half_made:
            half_made.write_bytes(content)
            if path.name == library.LIBRARY:
                library.check(half_made)
    except OSError as error:
        raise LibraryError(f"{path} cannot be written: {error.strerror}; choose another place with --output") from None


def _report(built: Library) -> None:
    click.echo(
        f"{built.path}: version {built.version}, for {built.machine} and glibc {show_version(built.glibc)} or newer"
    )
