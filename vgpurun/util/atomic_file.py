"""Replaces files atomically: a reader sees the old content or the new, even if the writer is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(path: Path, mode: int = 0o644, is_flushed: bool = True) -> Iterator[Path]:
    """Yield a path for the new content, which takes the place of what is at `path`, with this mode, at the end.

    It lies in the same folder, which a rename needs, under a name of its own: several may do this at the same time.
    After an error nothing is free of it. `is_flushed`: it is on the disk before it takes the place. Raises OSError.
    """
    made = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        yield made
        # The folder may be another user's own, who has put a link to a third one's file there by now.
        file = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fchmod(file, mode)
            if is_flushed:
                os.fsync(file)
        finally:
            os.close(file)
        made.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk names none
        raise
    finally:
        made.unlink(missing_ok=True)
