"""The controllers without learning that every agent is compared with, by name."""

import functools
from pathlib import Path

import numpy as np

from data.errors import DataError
from experiments.evaluation.drives import Method, without_learning
from experiments.methods.control import (
    default_plan,
    fixed_time,
    following_plan,
    guarded_max_pressure,
    lookahead,
    max_pressure,
    splits,
    static_plan,
    sumo_nema,
    webster,
)
from sim.city_road import CityRoad, draw_scenarios
from sim.routes import phase_counts, read_trips

REFERENCE = "default_plan"
WEBSTER_SEEDS = range(9000, 9004)  # trips of other days that the flows are counted on
PLAIN = {
    "default_plan": default_plan.driver,
    "guarded_max_pressure": guarded_max_pressure.driver,
    "fixed_time": fixed_time.driver,
    "max_pressure": max_pressure.driver,
    "splits": splits.driver,
    "static_20_45": functools.partial(static_plan.driver, 20.0, 45.0),
    "static_14_32": functools.partial(static_plan.driver, 14.0, 32.0),
    "static_30_70": functools.partial(static_plan.driver, 30.0, 70.0),
    "static_20_45_guard": functools.partial(static_plan.driver, 20.0, 45.0, 85.0),
    "static_14_32_guard": functools.partial(static_plan.driver, 14.0, 32.0, 85.0),
}
NAMES = (*PLAIN, "following_plan", "lookahead", "webster", "sumo_nema")


def check_controllers(names: list[str] | None) -> list[str]:
    """The names asked for, or all; refuses one that does not exist."""
    unknown = set(names or ()) - set(NAMES)
    if unknown:
        raise DataError(f"No controller is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}.")
    return list(names or NAMES)


def make_method(name: str, road: CityRoad, vehicles_per_hour: float, folder: Path) -> Method:
    """A controller as a method. Args: vehicles_per_hour: the level, which only Webster's timing looks at."""
    if name == "webster":
        lanes = np.array([[len(lanes) for lanes in phases] for phases in road.network.phase_lanes])
        flow = mean_phase_flow(road, vehicles_per_hour, folder)
        return without_learning(name, road.network, functools.partial(webster.driver, flow, lanes))
    if name == "following_plan":
        followed = without_learning(name, road.network, default_plan.driver)
        return followed._replace(step_fn=following_plan.step_fn, version=following_plan.version())
    if name == "lookahead":
        return without_learning(name, road.network, lookahead.driver)._replace(version=lookahead.version())
    if name == "sumo_nema":
        return without_learning(name, road.network, functools.partial(sumo_nema.driver, road.network, folder))
    return without_learning(name, road.network, PLAIN[name])


def mean_phase_flow(road: CityRoad, vehicles_per_hour: float, folder: Path) -> np.ndarray:
    """Vehicles per hour of each phase on days of the validation part, [I, 8]."""
    counts = []
    for scenario in draw_scenarios(road, "val", vehicles_per_hour, WEBSTER_SEEDS, folder):
        hours = (scenario.warmup_s + scenario.duration_s) / 3600.0
        counts.append(phase_counts(road.network, read_trips(scenario.route_file)) / hours)
    return np.mean(counts, axis=0)
