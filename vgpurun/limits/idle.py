"""The policy for programs that have used no GPU time for a while: --idle, and the file in which the guard reads it."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vgpurun.errors import OptionError
from vgpurun.storage.shared_file import read_regular
from vgpurun.util.times import parse_span

FILE = "idle"  # in the state folder, which the container does not see
ACTIONS = ("suspend", "warn", "stop")
NEVER = "never"
HELP = "use e.g. 15m, 15m:suspend, 2h:warn, 1d:stop, or never"
_MOST_BYTES = 64
_LEAST_S = 0.1


@dataclass(frozen=True)
class IdlePolicy:
    """After how long without GPU time, and what then: one of ACTIONS."""

    after_s: float
    action: str


def parse_idle(text: str) -> IdlePolicy | None:
    """Read --idle; None is never. Raises OptionError."""
    if text == NEVER:
        return None
    time, colon, action = text.partition(":")
    action = action if colon else ACTIONS[0]
    after_s = parse_span(time)
    if after_s is None or after_s < _LEAST_S or action not in ACTIONS:
        raise OptionError(f"--idle '{text}' is not TIME[:ACTION]; {HELP}")
    return IdlePolicy(after_s, action)


def idle_files(text: str | None) -> dict[str, bytes]:
    """Return what a launch writes into its state folder."""
    return {FILE: text.encode()} if text and text != NEVER else {}


def read_idle(folder: Path) -> IdlePolicy | None:
    """Return the policy of a state folder, or None. Raises nothing."""
    with suppress(OSError, OptionError, UnicodeDecodeError):
        content = read_regular(folder / FILE, _MOST_BYTES)
        return parse_idle(content.decode()) if content else None
    return None
