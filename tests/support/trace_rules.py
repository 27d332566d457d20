"""Rules that viewers of traces expect the events to keep."""

from __future__ import annotations

from collections import defaultdict
from typing import Any


def assert_nested(events: list[dict[str, Any]]) -> None:
    """Complete events of a track are apart, or one is within the other."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(
                (round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000))
            )
    assert tracks
    for those in tracks.values():
        within: list[int] = []
        for begin, end in sorted(those, key=lambda each: (each[0], -each[1])):
            while within and within[-1] <= begin:
                within.pop()
            assert not within or end <= within[-1]
            within.append(end)
