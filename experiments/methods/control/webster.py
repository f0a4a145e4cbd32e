"""Webster's fixed timing: the cycle and the splits that minimise delay at known mean flows (Webster, 1958).

The flows are counted on trips of other days at the same level, as an engineer would; one plan for all episodes.
"""

from functools import partial
from pathlib import Path

import numpy as np

from experiments.evaluation import drives
from experiments.methods.control import fixed_time
from experiments.methods.control.static_plan import StaticPlan
from experiments.methods.method import Method
from sim.city_road import CityRoad, draw_scenarios
from sim.nema import MIN_GREEN
from sim.routes import phase_counts, read_trips

SATURATION = 1800.0  # vehicles per hour of green and lane
SEEDS = range(9000, 9004)  # trips of other days that the flows are counted on
CYCLE_RANGE = (50.0, 150.0)  # s
MAX_LOAD = 0.95  # beyond, the formula's cycle grows without bound


def driver(flow: np.ndarray, lanes: np.ndarray) -> StaticPlan:
    """Args: flow: [I, 8] vehicles per hour of each phase; lanes: [I, 8] that serve it, 0 where there is none."""
    return fixed_time.from_greens(greens(flow, lanes))


def greens(flow: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """Green of each phase in seconds, [I, 8].

    A side of the barrier gets green by its busier ring, and each ring shares its side's time by its own two loads, so
    both rings reach the barrier together.
    """
    load = flow / (SATURATION * np.maximum(lanes, 1))  # [I, 8]
    by_side = np.maximum(load, 1e-3).reshape(-1, 2, 2, 2)  # [I, ring, side, phase]
    side = by_side.sum(-1).max(axis=1)  # [I, side] load of the critical ring
    total = side.sum(-1, keepdims=True)  # [I, 1]
    lost = 4 * fixed_time.clearance_s()
    cycle = np.clip((1.5 * lost + 5.0) / (1.0 - np.minimum(total, MAX_LOAD)), *CYCLE_RANGE)
    side_green = (cycle - lost) * side / total  # [I, side]
    least = MIN_GREEN.reshape(2, 2, 2)
    side_green = np.maximum(side_green, least.sum(-1).max(axis=0))
    spare = side_green[:, None, :, None] - least.sum(-1)[None, :, :, None]  # [I, ring, side, 1]
    share = by_side / by_side.sum(-1, keepdims=True)
    return (least + spare * share).reshape(-1, 8)


def make(name: str, road: CityRoad, vehicles_per_hour: float, folder: Path) -> drives.Method:
    """Timed for the mean flows of the level."""
    lanes = np.array([[len(lanes) for lanes in phases] for phases in road.network.phase_lanes])
    flow = mean_phase_flow(road, vehicles_per_hour, folder)
    return drives.without_learning(name, road.network, partial(driver, flow, lanes))


def mean_phase_flow(road: CityRoad, vehicles_per_hour: float, folder: Path) -> np.ndarray:
    """Vehicles per hour of each phase on days of the validation part, [I, 8]."""
    counts = []
    for scenario in draw_scenarios(road, "val", vehicles_per_hour, SEEDS, folder):
        hours = (scenario.warmup_s + scenario.duration_s) / 3600.0
        counts.append(phase_counts(road.network, read_trips(scenario.route_file)) / hours)
    return np.mean(counts, axis=0)


METHOD = Method("webster", make=make, tables={"rl": ("webster",)})
