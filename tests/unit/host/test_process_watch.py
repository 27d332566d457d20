"""Processes that are watched until they end."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from pathlib import Path

from vgpurun.host.process_watch import ProcessWatch


def files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_watched_until_its_end() -> None:
    watch = ProcessWatch()
    before = files()
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        pids = {first.pid, second.pid}
        for pid in pids:
            watch.add(pid)
        watch.keep(pids)
        assert first.pid in watch.pids and second.pid in watch.pids
        first.kill()
        end_s = time.monotonic() + 20
        while first.pid in watch.pids:  # also before its parent has asked for it
            assert time.monotonic() < end_s
            watch.keep(pids)
        assert second.pid in watch.pids
        second.kill()
    watch.add(first.pid)
    watch.keep(pids)
    assert first.pid not in watch.pids and second.pid not in watch.pids
    watch.close()
    assert files() == before


def test_not_watched_where_no_file_is_left() -> None:
    watch = ProcessWatch()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        watch.add(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    watch.keep({os.getpid()})
    assert os.getpid() not in watch.pids
    watch.add(os.getpid())
    watch.keep({os.getpid()})
    assert os.getpid() in watch.pids
    watch.close()
