"""Print what the programs of this folder have run of the policy, as `make coverage` has compiled them."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "lib" / "build" / "c" / "coverage"


def main() -> None:
    """Lines of each source, by whether a program has run them."""
    lines: dict[str, dict[int, bool]] = defaultdict(dict)
    for data in sorted(BUILD.rglob("*.gcda")):
        # Each object was compiled where make was: in tests/c or in lib.
        report = subprocess.run(["gcov", "--json-format", "--stdout", data], capture_output=True, check=True).stdout
        found = json.loads(report)
        for file in found["files"]:
            path = Path(found["current_working_directory"], file["file"]).resolve()
            if not path.is_relative_to(ROOT / "lib"):
                continue
            seen = lines[str(path.relative_to(ROOT))]
            for line in file["lines"]:
                number = line["line_number"]
                seen[number] = seen.get(number, False) or line["count"] > 0
    total = run = 0
    for name, seen in sorted(lines.items()):
        total, run = total + len(seen), run + sum(seen.values())
        print(
            f"{name:40} {len(seen):6} {len(seen) - sum(seen.values()):6} {100 * sum(seen.values()) / len(seen):5.0f}%"
        )
    print(f"{'TOTAL':40} {total:6} {total - run:6} {100 * run / total:5.0f}%")


if __name__ == "__main__":
    main()
