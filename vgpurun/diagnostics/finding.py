"""A finding of a look at this host."""

from dataclasses import dataclass

OK, WARNING, FAILED = "ok", "warn", "FAIL"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: its state, what was found, and what helps where it is not ok."""

    name: str
    status: str
    words: str
    remedy: str = ""
