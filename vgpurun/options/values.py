"""Single values in the syntax of docker run.

Every parser raises ValueError with docker's own words; table.py adds the option and the text.
"""

import os
import re
from typing import Any

_FLOAT = r"(?a)[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_INTEGER = {0: r"(?a)[+-]?\w+", 10: r"(?a)[+-]?[0-9]+"}
_OCTAL = r"^([+-]?)0(?=[0-9_])"  # Go's old way to write it, beside 0o
_BYTE_SUFFIX = r"(?i)b?|[kmgtp](b|ib)?"
_DURATION = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([^0-9.]*)"
_UNIT_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_CONTAINER_NAME = r"(?a)[a-zA-Z0-9][a-zA-Z0-9_.-]+"
_DOMAIN_PART = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_DOMAIN = rf"(?ai)({_DOMAIN_PART}(\.{_DOMAIN_PART})*)\.?"
_MAC_ADDRESS = (
    r"(?ai)[0-9a-f]{2}([:-])[0-9a-f]{2}((\1[0-9a-f]{2}){4}|(\1[0-9a-f]{2}){6}|(\1[0-9a-f]{2}){18})|"
    r"[0-9a-f]{4}\.[0-9a-f]{4}(\.[0-9a-f]{4}|(\.[0-9a-f]{4}){2}|(\.[0-9a-f]{4}){8})"
)
_LARGE_EXPONENT = r"(?a)[eE][+-]?[0-9]{4}"  # a number that would take all memory
_INT64 = 1 << 63
# The spellings of a switch's value, as in Go's programs.
TRUE = ("1", "t", "T", "true", "TRUE", "True")
FALSE = ("0", "f", "F", "false", "FALSE", "False")
_BLANKS = " \t"
DEFAULT_DETACH_KEYS = "ctrl-p,ctrl-q"
_COMPONENT = "[A-Za-z0-9_.-]+"
_SYSTEM = r"([A-Za-z0-9_-]+)(?:\([A-Za-z0-9_.%-]*(?:\+[A-Za-z0-9_.%-]+)*\))?"
# The names of docker's library for platforms.
_SYSTEMS = (
    "aix", "android", "darwin", "dragonfly", "freebsd", "hurd", "illumos", "ios", "js", "linux", "nacl", "netbsd",
    "openbsd", "plan9", "solaris", "windows", "zos",
)  # fmt: skip
_ARCHITECTURES = (
    "386", "amd64", "amd64p32", "arm", "armbe", "arm64", "arm64be", "ppc64", "ppc64le", "loong64", "mips", "mipsle",
    "mips64", "mips64le", "mips64p32", "mips64p32le", "ppc", "riscv", "riscv64", "s390", "s390x", "sparc", "sparc64",
    "wasm",
)  # fmt: skip
_OTHER_NAMES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64"}
_WITH_VARIANT = {"i386": ("386", ""), "armhf": ("arm", "v7"), "armel": ("arm", "v6")}
_VARIANTS = {
    ("amd64", "v1"): "", ("arm64", "8"): "", ("arm64", "v8"): "", ("arm64", "v8.0"): "", ("arm64", "9"): "v9",
    ("arm64", "9.0"): "v9", ("arm64", "v9.0"): "v9", ("arm", ""): "v7", ("arm", "7"): "v7", ("arm", "5"): "v5",
    ("arm", "6"): "v6", ("arm", "8"): "v8",
}  # fmt: skip
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
    match = re.fullmatch(r"(?as)(.*[0-9. ])(.*)", text)
    if match is None:
        raise ValueError(f"invalid size: '{text}'; use e.g. 64m or 1g")
    number, suffix = match[1].removesuffix(" "), match[2]
    if not re.fullmatch(_FLOAT, number):
        raise ValueError(f'parsing "{number}": invalid syntax; use e.g. 64m or 1g')
    if number.startswith("-"):
        raise ValueError(f"invalid size: '{text}'; use e.g. 64m or 1g")
    if not re.fullmatch(_BYTE_SUFFIX, suffix):
        raise ValueError(f"invalid suffix: '{suffix.lower()}'; use b, k, m, g or t")
    size_bytes = float(number) * 1024 ** "bkmgtp".index(suffix[:1].lower() or "b")
    if size_bytes >= _INT64:
        raise ValueError(f'parsing "{text}": value out of range')
    return int(size_bytes)


def size_or_unlimited(text: str) -> int:
    """Read a size, or -1. Returns bytes."""
    return -1 if text == "-1" else size(text)


def integer(text: str, base: int = 0) -> int:
    """Read a whole number of 64 bits: `16`, and where the base is open `0x10`, `020` and `0b10000`."""
    try:
        if not re.fullmatch(_INTEGER[base], text):
            raise ValueError
        number = int(re.sub(_OCTAL, r"\g<1>0o", text) if base == 0 else text, base)
    except ValueError:
        raise ValueError(f'parsing "{text}": invalid syntax; a whole number is needed') from None
    return _within(number, -_INT64, _INT64, text)


def decimal(text: str) -> int:
    """Read a whole number in decimal digits."""
    return integer(text, 10)


def positive(text: str, base: int = 10, limit: int = 2 * _INT64) -> int:
    """Read a whole number that has no sign, below a limit."""
    if text[:1] in ("+", "-"):
        raise ValueError(f'parsing "{text}": invalid syntax; it cannot have a sign')
    return _within(integer(text, base), 0, limit, text)


def _within(number: int, low: int, limit: int, text: str) -> int:
    if not low <= number < limit:
        raise ValueError(f'parsing "{text}": value out of range')
    return number


def swappiness(text: str) -> int:
    """Read --memory-swappiness, -1 for the engine's own."""
    number = integer(text)
    if not -1 <= number <= 100:
        raise ValueError(f"invalid value: {number}. Valid memory swappiness range is 0-100")
    return number


def weight(text: str) -> int:
    """Read a weight of block IO; which ones there are is the engine's to say."""
    return positive(text, 0, 1 << 16)


def cpus(text: str) -> int:
    """Read a number of CPUs such as `1.5`. Returns billionths of a CPU."""
    from fractions import Fraction  # slow to import, as in the other places

    try:
        nanos = Fraction("" if text != text.strip() or re.search(_LARGE_EXPONENT, text) else text) * 10**9
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"failed to parse {text} as a rational number") from None
    if nanos.denominator != 1:
        raise ValueError("value is too precise")
    return _within(nanos.numerator, -_INT64, _INT64, text)


def duration(text: str) -> int:
    """Read a time such as `1m30s`. Returns nanoseconds."""
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    if unsigned == "0":
        return 0
    parts = list(re.finditer(_DURATION, unsigned))
    if not parts or "".join(part.group() for part in parts) != unsigned:
        raise ValueError(f'time: invalid duration "{text}"; use e.g. 30s or 1m30s')
    if wrong := next((unit for _, unit in (part.groups() for part in parts) if unit not in _UNIT_NS), None):
        raise ValueError(f'time: unknown unit "{wrong}" in duration "{text}"; use e.g. 30s or 1m30s')
    if not all(part[2] for part in parts):
        raise ValueError(f'time: missing unit in duration "{text}"; use e.g. 30s or 1m30s')
    from fractions import Fraction

    duration_ns = int(sum(Fraction(part[1]) * _UNIT_NS[part[2]] for part in parts))
    return -duration_ns if text.startswith("-") else duration_ns


def ulimit(text: str) -> dict[str, Any]:
    """Read `TYPE=SOFT[:HARD]`. Returns a Ulimit of the API."""
    name, equals, limits = text.partition("=")
    if not equals:
        raise ValueError(f"invalid ulimit argument: {text}; write e.g. nofile=1024:2048")
    if name not in _ULIMITS:
        raise ValueError(f"invalid ulimit type: {name}; known are {', '.join(_ULIMITS)}")
    if limits.count(":") > 1:
        raise ValueError(f"too many limit value arguments - {limits}, can only have up to two, `soft[:hard]`")
    soft_text, colon, hard_text = limits.partition(":")
    soft = decimal(soft_text)
    hard = decimal(hard_text) if colon else soft
    if hard != -1 and (soft > hard or soft == -1):
        order = f"soft: -1 (unlimited), hard: {hard}" if soft == -1 else f"{soft} > {hard}"
        raise ValueError(f"ulimit soft limit must be less than or equal to hard limit: {order}")
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
    is_gateway = address == "host-gateway"
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    if not is_gateway and not is_ip_address(address):
        raise ValueError(f'invalid IP address in add-host: "{address}"')
    return f"{name}:{address}"


def dns_server(text: str) -> str:
    """Read the address of a DNS server."""
    import ipaddress  # slow to import, and seldom needed

    if not is_ip_address(text.strip()):
        raise ValueError(f"IP address is not correctly formatted: {text}")
    address = ipaddress.ip_address(text.strip())
    return str(getattr(address, "ipv4_mapped", None) or address)


def is_loopback(address: str) -> bool:
    """Ask whether an address is the host's own, which in a container is another one."""
    import ipaddress

    return ipaddress.ip_address(address).is_loopback


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
    if text and not re.fullmatch(_MAC_ADDRESS, text.strip()):
        raise ValueError(f"{text} is not a valid mac address; one is 02:42:ac:11:00:02")
    return text.strip()


def is_ip_address(text: str) -> bool:
    """Ask whether a text is an IPv4 or IPv6 address, without a zone."""
    import ipaddress

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def container_name(text: str) -> str:
    """Read the name of a container."""
    name = text.removeprefix("/")
    if text and not re.fullmatch(_CONTAINER_NAME, name):
        raise ValueError(f"Invalid container name ({text}), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed, two at least")
    return name


def link(text: str) -> str:
    """Read `CONTAINER` or `CONTAINER:ALIAS`."""
    if not text:
        raise ValueError("empty string specified for links; write CONTAINER:ALIAS")
    if text.count(":") > 1:
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


def restart_policy(text: str) -> dict[str, Any]:
    """Read `always`, `on-failure:3` and so on. Returns a RestartPolicy of the API."""
    name, colon, count = text.partition(":")
    if colon and not name:
        raise ValueError("invalid restart policy format: no policy provided before colon")
    try:
        return {"Name": name, "MaximumRetryCount": decimal(count or "0")}
    except ValueError:
        raise ValueError("invalid restart policy format: maximum retry count must be an integer") from None


def one_of(*accepted: str, fault: str) -> Any:
    """Return a parser of one of these words, or of `WORD:...` for a word that ends in a colon."""

    def parse(text: str) -> str:
        if not any(text.startswith(word) and text != word if word.endswith(":") else text == word for word in accepted):
            shown = [f"{word}NAME" if word.endswith(":") else word for word in accepted if word]
            raise ValueError(f"{fault}; accepted: {', '.join(shown)}")
        return text

    return parse


def fields(text: str) -> list[str]:
    """Split at commas, as a line of CSV: `a,"b,c"`."""
    import csv  # slow to import, and seldom needed

    try:
        split = next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if not split:
        raise ValueError("value is empty")
    return split


def pair(text: str) -> tuple[str, str]:
    """Read `NAME=VALUE`, or `NAME` for an empty value."""
    name, _, value = text.partition("=")
    return name, value


def label(text: str) -> tuple[str, str]:
    """Read a label; those of vgpurun itself cannot be given."""
    name, value = pair(text)
    if not name.lstrip(_BLANKS):
        raise ValueError(f"invalid label '{text}': empty name")
    if set(_BLANKS) & set(name.lstrip(_BLANKS)):
        raise ValueError(f"label '{name.lstrip(_BLANKS)}' contains whitespaces")
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


def platform(text: str) -> str:
    """Read `OS`, `ARCH`, `OS/ARCH` or `OS/ARCH/VARIANT`; returns the last two, with the engine's names.

    A version in brackets after the system's name is for Windows, and docker sends none.
    """
    if not text:
        return text
    parts = text.split("/")
    system = re.fullmatch(_SYSTEM, parts[0])
    if system is None:
        raise ValueError(f'"{parts[0]}" is an invalid component of "{text}": it is not the name of a system')
    if wrong := [part for part in parts[1:4] if not re.fullmatch(_COMPONENT, part)]:
        must = f'platform specifier component must match "^{_COMPONENT}$"'
        raise ValueError(f'"{wrong[0]}" is an invalid component of "{text}": {must}')
    if len(parts) > 3:
        raise ValueError(f'"{text}": cannot parse platform specifier; write OS/ARCH')
    name, *others = system[1].lower(), *(part.lower() for part in parts[1:])
    name = "darwin" if name == "macos" else name
    if not others and name in _SYSTEMS:
        others = [os.uname().machine]
    elif not others and architecture(name)[0] in _ARCHITECTURES:
        name, others = "linux", [name]
    elif not others:
        raise ValueError(f'"{text}": unknown operating system or architecture; write OS/ARCH')
    kind, variant = architecture(*others)
    if len(others) == 1 and (kind, variant) == ("arm", "v7"):
        variant = ""
    elif len(others) == 2 and (kind, variant) == ("arm64", ""):
        variant = "v8"
    return "/".join(filter(None, (name, kind, variant)))


def architecture(name: str, variant: str = "") -> tuple[str, str]:
    """Return the name and the variant that the engine has for an architecture; the usual variant of one is empty."""
    if name in _WITH_VARIANT:
        return _WITH_VARIANT[name]
    name = _OTHER_NAMES.get(name, name)
    variant = _VARIANTS.get((name, variant), variant)
    return name, variant
