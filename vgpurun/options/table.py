"""Every option of `docker run`, in one table: its names, its value's syntax, and where it goes in the engine's API.

An option without a field has code of its own in build.py or cli/commands/run.py.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from vgpurun.errors import OptionError
from vgpurun.options import devices, files, mounts, network, values

Gather = Callable[[list[Any]], Any]


def last(found: list[Any]) -> Any:
    """Take the last of several values."""
    return found[-1]


def merged(found: list[dict[Any, Any]]) -> dict[Any, Any]:
    """Join mappings, and the lists in them."""
    joined: dict[Any, Any] = {}
    for each in found:
        for key, value in each.items():
            joined[key] = joined[key] + value if isinstance(value, list) and key in joined else value
    return joined


def sorted_set(found: list[str]) -> list[str]:
    """Sort them, each once, as docker does with capabilities."""
    return sorted(set(found))


def by_name(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort them by name, as docker does with ulimits; the last of a name counts."""
    return [each for _, each in sorted({each["Name"]: each for each in found}.items())]


@dataclass(frozen=True)
class Flag:
    """An option. `value` is help's word for its value, empty for a switch."""

    names: str
    value: str
    help: str
    field: str = ""
    parse: Callable[[str], Any] = str
    gather: Gather = last
    aliases: tuple[str, ...] = ()
    is_on: bool = False  # a switch that is on until it is switched off
    variable: str = ""  # an environment variable that counts if the option is not given

    @property
    def key(self) -> str:
        """The long name as an identifier."""
        return self.names.split("--")[1].replace("-", "_")

    @property
    def repeats(self) -> bool:
        """Whether it may be given several times."""
        return self.gather is not last

    def read(self, texts: Iterable[str]) -> Any:
        """Return the value of all that was given. Raises OptionError."""
        found = []
        for text in texts:
            try:
                found.append(self.parse(text))
            except ValueError as error:
                raise OptionError(f'invalid argument "{text}" for "{self.names}" flag: {error}') from None
        return self.gather(found)


GROUPS: dict[str, tuple[Flag, ...]] = {
    "Container": (
        Flag("-d, --detach", "", "Run in the background and print the container's id."),
        Flag("-i, --interactive", "", "Pass standard input on to the command."),
        Flag("-t, --tty", "", "Give the command a terminal."),
        Flag("-a, --attach", "STREAM", "Attach to stdin, stdout or stderr only.", "", values.stream, list),
        Flag("--detach-keys", "KEYS", "Keys that detach from it.  [default: ctrl-p,ctrl-q]"),
        Flag("--sig-proxy", "BOOL", "Pass signals on to the command.  [default: true]", is_on=True),
        Flag("--rm", "", "Remove it and its anonymous volumes when it ends."),
        Flag("--name", "NAME", "The container's name.", "", values.container_name),
        Flag("--cidfile", "FILE", "Write the container's id to a file.", "HostConfig.ContainerIDFile"),
        Flag("-l, --label", "NAME=VALUE", "Set a label.", "", values.label, list),
        Flag("--label-file", "FILE", "Read labels from a file.", "", str, list),
        Flag(
            "--annotation", "NAME=VALUE", "Set an annotation for the runtime.",
            "HostConfig.Annotations", values.pair, dict,
        ),
        Flag(
            "--restart", "POLICY", "no, always, unless-stopped or on-failure[:COUNT].",
            "HostConfig.RestartPolicy", values.restart_policy,
        ),
        Flag("--stop-signal", "SIGNAL", "The signal that asks the command to end.", "StopSignal"),
        Flag(
            "--stop-timeout", "SECONDS", "Time from the stop signal to the kill.",
            "StopTimeout", values.integer,
        ),
        Flag("--log-driver", "DRIVER", "Where the engine keeps the output."),
        Flag("--log-opt", "NAME=VALUE", "Set an option of the log driver.", "", values.pair, dict),
    ),
    "Image and command": (
        Flag("--pull", "POLICY", "always, missing or never.  [default: missing]"),
        Flag("-q, --quiet", "", "Say nothing about a pull."),
        Flag(
            "--platform", "OS[/ARCH]", "Which platform's image to run.",
            "", values.platform, variable="DOCKER_DEFAULT_PLATFORM",
        ),
        Flag(
            "--disable-content-trust", "BOOL", "Take unsigned images too; on by default.", is_on=True,
        ),
        Flag("--entrypoint", "PROGRAM", "Replace the image's entrypoint; '' for none."),
        Flag("-w, --workdir", "FOLDER", "Working directory of the command.", "WorkingDir"),
        Flag("-u, --user", "USER[:GROUP]", "User, by name or number, for the command.", "User"),
        Flag("--group-add", "GROUP", "A further group of the user.", "HostConfig.GroupAdd", str, list),
        Flag("--init", "", "Run an init that relays signals and reaps.", "HostConfig.Init"),
        Flag("--health-cmd", "COMMAND", "The command that checks its health."),
        Flag("--health-interval", "TIME", "Time between two checks, e.g. 30s.", "", values.duration),
        Flag("--health-timeout", "TIME", "The longest time of one check.", "", values.duration),
        Flag("--health-retries", "COUNT", "Failures in a row that mean unhealthy.", "", values.integer),
        Flag("--health-start-period", "TIME", "Time to start up, in which failures do not count.", "", values.duration),
        Flag("--health-start-interval", "TIME", "Time between two checks while it starts.", "", values.duration),
        Flag("--no-healthcheck", "", "Leave out the image's health check."),
    ),
    "Files and environment": (
        Flag(
            "-e, --env", "NAME[=VALUE]", "Set a variable; NAME alone takes it from here.",
            "", files.variable, list,
        ),
        Flag("--env-file", "FILE", "Read variables from a file.", "", str, list),
        Flag(
            "-v, --volume", "SOURCE:TARGET", "Mount a folder or volume; :ro makes it read-only.",
            "", mounts.volume, list,
        ),
        Flag(
            "--mount", "KEY=VALUE,...", "E.g. type=bind,source=...,target=...,readonly.",
            "", mounts.mount, list,
        ),
        Flag("--tmpfs", "TARGET[:OPTIONS]", "Mount a temporary file system.", "", mounts.tmpfs, dict),
        Flag(
            "--volumes-from", "NAME[:MODE]", "Mount another container's volumes.",
            "HostConfig.VolumesFrom", str, list,
        ),
        Flag("--volume-driver", "DRIVER", "The driver of volumes that are made.", "HostConfig.VolumeDriver"),
        Flag("--read-only", "", "Make the image's files read-only.", "HostConfig.ReadonlyRootfs"),
        Flag(
            "--storage-opt", "NAME=VALUE", "Option of the storage driver, e.g. size=20G.",
            "HostConfig.StorageOpt", values.storage_option, dict,
        ),
    ),
    "Network": (
        Flag(
            "--network", "NETWORK", "none, host, container:NAME or a network.",
            "", network.network, list, ("--net",),
        ),
        Flag("--network-alias", "NAME", "A further name in its network.", "", str, list, ("--net-alias",)),
        Flag("--ip", "ADDRESS", "Its IPv4 address."),
        Flag("--ip6", "ADDRESS", "Its IPv6 address."),
        Flag("--link-local-ip", "ADDRESS", "A link-local address.", "", str, list),
        Flag("--mac-address", "ADDRESS", "Its hardware address.", "", values.mac_address),
        Flag("--link", "CONTAINER[:ALIAS]", "Know another container by name.", "HostConfig.Links", values.link, list),
        Flag(
            "-p, --publish", "[[IP:]PORT:]PORT", "Publish a port on the host.",
            "HostConfig.PortBindings", network.published_port, merged,
        ),
        Flag("-P, --publish-all", "", "Publish all exposed ports on the host.", "HostConfig.PublishAllPorts"),
        Flag("--expose", "PORT", "Expose a port, or a range of ports.", "ExposedPorts", network.exposed_ports, merged),
        Flag("-h, --hostname", "NAME", "Its host name.", "Hostname"),
        Flag("--domainname", "NAME", "Its domain name.", "Domainname"),
        Flag(
            "--add-host", "NAME:ADDRESS", "Add a line to its /etc/hosts.",
            "HostConfig.ExtraHosts", values.extra_host, list,
        ),
        Flag("--dns", "ADDRESS", "Its DNS server.", "HostConfig.Dns", values.dns_server, list),
        Flag(
            "--dns-option", "OPTION", "Set an option of its resolver.",
            "HostConfig.DnsOptions", str, list, ("--dns-opt",),
        ),
        Flag("--dns-search", "DOMAIN", "A domain to search names in.", "HostConfig.DnsSearch", values.dns_domain, list),
    ),
    "Namespaces and rights": (
        Flag("--ipc", "MODE", "IPC: private, shareable, host, container:NAME.", "HostConfig.IpcMode"),
        Flag(
            "--pid", "MODE", "PID namespace: host or container:NAME.", "HostConfig.PidMode",
            values.one_of("", "host", "container:", fault="--pid: invalid PID mode"),
        ),
        Flag(
            "--uts", "MODE", "UTS namespace: host.", "HostConfig.UTSMode",
            values.one_of("", "host", fault="--uts: invalid UTS mode"),
        ),
        Flag(
            "--userns", "MODE", "User namespace: host.", "HostConfig.UsernsMode",
            values.one_of("", "host", fault="--userns: invalid USER mode"),
        ),
        Flag(
            "--cgroupns", "MODE", "Cgroup namespace: host or private.", "HostConfig.CgroupnsMode",
            values.one_of("", "host", "private", fault="--cgroupns: invalid CGROUP mode"),
        ),
        Flag("--cgroup-parent", "CGROUP", "The cgroup to be under.", "HostConfig.CgroupParent"),
        Flag("--privileged", "", "Give it all devices and rights.", "HostConfig.Privileged"),
        Flag("--cap-add", "CAPABILITY", "Give a capability.", "HostConfig.CapAdd", values.capability, sorted_set),
        Flag(
            "--cap-drop", "CAPABILITY", "Take a capability away.",
            "HostConfig.CapDrop", values.capability, sorted_set,
        ),
        Flag("--security-opt", "OPTION", "Set a security option.", "", files.security_option, list),
        Flag("--sysctl", "NAME=VALUE", "Set a kernel parameter.", "HostConfig.Sysctls", values.sysctl, dict),
        Flag("--device", "HOST[:TARGET][:rwm]", "Add a device, or a CDI device by its name.", "", devices.device, list),
        Flag(
            "--device-cgroup-rule", "RULE", "Allow devices, e.g. c 42:* rmw.",
            "HostConfig.DeviceCgroupRules", devices.cgroup_rule, list,
        ),
        Flag("--runtime", "NAME", "The engine's runtime for it."),
        Flag("--isolation", "NAME", "Isolation technology: default.", "HostConfig.Isolation"),
    ),
    "Resources of the host": (
        Flag("-m, --memory", "SIZE", "Main memory (--mem is the GPU's).", "HostConfig.Memory", values.size),
        Flag("--memory-reservation", "SIZE", "Soft limit of memory.", "HostConfig.MemoryReservation", values.size),
        Flag(
            "--memory-swap", "SIZE", "Memory and swap together; -1: no limit.",
            "HostConfig.MemorySwap", values.size_or_unlimited,
        ),
        Flag(
            "--memory-swappiness", "0-100", "How readily it is swapped.",
            "HostConfig.MemorySwappiness", values.swappiness,
        ),
        Flag("--oom-kill-disable", "", "Do not kill it when memory runs out.", "HostConfig.OomKillDisable"),
        Flag(
            "--oom-score-adj", "NUMBER", "Its score for the OOM killer, -1000 to 1000.",
            "HostConfig.OomScoreAdj", values.integer,
        ),
        Flag("--shm-size", "SIZE", "Size of /dev/shm, such as 8g.", "HostConfig.ShmSize", values.size),
        Flag("--cpus", "NUMBER", "How many CPUs it may use, e.g. 1.5.", "HostConfig.NanoCpus", values.cpus),
        Flag("-c, --cpu-shares", "WEIGHT", "Its weight where CPUs are scarce.", "HostConfig.CpuShares", values.integer),
        Flag("--cpuset-cpus", "CPUS", "The CPUs to run on, e.g. 0-3,6.", "HostConfig.CpusetCpus"),
        Flag("--cpuset-mems", "NODES", "The memory nodes to use.", "HostConfig.CpusetMems"),
        Flag("--cpu-period", "US", "Period of the CPU quota, in microseconds.", "HostConfig.CpuPeriod", values.integer),
        Flag("--cpu-quota", "US", "CPU time in each period.", "HostConfig.CpuQuota", values.integer),
        Flag(
            "--cpu-rt-period", "US", "Period of real-time scheduling.",
            "HostConfig.CpuRealtimePeriod", values.integer,
        ),
        Flag(
            "--cpu-rt-runtime", "US", "Real-time CPU time in each period.",
            "HostConfig.CpuRealtimeRuntime", values.integer,
        ),
        Flag(
            "--pids-limit", "COUNT", "Most processes and threads; -1: no limit.",
            "HostConfig.PidsLimit", values.integer,
        ),
        Flag(
            "--ulimit", "TYPE=SOFT[:HARD]", "Set a limit of processes, e.g. memlock=-1.",
            "HostConfig.Ulimits", values.ulimit, by_name,
        ),
        Flag(
            "--blkio-weight", "WEIGHT", "Its weight of block IO, 10 to 1000.",
            "HostConfig.BlkioWeight", values.weight,
        ),
        Flag(
            "--blkio-weight-device", "PATH:N", "Its weight of block IO on a device.",
            "HostConfig.BlkioWeightDevice", devices.weight_of_device, list,
        ),
        Flag(
            "--device-read-bps", "PATH:SIZE", "Bytes per second read from a device.",
            "HostConfig.BlkioDeviceReadBps", devices.bytes_per_second, list,
        ),
        Flag(
            "--device-write-bps", "PATH:SIZE", "Bytes per second written to a device.",
            "HostConfig.BlkioDeviceWriteBps", devices.bytes_per_second, list,
        ),
        Flag(
            "--device-read-iops", "PATH:COUNT", "Reads per second from a device.",
            "HostConfig.BlkioDeviceReadIOps", devices.operations_per_second, list,
        ),
        Flag(
            "--device-write-iops", "PATH:COUNT", "Writes per second to a device.",
            "HostConfig.BlkioDeviceWriteIOps", devices.operations_per_second, list,
        ),
    ),
}  # fmt: skip

FLAGS = {flag.key: flag for flags in GROUPS.values() for flag in flags}

_WINDOWS = "is only supported on a Docker daemon running on windows, but the Docker daemon is running on linux"
# Options of docker run that are refused, with the reason for help. (--gpus and --help are vgpurun's own.)
LEFT_OUT = (
    Flag("--cpu-count", "COUNT", _WINDOWS),
    Flag("--cpu-percent", "PERCENT", _WINDOWS),
    Flag("--io-maxbandwidth", "SIZE", _WINDOWS),
    Flag("--io-maxiops", "COUNT", _WINDOWS),
    Flag(
        "--use-api-socket", "",
        "would give the container your passwords for registries with the engine's socket; mount the socket alone: "
        "-v /var/run/docker.sock:/var/run/docker.sock",
    ),
)  # fmt: skip
# Options that docker takes and heeds no more, with what it says.
DEPRECATED = (Flag("--kernel-memory", "SIZE", "and no longer supported by the kernel", parse=values.size),)
