"""Environments of any network by one call: `gymnasium.make("stream_jax/Signals-v0", network=...)` ends here.

env = gymnasium.make("stream_jax/Signals-v0", network="my.net.xml")
env = sim.environments.parallel_env("my.sumocfg", action="greens")
"""

import dataclasses
import functools
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sim.city_road import PAPER_GRID
from sim.demand import DEMAND_LEVELS, DemandConfig, TripPlanner
from sim.drivers import DRIVERS
from sim.env import SignalEnv
from sim.errors import RoadError
from sim.network import Network, read_network
from sim.parallel_env import SignalParallelEnv
from sim.scenario import Scenario
from sim.session import Session
from sim.sumocfg import SumoConfig, demand_of, is_sumocfg, read_sumocfg
from stream_jax.task import PRICES, SPACES, Limits
from stream_jax.types import RoadMeasurement

VEHICLES_PER_SIGNAL = DEMAND_LEVELS["moderate"].vehicles_per_hour / PAPER_GRID  # an hour, where nobody says otherwise


def signal_env(network: Path | str, **options: Any) -> SignalEnv:
    """One agent that tells all signals of a network what to do, once a minute.

    Args:
        network: .net.xml or .sumocfg.
        **options: those of `road_of`, `limits` and `render_mode`.
    """
    return _made(SignalEnv, network, **options)


def parallel_env(network: Path | str, **options: Any) -> SignalParallelEnv:
    """One agent for each signal. Args: as `signal_env`."""
    return _made(SignalParallelEnv, network, **options)


def road_of(
    network: Path | str,
    routes: Path | str | None = None,
    action: Literal["prices", "greens"] = PRICES.name,  # type: ignore[assignment]
    minutes: int = 40,
    warmup_minutes: int = 10,
    vehicles_per_hour: float | None = None,
) -> tuple[Session, Callable[[int], Scenario]]:
    """A session on a network, and what gives it an episode for each seed.

    Args:
        network: .net.xml or .sumocfg.
        routes: the vehicles, SUMO's .rou.xml; without it those of the .sumocfg, or trips drawn at random.
        action: what signals are told: "prices" for the look-ahead controller or "greens" for the actuated one.
        minutes: length of an episode.
        warmup_minutes: before it, under action 0, while the empty road fills.
        vehicles_per_hour: of the trips drawn at random; None: as many as at moderate demand.
    """
    if action not in SPACES:
        raise RoadError(f"action {action!r} is none of {', '.join(SPACES)}")
    if minutes < 1 or warmup_minutes < 0:
        raise RoadError(f"{minutes} minutes after {warmup_minutes} of warm-up are no episode")
    path, found = Path(network), read_network(Path(network))
    length = DemandConfig(warmup_s=60 * warmup_minutes, duration_s=60 * minutes)
    config = read_sumocfg(path) if is_sumocfg(path) else None
    vehicles = Path(routes) if routes is not None else demand_of(config) if config else None
    if vehicles is None:
        make_scenario = RandomTrips(found, length, vehicles_per_hour or VEHICLES_PER_SIGNAL * len(found.ids))
    elif vehicles_per_hour is not None:
        raise RoadError("vehicles_per_hour is for trips drawn at random; the routes say how many vehicles drive")
    else:
        make_scenario = functools.partial(_own_vehicles, vehicles, config, found, length)
    return FreeSession(found, DRIVERS[action]()), make_scenario


class RandomTrips:
    """Trips between all ends of a network at a steady rate; the same seed gives the same trips.

    Only the present episode's trips are kept on disk.
    """

    def __init__(self, network: Network, length: DemandConfig, vehicles_per_hour: float) -> None:
        self.rate, self.planner = vehicles_per_hour, TripPlanner(network, length)
        self.folder = Path(tempfile.mkdtemp(prefix="stream-jax-trips-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        steps = 1 + -(-length.duration_s // length.bin_s)
        self.flow = np.ones((steps, len(network.ids)))

    def __call__(self, seed: int) -> Scenario:
        for old in self.folder.glob("*.rou.xml"):
            old.unlink()
        return self.planner.scenario(seed, self.flow, 1, self.rate, [], self.folder)


class FreeSession(Session):
    """A session that runs SUMO inside this process if no other does, else beside it, so that several can be open."""

    def reset(self, scenario: Scenario, warm_up: bool = True) -> RoadMeasurement:
        self.close()
        backend = "libsumo" if Session._open_libsumo is None else "traci"
        self.cfg = dataclasses.replace(self.cfg, backend=backend)
        return super().reset(scenario, warm_up)


def _made(
    face: Callable[..., Any],
    network: Path | str,
    limits: Limits | None = None,
    render_mode: str | None = None,
    **options: Any,
) -> Any:
    return face(*road_of(network, **options), limits, render_mode)


def _own_vehicles(
    vehicles: Path, config: SumoConfig | None, network: Network, length: DemandConfig, seed: int
) -> Scenario:
    """The user's own vehicles from the begin of a .sumocfg, or from second 0; the seed is SUMO's."""
    begin_s, file = (config.begin_s, config.file) if config else (0, None)
    flow = np.zeros((1, len(network.ids)))
    return Scenario(vehicles.absolute(), (), length.warmup_s, length.duration_s, seed % 2**31, -1, flow, begin_s, file)
