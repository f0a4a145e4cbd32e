"""One run in a folder at a time: a lock file that holds the process id and dies with the process."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from data.errors import DataError

LOCK = "run.lock"


@contextlib.contextmanager
def only_run(out: Path, console: Console) -> Iterator[None]:
    """Holds the folder while the block runs; refuses when another process holds it.

    The kernel drops the lock of a process that was killed, so what such a run leaves behind is only the file.
    """
    path = out / LOCK
    while True:
        handle = path.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = path.read_text().strip() or "unknown"
            handle.close()
            sentence = f"Another run (process {owner}) is at work in {out}; wait for it or choose another --out."
            raise DataError(sentence) from None
        if path.exists() and os.path.samestat(os.fstat(handle.fileno()), path.stat()):
            break
        handle.close()  # its owner finished and removed the file between our opening and locking it
    with handle:
        handle.seek(0)
        if handle.read().strip():
            console.print("The last run here was stopped by force; going on from what it finished.")
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
