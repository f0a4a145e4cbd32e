"""One run in a folder at a time: a lock file that holds the process id and is released when the process dies."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from data.errors import DataError

LOCK = "run.lock"
PATIENCE_S = 0.2  # a run that ends just now is not another run


@contextlib.contextmanager
def only_run(out: Path, console: Console) -> Iterator[None]:
    """Holds the folder while the block runs; refuses when another process holds it.

    The kernel releases the lock of a killed process. Such a run leaves only the file, with its process id.
    """
    path = out / LOCK
    held = FileLock(path)
    try:
        held.acquire(timeout=PATIENCE_S)
    except Timeout:
        sentence = f"Another run (process {_owner(path) or 'unknown'}) is at work in {out}; wait for it or choose "
        raise DataError(f"{sentence}another --out.") from None
    try:
        if _owner(path):
            console.print("The last run here was stopped by force; going on from what it finished.")
        path.write_text(f"{os.getpid()}\n")
        yield
    finally:
        path.unlink(missing_ok=True)
        held.release()


def _owner(path: Path) -> str:
    """The process id in a lock file; empty if there is none."""
    return path.read_text().strip() if path.exists() else ""
