"""What a checkpoint holds beside the trained system: the recording and the road that it was made for."""

import json
import shutil
from pathlib import Path

from data.loader import TrafficDataset
from sim.city_road import CityRoad, city_road, keep_network, kept_networks
from sim.demand import DemandConfig
from sim.network import GridConfig, read_network
from stream_jax.checkpoint import System

DATA = "data"  # folder of the recording
ROAD = "road"  # folder of a road that is not simply a grid under the levels' own demand
DEMAND = "demand.json"


def keep_surroundings(folder: Path, recording: Path, network: Path | None, demand_factor: float) -> None:
    """Copies the recording, the user's network if it is one, and the factor on demand into a checkpoint's folder."""
    shutil.copytree(recording, folder / DATA, ignore=shutil.ignore_patterns("*.html", "*.csv"))
    if network is not None:
        keep_network(network, folder / ROAD)
    if demand_factor != 1:
        (folder / ROAD).mkdir(exist_ok=True)
        (folder / ROAD / DEMAND).write_text(json.dumps({"factor": demand_factor}))


def kept_road(
    folder: Path, system: System, dataset: TrafficDataset, demand: DemandConfig, cache: Path
) -> tuple[CityRoad, float]:
    """The road of a checkpoint, and the factor on the levels' demand there. Args: cache: where a grid is generated."""
    files, factor = kept_networks(folder / ROAD), folder / ROAD / DEMAND
    network = read_network(files[0]) if files else _grid(system)
    road = city_road(dataset, network, demand, cache)
    return road, json.loads(factor.read_text())["factor"] if factor.exists() else 1.0


def _grid(system: System) -> GridConfig:
    return GridConfig(size=round(system.params.aggregator.weights.shape[0] ** 0.5))
