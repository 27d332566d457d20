"""Reads Slurm's configuration and says what of it keeps jobs from being held to their shards.

Each check is a function that returns findings, and raises nothing but SlurmError, which is a finding itself.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vgpurun.diagnostics.finding import FAILED, OK, WARNING, Finding, failed
from vgpurun.errors import LibraryError, SlurmError
from vgpurun.host import library
from vgpurun.slurm import conf, job, plugin, scripts
from vgpurun.slurm.plugin import show_release
from vgpurun.storage import state

_MOST_SHARDS = 100  # on one GPU: a shard is no less than 1 % of its time
_SHORTEST_TIMEOUT_S = 60
_TELLS_SHARDS = (23, 11)  # the first release whose slurmctld says how many shards each GPU of a job has
_BUILD = "vgpurun slurm build-plugin"
_HAS_ONE = "docs/slurm.md has one"
_STAYS = "after a reboot the shares of jobs that are gone stay"


def examine(node: str) -> Iterator[Finding]:
    """Look at one thing after the other."""
    path = conf.slurm_conf()
    try:
        values = conf.values(path)
    except SlurmError as error:
        yield failed("slurm.conf", error)
        return
    checks: tuple[Callable[[Path, Mapping[str, str], str], Iterator[Finding]], ...]
    checks = (_shards, _gres_conf, _hooks, _enforcement, _devices, _library)
    for check in checks:
        try:
            yield from check(path, values, node)
        except SlurmError as error:
            yield failed(check.__name__.lstrip("_"), error)


def _list(values: Mapping[str, str], key: str) -> list[str]:
    return [each.strip().lower() for each in values.get(key, "").split(",") if each.strip()]


def _shards(path: Path, values: Mapping[str, str], node: str) -> Iterator[Finding]:
    missing = [each for each in ("gpu", "shard") if each not in _list(values, "grestypes")]
    if missing:
        yield Finding("GresTypes", FAILED, f"{path} has no {' and no '.join(missing)} in it", "GresTypes=gpu,shard")
    if values.get("selecttype", "").lower() not in ("select/cons_tres", ""):
        yield Finding(
            "SelectType", FAILED, f"{values['selecttype']} does not share GPUs", "SelectType=select/cons_tres"
        )
    gres = conf.node_settings(path, node).get("gres", "")
    if not gres:
        yield Finding("Gres", WARNING, f"{path} gives node {node} no Gres; is that its name?", "--node NAME")
    elif "shard" not in gres:
        yield Finding("Gres", WARNING, f"node {node} has {gres}: whole GPUs alone", "Gres=gpu:N,shard:M")
    else:
        yield Finding("Gres", OK, f"node {node} has {gres}")


def _gres_conf(path: Path, values: Mapping[str, str], node: str) -> Iterator[Finding]:
    gres_conf = path.with_name("gres.conf")
    if not gres_conf.exists():
        words = "Name=gpu File=/dev/nvidia..., and Name=shard Count=M, for all nodes with GPUs"
        yield Finding("gres.conf", FAILED, f"there is no {gres_conf}", words)
        return
    lines = conf.gres_lines(gres_conf, node)
    gpus = sum(len(line.numbers) for line in lines if line.name == "gpu")
    yield from _counts(path, node, gpus, sum(line.total or 0 for line in lines if line.name == "shard"))
    yield from _as_slurmd_reads_it(path, node)
    if not any(line.name == "shard" for line in lines):
        yield Finding("gres.conf", FAILED, f"it has no shards for node {node}", "Name=shard Count=M")
    elif gpus:
        most = _most_shards(lines, gpus)
        if most > _MOST_SHARDS:
            words = f"a GPU of node {node} has {most} shards: one is less than 1 % of its time, and no job can have it"
            yield Finding("gres.conf", FAILED, words, f"at most {_MOST_SHARDS} for each GPU")
        else:
            yield Finding("gres.conf", OK, f"{most} shards a GPU: each is {100 // most} % of its time and memory")
        yield from _cli_filter(path, values, most)
    elif (plugin.installed_release() or _TELLS_SHARDS) < _TELLS_SHARDS:
        words = f"it names no GPU of node {node}: this Slurm does not tell then what part of one a job's shards are"
        yield Finding("gres.conf", FAILED, words, "Name=gpu File=/dev/nvidia... for each, beside AutoDetect too")


def _most_shards(lines: Sequence[conf.GresLine], gpus: int) -> int:
    """Return how many shards the GPU with the most has; others may have none. Raises SlurmError where all have none."""
    found = []
    for index in range(gpus):
        with suppress(SlurmError):
            found.append(job.all_shards(lines, index))
    return max(found) if found else job.all_shards(lines, 0)


def _counts(path: Path, node: str, gpus: int, shards: int) -> Iterator[Finding]:
    for name, there in (("gpu", gpus), ("shard", shards)):
        said = _said(path, node, name)
        if said and there and said != there:
            words = f"it has {there} of {name} for node {node}, and {path.name} has {said}: Slurm drains such a node"
            yield Finding("gres.conf", FAILED, words, f"the same number in both: Gres={name}:{there}")


def _said(path: Path, node: str, name: str) -> int:
    gres = conf.node_settings(path, node).get("gres", "")
    return sum(int(count) for count in re.findall(rf"\b{name}(?::[^:,(]+)?:(\d+)(?=[,(]|$)", gres))


def _as_slurmd_reads_it(path: Path, node: str) -> Iterator[Finding]:
    """Ask slurmd, since AutoDetect may add to the lines of gres.conf or take from them."""
    slurmd = job.find("slurmd")
    if slurmd is None or not _said(path, node, "shard"):
        return
    done = job.run(slurmd, "-G", "-N", node, "-f", str(path))
    text = done.stdout + done.stderr
    if done.returncode:
        said = re.findall(r"(?:fatal|error): (.*)", text) or ["no reason"]
        yield Finding("gres.conf", FAILED, f"slurmd does not start with it: {said[-1]}", f"slurmd -G -N {node}")
        return
    for name in ("gpu", "shard"):
        there = sum(int(count) for count in re.findall(rf"Gres Name={name} .*\bCount=(\d+)", text))
        if there < _said(path, node, name):
            words = f"slurmd finds {there} of {name} for node {node}, and {path.name} has {_said(path, node, name)}"
            yield Finding("gres.conf", FAILED, words, f"AutoDetect=off, or slurmd -G -N {node} for what it does")


def _cli_filter(path: Path, values: Mapping[str, str], shards: int) -> Iterator[Finding]:
    if "cli_filter/lua" not in _list(values, "clifilterplugins"):
        return
    script = path.with_name("cli_filter.lua")
    match = re.search(r"^local SHARDS = (\d+)", scripts.text_of(script), re.MULTILINE)
    if not script.exists():
        yield Finding("cli_filter", FAILED, f"{script} is not there: nothing can be submitted", _HAS_ONE)
    elif match and int(match.group(1)) != shards:
        words = f"{script} counts {match.group(1)} shards a GPU, and gres.conf has {shards}"
        yield Finding("cli_filter", FAILED, words, f"local SHARDS = {shards}")


def _hooks(path: Path, values: Mapping[str, str], node: str) -> Iterator[Finding]:
    del node
    for name in ("Prolog", "Epilog"):
        yield from _hook(name, values.get(name.lower(), ""), conf.scripts(path, name))
    timeout = values.get("prologepilogtimeout", "")
    if timeout.isdecimal() and int(timeout) < _SHORTEST_TIMEOUT_S:
        words = (
            f"a prolog may wait {job.PATIENCE_S:.0f} s for slurmctld, and one cut off after {timeout} s drains its node"
        )
        yield Finding("PrologEpilogTimeout", WARNING, words, f"PrologEpilogTimeout={_SHORTEST_TIMEOUT_S}, or none")
    yield from _health_check(path, values)
    if not {"alloc", "contain", "x11"} & set(_list(values, "prologflags")):
        words = "without Alloc a node makes a job's share at its first step: slice ls does not show it before"
        yield Finding("PrologFlags", WARNING, words, "PrologFlags=Alloc")


def _hook(name: str, given: str, files: Sequence[Path]) -> Iterator[Finding]:
    verb = name.lower()
    ours = next((each for each in map(scripts.read, files) if each.runs(verb)), None)
    if not given:
        yield Finding(name, FAILED, f"there is none, and vgpurun slurm {verb} has to run in it", _HAS_ONE)
    elif ours is None:
        yield Finding(name, FAILED, f"{given} is not here, or does not run vgpurun slurm {verb}", _HAS_ONE)
    elif not os.access(ours.path, os.X_OK):
        yield Finding(name, FAILED, f"{ours.path} cannot be executed: it drains the node", f"chmod +x {ours.path}")
    else:
        yield _as_slurmd_runs_it(name, ours, verb, FAILED)


def _as_slurmd_runs_it(name: str, script: scripts.Script, verb: str, status: str) -> Finding:
    if not scripts.is_roots(script.path):  # slurmd runs it whoever's it is
        return Finding(name, FAILED, f"{script.path} is not root's, and runs as root", f"chown root {script.path}")
    without = script.path_without(verb)
    if without is None:
        return Finding(name, OK, str(script.path))
    words = f"{script.path} does not find vgpurun, since its PATH is {without}"
    return Finding(name, status, words, "set PATH in it, or write vgpurun with its path")


def _health_check(path: Path, values: Mapping[str, str]) -> Iterator[Finding]:
    name, remedy = "HealthCheckProgram", "one that runs vgpurun slurm sweep"
    given = values.get(name.lower(), "")
    script = scripts.read(path.parent / given)
    if not given:
        yield Finding(name, WARNING, f"there is none: {_STAYS}", remedy)
    elif not script.runs("sweep"):
        yield Finding(name, WARNING, f"{given} is not here, or does not run vgpurun slurm sweep: {_STAYS}", remedy)
    elif not int(re.sub(r"\D", "", values.get("healthcheckinterval", "")) or 0):
        words = f"Slurm never runs it, since there is no HealthCheckInterval: {_STAYS}"
        yield Finding(name, WARNING, words, "HealthCheckInterval=300")
    else:
        yield _as_slurmd_runs_it(name, script, "sweep", WARNING)


def _enforcement(path: Path, values: Mapping[str, str], node: str) -> Iterator[Finding]:
    del node
    plugstack = Path(values.get("plugstackconfig") or path.with_name("plugstack.conf"))
    lines = [line.split() for line in conf.lines(plugstack)] if plugstack.exists() else []
    ours = [words for words in lines if len(words) > 1 and "vgpurun" in words[1]]
    if not ours:
        script = values.get("taskprolog", "")
        if "VGPURUN_LIMITS_FILE" in scripts.read(Path(script)).code:
            words = f"{script} alone holds jobs to their shares: `env -i` in a job lifts its limits"
            yield Finding("TaskProlog", WARNING, words, f"the SPANK plugin: {_BUILD}")
        else:
            words = f"neither {plugstack} has the SPANK plugin, nor is there a TaskProlog of vgpurun's: nothing is held"
            yield Finding("plugin", FAILED, words, f"{_BUILD}; then in {plugstack}: required {plugin.DEFAULT}")
        return
    kind, name = ours[0][0], Path(ours[0][1])
    given = next((word.removeprefix("state=") for word in ours[0][2:] if word.startswith("state=")), "")
    if given and Path(given) != state.host_root():
        words = (
            f"{plugstack} has state={given}, and vgpurun keeps its state in {state.host_root()}: no job finds its share"
        )
        yield Finding(
            "plugin", FAILED, words, f"state={state.host_root()}, and the same VGPURUN_STATE_DIR in the prolog"
        )
    if kind != "required":
        words = f"{plugstack} has it as {kind}: where it does not load, jobs would run without limits"
        yield Finding("plugin", FAILED, words, f"required {name}")
    elif not name.is_absolute():
        folders = [Path(each) for each in values.get("plugindir", "").split(":") if each]
        name = next((folder / name for folder in folders if (folder / name).exists()), name)
    yield _plugin(name)


def _plugin(path: Path) -> Finding:
    try:
        built_for = plugin.built_for(path)
    except OSError as error:
        words = f"{path}: {error.strerror}; with it as required, no job starts here"
        return Finding("plugin", FAILED, words, f"{_BUILD} --output {path}")
    if built_for is None:
        return Finding("plugin", FAILED, f"{path} is not the plugin of vgpurun", f"{_BUILD} --output {path}")
    installed = plugin.installed_release()
    if installed is not None and installed != built_for:
        words = f"{path} is for Slurm {show_release(built_for)}, which {show_release(installed)} does not load"
        return Finding("plugin", FAILED, words, f"{_BUILD} --output {path}")
    return Finding("plugin", OK, f"{path}, for Slurm {show_release(built_for)}")


def _devices(path: Path, values: Mapping[str, str], node: str) -> Iterator[Finding]:
    del node
    cgroup_conf = path.with_name("cgroup.conf")
    constrains = "task/cgroup" in _list(values, "taskplugin") and re.search(
        r"^\s*ConstrainDevices\s*=\s*yes", scripts.text_of(cgroup_conf), re.IGNORECASE | re.MULTILINE
    )
    if constrains:
        yield Finding("devices", OK, "a job reaches the GPUs that it was given alone (ConstrainDevices)")
    else:
        words = "a job that asks for no GPU, or for another, reaches all of them without limits"
        yield Finding("devices", WARNING, words, "TaskPlugin=task/cgroup, and ConstrainDevices=yes in cgroup.conf")
    if values.get("proctracktype", "").lower() not in ("proctrack/cgroup", ""):
        words = f"{values['proctracktype']} loses sight of processes that leave their group, until the epilog ends them"
        yield Finding("ProctrackType", WARNING, words, "ProctrackType=proctrack/cgroup")


def _library(path: Path, values: Mapping[str, str], node: str) -> Iterator[Finding]:
    del path, values, node
    try:
        found = library.find()
    except LibraryError as error:
        yield failed("library", error)
        return
    yield Finding("library", OK, str(found.path))
