"""How a controller without learning becomes what the control stage evaluates."""

from collections.abc import Callable
from pathlib import Path

from experiments.evaluation import drives
from sim.city_road import CityRoad
from sim.nema import SignalDriver

Make = Callable[[str, CityRoad, float, Path], drives.Method]  # name, road, vehicles per hour, folder for files


def alone(make_driver: Callable[[], SignalDriver]) -> Make:
    """A signal driver that needs to know nothing beforehand. Args: make_driver: picklable."""
    return lambda name, road, vehicles_per_hour, folder: drives.without_learning(name, road.network, make_driver)
