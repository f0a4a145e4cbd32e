"""Stage `control` on a user's own trips: controllers without learning over windows of them, with no city behind it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from data.errors import DataError
from experiments.cli.networks import control_folder, network_name
from experiments.cli.options import RunOptions
from experiments.evaluation import results
from experiments.evaluation.drives import NOTHING, by_hour, evaluate
from experiments.methods.control.controllers import NAMES, REFERENCE, make_method
from experiments.presets import CONTROL
from experiments.report import control_figures
from experiments.stages.control import (
    chosen_controllers,
    chosen_levels,
    hindsight_rows,
    plain_rows,
    print_tables,
    workers_of,
    write,
)
from sim.city_road import TEST_SEEDS, CityRoad, keep_network
from sim.demand import DEMAND_LEVELS, DemandConfig, DemandLevel, TripPlanner
from sim.loop import Episode
from sim.network import Network
from sim.own_trips import OwnTrips, check_network, read_own_trips, start_minutes, windows
from sim.scenario import Scenario, demand_files
from stream_jax import store

DATASET, DATA = "routes", "own"  # what rows call them: no recording lies behind the trips
NEED_A_CITY = ("webster",)  # timed on the trips of other days


def control(args: RunOptions, out: Path, console: Console) -> Path:
    """Evaluates the controllers on the trips of `--routes`; returns the results file."""
    names, preset = own_controllers(args), CONTROL[args.preset]
    trips, file = read_own_trips(args.routes), args.network or args.routes
    check_network(trips, file)
    folder = control_folder(out, network_name(args))
    network = keep_network(file, folder)
    demand, episodes = preset.demand, args.episodes or preset.episodes
    seeds = range(TEST_SEEDS, TEST_SEEDS + episodes)
    scenarios = windows(trips, seeds, demand.warmup_s, demand.duration_s, args.demand_factor, len(network.ids))
    announce(trips, scenarios, console)
    driven = drive(names, without_city(network, demand), scenarios, folder, workers_of(args), console)
    rows_file = out / "results" / DATASET / "control.jsonl"
    common = facts_of(args, scenarios[0])
    levels = [DEMAND_LEVELS[name] for name in chosen_levels(args.levels or preset.levels)]
    for level in levels:  # the same episodes, under the limits of each
        for rows in level_rows(driven, level):
            write(rows_file, [common | row for row in rows], level)
    mine = [row for row in results.read_rows(rows_file) if all(row.get(name) == said for name, said in common.items())]
    control_figures.draw_all(folder, mine, {level.name: driven for level in levels})
    print_tables(mine, console)
    console.print(f"rows: {rows_file}   figures: {folder}")
    return rows_file


def own_controllers(args: RunOptions) -> list[str]:
    """Controllers that need no city: those that were asked for, or those of the preset."""
    if args.trained:
        raise DataError("--trained controllers listen to a city, and --routes has none; stream-jax drive drives one.")
    asked = args.controllers or CONTROL[args.preset].controllers
    plain, learned = chosen_controllers(asked)
    refused = [name for name in plain if name in NEED_A_CITY] + learned
    if refused and args.controllers and list(asked) != ["all"]:
        able, need = ", ".join(name for name in NAMES if name not in NEED_A_CITY), ", ".join(refused)
        raise DataError(f"--routes has no city to learn from or to count, which {need} would need; choose from {able}.")
    return [name for name in plain if name not in refused]


def without_city(network: Network, demand: DemandConfig) -> CityRoad:
    """The road as controllers are made for it; nothing lies around its signals."""
    count = len(network.ids)
    return CityRoad(network, np.zeros((count, 0)), np.zeros((1, count)), [], {}, TripPlanner(network, demand))


def announce(trips: OwnTrips, scenarios: list[Scenario], console: Console) -> None:
    """Says when episodes begin, and warns where they are much the same."""
    length = scenarios[0].warmup_s + scenarios[0].duration_s
    begins = sorted({one.begin_s for one in scenarios})
    said = f"  {len(scenarios)} episodes of {length // 60} min from {len(begins)} begins in seconds "
    console.print(f"{said}{begins[0]} to {begins[-1]} of {trips.file.name}", highlight=False)
    if trips.end_s - 60 * start_minutes(trips, length)[0] < length * len(scenarios):
        console.print("[yellow]warning:[/] episodes share trips, so their intervals are narrower than they should be")


def drive(
    names: Sequence[str], road: CityRoad, scenarios: list[Scenario], folder: Path, workers: int, console: Console
) -> dict[str, list[Episode]]:
    """Episodes of every controller, the default plan first."""
    driven = {}
    for name in sorted(names, key=lambda name: name != REFERENCE):
        method = make_method(name, road, 0.0, folder)
        found = evaluate(method, scenarios, folder / "episodes" / method.folder, workers, console)
        driven |= {name: found} if found else {}
    if not driven:
        raise DataError("No episode could be driven; the warnings above say why.")
    return driven


def facts_of(args: RunOptions, scenario: Scenario) -> dict:
    """What all rows have in common."""
    trips = store.key("episode", *(path.read_bytes() for path in demand_files(scenario)))
    return {
        "dataset": DATASET,
        "data": DATA,
        "data_hash": trips,
        "preset": args.preset,
        "stage": "control",
        "network": network_name(args),
    }


def level_rows(driven: dict[str, list[Episode]], level: DemandLevel) -> Iterator[list[dict]]:
    """Rows of one controller after the other under the limits of a level, then of the best of each hour."""
    scores = {name: by_hour(found, level.limits) for name, found in driven.items()}
    reference = scores.get(REFERENCE, NOTHING)
    for name, found in driven.items():
        references = {"default": NOTHING if name == REFERENCE else reference}
        yield plain_rows(name, found, level, None, references, None)
    if len(driven) > 1:
        yield hindsight_rows(list(scores.values()), level, None, reference)
