"""Stage `control`: the city's demand on a SUMO network, and every controller over the same episodes at each level."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from data import loader
from data.loader import TrafficDataset
from experiments.cli.networks import city_of, control_folder, grid_side, network_name
from experiments.cli.options import SIDES, RunOptions
from experiments.evaluation import curves, results
from experiments.evaluation.drives import NOTHING, Scores, by_hour, evaluate, in_hindsight, summarise
from experiments.methods.control.controllers import NAMES, REFERENCE, check_controllers, make_method
from experiments.report import control_figures
from experiments.stages.agent_stage import TRAINING_LEVEL, LearnedControllers, action_fact
from experiments.stages.agents import OURS, VARIANTS
from experiments.tables.control_tables import HINDSIGHT
from sim.city_road import (
    TEST_SEEDS,
    city_road,
    draw_scenarios,
    episode_folder,
    is_at_real_place,
    keep_network,
    vehicles_per_hour,
)
from sim.demand import DEMAND_LEVELS, DemandConfig, DemandLevel
from sim.loop import Episode
from sim.nema import existing_phases
from sim.network import GridConfig, Network

CURVE = "curve"  # the metric of what is no number but a point of a learning curve
SHOWN = {
    "safety": "safe %",
    "violating_steps": "viol. steps",
    "mean_queue": "queue",
    "longest_wait": "wait s",
    "served": "served",
    "travel_time": "travel s",
    "reward": "reward",
    "teleports": "telep.",
}


@dataclasses.dataclass(frozen=True)
class ControlConfig:
    """Sizes of the evaluation."""

    grid: GridConfig = GridConfig()
    demand: DemandConfig = DemandConfig()
    episodes: int = 20  # of each controller at each level
    levels: tuple[str, ...] = (TRAINING_LEVEL,)  # "all" on the command line is every level and every controller
    controllers: tuple[str, ...] = (REFERENCE, "guarded_max_pressure", "fixed_time", "following_plan", OURS)


PRESETS = {
    "smoke": ControlConfig(GridConfig(size=SIDES["smoke"]), DemandConfig(warmup_s=60, duration_s=300), episodes=2),
    "default": ControlConfig(),
    "paper": ControlConfig(episodes=100, levels=tuple(DEMAND_LEVELS), controllers=(*NAMES, OURS)),
}


def control(args: RunOptions, out: Path, console: Console) -> Path:
    """Evaluates the controllers on the dataset in `<out>/data`; returns the results file."""
    preset = PRESETS[args.preset]
    names, learned = chosen_controllers(args.controllers or preset.controllers)
    dataset = loader.load(out / "data")
    cfg, folder = control_config(args, dataset.manifest["bin_s"]), control_folder(out, network_name(args))
    network = keep_network(args.network, folder) if args.network else cfg.grid
    road = city_road(dataset, network, cfg.demand, folder)
    if args.network:
        announce(road.network, dataset, console)
    rows_file = out / "results" / dataset.manifest["dataset"] / "control.jsonl"
    common = run_facts(args, dataset.manifest)
    found: dict[tuple[str, str], list[Episode]] = {}
    team = LearnedControllers(dataset, out, args, road, workers_of(args), console, learned) if learned else None
    training, is_judged = DEMAND_LEVELS[TRAINING_LEVEL], OURS in learned
    for level in (DEMAND_LEVELS[name] for name in chosen_levels(args.levels or preset.levels)):
        rate = vehicles_per_hour(level, len(road.network.ids), args.demand_factor)
        seeds = range(TEST_SEEDS, TEST_SEEDS + cfg.episodes)
        scenarios = draw_scenarios(road, "test", rate, seeds, folder / "trips")
        for name in sorted(names, key=lambda name: name != REFERENCE):
            method = make_method(name, road, rate, folder / "trips")
            place = episode_folder(folder, rate, method.folder)
            found[level.name, name] = evaluate(method, scenarios, place, workers_of(args), console)
            write(rows_file, [common | row for row in level_rows(found, level, name, rate)], level)
        reference = by_hour(found.get((level.name, REFERENCE), []), level.limits)
        for name in sorted(learned, key=lambda name: name != OURS):  # the others are compared with it
            rows = team.rows(name, level, training, scenarios, reference, is_judged)
            write(rows_file, [common | row for row in rows if row["metric"] != CURVE], level)
            points = [common | row for row in rows if row["metric"] == CURVE]
            curves.write(rows_file, curves.of_learning(points))
        for name in names if is_judged else ():  # again, now that there is an L to judge them by
            rows = level_rows(found, level, name, rate, team.hours.get(level.name, NOTHING))
            if rows:
                share = team.judgement(found[level.name, name], level, training)
                rows.append(facts_of(rows[0]) | {"metric": "decrease_under_ours", "value": share})
            write(rows_file, [common | row for row in rows], level)
        if len(names) + len(learned) > 1:
            drives = [by_hour(found[level.name, name], level.limits) for name in names]
            drives += team.drives.get(level.name, []) if team else []
            write(rows_file, [common | row for row in hindsight_rows(drives, level, rate, reference)], level)
    rows = [row for row in results.read_rows(rows_file) if row.get("network") == network_name(args)]
    if team is not None:
        rows = [row for row in rows if row.get("action") in (None, action_fact(team.action).get("action"))]
    rows = results.of_one_action(rows)
    control_figures.draw_all(folder, rows, found, curves.learning(rows_file, network_name(args)))
    print_tables(rows, console)
    console.print(f"rows: {rows_file}   figures: {folder}")
    return rows_file


def run_facts(args: RunOptions, manifest: dict) -> dict:
    """What all rows of a run have in common; only those of another network than the preset's name one."""
    facts = {
        "dataset": manifest["dataset"],
        "data": manifest["data"],
        "data_hash": manifest["content_hash"],
        "preset": args.preset,
        "stage": "control",
    }
    network = network_name(args)
    return facts | {"network": network} if network else facts


def announce(network: Network, dataset: TrafficDataset, console: Console) -> None:
    """Says how much of a user's network was recognised and where it lies in the city."""
    where = "at their real places" if is_at_real_place(network, dataset.geometry) else "laid over the busy core"
    is_driven = existing_phases(network).any(1)
    own, left = int((~network.is_nema & is_driven).sum()), int((~is_driven).sum())
    plans = f", {own} of them with the greens of their own program" if own else ""
    if left:  # with less than two greens or more than eight
        plans += f", {left} left to SUMO's program and not counted in queues"
    count = len(network.ids)
    console.print(f"  {count} signal{'s' * (count > 1)} of {network.net_file.name}, {where} of the city{plans}")


def chosen_controllers(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Controllers without learning, and learned ones; `all` is all of the first and ours of the second."""
    if list(names) == ["all"]:
        names = (*NAMES, OURS)
    plain = [name for name in names if name not in VARIANTS]
    return (check_controllers(plain) if plain else []), [name for name in names if name in VARIANTS]


def chosen_levels(names: Sequence[str]) -> Sequence[str]:
    """Names of levels; `all` is every one."""
    return list(DEMAND_LEVELS) if "all" in names else names


def control_config(args: RunOptions, bin_s: int) -> ControlConfig:
    """The preset with what the command line and the recording's step override."""
    cfg = PRESETS[args.preset]
    demand = dataclasses.replace(cfg.demand, bin_s=bin_s)
    grid = dataclasses.replace(cfg.grid, size=grid_side(args))
    return dataclasses.replace(cfg, grid=grid, demand=demand, episodes=args.episodes or cfg.episodes)


def workers_of(args: RunOptions) -> int:
    """What was asked for, or one SUMO process per core."""
    return args.workers or os.cpu_count() or 1


def level_rows(
    found: dict[tuple[str, str], list[Episode]], level: DemandLevel, name: str, rate: float, ours: Scores = NOTHING
) -> list[dict]:
    """Rows of one method at one level, with paired differences over the hours that both drove.

    Args:
        rate: vehicles per hour that were driven.
        ours: hour by hour, where ours was driven.
    """
    scores = by_hour(found[level.name, name], level.limits)
    if not scores:
        return []
    theirs = by_hour(found.get((level.name, REFERENCE), []), level.limits) if name != REFERENCE else {}
    facts = {"method": name, "level": level.name, "vehicles_per_hour": rate}
    return [facts | row for row in summarise([scores], level.limits, {"default": theirs, "ours": ours})]


def hindsight_rows(drives: list[Scores], level: DemandLevel, rate: float, reference: Scores) -> list[dict]:
    """Rows of the best drive of each hour, as if somebody had known which it would be; with the number of drives."""
    chosen = in_hindsight(drives)
    facts = {"method": HINDSIGHT, "level": level.name, "vehicles_per_hour": rate, "drives": len(drives)}
    return [facts | row for row in summarise([chosen], level.limits, {"default": reference})] if chosen else []


def facts_of(row: dict) -> dict:
    """What the rows of one method at one level have in common."""
    return {name: row[name] for name in ("method", "level", "vehicles_per_hour")}


def write(file: Path, rows: list[dict], level: DemandLevel) -> None:
    """Writes a method's rows of one level and keeps those of its other levels."""
    if rows:
        same = [row for row in results.read_rows(file) if results.run_of(row) == results.run_of(rows[0])]
        others = [row for row in same if row["level"] != level.name]
        results.write_rows(file, others + rows)


def print_tables(rows: list[dict], console: Console) -> None:
    """One table per level."""
    for level in dict.fromkeys(row["level"] for row in rows):
        here = [row for row in rows if row["level"] == level]
        table = Table(title=f"{city_of(here[0])}: {level}", box=box.SIMPLE, padding=(0, 1, 0, 0))
        for column in ("controller", "n", *SHOWN.values()):
            table.add_column(column, no_wrap=True)
        for name in dict.fromkeys(row["method"] for row in here):
            of = {row["metric"]: row for row in here if row["method"] == name}
            table.add_row(name, str(of["safety"]["episodes"]), *(cell(of[metric]) for metric in SHOWN))
        console.print(table)


def cell(row: dict) -> str:
    """A value, with its interval where it is a share."""
    if row["metric"] == "safety":
        return f"{100 * row['value']:.0f} [{100 * row['lower']:.0f}, {100 * row['upper']:.0f}]"
    return f"{row['value']:.2f}" if abs(row["value"]) < 10 else f"{row['value']:.0f}"
