"""A dataset of a city as a road to control: grid, coverage areas, flow at intersections, and episodes drawn from it."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.coverage import coverage, intersection_flow
from data.errors import DataError
from data.loader import TrafficDataset
from sim.demand import BUSY_HOURS, CityIncident, DemandConfig, TripPlanner, city_incidents, waking_steps
from sim.network import GridConfig, Network, build_grid
from sim.session import Scenario

GOLDEN_RATIO = 0.6180339887498949
TEST_SEEDS = 1000  # first seed of the episodes that controllers are compared on


class CityRoad(NamedTuple):
    """The network and the city that drives it."""

    network: Network
    weights: np.ndarray  # [I, N] share of each cell in each intersection's area
    flow: np.ndarray  # [L, I] of the whole recording
    incidents: list[CityIncident]
    starts: dict[str, np.ndarray]  # part of the recording -> steps at which an episode may begin
    planner: TripPlanner


def city_road(dataset: TrafficDataset, grid: GridConfig, demand: DemandConfig, folder: Path) -> CityRoad:
    """Lays the grid over the busy core of the city; areas are chosen on the training part of the last fold.

    Args:
        demand: its `bin_s` must be the recording's.
        folder: where the network is generated.
    """
    features = dataset.manifest["features"]
    if "flow" not in features:
        raise DataError(f"Demand needs a recording of flow; this one has {', '.join(features)}.")
    series, fold = dataset.series(), dataset.num_folds - 1
    values = np.asarray(series.values)[..., list(features).index("flow")]
    observed = np.asarray(series.observed)[..., list(features).index("flow")]
    start, stop = dataset.part("train", fold)
    mean = np.where(observed, values, 0.0)[start:stop].mean(axis=0)
    areas = coverage(dataset.geometry, mean, grid.size)
    starts = {name: waking_steps(series.slot, dataset.part(name, fold), demand) for name in ("train", "val", "test")}
    network = build_grid(grid, folder)
    return CityRoad(
        network,
        areas.weights,
        intersection_flow(areas.weights, values, observed),
        city_incidents(dataset.events(), areas.weights),
        starts,
        TripPlanner(network, demand),
    )


def draw_scenarios(road: CityRoad, part: str, vehicles_per_hour: float, seeds: range, folder: Path) -> list[Scenario]:
    """One episode per seed, beginning at a busy hour of a part of the recording.

    The hour depends on the seed alone, so the same seed at another rate is the same hour with more vehicles. Steps of
    the golden ratio spread consecutive seeds evenly over the hours, so that a few episodes already stand for all. A
    part without busy hours gives those that are nearest to it.
    """
    starts = busy_starts(road, part)
    scenarios = []
    for seed in seeds:
        first_step = int(starts[int(seed * GOLDEN_RATIO % 1.0 * len(starts))])
        scenarios.append(road.planner.scenario(seed, road.flow, first_step, vehicles_per_hour, road.incidents, folder))
    return scenarios


def busy_starts(road: CityRoad, part: str) -> np.ndarray:
    """Steps of a part at which the city's flow during an episode is inside `BUSY_HOURS`, or as near as it gets. [B]"""
    starts = road.starts[part]
    if len(starts) == 0:
        raise DataError(f"The {part} part of the recording has no waking hour long enough for an episode.")
    level = road.flow.sum(axis=1) / road.flow.sum(axis=1).mean()  # [L]
    length = -(-road.planner.cfg.duration_s // road.planner.cfg.bin_s)
    during = np.array([level[step : step + length].mean() for step in starts])
    low, high = BUSY_HOURS
    gap = np.maximum(low - during, during - high).clip(0.0)
    return starts[gap == gap.min()]


def episode_folder(folder: Path, vehicles_per_hour: float, method: str) -> Path:
    """Where a method's episodes at one rate are kept, for the sweep and the evaluation alike."""
    return folder / "episodes" / f"{vehicles_per_hour:g}" / method
