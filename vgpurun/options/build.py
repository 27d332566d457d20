"""Makes ContainerOptions of what the command line gave, with docker's rules for what goes together."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from vgpurun.errors import CommandLineError, OptionError
from vgpurun.options import files
from vgpurun.options.model import ContainerOptions
from vgpurun.options.network import Network, join_networks
from vgpurun.options.table import FLAGS
from vgpurun.options.values import FALSE, is_loopback

_HEALTH_TIMES = {
    "health_interval": "Interval",
    "health_timeout": "Timeout",
    "health_start_period": "StartPeriod",
    "health_start_interval": "StartInterval",
    "health_retries": "Retries",
}


def container_options(image: str, command: tuple[str, ...], given: Mapping[str, Any]) -> ContainerOptions:
    """Read all options by their keys: a text, several, or True for a switch. Raises OptionError."""
    found = _read(given)
    _refuse_trust(image, found)
    detach, interactive = bool(found.get("detach")), bool(found.get("interactive"))
    options = ContainerOptions(
        image=image,
        command=command,
        entrypoint=found.get("entrypoint"),
        environment=files.environment(found.get("env", ()), found.get("env_file", ())),
        volumes=tuple(dict.fromkeys(found.get("volume", ()))),
        mounts=tuple(found.get("mount", ())),
        tmpfs=found.get("tmpfs", {}),
        name=found.get("name"),
        labels=files.labels(found.get("label", ()), found.get("label_file", ())),
        networks=_networks(found),
        cdi_devices=tuple(device for device in found.get("device", ()) if isinstance(device, str)),
        runtime=found.get("runtime") or None,
        platform=found.get("platform") or None,
        fields=_fields(found),
        streams=_streams(found.get("attach", ()), interactive, detach),
        remove=bool(found.get("rm")),
        detach=detach,
        interactive=interactive,
        tty=bool(found.get("tty")),
        relays_signals=found.get("sig_proxy", True),
        detach_keys=found.get("detach_keys"),
        cidfile=found.get("cidfile"),
        warnings=tuple(_warnings(found)),
    )
    restart = options.fields.get("HostConfig.RestartPolicy", {}).get("Name", "no")
    if options.remove and restart not in ("", "no"):
        raise OptionError("conflicting options: cannot specify both --restart and --rm")
    return options


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in given.items():
        flag = FLAGS[key]
        if value is None or (value is False and not flag.is_on) or value == ():
            continue
        texts = value if isinstance(value, tuple) else (value,)
        found[key] = value if isinstance(value, bool) else flag.read(texts)
    return found


def _refuse_trust(image: str, found: Mapping[str, Any]) -> None:
    """Refuse an image that docker would run only with a signature, which is not looked for here. Raises OptionError."""
    is_unwanted = os.environ.get("DOCKER_CONTENT_TRUST", "") in ("", *FALSE)
    if not found.get("disable_content_trust", is_unwanted) and "@" not in image:
        raise OptionError(
            f"image {image} would need a signature (Docker Content Trust), and vgpurun checks none; name it by its "
            "digest, or give --disable-content-trust, or unset DOCKER_CONTENT_TRUST"
        )


def _fields(found: Mapping[str, Any]) -> dict[str, Any]:
    fields = {FLAGS[key].field: value for key, value in found.items() if FLAGS[key].field}
    if devices := [device for device in found.get("device", ()) if not isinstance(device, str)]:
        fields["HostConfig.Devices"] = devices
    if "HostConfig.PortBindings" in fields:
        published: dict[str, Any] = {port: {} for port in fields["HostConfig.PortBindings"]}
        fields["ExposedPorts"] = {**fields.get("ExposedPorts", {}), **published}
    fields.update(_security(found.get("security_opt", ())))
    fields.update(_log(found.get("log_driver", ""), found.get("log_opt", {})))
    fields.update(_health(found))
    return fields


def _security(options: list[str]) -> dict[str, Any]:
    kept = [option for option in options if option != "systempaths=unconfined"]
    fields: dict[str, Any] = {"HostConfig.SecurityOpt": kept} if options else {}
    if len(kept) < len(options):
        fields |= {"HostConfig.MaskedPaths": [], "HostConfig.ReadonlyPaths": []}
    return fields


def _log(driver: str, options: dict[str, str]) -> dict[str, Any]:
    if driver == "none" and options:
        raise OptionError("invalid logging opts for driver none; leave out --log-opt")
    return {"HostConfig.LogConfig": {"Type": driver, "Config": options}} if driver or options else {}


def _health(found: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: found[key] for key, name in _HEALTH_TIMES.items() if found.get(key)}
    if found.get("no_healthcheck"):
        if settings or found.get("health_cmd"):
            raise OptionError("--no-healthcheck conflicts with --health-* options")
        return {"Healthcheck": {"Test": ["NONE"]}}
    for key, name in _HEALTH_TIMES.items():
        if settings.get(name, 0) < 0:
            raise OptionError(f"--{key.replace('_', '-')} cannot be negative")
    if found.get("health_cmd"):
        settings["Test"] = ["CMD-SHELL", found["health_cmd"]]
    return {"Healthcheck": settings} if settings else {}


def _networks(found: Mapping[str, Any]) -> tuple[Network, ...]:
    of_options = {
        "aliases": tuple(found.get("network_alias", ())),
        "ipv4_address": found.get("ip", ""),
        "ipv6_address": found.get("ip6", ""),
        "link_local_addresses": tuple(found.get("link_local_ip", ())),
        "mac_address": found.get("mac_address", ""),
        "links": tuple(found.get("link", ())),
    }
    try:
        return join_networks(found.get("network", ()), of_options)
    except ValueError as error:
        raise OptionError(str(error)) from None


def _streams(attach: list[str], interactive: bool, detach: bool) -> tuple[str, ...]:
    """Return the standard streams that are shared with the command."""
    if detach:
        if attach:
            raise CommandLineError("conflicting options: cannot specify both --attach and --detach")
        return ()
    wanted = {*(attach or ("stdout", "stderr")), *(("stdin",) if interactive else ())}
    return tuple(name for name in ("stdin", "stdout", "stderr") if name in wanted)


def _warnings(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what docker warns of, in its words."""
    if any("bind-nonrecursive" in dict(mount.options) for mount in found.get("mount", ())):
        yield "bind-nonrecursive is deprecated, use bind-recursive=disabled instead"
    if local := next(filter(is_loopback, found.get("dns", ())), None):
        yield f"Localhost DNS ({local}) may fail in containers."
