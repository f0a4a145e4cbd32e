"""Judges a compiled road against SUMO: the same held-out hours under the same controllers in both worlds.

Reported are the relative errors of the mean queue of each control step and of the vehicle-seconds of each hour (whose
ratio is that of the mean travel time), how often both worlds agree that an hour was safe, and Kendall's tau of the
ranking of the controllers by travel time.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import rich
import scipy.stats
import tyro
from rich.console import Console
from rich.table import Table

from data.errors import DataError
from experiments.cli.reading import UNSET, read
from experiments.evaluation import results
from experiments.evaluation.drives import wilson
from experiments.road import figures
from experiments.road.controllers import CONTROLLERS
from experiments.road.drives import Course, Replay, course, hours_of, in_sumo
from experiments.road.fit import read_drivers
from experiments.road.places import TEST_SEED, Place, grid_hours, public_hours, routes_of
from sim.compile_road import compile_road

RESAMPLES = 2000
LEAST_QUEUE = 0.5  # vehicles per intersection: errors of shorter queues are relative to this
DESCRIPTION = """\
Drives held-out hours under every controller in SUMO (what was driven is read back) and on the compiled road, and
compares. Writes rows and a page of figures.

  stream-jax road judge --out runs/road                                      the 4x4 grid at three levels
  stream-jax road judge --out runs/road --map cologne8 --archive sumo_rl-1.4.5-py3-none-any.whl
"""


@dataclasses.dataclass(frozen=True)
class JudgeOptions:
    """What is compared."""

    out: Path
    """folder of everything that is driven and fitted"""
    map: Annotated[str | None, UNSET] = None
    """a map of RESCO instead of the grid"""
    archive: Annotated[Path | None, UNSET] = None
    """the wheel of sumo-rl or its unpacked folder, with --map"""
    drivers: Annotated[Path | None, UNSET] = None
    """drivers.json of another network's fit (the network's own, or the usual drivers)"""
    levels: tuple[Literal["moderate", "heavy", "overload"], ...] = ("moderate", "heavy", "overload")
    """demand on the grid"""
    hours: int = 2
    """held-out hours at each level"""
    controllers: Annotated[tuple[Literal[tuple(CONTROLLERS)], ...], tyro.conf.arg(metavar="NAME ...")] = tuple(  # type: ignore[valid-type]
        CONTROLLERS
    )
    """who drives"""
    workers: int = 2
    """SUMO processes that run at the same time; 0: all in this one"""
    rows: Annotated[Path | None, UNSET] = None
    """file for the rows (road.jsonl in --out)"""


class Compared(NamedTuple):
    """One level in both worlds; the first axis is that of the controllers."""

    names: tuple[str, ...]
    sumo: Course  # fields [controllers, hours, ...]
    road: Course


def main(argv: Sequence[str] | None = None) -> int:
    """Judges a road; returns the exit code."""
    args, console = read(JudgeOptions, DESCRIPTION, argv, "road judge"), rich.get_console()
    if (args.map is None) != (args.archive is None):
        raise DataError("--map and --archive go together.")
    seeds = range(TEST_SEED, TEST_SEED + args.hours)
    is_grid = args.map is None
    place = (
        grid_hours(args.out, args.levels, seeds) if is_grid else public_hours(args.map, args.archive, args.out, seeds)
    )
    compared = compare(place, args, console)
    path = args.rows or args.out / "road.jsonl"
    common = {"dataset": "synthetic" if is_grid else "resco", "data": "synthetic" if is_grid else "public"}
    common |= {"stage": "road", "method": "compiled_road", "network": place.name}
    rows = [common | {"level": level} | row for level, one in compared.items() for row in rows_of(one)]
    results.write_rows(path, rows)
    show(rows, console)
    for level, one in compared.items():
        show_controllers(level, one, console)
    page = args.out / place.name / "judge.html"
    figures.write_page(page, place.name, compared, rows)
    console.print(f"rows: {path}\npage: {page}")
    return 0


def compare(place: Place, args: JudgeOptions, console: Console) -> dict[str, Compared]:
    """Both worlds, level by level."""
    compiled = compile_road(place.network, routes_of(place), "nema" if place.name.startswith("grid") else "own")
    for sentence in compiled.left_out:
        console.print(f"[yellow]not represented:[/] {sentence}", soft_wrap=True)
    drivers, _ = read_drivers(args.drivers or args.out / place.name / "drivers.json")
    replay, found = Replay(compiled), {}
    for level, hours in place.hours.items():
        batch = hours_of(compiled, place.network, hours)
        real, ours = [], []
        for name in args.controllers:
            real.append(in_sumo(place, level, name, args.out, args.workers, console))
            road = replay(name, batch, drivers, hours[0].warmup_s, hours[0].duration_s)
            ours.append(course(road, place.limits[level]))
        stacked = (Course(*(np.stack(field) for field in zip(*each, strict=True))) for each in (real, ours))
        found[level] = Compared(tuple(args.controllers), *stacked)
    return found


def rows_of(one: Compared) -> list[dict]:
    """One row a metric, with intervals from resampled controllers and hours."""
    rng = np.random.default_rng(0)
    queue = np.abs(one.road.queue - one.sumo.queue) / np.maximum(one.sumo.queue, LEAST_QUEUE)  # [controllers, hours, T]
    time = np.abs(seconds(one.road) / seconds(one.sumo) - 1.0)  # [controllers, hours]
    agree = one.road.is_safe == one.sumo.is_safe

    def tau(who: np.ndarray, hours: np.ndarray) -> float:
        both = [seconds(world)[who][:, hours].mean(1) for world in (one.sumo, one.road)]
        return float(scipy.stats.kendalltau(*both).statistic)

    def median(errors: np.ndarray) -> object:
        return lambda who, hours: float(np.median(errors[who][:, hours]))

    counts = {"controllers": len(one.names), "hours": int(time.shape[1])}
    rows = [
        {"metric": metric, **_interval(rng, statistic, *time.shape), **counts}
        for metric, statistic in (
            ("kendall_tau", tau),
            ("queue_error", median(queue)),
            ("travel_time_error", median(time)),
        )
    ]
    lower, upper = wilson(float(agree.sum()), float(agree.size))
    return [*rows, {"metric": "safe_agreement", "value": float(agree.mean()), "lower": lower, "upper": upper, **counts}]


def _interval(rng: np.random.Generator, statistic: object, controllers: int, hours: int) -> dict[str, float]:
    """The statistic of everybody, and its 95 % bootstrap interval."""
    drawn = [
        statistic(rng.integers(controllers, size=controllers), rng.integers(hours, size=hours))
        for _ in range(RESAMPLES)
    ]
    lower, upper = np.nanquantile(drawn, [0.025, 0.975])
    return {"value": statistic(np.arange(controllers), np.arange(hours)), "lower": float(lower), "upper": float(upper)}


def seconds(world: Course) -> np.ndarray:
    """[controllers, hours] vehicle-seconds of each hour."""
    return world.present.sum(-1)


def show(rows: list[dict], console: Console) -> None:
    """Prints the rows."""
    table = Table("level", "metric", "value", "95 % interval", title=rows[0]["network"])
    for row in rows:
        table.add_row(row["level"], row["metric"], f"{row['value']:.3f}", f"{row['lower']:.3f} to {row['upper']:.3f}")
    console.print(table)


def show_controllers(level: str, one: Compared, console: Console) -> None:
    """Prints both worlds, controller by controller."""
    table = Table(
        "controller",
        "queue SUMO",
        "road",
        "vehicle-seconds road / SUMO",
        "longest wait SUMO",
        "road",
        "safe SUMO",
        "road",
        title=level,
    )
    for k in np.argsort(seconds(one.sumo).mean(1)):
        ratio = (seconds(one.road)[k] / seconds(one.sumo)[k]).mean()
        worlds = [
            (world.queue[k].mean(), world.wait[k].max(), world.is_safe[k].mean()) for world in (one.sumo, one.road)
        ]
        (queue, wait, safe), (ours, our_wait, our_safe) = worlds
        cells = (
            f"{queue:.1f}",
            f"{ours:.1f}",
            f"{ratio:.2f}",
            f"{wait:.0f}",
            f"{our_wait:.0f}",
            f"{safe:.0%}",
            f"{our_safe:.0%}",
        )
        table.add_row(one.names[k], *cells)
    console.print(table)
