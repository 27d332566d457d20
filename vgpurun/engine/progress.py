"""Shows on stderr how a pull or a build gets on: a live line in a terminal, plain lines elsewhere."""

import sys
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vgpurun.errors import VgpurunError

if TYPE_CHECKING:
    from rich.console import Console

_LINES_OF_FAILURE = 20


def show(title: str, events: Iterable[dict[str, Any]]) -> None:
    """Follow the engine's progress messages to their end. Errors are raised by `events` itself."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if console.is_terminal:
        _show_live(title, events, console)
        return
    print(title, file=sys.stderr)
    shown = ""
    for event in events:
        text = _text(event)
        # Bytes counted up are of use in a terminal only.
        if text and text != shown and not event.get("progressDetail"):
            print(text, file=sys.stderr, flush=True)
            shown = text


def _show_live(title: str, events: Iterable[dict[str, Any]], console: "Console") -> None:
    """Show one line that changes; when it goes wrong, the lines that led there."""
    from rich.markup import escape

    last: deque[str] = deque(maxlen=_LINES_OF_FAILURE)
    try:
        with console.status(escape(title)) as status:
            for event in events:
                if text := _text(event):
                    last.append(text)
                    status.update(escape(f"{title}: {text}"))
    except VgpurunError:
        for text in last:
            print(text, file=sys.stderr)
        raise


def _text(event: dict[str, Any]) -> str:
    text = str(event.get("stream") or event.get("status") or "").strip()
    layer = str(event.get("id") or "")
    progress = event.get("progressDetail") or {}
    if progress.get("total"):
        text = f"{text} {100 * progress.get('current', 0) // progress['total']} %"
    text = f"{layer}: {text}" if layer else text
    return " ".join(text.split())
