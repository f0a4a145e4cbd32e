"""A 2 x 2 grid driven by a made-up city, for tests that need a road and little of it."""

from pathlib import Path

import numpy as np

from sim.demand import CityIncident, DemandConfig, TripPlanner
from sim.nema import NemaController
from sim.network import GridConfig, Network, build_grid
from sim.session import Scenario, Session

SHORT = DemandConfig(warmup_s=60, duration_s=180)
RATE = 1200.0  # vehicles per hour: busy, far from saturated


def small_network(folder: Path) -> Network:
    return build_grid(GridConfig(size=2), folder)


def small_flow(num_steps: int = 20) -> np.ndarray:
    """[T, 4] flow with a morning rise and a busy south-west."""
    step = np.arange(num_steps)[:, None]
    return (20.0 + step) * np.array([1.5, 1.0, 1.0, 0.5])


def small_scenario(
    network: Network,
    folder: Path,
    seed: int = 0,
    rate: float = RATE,
    incidents: tuple[CityIncident, ...] = (),
    cfg: DemandConfig = SHORT,
) -> Scenario:
    return TripPlanner(network, cfg).scenario(seed, small_flow(), 10, rate, incidents, folder)


def default_session(network: Network) -> Session:
    """A session under the NEMA controller; a function of a module, so that other processes can call it."""
    return Session(network, NemaController())
