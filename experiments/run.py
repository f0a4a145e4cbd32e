"""One command from raw recordings to results: `python experiments/run.py --dataset porto`, or `stream-jax run`."""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import rich
from rich.markup import escape

from data.errors import DataError
from experiments.cli import options
from experiments.cli.main import FAILED, STOPPED, load, start
from sim.errors import RoadError

LOG_WIDTH = 120  # of tables in a file, where nobody can widen a window


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the stages in order; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = options.parse(words)
    out = args.out or Path("runs") / f"{'routes' if args.routes else args.dataset}-{args.preset}"
    # One console for everybody, or two live displays would write over each other; a name like :x: is no picture.
    rich.reconfigure(emoji=False)
    console = rich.get_console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = LOG_WIDTH
    try:
        # Loaded only now, so that --help need not wait for scipy and matplotlib.
        load("experiments.cli.running:run")(args, words, out, console)
    except (ValueError, OSError) as error:
        if args.debug:
            raise
        console.print(f"[bold red]error:[/] {escape(sentence(error, out))}", highlight=False, soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        console.print("Stopped; run the same command to go on from what is finished.")
        return STOPPED
    return 0


def sentence(error: ValueError | OSError, out: Path) -> str:
    """What went wrong and what to do, in one sentence."""
    message = " ".join(str(error).split())
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in message:
        return f"The disk that holds {out} is full; free some space and run the same command to go on."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}; choose another --out."
    return message if isinstance(error, DataError | RoadError) else f"{message} (--debug shows where)"


if __name__ == "__main__":
    sys.exit(start("run"))
