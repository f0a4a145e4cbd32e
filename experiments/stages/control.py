"""Stage `control`: the city's demand on a SUMO network, and every controller over the same episodes at each level."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from data import loader
from data.errors import DataError
from data.loader import TrafficDataset
from experiments.cli.networks import city_of, control_folder, grid_side, network_name
from experiments.cli.options import RunOptions
from experiments.evaluation import curves, results
from experiments.evaluation.drives import NOTHING, Scores, by_hour, evaluate, hourly, in_hindsight, summarise
from experiments.methods.control.controllers import NAMES, REFERENCE, make_method
from experiments.presets import CONTROL, ControlConfig
from experiments.report import control_figures
from experiments.stages import agent_stage
from experiments.stages.actions import action_fact
from experiments.stages.agent_stage import Drive, Judge, Taught, Team
from experiments.stages.agents import OURS, VARIANTS
from experiments.tables.control_tables import HINDSIGHT
from sim.city_road import (
    TEST_SEEDS,
    CityRoad,
    city_road,
    draw_scenarios,
    episode_folder,
    is_at_real_place,
    keep_network,
    vehicles_per_hour,
)
from sim.demand import DEMAND_LEVELS, DemandLevel
from sim.loop import Episode
from sim.nema import existing_phases
from sim.network import Network
from sim.session import Scenario

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


def control(args: RunOptions, out: Path, console: Console) -> Path:
    """Evaluates the controllers on the dataset in `<out>/data`; returns the results file."""
    preset = CONTROL[args.preset]
    names, learned = chosen_controllers(args.controllers or preset.controllers)
    dataset = loader.load(out / "data", verify=True)
    cfg, folder = control_config(args, dataset.manifest["bin_s"]), control_folder(out, network_name(args))
    network = keep_network(args.network, folder) if args.network else cfg.grid
    road = city_road(dataset, network, cfg.demand, folder)
    if args.network:
        announce(road.network, dataset, console)
    rows_file = out / "results" / dataset.manifest["dataset"] / "control.jsonl"
    common = run_facts(args, dataset.manifest)
    workers = workers_of(args)
    team = agent_stage.team_of(dataset, out, args, road, workers, console, learned) if learned else None
    pupils: dict[str, list[Taught]] = {}  # of each learned controller, one a seed
    shown: dict[str, dict[str, list[Episode]]] = {}  # by level and controller without learning
    for level in (DEMAND_LEVELS[name] for name in chosen_levels(args.levels or preset.levels)):
        rate = vehicles_per_hour(level, len(road.network.ids), args.demand_factor)
        seeds = range(TEST_SEEDS, TEST_SEEDS + cfg.episodes)
        scenarios = draw_scenarios(road, "test", rate, seeds, folder / "trips")
        plain = drive_plain(names, road, rate, scenarios, folder, workers, console)
        shown[level.name] = plain
        everybody = []
        for rows, scores in level_results(plain, learned, team, pupils, level, rate, scenarios):
            everybody += scores
            points = [common | row for row in rows if row["metric"] == CURVE]
            curves.write(rows_file, curves.of_learning(points))
            rows = [row for row in rows if row["metric"] != CURVE]
            write(rows_file, [common | row for row in rows], level)
        if len(names) + len(learned) > 1:
            reference = by_hour(plain.get(REFERENCE, []), level.limits)
            write(rows_file, [common | row for row in hindsight_rows(everybody, level, rate, reference)], level)
    rows = [row for row in results.read_rows(rows_file) if row.get("network") == network_name(args)]
    if team is not None:
        rows = [row for row in rows if row.get("action") in (None, action_fact(team.action).get("action"))]
    rows = results.of_one_action(rows)
    control_figures.draw_all(folder, rows, shown, curves.learning(rows_file, network_name(args)))
    print_tables(rows, console)
    console.print(f"rows: {rows_file}   figures: {folder}", markup=False)
    return rows_file


def drive_plain(
    names: Sequence[str],
    road: CityRoad,
    rate: float,
    scenarios: list[Scenario],
    folder: Path,
    workers: int,
    console: Console,
) -> dict[str, list[Episode]]:
    """Episodes of the controllers without learning, the default plan first."""
    driven = {}
    for name in sorted(names, key=lambda name: name != REFERENCE):
        method = make_method(name, road, rate, folder / "trips")
        driven[name] = evaluate(method, scenarios, episode_folder(folder, rate, method.folder), workers, console)
    return driven


def level_results(
    plain: dict[str, list[Episode]],
    learned: Sequence[str],
    team: Team | None,
    pupils: dict[str, list[Taught]],
    level: DemandLevel,
    rate: float,
    scenarios: list[Scenario],
) -> Iterator[tuple[list[dict], list[Scores]]]:
    """Rows and scores of one controller after the other, as soon as all that they are compared with has been driven.

    Args:
        pupils: what has learned already; whoever has not learns now and is put there.
    """

    def driven(name: str) -> list[Drive]:
        if name not in pupils:
            pupils[name] = agent_stage.taught(team, name)
        return agent_stage.driven(team, name, pupils[name], level, scenarios)

    reference, hours, judge, ours = by_hour(plain.get(REFERENCE, []), level.limits), NOTHING, None, []
    if OURS in learned:  # first: all others are compared with it, and judged by its L
        ours = driven(OURS)
        hours, judge = hourly([drive.scores for drive in ours]), agent_stage.judge_of(team, pupils[OURS], level)
        agent_stage.draw(team, pupils[OURS][0], ours[0], level)
    for name, episodes in plain.items():
        references = {"default": NOTHING if name == REFERENCE else reference, "ours": hours}
        yield plain_rows(name, episodes, level, rate, references, judge), [by_hour(episodes, level.limits)]
    for name in sorted(learned, key=lambda name: name != OURS):
        drives = ours if name == OURS else driven(name)
        references = {"default": reference} | ({} if name == OURS else {"ours": hours})
        rows = agent_stage.rows_of(team, name, pupils[name], drives, level, scenarios[0], references, judge)
        yield rows, [drive.scores for drive in drives if rows]


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
    console.print(
        f"  {count} signal{'s' * (count > 1)} of {network.net_file.name}, {where} of the city{plans}", markup=False
    )


def chosen_controllers(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Controllers without learning, and learned ones; `all` is all of the first and ours of the second."""
    if list(names) == ["all"]:
        names = (*NAMES, OURS)
    unknown = [name for name in names if name not in (*NAMES, *VARIANTS)]
    if unknown:
        raise DataError(f"No controller is called {', '.join(unknown)}; there are {', '.join((*NAMES, *VARIANTS))}.")
    return [name for name in names if name in NAMES], [name for name in names if name in VARIANTS]


def chosen_levels(names: Sequence[str]) -> Sequence[str]:
    """Names of levels; `all` is every one."""
    return list(DEMAND_LEVELS) if "all" in names else names


def control_config(args: RunOptions, bin_s: int) -> ControlConfig:
    """The preset with what the command line and the recording's step override."""
    cfg = CONTROL[args.preset]
    demand = dataclasses.replace(cfg.demand, bin_s=bin_s)
    grid = dataclasses.replace(cfg.grid, size=grid_side(args))
    return dataclasses.replace(cfg, grid=grid, demand=demand, episodes=args.episodes or cfg.episodes)


def workers_of(args: RunOptions) -> int:
    """What was asked for, or one SUMO process per core."""
    return args.workers or os.cpu_count() or 1


def plain_rows(
    name: str,
    episodes: list[Episode],
    level: DemandLevel,
    rate: float | None,
    references: dict[str, Scores],
    judge: Judge | None,
) -> list[dict]:
    """Rows of one controller without learning at one level, with paired differences over the hours that both drove.

    Args:
        rate: vehicles per hour that were driven; None: those of the user's own trips.
        references: scores by hour of what to compare with, by name.
        judge: how often our L fell as it should in some episodes; None: there is none.
    """
    if not episodes:
        return []
    rows = summarise([by_hour(episodes, level.limits)], level.limits, references)
    rows += [{"metric": "decrease_under_ours", "value": judge(episodes)}] if judge else []
    facts = {"method": name, "level": level.name} | ({"vehicles_per_hour": rate} if rate else {})
    return [facts | row for row in rows]


def hindsight_rows(drives: list[Scores], level: DemandLevel, rate: float | None, reference: Scores) -> list[dict]:
    """Rows of the best drive of each hour, as if somebody had known which it would be; with the number of drives."""
    chosen = in_hindsight(drives)
    facts = {"method": HINDSIGHT, "level": level.name, "drives": len(drives)}
    facts |= {"vehicles_per_hour": rate} if rate else {}
    return [facts | row for row in summarise([chosen], level.limits, {"default": reference})] if chosen else []


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
