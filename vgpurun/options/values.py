"""Single values in the syntax of docker run.

Every parser raises ValueError with docker's own words; table.py adds the option and the text.
"""

import re
from typing import Any

_BYTES = r"(?ai)([0-9]+(?:\.[0-9]+)?) ?([a-z]*)"
_BYTE_SUFFIX = r"(?ai)([kmgtp]?)i?b?"
_DURATION = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)"
_UNIT_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_CONTAINER_NAME = r"(?a)[a-zA-Z0-9][a-zA-Z0-9_.-]+"
_DOMAIN = r"(?ai)\.?([a-z0-9_-]+(\.[a-z0-9_-]+)*)\.?"
_MAC_ADDRESS = r"(?ai)([0-9a-f]{2})([:-][0-9a-f]{2}){5}"
DEFAULT_DETACH_KEYS = "ctrl-p,ctrl-q"
_ULIMITS = (
    "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio",
    "rttime", "sigpending", "stack",
)  # fmt: skip
_SYSCTLS = (
    "kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni",
    "kernel.shm_rmid_forced",
)  # fmt: skip
_SYSCTL_PREFIXES = ("net.", "fs.mqueue.")


def size(text: str) -> int:
    """Read a size such as `64m` or `1.5GiB`. Returns bytes."""
    match = re.fullmatch(_BYTES, text.strip())
    if match is None:
        raise ValueError(f"invalid size: '{text}'; use e.g. 64m or 1g")
    number, suffix = match.groups()
    unit = re.fullmatch(_BYTE_SUFFIX, suffix)
    if unit is None:
        raise ValueError(f"invalid suffix: '{suffix}'; use b, k, m, g or t")
    from fractions import Fraction  # slow to import, as in the other places

    letter = unit.group(1).lower()
    return int(Fraction(number) * 1024 ** "bkmgtp".index(letter or "b"))


def size_or_unlimited(text: str) -> int:
    """Read a size, or -1. Returns bytes."""
    return -1 if text == "-1" else size(text)


def integer(text: str) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f'parsing "{text}": invalid syntax; a whole number is needed') from None


def positive(text: str) -> int:
    """Read a whole number that is not negative."""
    number = integer(text)
    if number < 0:
        raise ValueError(f'parsing "{text}": invalid syntax; it cannot be negative')
    return number


def swappiness(text: str) -> int:
    """Read --memory-swappiness, -1 for the engine's own."""
    number = integer(text)
    if not -1 <= number <= 100:
        raise ValueError(f"invalid value: {text}. Valid memory swappiness range is 0-100")
    return number


def weight(text: str) -> int:
    """Read a weight of block IO."""
    number = positive(text)
    if number and not 10 <= number <= 1000:
        raise ValueError(f'parsing "{text}": value out of range; a weight is 10 to 1000, or 0')
    return number


def cpus(text: str) -> int:
    """Read a number of CPUs such as `1.5`. Returns billionths of a CPU."""
    from fractions import Fraction

    try:
        nanos = Fraction(text) * 10**9
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"failed to parse {text} as a rational number") from None
    if nanos.denominator != 1:
        raise ValueError("value is too precise")
    return nanos.numerator


def duration(text: str) -> int:
    """Read a time such as `1m30s`. Returns nanoseconds."""
    if text == "0":
        return 0
    parts = list(re.finditer(_DURATION, text))
    if not parts or "".join(part.group() for part in parts) != text:
        fault = "missing unit in" if re.fullmatch(r"[0-9.]+", text) else "invalid"
        raise ValueError(f'time: {fault} duration "{text}"; use e.g. 30s or 1m30s')
    from fractions import Fraction

    return int(sum(Fraction(part.group(1)) * _UNIT_NS[part.group(2)] for part in parts))


def ulimit(text: str) -> dict[str, Any]:
    """Read `TYPE=SOFT[:HARD]`. Returns a Ulimit of the API."""
    name, equals, limits = text.partition("=")
    if not equals:
        raise ValueError(f"invalid ulimit argument: {text}; write e.g. nofile=1024:2048")
    if name not in _ULIMITS:
        raise ValueError(f"invalid ulimit type: {name}; known are {', '.join(_ULIMITS)}")
    soft_text, colon, hard_text = limits.partition(":")
    soft = integer(soft_text)
    hard = integer(hard_text) if colon else soft
    if hard != -1 and (soft > hard or soft == -1):
        raise ValueError(f"ulimit soft limit must be less than or equal to hard limit: {soft} > {hard}")
    return {"Name": name, "Hard": hard, "Soft": soft}


def capability(text: str) -> str:
    """Read a capability in any spelling."""
    name = text.strip().upper()
    return name if name == "ALL" or name.startswith("CAP_") else f"CAP_{name}"


def extra_host(text: str) -> str:
    """Read `NAME:ADDRESS` or `NAME=ADDRESS`."""
    name, separator, address = text.partition("=") if "=" in text else text.partition(":")
    if not separator or not name:
        raise ValueError(f'bad format for add-host: "{text}"; write NAME:ADDRESS')
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    if address != "host-gateway" and not is_ip_address(address):
        raise ValueError(f'invalid IP address in add-host: "{address}"')
    return f"{name}:{address}"


def dns_server(text: str) -> str:
    """Read the address of a DNS server."""
    if not is_ip_address(text.strip()):
        raise ValueError(f"IP address is not correctly formatted: {text}")
    return text.strip()


def dns_domain(text: str) -> str:
    """Read a domain to search names in; `.` for none."""
    domain = text.strip(" ")
    if domain == ".":
        return domain
    match = re.fullmatch(_DOMAIN, domain)
    if match is None or not re.search("[a-zA-Z]", domain) or len(domain) > 254:
        raise ValueError(f"{text} is not a valid domain")
    return match.group(1)


def mac_address(text: str) -> str:
    """Read a hardware address."""
    if not re.fullmatch(_MAC_ADDRESS, text.strip()):
        raise ValueError(f"{text} is not a valid mac address; one is 02:42:ac:11:00:02")
    return text.strip()


def is_ip_address(text: str) -> bool:
    """Ask whether a text is an IPv4 or IPv6 address."""
    import ipaddress  # slow to import, and seldom needed

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def container_name(text: str) -> str:
    """Read the name of a container."""
    if not re.fullmatch(_CONTAINER_NAME, text):
        raise ValueError(f"Invalid container name ({text}); use letters, digits, '_', '.' and '-', two at least")
    return text


def link(text: str) -> str:
    """Read `CONTAINER` or `CONTAINER:ALIAS`."""
    if not text or text.count(":") > 1:
        raise ValueError(f"bad format for links: {text}; write CONTAINER:ALIAS")
    return text


def stream(text: str) -> str:
    """Read the name of a standard stream."""
    if text.lower() not in ("stdin", "stdout", "stderr"):
        raise ValueError("valid streams are STDIN, STDOUT and STDERR")
    return text.lower()


def detach_keys(text: str) -> bytes:
    """Read keys such as `ctrl-p,ctrl-q`. Returns what a terminal sends for them."""
    typed = b""
    for key in text.split(","):
        symbol = key.removeprefix("ctrl-")
        if key != symbol and re.fullmatch(r"[a-z@\[\]\\^_]", symbol, re.ASCII):
            typed += bytes([ord(symbol.upper()) & 0x1F])
        elif len(key) == 1 and key.isascii():
            typed += key.encode()
        else:
            raise ValueError(f"invalid detach keys ({text}): Unknown character: '{key}'; write e.g. ctrl-p,ctrl-q or a")
    return typed


def checked_detach_keys(text: str) -> str:
    """Check keys such as `ctrl-p,ctrl-q`."""
    if text:
        detach_keys(text)
    return text


def restart_policy(text: str) -> dict[str, Any]:
    """Read `always`, `on-failure:3` and so on. Returns a RestartPolicy of the API."""
    name, colon, count = text.partition(":")
    if not name:
        raise ValueError("invalid restart policy format: no policy provided before colon")
    if colon and not count.isdecimal():
        raise ValueError("invalid restart policy format: maximum retry count must be an integer")
    return {"Name": name, "MaximumRetryCount": int(count or 0)}


def one_of(*accepted: str, fault: str) -> Any:
    """Return a parser of one of these words, or of `WORD:...` for a word that ends in a colon."""

    def parse(text: str) -> str:
        if text not in accepted and not any(
            word.endswith(":") and text.startswith(word) and text != word for word in accepted
        ):
            shown = [f"{word}NAME" if word.endswith(":") else word for word in accepted if word]
            raise ValueError(f"{fault}; accepted: {', '.join(shown)}")
        return text

    return parse


def pair(text: str) -> tuple[str, str]:
    """Read `NAME=VALUE`, or `NAME` for an empty value."""
    name, _, value = text.partition("=")
    return name, value


def label(text: str) -> tuple[str, str]:
    """Read a label; those of vgpurun itself cannot be given."""
    name, value = pair(text)
    if not name:
        raise ValueError(f"invalid label '{text}': empty name")
    if re.search(r"\s", name):
        raise ValueError(f"label '{name}' contains whitespaces")
    if name.startswith("vgpurun."):
        raise ValueError("names that begin with vgpurun. are vgpurun's own; choose another")
    return name, value


def storage_option(text: str) -> tuple[str, str]:
    """Read `NAME=VALUE` for the storage driver."""
    if "=" not in text:
        raise ValueError("invalid storage option; write NAME=VALUE")
    return pair(text)


def sysctl(text: str) -> tuple[str, str]:
    """Read `NAME=VALUE` of a kernel parameter that a container may have of its own."""
    name, value = pair(text)
    if "=" not in text or not (name in _SYSCTLS or name.startswith(_SYSCTL_PREFIXES)):
        raise ValueError(f"sysctl '{text}' is not allowed; write NAME=VALUE of a parameter that containers may have")
    return name, value
