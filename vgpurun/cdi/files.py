"""CDI specifications on the disk. An engine may look at any moment: a file is there as a whole, or not at all."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from vgpurun.errors import OutputError


def specification_text(specification: dict[str, Any], output_format: str) -> str:
    """Return a specification as `yaml` or `json`."""
    if output_format == "json":
        return json.dumps(specification, indent=2) + "\n"
    import yaml  # slow to import

    return str(yaml.safe_dump(specification, sort_keys=False, default_flow_style=False, width=10_000))


def format_of(path: Path) -> str:
    """Return the format that a file's name says: engines go by it."""
    return "json" if path.suffix == ".json" else "yaml"


def check_path(path: Path) -> None:
    """Raise OutputError for a name that no engine takes for a specification."""
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise OutputError(f"{path}: engines read *.yaml and *.json alone; choose such a name")


def write_specification(path: Path, specification: dict[str, Any]) -> None:
    """Put a specification in the place of what is there, in the format of the file's name. Raises OutputError."""
    check_path(path)
    # In the same folder, which a rename needs; by its name no engine takes it for a specification.
    half_made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with half_made.open("w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(specification_text(specification, format_of(path)))
            file.flush()
            os.fsync(file.fileno())
        half_made.replace(path)
    except OSError as error:
        with suppress(OSError):
            half_made.unlink(missing_ok=True)
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None
