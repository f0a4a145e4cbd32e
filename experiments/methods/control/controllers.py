"""The controllers without learning that every agent is compared with, by name."""

from pathlib import Path

from data.errors import DataError
from experiments.evaluation.drives import Method, without_learning
from experiments.methods import catalogue
from experiments.methods.catalogue import CONTROLLERS
from sim.city_road import CityRoad

REFERENCE = "default_plan"
NAMES = tuple(CONTROLLERS)
# What a network is enough for: the others count its trips, write programs or act once a minute.
DRIVERS = {name: record.driver for name, record in catalogue.records(CONTROLLERS).items() if record.driver}


def check_controllers(names: list[str] | None) -> list[str]:
    """The names asked for, or all; refuses one that does not exist."""
    unknown = set(names or ()) - set(NAMES)
    if unknown:
        learned = ", ".join(catalogue.LEARNERS)
        raise DataError(
            f"No controller without learning is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}. "
            f"Those that learn, {learned}, are driven by `stream-jax run --stage control`."
        )
    return list(names or NAMES)


def make_method(name: str, road: CityRoad, vehicles_per_hour: float, folder: Path) -> Method:
    """A controller as a method. Args: vehicles_per_hour: the level, which only Webster's timing looks at."""
    record = catalogue.record(CONTROLLERS[name])
    if record.make is None:
        return without_learning(name, road.network, record.driver)
    return record.make(name, road, vehicles_per_hour, folder)
