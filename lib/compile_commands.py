"""Turns the output of `make --dry-run` into compile_commands.json, which clangd and other tools read."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Read make's commands from standard input; print one entry for each that compiles a file."""
    entries = []
    for line in sys.stdin:
        if " -c " not in line:
            continue
        words = shlex.split(line)
        source = next(word for word in words if word.endswith(".c"))
        entries.append({"directory": str(HERE.resolve()), "file": source, "arguments": words})
    print(json.dumps(entries, indent=1))


if __name__ == "__main__":
    main()
