"""What a checkpoint holds beside the trained system: the recording and the road that it was made for."""

import json
import shutil
from pathlib import Path

import numpy as np

from data import loader
from data.errors import DataError
from data.loader import TrafficDataset
from sim.city_road import CityRoad, city_road, draw_scenarios, keep_network, kept_networks, vehicles_per_hour
from sim.demand import DEMAND_LEVELS, DemandConfig
from sim.network import GridConfig, Network, read_network
from sim.session import Scenario
from sim.sumocfg import demand_of, is_sumocfg, read_sumocfg

DATA = "data"  # folder of the recording
ROAD = "road"  # folder of a road that is not simply a grid under the levels' own demand
DEMAND = "demand.json"
MINUTES = 40  # of an episode, unless a .sumocfg or the user says otherwise
WARMUP_S = 60  # before a user's own vehicles are driven by the controller


def keep_surroundings(folder: Path, recording: Path, network: Path | None, demand_factor: float) -> None:
    """Copies the recording, the user's network if it is one, and the factor on demand into a checkpoint's folder."""
    shutil.copytree(recording, folder / DATA, ignore=shutil.ignore_patterns("*.html", "*.csv"))
    if network is not None:
        keep_network(network, folder / ROAD)
    if demand_factor != 1:
        (folder / ROAD).mkdir(exist_ok=True)
        (folder / ROAD / DEMAND).write_text(json.dumps({"factor": demand_factor}))


def kept_recording(folder: Path) -> TrafficDataset:
    """The recording of a checkpoint."""
    if not (folder / DATA).exists():
        raise DataError(
            f"{folder} has no recording in {folder / DATA}; make the checkpoint with run.py's control stage."
        )
    return loader.load(folder / DATA, verify=True)


def kept_road(
    folder: Path, signals: int, dataset: TrafficDataset, demand: DemandConfig, cache: Path
) -> tuple[CityRoad, float]:
    """The road of a checkpoint, and the factor on the levels' demand there.

    Args:
        signals: of the system; where no network is kept, they stand on a square grid.
        cache: where a grid is generated.
    """
    files, factor = kept_networks(folder / ROAD), folder / ROAD / DEMAND
    network = read_network(files[0]) if files else GridConfig(size=round(signals**0.5))
    road = city_road(dataset, network, demand, cache)
    return road, json.loads(factor.read_text())["factor"] if factor.exists() else 1.0


def city_scenario(
    folder: Path, signals: int, dataset: TrafficDataset, level: str, seed: int, minutes: int, cache: Path
) -> tuple[Network, Scenario]:
    """An hour of the checkpoint's own city and road, from the part of its recording that nothing was trained on."""
    demand = DemandConfig(duration_s=60 * minutes, bin_s=dataset.manifest["bin_s"])
    road, factor = kept_road(folder, signals, dataset, demand, cache)
    rate = vehicles_per_hour(DEMAND_LEVELS[level], len(road.network.ids), factor)
    return road.network, draw_scenarios(road, "test", rate, range(seed, seed + 1), cache)[0]


def users_scenario(
    network: Path, routes: Path | None, seed: int, minutes: int | None = None
) -> tuple[Network, Scenario]:
    """A user's network and vehicles; there is no city behind them.

    Args:
        network: .net.xml or .sumocfg; SUMO reads a .sumocfg whole.
        routes: instead of those of the .sumocfg; a .net.xml has none.
        minutes: as long as the .sumocfg says, or MINUTES, if None.
    """
    found = read_network(network)
    config = read_sumocfg(network) if is_sumocfg(network) else None
    if routes is None:
        if config is None:
            raise DataError(f"{network} has no vehicles; give --routes, or a .sumocfg that names network and routes.")
        routes = demand_of(config)
    if not routes.is_file():
        raise DataError(f"There is no route file {routes}; give SUMO's .rou.xml with --routes.")
    duration_s = 60 * (minutes or MINUTES)
    if minutes is None and config and config.end_s is not None:
        duration_s = max(60, (config.end_s - config.begin_s - WARMUP_S) // 60 * 60)
    begin_s, file = (config.begin_s, config.file) if config else (0, None)
    flow = np.zeros((1, len(found.ids)))
    return found, Scenario(routes.absolute(), (), WARMUP_S, duration_s, seed, -1, flow, begin_s, file)
