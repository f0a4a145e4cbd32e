"""RESCO's public maps in one command: every controller in the same simulator, protocol and hour, side by side.

Published figures do not carry over to another release of SUMO, so the verdict is this run; they stand beside it.
"""

import concurrent.futures
import dataclasses
import difflib
import json
import multiprocessing
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import rich
import tyro
from rich.console import Console

from data.errors import DataError
from experiments.cli import lock
from experiments.cli.display import duration
from experiments.cli.main import start
from experiments.cli.reading import read
from experiments.evaluation import results
from experiments.evaluation.resco_episodes import (
    CONTROLLERS,
    MAPS,
    Job,
    config_file,
    drive,
    map_hash,
    settings_key,
    sumo_version,
)
from experiments.evaluation.trips import METRICS
from experiments.report import resco_figure
from experiments.tables import resco_tables
from stream_jax import store

ALL = "all"
COMMANDS = "commands.json"
DESCRIPTION = """\
Drives RESCO's eight public maps with every controller, side by side in the same SUMO and protocol. The maps come in the
wheel of sumo-rl: pip install "stream_jax[resco]". A stopped run goes on where it was. It ends in a table, a figure and
rows.

  stream-jax resco                                             all maps and controllers, five seeds
  stream-jax resco --maps cologne1 ingolstadt7 --seeds 1       a first impression
  stream-jax resco --controllers lookahead                     one controller again; rows of the others stay
"""


@dataclasses.dataclass(frozen=True)
class RescoOptions:
    """What is driven, and where it is kept."""

    maps: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (ALL,)
    """all, or some of cologne1 cologne3 cologne8 ingolstadt1 ingolstadt7 ingolstadt21 grid4x4 arterial4x4"""
    controllers: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (ALL,)
    """all, or some of fixed actuated greedy max_pressure guarded_max_pressure lookahead"""
    seeds: int = 5
    """SUMO's seeds 0, 1, ... for each map and controller"""
    workers: int = 2
    """SUMO processes that run at the same time"""
    out: Path = Path("runs/resco")
    """where finished episodes and the figure are kept"""
    results: Path = Path("results/resco")
    """folder of the rows, a file for each map"""


def main(argv: Sequence[str] | None = None) -> int:
    """Drives what is missing, writes rows, table and figure; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = read(RescoOptions, DESCRIPTION, words, "resco")
    console = rich.get_console()
    maps, controllers = chosen(args.maps, MAPS, "map"), chosen(args.controllers, CONTROLLERS, "controller")
    for option in ("seeds", "workers"):
        if getattr(args, option) < 1:
            raise DataError(f"--{option} {getattr(args, option)} is not a positive number.")
    for name in maps:
        config_file(name)
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        with lock.only_run(args.out, console):
            run(args, maps, controllers, words, console)
    except KeyboardInterrupt:
        console.print("Stopped; finished episodes are kept, and the same command goes on.")
        return 130
    return 0


def chosen(asked: Sequence[str], known: dict[str, object], kind: str) -> list[str]:
    """The names that are asked for, in the known order; refuses one that does not exist."""
    for name in asked:
        if name != ALL and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose among {', '.join(known)}."
            raise DataError(f"There is no {kind} {name!r}; {hint}")
    return [name for name in known if name in asked or ALL in asked]


def run(args: RescoOptions, maps: list[str], controllers: list[str], words: list[str], console: Console) -> None:
    """Drives every episode that is not kept yet; writes rows map by map and controller by controller."""
    jobs = [Job(name, who, seed) for name in maps for who in controllers for seed in range(args.seeds)]
    keys = {(name, who): settings_key(name, who) for name in maps for who in controllers}
    file_of = {job: args.out / "episodes" / _file_name(job, keys[job.map, job.controller]) for job in jobs}
    missing = [job for job in jobs if not file_of[job].exists()]
    console.print(f"{len(jobs)} episodes, {len(jobs) - len(missing)} of them kept from before.", highlight=False)
    for number, (job, found) in enumerate(driven(missing, args.workers, console), start=1):
        store.write_text(file_of[job], json.dumps(found))
        if number == len(missing) or all(file_of[one].exists() for one in jobs if one[:2] == job[:2]):
            write_rows(args.results, *job[:2], keys[job[:2]], file_of)
    for name, who in keys:
        write_rows(args.results, name, who, keys[name, who], file_of)
    remember(args.results / COMMANDS, words)
    rows = [row for name in MAPS for row in results.read_rows(args.results / f"{name}.jsonl")]
    for table in resco_tables.tables(rows):
        console.print(table)
    figure = args.out / "resco.png"
    resco_figure.delays(rows).savefig(figure, dpi=130)
    console.print(f"rows: {args.results}  figure: {figure}", highlight=False, markup=False)


def driven(jobs: list[Job], workers: int, console: Console) -> Iterator[tuple[Job, dict[str, float]]]:
    """Drives episodes in processes of their own, as libsumo needs; yields each as it ends and says how long is left."""
    if not jobs:
        return
    began = time.perf_counter()
    pool = concurrent.futures.ProcessPoolExecutor(
        min(workers, len(jobs)),
        multiprocessing.get_context("spawn"),
        initializer=_leave_stopping_to_the_parent,
        max_tasks_per_child=1,  # a second simulation in a process may differ from the same one in a fresh process
    )
    try:
        waiting = {pool.submit(drive, job): job for job in jobs}
        for number, done in enumerate(concurrent.futures.as_completed(waiting), start=1):
            job, found = waiting[done], done.result()
            took = time.perf_counter() - began
            left = took / number * (len(jobs) - number)
            console.print(
                f"  {number} of {len(jobs)}  {job.map} {job.controller} seed {job.seed}: delay {found['delay']:.1f} s, "
                f"longest wait {found['longest_wait']:.0f} s; about {duration(left)} left",
                highlight=False,
                soft_wrap=True,
            )
            yield job, found
    except concurrent.futures.process.BrokenProcessPool:
        raise DataError("A SUMO process died; what finished is kept, so run the command again.") from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def write_rows(folder: Path, name: str, who: str, key: str, file_of: dict[Job, Path]) -> None:
    """Rows of one map and controller; those of other settings and of the same seeds are replaced."""
    finished = {job.seed: path for job, path in file_of.items() if job[:2] == (name, who) and path.exists()}
    found = {seed: json.loads(path.read_text()) for seed, path in finished.items()}
    common = {
        "dataset": "resco",
        "data": "simulated",
        "data_hash": map_hash(name),
        "stage": "resco",
        "map": name,
        "method": who,
        "settings": key,
        "sumo": sumo_version(),
    } | dataclasses.asdict(MAPS[name])
    rows = [
        common | {"metric": metric, "seed": seed, "value": round(float(values[metric]), 4)}
        for seed, values in sorted(found.items())
        for metric in METRICS
    ]
    path = folder / f"{name}.jsonl"
    kept = [
        row
        for row in results.read_rows(path)
        if row["method"] != who or (row["settings"] == key and row["seed"] not in found)
    ]
    rank = list(CONTROLLERS)
    place = {metric: number for number, metric in enumerate(METRICS)}
    results.replace_rows(
        path, sorted(kept + rows, key=lambda row: (rank.index(row["method"]), row["seed"], place[row["metric"]]))
    )


def remember(path: Path, words: list[str]) -> None:
    """Keeps the commands that wrote the rows, the last one last."""
    known = json.loads(path.read_text())["resco"] if path.exists() else []
    said = shlex.join(["stream-jax", "resco", *words])
    store.write_text(path, json.dumps({"resco": [*(one for one in known if one != said), said]}, indent=1) + "\n")


def _file_name(job: Job, key: str) -> str:
    return f"{job.map}-{job.controller}-{key}-seed{job.seed}.json"


def _leave_stopping_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(start("resco"))
