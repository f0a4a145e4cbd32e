"""The look-ahead controller as it is tuned: each signal shows the stage that serves most weight per second.

It sees vehicles along their routes, and uses the yellow of 3 s and the all-red of 2 s that all controllers here use.
"""

from pathlib import Path

from experiments.evaluation import drives
from experiments.methods.method import Method
from sim import eyes
from sim.city_road import CityRoad
from sim.lookahead import LookaheadDriver
from stream_jax import store
from stream_jax.road.controller import LookaheadConfig


def driver() -> LookaheadDriver:
    """Pairs of NEMA phases where an intersection is recognised, elsewhere the greens of its own program."""
    return LookaheadDriver(LookaheadConfig())


def version() -> str:
    """Changes with the controller's numbers, and with its code when `store.VERSIONS` says so."""
    return store.key("lookahead", LookaheadConfig(), eyes.REACH_M, eyes.PLACES, eyes.EDGES)


def make(name: str, road: CityRoad, vehicles_per_hour: float, folder: Path) -> drives.Method:
    """As tuned, on the road's network."""
    return drives.without_learning(name, road.network, driver)._replace(version=version())


METHOD = Method("lookahead", driver=driver, make=make)
