"""SUMO's own NEMA controllers, fully actuated with maximum greens of 20 and 45 s; no action steers them."""

from functools import partial
from pathlib import Path

from experiments.evaluation import drives
from experiments.methods.method import Method
from sim.city_road import CityRoad
from sim.network import Network
from sim.own_programs import NativePrograms, nema_programs


def driver(network: Network, folder: Path) -> NativePrograms:
    """Leaves the signals to SUMO. Args: folder: where its programs are written."""
    return NativePrograms(nema_programs(network, folder))


def make(name: str, road: CityRoad, vehicles_per_hour: float, folder: Path) -> drives.Method:
    """With the programs of the road's network."""
    return drives.without_learning(name, road.network, partial(driver, road.network, folder))


METHOD = Method("sumo_nema", make=make)
