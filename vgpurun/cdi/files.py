"""CDI specifications on the disk. An engine may look at any moment: a file is there as a whole, or not at all."""

import json
from pathlib import Path
from typing import Any

from vgpurun.errors import OutputError
from vgpurun.util.atomic_file import atomic_file


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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as half_made:  # by its name no engine takes it for a specification
            half_made.write_text(specification_text(specification, format_of(path)), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None
