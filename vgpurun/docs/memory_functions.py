"""Compares lib/memory_functions.yaml, the judgement of every function of cuda.h, with that header and with hooks.h.

    python -m vgpurun.docs.memory_functions -I/usr/local/cuda/include    exit with 1, and name what does not agree

A function that nobody has judged, one that is judged twice, a "counted" one of which a version is not caught, and one
that is "passed on" and caught: each is an error. The compiler that reads the header is `cc`.
"""

import argparse
import fnmatch
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

LIBRARY_SOURCES = Path(__file__).parent.parent.parent / "lib"
_VERSION = re.compile(r"(?:_v\d+)?(?:_ptsz|_ptds)?$")
_VERDICTS = {
    "counted": ("counted", "how"),
    "passed_on": ("passed on", "why"),
    "not_possible": ("not possible", "why"),
    "not_memory": ("not about memory", "what"),
}


@dataclass(frozen=True)
class Judgement:
    """Functions that are judged alike. Patterns in ``functions`` are those of fnmatch."""

    verdict: str
    reason: str
    functions: tuple[str, ...]

    def covers(self, name: str) -> bool:
        """Whether a function, by its name without a version, is one of these."""
        return any(fnmatch.fnmatchcase(name, function) for function in self.functions)


def judgements(path: Path = LIBRARY_SOURCES / "memory_functions.yaml") -> list[Judgement]:
    """Read the file. Raises ValueError for a verdict or a key that it should not have."""
    content: dict[str, list[dict[str, Any]]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    if set(content) != set(_VERDICTS):
        raise ValueError(f"{path}: expected the parts {', '.join(_VERDICTS)}")
    found = []
    for part, entries in content.items():
        verdict, reason = _VERDICTS[part]
        for entry in entries:
            if set(entry) != {reason, "functions"}:
                raise ValueError(f"{path}: an entry of {part} has {reason} and functions, not {', '.join(entry)}")
            found.append(Judgement(verdict, entry[reason].strip(), tuple(entry["functions"])))
    return found


def without_version(symbol: str) -> str:
    """Return a function's name as all its versions share it: cuMemAlloc for cuMemAlloc_v2."""
    return _VERSION.sub("", symbol)


def symbols_of(includes: Sequence[str]) -> set[str]:
    """Return every function that cuda.h declares, old versions and per-thread variants included.

    Raises subprocess.CalledProcessError when the compiler does not find the header.
    """
    source = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n"
    command = ["cc", "-E", "-P", *includes, "-x", "c", "-"]
    text = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", text))


def caught_symbols() -> set[str]:
    """Return what the library catches, by hooks.h."""
    text = (LIBRARY_SOURCES / "src" / "hook" / "hooks.h").read_text(encoding="utf-8")
    rows = re.search(r"#define CUDA_CAUGHT\(X\)(.*?[^\\])\n", text, re.DOTALL)
    return set(re.findall(r"X\((\w+)\)", rows[1])) if rows else set()


def disagreements(symbols: set[str], caught: set[str], judged: Sequence[Judgement]) -> list[str]:
    """Return what is wrong, a line for each function."""
    wrong = []
    for symbol in sorted(symbols):
        name = without_version(symbol)
        verdicts = [judgement.verdict for judgement in judged if judgement.covers(name)]
        if not verdicts:
            wrong.append(f"{symbol}: nobody has judged whether it takes device memory")
        elif len(verdicts) > 1:
            wrong.append(f"{symbol}: judged more than once: {', '.join(verdicts)}")
        elif verdicts == ["counted"] and symbol not in caught:
            wrong.append(f"{symbol}: said to be counted, but hooks.h does not catch it")
        elif verdicts == ["passed on"] and symbol in caught:
            wrong.append(f"{symbol}: said to be passed on, but hooks.h catches it")
    return wrong


def main() -> int:
    """Compare, print what does not agree, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m vgpurun.docs.memory_functions", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("-I", dest="folders", action="append", default=[], help="where cuda.h is")
    symbols = symbols_of([f"-I{folder}" for folder in parser.parse_args().folders])
    wrong = disagreements(symbols, caught_symbols(), judgements())
    print("\n".join(wrong) or f"{len(symbols)} functions, all judged")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
