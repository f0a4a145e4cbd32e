"""One command from raw recordings to results: `python experiments/run.py --dataset porto`."""

import argparse
import errno
import importlib
import os
import signal
import sys
import time
from pathlib import Path

import rich
from rich.console import Console
from rich.markup import escape

from data.errors import DataError
from experiments.cli import compiled, display, lock, options, plan
from sim.errors import RoadError

FAILED, STOPPED = 2, 130
LOG_WIDTH = 120  # of tables in a file, where nobody can widen a window
# Loaded when their turn comes: etl needs no jax, nothing but control needs SUMO, and a plan needs none of them.
WORK = {
    "etl": "experiments.stages.etl:etl",
    "forecast": "experiments.stages.forecast:forecast",
    "detect": "experiments.stages.detect:detect",
    "control": "experiments.stages.control:control",
    "report": "experiments.stages.report:report",
    "table": "experiments.stages.sensitivity:table",
}


def main(argv: list[str] | None = None) -> int:
    """Runs the stages in order; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    args = options.parser().parse_args(words)
    out = args.out or Path("runs") / f"{args.dataset}-{args.preset}"
    rich.reconfigure()  # one console for everybody, or two live displays would write over each other
    console = rich.get_console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = LOG_WIDTH
    try:
        run(args, words, out, console)
    except (ValueError, OSError) as error:
        if args.debug:
            raise
        console.print(f"[bold red]error:[/] {escape(sentence(error, out))}", highlight=False, soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        console.print("Stopped; run the same command to go on from what is finished.")
        return STOPPED
    return 0


def run(args: argparse.Namespace, words: list[str], out: Path, console: Console) -> None:
    """The stages that were asked for, each timed, in a folder that no other run uses meanwhile."""
    chosen = options.stages(args)
    args.methods = args.methods or options.TABLE_METHODS.get(args.table)
    args.detectors = args.detectors or options.TABLE_DETECTORS.get(args.table)
    args.controllers = args.controllers or options.TABLE_CONTROLLERS.get(args.table)
    if args.methods:
        load("experiments.stages.forecast:check_methods")(args.methods)
    if args.detectors:
        load("experiments.stages.detectors:check_detectors")(args.detectors)
    if args.network:
        load("sim.network:read_network")(args.network)
    if args.dry_run:
        cfg = load("experiments.presets:experiment_config")(args)
        plan.show(plan.make_plan(args, out, chosen, cfg.seeds, cfg.max_folds), out, console)
        return
    out.mkdir(parents=True, exist_ok=True)
    with lock.only_run(out, console):
        for number, name in enumerate(chosen, start=1):
            start = time.perf_counter()
            with display.stage_display(name, f"{number} of {len(chosen)}", out, console):
                load(WORK[name])(args, out, console)
            plan.record(out, plan.timed_as(name, args), time.perf_counter() - start, words)


def load(place: str) -> object:
    """The function that `module:function` names."""
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(module), function)


def sentence(error: ValueError | OSError, out: Path) -> str:
    """What went wrong and what to do, in one sentence."""
    message = " ".join(str(error).split())
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in message:
        return f"The disk that holds {out} is full; free some space and run the same command to go on."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}; choose another --out."
    return message if isinstance(error, DataError | RoadError) else f"{message} (--debug shows where)"


def end_children() -> None:
    """Ends the processes that this one started: a Java that was interrupted while it started would stay for ever."""
    for listing in Path("/proc/self/task").glob("*/children"):
        for child in listing.read_text().split():
            os.kill(int(child), signal.SIGTERM)


if __name__ == "__main__":
    compiled.keep()
    code = main()
    if code == STOPPED:
        end_children()
    sys.exit(code)
