"""Networks and hours on which compiled roads are fitted and judged."""

import subprocess
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.errors import DataError
from sim.binaries import find_binary
from sim.demand import DEMAND_LEVELS, CityIncident, DemandConfig, TripPlanner
from sim.network import GridConfig, Network, build_grid, file_name, read_network
from sim.routes import read_departures
from sim.session import Scenario
from stream_jax import store
from stream_jax.task import Limits

BUSY = 1.4  # of an hour's flow, relative to the mean that a level's demand refers to: the middle of `BUSY_HOURS`
STEPS = 24  # of a recording made up for one hour; the episode begins in its second half
FIRST_STEP = 16
TRAIN_SEED, TEST_SEED = 0, 5000


class Place(NamedTuple):
    """A network, and hours on it by level."""

    name: str
    network: Network
    hours: dict[str, list[Scenario]]
    limits: dict[str, Limits]


def grid_hours(folder: Path, levels: Sequence[str], seeds: Sequence[int], size: int = 4) -> Place:
    """Hours of made-up demand on the grid; every third has a closed lane, every third a surge."""
    network = build_grid(GridConfig(size=size), folder)
    planner = TripPlanner(network, DemandConfig())
    hours = {}
    for level in levels:
        rate = DEMAND_LEVELS[level].vehicles_per_hour * size**2 / 16
        hours[level] = [_hour(planner, seed, rate, folder / "trips") for seed in seeds]
    return Place(f"grid-{size}x{size}", network, hours, {level: DEMAND_LEVELS[level].limits for level in levels})


def public_hours(name: str, archive: Path, folder: Path, seeds: Sequence[int]) -> Place:
    """The hour of a map of RESCO, under several seeds of SUMO. Args: archive: the wheel of sumo-rl, or a folder."""
    files = _unpacked(name, archive, folder / "maps")
    network = read_network(files / f"{name}.net.xml")
    begin, end = _times(files / f"{name}.sumocfg")
    routed = folder / "trips" / f"{name}-{begin}-{end}.rou.xml"
    if not routed.exists():
        _write_routes(network, files / f"{name}.rou.xml", routed, begin, end)
    flow = np.zeros((1, len(network.ids)))
    warmup = 600
    hours = [Scenario(routed, (), warmup, end - begin - warmup, seed, -1, flow, begin) for seed in seeds]
    return Place(name, network, {"public": hours}, {"public": Limits()})


def user_hours(path: Path, routes: Path, folder: Path, seeds: Sequence[int]) -> Place:
    """A user's network and the vehicles of a route file, from the first departure on."""
    departures = [depart for depart, _ in read_departures(routes)]
    network = read_network(path)
    begin, warmup = int(departures[0]), 600
    seconds = max(int(departures[-1]) - begin - warmup, 60) // 60 * 60
    flow = np.zeros((1, len(network.ids)))
    hours = [Scenario(routes, (), warmup, seconds, seed, -1, flow, begin) for seed in seeds]
    return Place(file_name(path), network, {"routes": hours}, {"routes": Limits()})


def routes_of(place: Place) -> list[str]:
    """Edges of all routes of all hours."""
    files = dict.fromkeys(hour.route_file for hours in place.hours.values() for hour in hours)
    return [edges for file in files for _, edges in read_departures(file)]


def _hour(planner: TripPlanner, seed: int, rate: float, folder: Path) -> Scenario:
    """One hour: a city that is busier here than there, in its busy half."""
    rng = np.random.default_rng([seed, 17])
    signals = len(planner.network.ids)
    busy = np.where(np.arange(STEPS) < STEPS // 2, 2.0 - BUSY, BUSY)[:, None]
    flow = busy * np.exp(0.25 * rng.standard_normal(signals) + 0.08 * rng.standard_normal((STEPS, signals)))
    incidents = ()
    if seed % 3:
        kind = "closure" if seed % 3 == 1 else "surge"
        incidents = (CityIncident(int(rng.integers(signals)), FIRST_STEP, FIRST_STEP + 2, kind),)
    return planner.scenario(seed, flow, FIRST_STEP, rate, incidents, folder)


def _unpacked(name: str, archive: Path, folder: Path) -> Path:
    """The folder of a map's files."""
    if archive.is_dir():
        found = sorted(archive.rglob(f"{name}.net.xml"))
    else:
        if not archive.exists():
            raise DataError(f"{archive} does not exist; fetch it by: pip download --no-deps sumo-rl==1.4.5")
        with zipfile.ZipFile(archive) as wheel:
            members = [member for member in wheel.namelist() if f"/RESCO/{name}/" in member]
            wheel.extractall(folder, members)
        found = sorted(folder.rglob(f"{name}.net.xml"))
    if not found:
        raise DataError(f"{archive} has no map {name}.")
    return found[0].parent


def _times(config: Path) -> tuple[int, int]:
    """Begin and end that a .sumocfg names."""
    begin, end = (ET.parse(config).getroot().find(f".//{name}").get("value") for name in ("begin", "end"))
    return int(float(begin)), int(float(end))


def _write_routes(network: Network, trips: Path, target: Path, begin: int, end: int) -> None:
    """Lets SUMO's own router write every vehicle's edges, which are then the same in both worlds."""
    with store.whole_file(target) as draft:
        made = draft.with_suffix(".made.rou.xml")
        options = ["--net-file", network.net_file, "--route-files", trips, "--output-file", made]
        options += ["--begin", begin, "--end", end, "--ignore-errors", "--no-warnings", "--no-step-log"]
        run = subprocess.run([find_binary("duarouter"), *map(str, options)], capture_output=True, text=True)
        if run.returncode:
            raise DataError(f"duarouter could not route {trips}: {run.stderr.strip().splitlines()[-1:]}")
        made.rename(draft)
        made.with_suffix("").with_suffix(".rou.alt.xml").unlink(missing_ok=True)
