"""`vgpurun slurm`: what a node of a Slurm cluster runs, so that a job's shards of a GPU are limits that hold."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vgpurun.cli.common import GroupedCommand, VerbGroup, format_option, host_driver_option, option
from vgpurun.console.messages import say, warn

if TYPE_CHECKING:
    from vgpurun.slurm.node import Ended

_NODE = "Node"
_PLUGIN = "Plugin"
_node_option = option("--node", metavar="NAME", group=_NODE, help="This node's name in Slurm; by default the host's.")


@click.group(cls=VerbGroup, name="slurm")
def slurm_group() -> None:
    """Hold Slurm's jobs to their shards of a GPU, and to --vgpu-mem and --vgpu-sm.

    A job's share of a node's GPUs is the slice slurm-JOBID. slurmd runs `prolog` and `epilog`, which make and remove
    it; the SPANK plugin holds every task of the job to it. docs/slurm.md has the way from an empty node.
    """


@slurm_group.command(cls=GroupedCommand, name="prolog", on_broken_config=warn)
@host_driver_option(_NODE)
def prolog(driver: str) -> int:
    """Make the slice of a job. For slurmd: its variables name the job.

    It always ends with 0, since Slurm drains a node whose prolog fails. Instead no task of the job starts, and the
    first says why.
    """
    from vgpurun.slurm.node import Job, prepare

    try:
        found = prepare(Job.of(os.environ), driver)
    except Exception as error:
        _fail(f"no share for job {os.environ.get('SLURM_JOB_ID', '?')}: {error}")
        return 0
    if found is not None:
        click.echo(found.name)
        _refresh(driver)
    return 0


@slurm_group.command(cls=GroupedCommand, name="epilog", on_broken_config=warn)
@option(
    "--admin-comment", is_flag=True, group=_NODE,
    help="Write the GPU time and the refusals of the job, summed over its nodes, into its AdminComment, for sacct.",
)  # fmt: skip
@host_driver_option(_NODE)
def epilog(admin_comment: bool, driver: str) -> int:
    """End a job's processes that are left on this node, and its slice. For slurmd, like prolog; always exits with 0."""
    from vgpurun.slurm.node import Job, end_job

    try:
        job = Job.of(os.environ)
        ended = end_job(job.id)
        if ended is not None and admin_comment:
            from vgpurun.slurm import accounting

            accounting.note(job.id, job.node, accounting.used(ended.readings), job.nodes == 1)
    except Exception as error:
        _fail(f"job {os.environ.get('SLURM_JOB_ID', '?')} has left something: {error}; vgpurun slurm sweep tries again")
        return 0
    if ended is not None:
        _report(ended)
        _refresh(driver)
    return 0


@slurm_group.command(cls=GroupedCommand, name="sweep", on_broken_config=warn)
@_node_option
@host_driver_option(_NODE)
def sweep(node: str | None, driver: str) -> None:
    """End jobs' slices that Slurm no longer has on this node, as after a reboot. Changes nothing if it is silent."""
    from vgpurun.slurm import node as this_node

    any_ended = False
    for ended in this_node.sweep(node or this_node.node_name()):
        _report(ended)
        any_ended = True
    if any_ended:
        _refresh(driver)


@slurm_group.command(cls=GroupedCommand, name="build-plugin", on_broken_config=warn)
@option("--output", type=click.Path(path_type=Path), metavar="FILE", group=_PLUGIN, help="Where to write it.")
@option(
    "--include", type=click.Path(path_type=Path), metavar="DIR", group=_PLUGIN,
    help="The folder that has slurm/spank.h, where that is not a usual one.",
)  # fmt: skip
@option("--pam", is_flag=True, group=_PLUGIN, help="Build the PAM module instead, for sessions by ssh in a job.")
def build_plugin(output: Path | None, include: Path | None, pam: bool) -> None:
    """Build the SPANK plugin for the installed release of Slurm; other releases cannot load it."""
    from vgpurun.slurm import plugin

    if pam:
        path = (output or plugin.DEFAULT_PAM).absolute()
        plugin.build_pam(path, include)
        click.echo(str(path))
        return
    path = (output or plugin.DEFAULT).absolute()
    release = plugin.build(path, include)
    click.echo(f"{path}: for Slurm {plugin.show_release(release)}")


@slurm_group.command(cls=GroupedCommand, name="check", on_broken_config=warn)
@_node_option
@format_option(_NODE, "How to print what was found.")
def check(node: str | None, output_format: str) -> int:
    """Read slurm.conf, gres.conf and plugstack.conf, and say what is wrong and what helps; exit with 1 if any fails."""
    from vgpurun.cli.views.findings import show_findings
    from vgpurun.slurm.check import examine
    from vgpurun.slurm.node import node_name

    return show_findings(list(examine(node or node_name())), output_format)


def _fail(words: str) -> None:
    from vgpurun.slurm import log
    from vgpurun.slurm.node import node_name

    say(words)
    if "SLURM_JOB_ID" in os.environ:
        log.error(words, node_name())


def _report(ended: "Ended") -> None:
    gpu_s = sum(each.busy_ns for each in ended.readings) / 1e9
    click.echo(f"{ended.slice_name}: {gpu_s:.1f} s of GPU time")
    if ended.killed:
        warn(f"{ended.slice_name}: ended {len(ended.killed)} processes that had outlived their job")
    for user in ended.cut_off:
        warn(f"{user} was in slice {ended.slice_name}, and is granted nothing more")


def _refresh(driver: str) -> None:
    """Bring the CDI specification up to date, where one is kept."""
    from vgpurun.cdi.of_slices import kept_at

    if kept_at(driver) is not None:
        from vgpurun.cli.commands.slice import refresh_cdi

        refresh_cdi(driver, None)
