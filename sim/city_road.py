"""A dataset of a city as a road to control: network, areas, flow at intersections, and episodes drawn from it."""

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.coverage import (
    Coverage,
    box_around,
    core_box,
    coverage,
    coverage_around,
    intersection_flow,
    laid_over,
    lies_within,
)
from data.errors import DataError
from data.loader import TrafficDataset
from sim.demand import BUSY_HOURS, CityIncident, DemandConfig, DemandLevel, TripPlanner, city_incidents, waking_steps
from sim.errors import RoadError
from sim.network import GridConfig, Network, build_grid, file_name, read_network
from sim.session import Scenario
from stream_jax import store

GOLDEN_RATIO = 0.6180339887498949
TEST_SEEDS = 1000  # first seed of the episodes that controllers are compared on
PAPER_GRID = 16  # intersections that the levels' vehicles per hour are meant for


class CityRoad(NamedTuple):
    """The network and the city that drives it."""

    network: Network
    weights: np.ndarray  # [I, N] share of each cell in each intersection's area
    flow: np.ndarray  # [L, I] of the whole recording
    incidents: list[CityIncident]
    starts: dict[str, np.ndarray]  # part of the recording -> steps at which an episode may begin
    planner: TripPlanner


def city_road(dataset: TrafficDataset, network: GridConfig | Network, demand: DemandConfig, folder: Path) -> CityRoad:
    """Lays a network over the city; areas are chosen on the training part of the last fold.

    Args:
        network: a grid to generate, or what was read from a file.
        demand: its `bin_s` must be the recording's.
        folder: where a grid is generated.
    """
    features = dataset.manifest["features"]
    if "flow" not in features:
        raise DataError(f"Demand needs a recording of flow; this one has {', '.join(features)}.")
    series, fold = dataset.series(), dataset.num_folds - 1
    values = np.asarray(series.values)[..., list(features).index("flow")]
    observed = np.asarray(series.observed)[..., list(features).index("flow")]
    start, stop = dataset.part("train", fold)
    mean = np.where(observed, values, 0.0)[start:stop].mean(axis=0)
    if isinstance(network, GridConfig):
        areas = coverage(dataset.geometry, mean, network.size)
        network = build_grid(network, folder)
    else:
        areas = areas_around(network, dataset.geometry, mean)
    starts = {
        name: waking_steps(np.asarray(series.slot), dataset.part(name, fold), demand)
        for name in ("train", "val", "test")
    }
    return CityRoad(
        network,
        areas.weights,
        intersection_flow(areas.weights, values, observed),
        city_incidents(dataset.events(), areas.weights),
        starts,
        TripPlanner(network, demand),
    )


def keep_network(file: Path, folder: Path) -> Network:
    """Reads a user's network and copies it into its run's folder; another one of the same name there is refused.

    The copy is what is driven and shown, so a file that is changed later cannot mix two roads in one folder.
    """
    network = read_network(file)
    digest = store.file_sha256(network.net_file)[:12]
    ending = ".net.xml.gz" if network.net_file.suffix == ".gz" else ".net.xml"
    kept = folder / f"{file_name(file)}-{digest}{ending}"
    if any(path != kept for path in kept_networks(folder)):
        raise RoadError(
            f"{folder} holds another network called {file_name(file)}; rename {file} or choose another --out."
        )
    if not kept.exists():
        with store.whole_file(kept) as draft:
            shutil.copyfile(network.net_file, draft)
    return network._replace(net_file=kept.resolve())


def kept_networks(folder: Path) -> list[Path]:
    """Networks in the folder of a control run, each with its digest in its name."""
    return sorted(path for path in folder.glob("*-*.net.xml*") if path.suffix in (".xml", ".gz"))


def areas_around(network: Network, geometry: dict[str, np.ndarray], flow: np.ndarray) -> Coverage:
    """Areas of a user's signals: where they really stand, or with the network laid over the busy core of the city."""
    if network.lonlat is not None and is_at_real_place(network, geometry):
        return coverage_around(geometry, flow, network.lonlat, box_around(network.lonlat))
    box = core_box(geometry["lonlat"], flow)
    return coverage_around(geometry, flow, laid_over(box, network.position.astype(np.float64)), box)


def is_at_real_place(network: Network, geometry: dict[str, np.ndarray]) -> bool:
    """Whether the network's file has a projection by which its signals stand inside the recording's extent."""
    return network.lonlat is not None and lies_within(network.lonlat, geometry)


def vehicles_per_hour(level: DemandLevel, intersections: int, factor: float = 1.0) -> float:
    """The level's demand, which is meant for 16 intersections, on a network of this many, times the user's factor."""
    return factor * level.vehicles_per_hour * intersections / PAPER_GRID


def draw_scenarios(
    road: CityRoad, part: str, vehicles_per_hour: float, seeds: range, folder: Path, busiest: float = 1.0
) -> list[Scenario]:
    """One episode per seed, beginning at a busy hour of a part of the recording.

    The hour depends on the seed alone, so the same seed at another rate is the same hour with more vehicles. Steps of
    the golden ratio spread consecutive seeds evenly over the hours, so that a few episodes already stand for all. A
    part without busy hours gives those that are nearest to it.

    Args:
        busiest: share of the busy hours to draw from, those with the most flow.
    """
    starts = busy_starts(road, part, busiest)
    scenarios = []
    for seed in seeds:
        first_step = int(starts[int(seed * GOLDEN_RATIO % 1.0 * len(starts))])
        scenarios.append(road.planner.scenario(seed, road.flow, first_step, vehicles_per_hour, road.incidents, folder))
    return scenarios


def busy_starts(road: CityRoad, part: str, busiest: float = 1.0) -> np.ndarray:
    """Steps of a part at which the city's flow during an episode is inside `BUSY_HOURS`, or as near as it gets. [B]

    Args: busiest: share of them to keep, those with the most flow.
    """
    starts = road.starts[part]
    if len(starts) == 0:
        raise DataError(f"The {part} part of the recording has no waking hour long enough for an episode.")
    level = road.flow.sum(axis=1) / road.flow.sum(axis=1).mean()  # [L]
    length = -(-road.planner.cfg.duration_s // road.planner.cfg.bin_s)
    during = np.array([level[step : step + length].mean() for step in starts])
    low, high = BUSY_HOURS
    gap = np.maximum(low - during, during - high).clip(0.0)
    starts, during = starts[gap == gap.min()], during[gap == gap.min()]
    return starts[during >= np.quantile(during, 1.0 - busiest)]


def episode_folder(folder: Path, vehicles_per_hour: float, method: str) -> Path:
    """Where a method's episodes at one rate are kept, for the sweep and the evaluation alike."""
    return folder / "episodes" / f"{vehicles_per_hour:g}" / method
