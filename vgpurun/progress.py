"""Shows on stderr how a pull or a build gets on: a live line in a terminal, plain lines elsewhere."""

import sys
from collections.abc import Iterable
from typing import Any


def show(title: str, events: Iterable[dict[str, Any]]) -> None:
    """Follow the engine's progress messages to their end. Errors are raised by `events` itself."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if console.is_terminal:
        with console.status(title) as status:
            for event in events:
                if text := _text(event):
                    status.update(f"{title}: {text}", spinner="dots")
        return
    print(title, file=sys.stderr)
    shown = ""
    for event in events:
        text = _text(event)
        # Bytes counted up are of use in a terminal only.
        if text and text != shown and not event.get("progressDetail"):
            print(text, file=sys.stderr, flush=True)
            shown = text


def _text(event: dict[str, Any]) -> str:
    text = str(event.get("stream") or event.get("status") or "").strip()
    layer = str(event.get("id") or "")
    progress = event.get("progressDetail") or {}
    if progress.get("total"):
        text = f"{text} {100 * progress.get('current', 0) // progress['total']} %"
    text = f"{layer} {text}" if layer else text
    return " ".join(text.split())
