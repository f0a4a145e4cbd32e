"""How safety falls with demand for controllers without learning: the sweep that the demand levels were chosen on.

At moderate demand fixed timing is safe in 50 to 65 % of the episodes, as in the paper. At heavy demand the default plan
is safe in 50 to 75 %, and at overload it hardly ever is.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import rich
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from data import loader
from data.errors import DataError
from experiments.cli.main import start
from experiments.cli.networks import control_folder
from experiments.cli.reading import read
from experiments.evaluation import results
from experiments.evaluation.drives import evaluate, score, summarise
from experiments.methods.control.controllers import check_controllers, make_method
from sim.city_road import CityRoad, city_road, draw_scenarios, episode_folder
from sim.demand import DEMAND_LEVELS, DemandConfig
from sim.network import GridConfig
from stream_jax.task import Limits

FIRST_SEED = 8000  # of the sweep's episodes, which no controller learns from or is compared on
QUEUES = (0.25, 0.5, 0.75)  # quantiles over episodes of the episode's mean queue
DESCRIPTION = """\
Drives controllers without learning at every rate on days of validation; writes rows and a figure. It goes on where it
was stopped.

  stream-jax demand --out runs/synthetic-default
  stream-jax demand --out runs/synthetic-default --rates 2000 4200 --controllers default_plan webster
"""


@dataclasses.dataclass(frozen=True)
class DemandOptions:
    """Who drives, at which rates."""

    out: Path
    """folder of a run whose etl stage is done"""
    preset: str = "default"
    """preset of that run"""
    rates: Annotated[tuple[float, ...], tyro.conf.arg(metavar="VEH/H ...")] = (2000, 2700, 3400, 4200, 5000, 6000)
    """vehicles per hour on the whole network"""
    controllers: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (
        "default_plan",
        "fixed_time",
        "guarded_max_pressure",
    )
    """controllers without learning"""
    episodes: int = 12
    """episodes at each rate"""
    workers: int = 2
    """SUMO processes that run at the same time"""


def sweep(args: DemandOptions, console: Console) -> list[dict]:
    """All rows of the sweep under the paper's limits."""
    dataset = loader.load(args.out / "data", verify=True)
    folder = control_folder(args.out)
    road = city_road(dataset, GridConfig(), DemandConfig(bin_s=dataset.manifest["bin_s"]), folder)
    common = {
        "dataset": dataset.manifest["dataset"],
        "data": dataset.manifest["data"],
        "data_hash": dataset.manifest["content_hash"],
        "preset": args.preset,
        "stage": "demand_sweep",
    }
    rows = []
    for rate in args.rates:
        for name in args.controllers:
            for row in sweep_one(args, road, name, rate, folder, console):
                rows.append(common | {"method": name, "vehicles_per_hour": rate} | row)
    return rows


def sweep_one(
    args: DemandOptions, road: CityRoad, name: str, rate: float, folder: Path, console: Console
) -> list[dict]:
    """Rows of one controller at one rate."""
    seeds = range(FIRST_SEED, FIRST_SEED + args.episodes)
    scenarios = draw_scenarios(road, "val", rate, seeds, folder / "trips")
    method = make_method(name, road, rate, folder / "trips")
    episodes = evaluate(method, scenarios, episode_folder(folder, rate, method.folder), args.workers, console)
    scores = [score(episode, Limits()) for episode in episodes]
    queues = np.quantile([one["mean_queue"] for one in scores], QUEUES)
    console.print(f"  {name} at {rate:g}/h: safe in {np.mean([one['safety'] for one in scores]):.0%} of {len(scores)}")
    spread = [
        {"metric": f"mean_queue_q{100 * level:.0f}", "value": float(value), "episodes": len(scores)}
        for level, value in zip(QUEUES, queues, strict=True)
    ]
    return summarise([dict(enumerate(scores))], Limits()) + spread


def draw(rows: list[dict]) -> Figure:
    """Safety and travel time against demand, with the chosen levels."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    for axes, metric, label in zip(
        figure.subplots(1, 2), ("safety", "travel_time"), ("share of safe episodes", "travel time, s"), strict=True
    ):
        for name in dict.fromkeys(row["method"] for row in rows):
            picked = [row for row in rows if (row["method"], row["metric"]) == (name, metric)]
            picked.sort(key=lambda row: row["vehicles_per_hour"])
            rate = [row["vehicles_per_hour"] for row in picked]
            (line,) = axes.plot(rate, [row["value"] for row in picked], marker="o", label=name)
            low, high = [float(row["lower"]) for row in picked], [float(row["upper"]) for row in picked]
            axes.fill_between(rate, low, high, alpha=0.15, color=line.get_color())
        for level in DEMAND_LEVELS.values():
            axes.axvline(level.vehicles_per_hour, color="0.6", linewidth=0.8, linestyle="--")
            axes.text(level.vehicles_per_hour, axes.get_ylim()[1], level.name, fontsize=7, ha="center", va="bottom")
        axes.set(xlabel="vehicles per hour at the city's mean flow", ylabel=label)
    axes.legend(fontsize=8)
    figure.suptitle(f"{rows[0]['dataset']} ({rows[0]['data']} data), paper's limits, 95 % intervals", fontsize=10)
    return figure


def show(rows: list[dict], console: Console) -> None:
    """The sweep as a table."""
    shown = ("safety", "violating_steps", "longest_wait", "mean_queue", "mean_queue_q50", "served", "travel_time")
    table = Table("controller", "veh/h", "episodes", *shown, title="demand sweep, paper's limits")
    for name, rate in dict.fromkeys((row["method"], row["vehicles_per_hour"]) for row in rows):
        here = {r["metric"]: r for r in rows if (r["method"], r["vehicles_per_hour"]) == (name, rate)}
        table.add_row(name, f"{rate:g}", str(here["safety"]["episodes"]), *(f"{here[m]['value']:.2f}" for m in shown))
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the sweep, prints it, writes rows and figure; returns the exit code."""
    args = read(DemandOptions, DESCRIPTION, argv, "demand")
    check_controllers(args.controllers)
    for name, value in (("episodes", args.episodes), ("workers", args.workers), ("rates", min(args.rates, default=0))):
        if not 0 < value < float("inf"):
            raise DataError(f"--{name} {value:g} is not a positive number.")
    console = rich.get_console()
    rows = sweep(args, console)
    file = args.out / "results" / rows[0]["dataset"] / "demand_sweep.jsonl"
    same = {(row["method"], row["vehicles_per_hour"]) for row in rows}
    older = [r for r in results.read_rows(file) if (r["method"], r["vehicles_per_hour"]) not in same]
    rows = [row for row in older if row["data_hash"] == rows[0]["data_hash"]] + rows
    results.write_rows(file, rows)
    draw(rows).savefig(control_folder(args.out) / "demand_sweep.png", dpi=130)
    show(rows, console)
    console.print(f"rows: {file}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(start("demand"))
