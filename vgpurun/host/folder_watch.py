"""Watches folders for changes: one call asks about all of them, where looking at files takes a call for each.

A change is one of the files that are directly in a folder, or of the folder itself. The kernel reports no
writes through a mapping, or by another host.
"""

import ctypes
import fcntl
import os
import struct
import termios
from collections.abc import Set
from pathlib import Path

_MODIFY, _ATTRIB, _MOVED, _CREATE, _DELETE, _SELF_GONE, _OVERFLOW = 0x2, 0x4, 0xC0, 0x100, 0x200, 0xC00, 0x4000
_IGNORED, _ONCE = 0x8000, 0x80000000  # it is watched no more; only its first change is told of
_CHANGES = _MODIFY | _ATTRIB | _MOVED | _CREATE | _DELETE | _SELF_GONE
_EVENT = struct.Struct("iIII")  # struct inotify_event, before the name: watch, what, cookie, length of the name
NOT_WATCHED = -1


class FolderWatch:
    """Watches folders until they are removed."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._file: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watches: set[int] = set()

    def add(self, folder: Path | str, is_once: bool = False) -> int:
        """Return the number by which changed() calls it, NOT_WATCHED where the kernel has no watch left or no folder.

        One that is watched already keeps its number. `is_once`: until its first change, for one that changes often.
        """
        what = _CHANGES | _ONCE if is_once else _CHANGES
        watch: int = self._libc.inotify_add_watch(self._file, os.fsencode(folder), ctypes.c_uint32(what))
        if watch != NOT_WATCHED:
            self._watches.add(watch)
        return watch

    def changed(self) -> Set[int]:
        """Return those with a change since the last call, or since they were added."""
        found: set[int] = set()
        events, at = self._read(), 0
        while at < len(events):
            watch, what, _, length = _EVENT.unpack_from(events, at)
            found |= self._watches if what & _OVERFLOW else {watch}
            if what & _IGNORED:
                self._watches.discard(watch)
            at += _EVENT.size + length
        return found

    def close(self) -> None:
        """Watch none any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> bytes:
        """Return the events so far: somebody who may write in a folder could make more without end."""
        if not self._watches:
            return b""
        (there_bytes,) = struct.unpack("i", fcntl.ioctl(self._file, termios.FIONREAD, bytes(4)))
        return os.read(self._file, there_bytes) if there_bytes else b""
