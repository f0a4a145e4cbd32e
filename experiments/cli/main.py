"""The command `stream-jax`: a list of what it can do, each the same code as a file of experiments/.

A new command is one line of `COMMANDS`, and a function that takes words and returns an exit code.
"""

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import rich
from rich.markup import escape

from data.errors import DataError
from experiments.cli import compiled
from sim.errors import RoadError

FAILED, STOPPED = 2, 130


class Command(NamedTuple):
    """One command."""

    place: str  # module:function, loaded when the command is chosen
    says: str  # what it does, in a line


COMMANDS = {
    "run": Command("experiments.run:main", "from raw recordings to results and a report, stage by stage"),
    "drive": Command("experiments.control:main", "drive a trained system live in SUMO"),
    "verify": Command("experiments.verify:main", "check a trained system's promises on fresh data"),
    "tables": Command("experiments.tables.command:main", "print the paper's tables beside ours"),
    "figures": Command("experiments.figures:main", "draw the paper's tables as bars beside ours"),
    "export": Command("experiments.export:main", "write a run's results as parquet, csv or geojson"),
    "publish": Command("experiments.publish:main", "copy a run's rows and final controllers into results/"),
    "compare": Command("experiments.compare:main", "say whether two runs have the same results rows"),
    "sweep": Command("experiments.sweep:main", "train many seeds over all devices"),
    "resco": Command("experiments.resco:main", "compare controllers on RESCO's public maps"),
    "tune": Command("experiments.tune:main", "tune the look-ahead controller on hours of validation"),
    "demand": Command("experiments.demand_sweep:main", "measure controllers over levels of demand"),
    "road": Command("experiments.road.command:main", "fit compiled roads to SUMO, and judge them against it"),
    "capacity": Command("experiments.capacity:main", "find the highest demand that controllers handle safely"),
    "interrupted": Command("experiments.interrupted:main", "compare a run that is killed often with one left alone"),
    "download": Command("data.download:main", "fetch a dataset from its publisher"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command that the first word names; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"stream-jax {metadata.version('stream_jax')}")
        return 0
    if words[0] not in COMMANDS:
        near = difflib.get_close_matches(words[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(COMMANDS)}."
        print(f"error: there is no command {words[0]!r}; {hint}", file=sys.stderr)
        return FAILED
    return start(words[0], words[1:])


def start(name: str, words: Sequence[str] | None = None) -> int:
    """Runs one command with these words, or with those of this process; returns the exit code."""
    compiled.keep()
    rich.reconfigure(emoji=False)  # a folder called :x: is no picture
    try:
        code = load(COMMANDS[name].place)(words)
    except (DataError, RoadError) as error:
        rich.get_console().print(f"[bold red]error:[/] {escape(' '.join(str(error).split()))}", soft_wrap=True)
        return FAILED
    except OSError as error:
        named = f"{error.strerror}: {error.filename}" if error.filename is not None else str(error)
        rich.get_console().print(f"[bold red]error:[/] {escape(named)}; choose another file or folder.", soft_wrap=True)
        return FAILED
    if code == STOPPED:
        end_children()
    return code


def overview() -> str:
    """The list of commands with a line each."""
    wide = max(map(len, COMMANDS))
    lines = [f"  {name:{wide}}  {command.says}" for name, command in COMMANDS.items()]
    opening = "Forecast city traffic, detect anomalies and control signals.\n\nusage: stream-jax COMMAND [OPTIONS]\n"
    first = "`stream-jax run --preset smoke` shows everything in minutes; `stream-jax COMMAND --help` tells more."
    return "\n".join([opening, *lines, "", first])


def load(place: str) -> Callable:
    """The function that `module:function` names."""
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(module), function)


def end_children() -> None:
    """Ends the processes that this one started: a Java that was interrupted while it started would stay for ever."""
    for listing in Path("/proc/self/task").glob("*/children"):
        for child in listing.read_text().split():
            os.kill(int(child), signal.SIGTERM)
