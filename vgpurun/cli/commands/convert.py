"""`vgpurun convert`: says what in a Compose file does not limit a GPU, and rewrites it to what does."""

import difflib
from pathlib import Path

import click

from vgpurun.cli.common import GroupedCommand, option
from vgpurun.console.messages import say
from vgpurun.util.atomic_file import atomic_file
from vgpurun.util.extras import needs_extra

_FOUND = 1


@click.command(cls=GroupedCommand, name="convert")
@option("--write", is_flag=True, group="Convert", help="Rewrite the files, instead of showing the changes.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
def convert(files: tuple[Path, ...], write: bool) -> int:
    """Find the lines of Compose files that ask for a share of a GPU, and replace them by slices that limit it.

    Lines such as `options: memory:` under a GPU's device, `gpu_memory:` and variables that no library reads limit
    nothing. convert prints them, the slices that give such shares, and the changes to the file. Comments, anchors,
    quotes and order stay. It removes the whole GPUs of such a service (`gpus:`, `deploy:`, `devices:`), since the slice
    brings its own.

    The exit code is 0 if nothing was found or --write has rewritten all of it, 1 if something is left to do, and 125
    for a file that cannot be read.
    """
    return max([_convert(path, write) for path in files])


def _convert(path: Path, write: bool) -> int:
    with needs_extra("compose"):
        from vgpurun.compose.convert import convert as converted

    found = converted(path)
    for service in found.found:
        for finding in service.findings:
            click.echo(f"{path}:{finding.line}: service {service.name}: {finding.shown}: {finding.reason}")
    if not found.found:
        click.echo(f"{path}: nothing to convert")
        return 0
    if found.commands:
        click.echo("\nSlices with these shares, and the devices by which services use them:\n")
        for command in (*found.commands, "vgpurun cdi generate"):
            click.echo(f"    {command}")
        click.echo()
    for line in found.shared:
        click.echo(f"{line}\n")
    for line in found.by_hand:
        say(f"to be changed by hand: {line}")
    if found.text == found.before:
        return _FOUND
    if write:
        _replace(path, found.text, found.line_end)
        click.echo(f"{path}: rewritten")
        return 0
    changes = difflib.unified_diff(
        found.before.splitlines(), found.text.splitlines(), str(path), str(path), lineterm=""
    )
    for line in changes:
        click.echo(line)
    return _FOUND


def _replace(path: Path, text: str, line_end: str) -> None:
    """Write it as a whole or not at all, with the mode that it has; a link stays one."""
    real = path.resolve()
    with atomic_file(real, real.stat().st_mode & 0o7777) as half_made:
        half_made.write_text(text, encoding="utf-8", newline=line_end)
