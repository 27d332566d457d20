"""A finding about this host."""

from dataclasses import dataclass

from vgpurun.errors import VgpurunError

OK, WARNING, FAILED = "ok", "warn", "FAIL"


@dataclass(frozen=True)
class Finding:
    """A thing that was looked at: its state, what was found, and what helps where it is not ok."""

    name: str
    status: str
    words: str
    remedy: str = ""


def failed(name: str, error: VgpurunError) -> Finding:
    """Make a finding of an error. Ours say what is wrong, and after a semicolon the way out."""
    words, _, remedy = str(error).partition("; ")
    return Finding(name, FAILED, words, remedy)
