"""The highest demand at which controllers without learning keep all limits in at least 95 % of hours."""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import rich
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from data import loader
from data.errors import DataError
from experiments.cli.display import duration
from experiments.cli.main import STOPPED, start
from experiments.cli.networks import control_folder
from experiments.cli.reading import read
from experiments.evaluation import capacity, results
from experiments.evaluation.capacity import Curve
from experiments.evaluation.drives import evaluate, score, wilson
from experiments.methods.control.controllers import check_controllers, make_method
from experiments.presets import CONTROL
from sim.city_road import TEST_SEEDS, CityRoad, city_road, draw_scenarios, episode_folder
from sim.demand import DEMAND_LEVELS
from stream_jax.task import Limits

LEVEL = DEMAND_LEVELS["heavy"]  # whose limits have to be kept: those of the headline
BEYOND = 2  # rates that a search usually drives for its interval, after it has bisected
SEEDS = {"val": 8000, "test": TEST_SEEDS}  # first seed of the hours; those of test are the hours of stage control
PRESETS = ("smoke", "default", "paper")
DESCRIPTION = """\
Finds the safe capacity of controllers without learning: the highest demand at which all limits of the level heavy are
kept in at least 95 % of the hours. Its queue limit is 10. Every controller drives the same hours, and demand is
bisected. It goes on where it was stopped, and hours that were driven before are read.

  stream-jax capacity --out runs/synthetic-default
  stream-jax capacity --out runs/synthetic-default --hours 60 --controllers default_plan lookahead

Fewer than about 50 hours give no lower bound: a controller that is safe in 95 % of all hours keeps 20 of 20 one time
in three.
"""


@dataclasses.dataclass(frozen=True)
class CapacityOptions:
    """Who drives, in which hours, and between which rates capacity is looked for."""

    out: Path
    """folder of a run whose etl stage is done"""
    preset: Literal[PRESETS] = "default"  # type: ignore[valid-type]
    """preset of that run, which says how large the grid is"""
    controllers: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (
        "default_plan",
        "static_20_45_guard",
        "splits",
        "lookahead",
    )
    """controllers without learning"""
    part: Literal["val", "test"] = "test"
    """part of the recording that hours are drawn from"""
    hours: int = 20
    """hours that every controller drives at each rate"""
    rates: Annotated[tuple[float, float], tyro.conf.arg(metavar="LOW HIGH")] = (1500.0, 6000.0)
    """vehicles per hour on the whole network to look between, when the city's flow is at its mean"""
    workers: int = 2
    """SUMO processes that run at the same time; 0 drives in this one"""


def curve_of(name: str, args: CapacityOptions, road: CityRoad, rates: list[int], console: Console) -> Curve:
    """Drives one controller at the rates that its search asks for."""
    folder, count = control_folder(args.out), capacity.bisections(rates) + BEYOND
    seeds = range(SEEDS[args.part], SEEDS[args.part] + args.hours)
    began, driven, searched = time.perf_counter(), 0, 0

    def drive(rate: int) -> np.ndarray:
        nonlocal driven, searched
        scenarios = draw_scenarios(road, args.part, rate, seeds, folder / "trips")
        method = make_method(name, road, rate, folder / "trips")

        def count_one() -> None:
            nonlocal driven
            driven += 1

        place = episode_folder(folder, rate, method.folder)
        episodes = evaluate(method, scenarios, place, args.workers, console, count_one)
        if len(episodes) < len(scenarios):
            gone = len(scenarios) - len(episodes)
            raise DataError(f"{gone} of {len(scenarios)} hours of {name} at {rate}/h failed; run again to try again.")
        safe = np.array([score(episode, LEVEL.limits)["safety"] for episode in episodes])
        searched += 1
        each = (time.perf_counter() - began) / max(driven, 1)
        left = f", about {duration(each * args.hours * max(count - searched, 0))} for the rest"
        said = f"  {name} at {rate}/h: {safe.sum():.0f} of {len(safe)} hours are safe"
        console.print(said + (left if driven and searched < count else ""), highlight=False)
        return safe

    return capacity.search(drive, rates)


def rows_of(curves: dict[str, Curve], common: dict) -> list[dict]:
    """Capacity of every controller, how much it is above each other one's, and the share of safe hours behind it."""
    above = capacity.differences(curves)
    rows = []
    for name, curve in curves.items():
        facts = common | {"method": name, "hours": len(curve.safe)}
        found = {"safe_capacity": capacity.estimate(curve)}
        found |= {f"safe_capacity_minus_{b}_percent": one for (a, b), one in above.items() if a == name}
        rows += [facts | {"metric": metric} | one._asdict() for metric, one in found.items()]
        rows += [facts | {"metric": "safety", "level": rate} | share for rate, share in shares(curve).items()]
    return rows


def shares(curve: Curve) -> dict[float, dict]:
    """Share of safe hours with Wilson's interval, by rate."""
    found = {}
    for rate, safe in zip(curve.rates, curve.safe.T, strict=True):
        lower, upper = wilson(float(safe.sum()), len(safe))
        found[float(rate)] = {"value": float(safe.mean()), "lower": lower, "upper": upper}
    return found


def draw(curves: dict[str, Curve], title: str) -> Figure:
    """Share of safe hours against demand; dots were driven, the line is the fit, and the bar is capacity's interval."""
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    for number, (name, curve) in enumerate(curves.items()):
        found, share = capacity.estimate(curve), curve.safe.mean(axis=0)
        said = found.value if isinstance(found.value, str) else f"{found.value:.0f}"
        (line,) = axes.plot(curve.rates, share, "o", markersize=4, label=f"{name}: {said}/h")
        axes.plot(curve.rates, capacity.never_rising(share[None])[0], color=line.get_color(), linewidth=1)
        height = 0.04 * (number + 1)
        ends = np.clip((found.lower, found.upper), curve.rates[0] * 0.9, curve.rates[-1] * 1.1)
        axes.plot(ends, (height, height), color=line.get_color(), linewidth=2, alpha=0.5)
        if not isinstance(found.value, str):
            axes.plot([found.value] * 2, (height, capacity.TARGET), color=line.get_color(), linestyle=":", linewidth=1)
            axes.plot(found.value, height, "d", color=line.get_color(), markersize=5)
    axes.axhline(capacity.TARGET, color="0.6", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.set(xlabel="vehicles per hour at the city's mean flow", ylabel="share of safe hours", ylim=(0, 1.03))
    axes.legend(fontsize=8, title="safe capacity", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(title, fontsize=10)
    return figure


def show(rows: list[dict], title: str, console: Console) -> None:
    """Capacity of every controller, and how far it is above that of the first."""
    found = {(row["method"], row["metric"]): row for row in rows}
    names = list(dict.fromkeys(row["method"] for row in rows))
    first = names[0]
    others = [f"% above {first}", "95 % interval"] if len(names) > 1 else []
    table = Table("controller", "hours", "vehicles/h", "95 % interval", *others, title=title)
    for name in names:
        row = found[name, "safe_capacity"]
        cells = [name, str(row["hours"]), *said(row, ".0f", 0.0)]
        above = found.get((name, f"safe_capacity_minus_{first}_percent"))
        table.add_row(*cells, *(said(above, "+.1f", -100.0) if above else ()))
    console.print(table)
    of = [found[name, "safe_capacity"] for name in names]
    if any(row["lower"] == 0 and not isinstance(row["value"], str) for row in of):
        console.print("No lower end: the hours driven do not show how bad the worst of all hours are; more of them do.")


def said(row: dict, form: str, least: float) -> tuple[str, str]:
    """A value and its interval as text. Args: least: the lower end that bounds nothing."""
    value, lower, upper = row["value"], row["lower"], row["upper"]
    value = value if isinstance(value, str) else format(value, form)
    lower = "none" if lower <= least else format(lower, form)
    return value, f"{lower} to {'none' if np.isinf(upper) else format(upper, form)}"


def limits_said(limits: Limits) -> str:
    """The limits that have to be kept, by name."""
    return ", ".join(f"{name} {limit:g}" for name, limit, _ in limits.bounds)


def measure(args: CapacityOptions, console: Console) -> Path:
    """Finds all capacities, prints and draws them; returns the file of rows."""
    names, rates = check_controllers(list(args.controllers)), capacity.grid(*args.rates) if _is_range(args) else []
    if len(rates) < 3:
        raise DataError("--rates needs a low and a high number of vehicles per hour, at least 10 % apart.")
    if args.hours < 1 or args.workers < 0:
        raise DataError("--hours must be at least 1 and --workers at least 0.")
    dataset, folder = loader.load(args.out / "data", verify=True), control_folder(args.out)
    preset = CONTROL[args.preset]
    demand = dataclasses.replace(preset.demand, bin_s=dataset.manifest["bin_s"])
    road = city_road(dataset, preset.grid, demand, folder)
    facts = {name: dataset.manifest[name] for name in ("dataset", "data")}
    common = facts | {
        "data_hash": dataset.manifest["content_hash"],
        "preset": args.preset,
        "stage": "capacity",
        "intersections": len(road.network.ids),
    }
    count = capacity.bisections(rates) + BEYOND
    console.print(f"{len(rates)} rates from {rates[0]} to {rates[-1]}/h, of which each drives about {count}")
    file = args.out / "results" / common["dataset"] / "capacity.jsonl"
    curves = {name: curve_of(name, args, road, rates, console) for name in dict.fromkeys(names)}
    rows = rows_of(curves, common)
    results.write_rows(file, rows)
    title = f"safe capacity on {args.part} days of {facts['dataset']} ({facts['data']} data)"
    draw(curves, title).savefig(folder / "capacity.png", dpi=130)
    show(rows, f"{title}\nlimits of {LEVEL.name}: {limits_said(LEVEL.limits)}", console)
    console.print(f"rows: {file}   figure: {folder / 'capacity.png'}", soft_wrap=True)
    return file


def _is_range(args: CapacityOptions) -> bool:
    return 0 < args.rates[0] < args.rates[1] < float("inf")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    args, console = read(CapacityOptions, DESCRIPTION, argv, "capacity"), rich.get_console()
    try:
        measure(args, console)
    except KeyboardInterrupt:
        console.print("Stopped; run the same command to go on from what is driven.")
        return STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(start("capacity"))
