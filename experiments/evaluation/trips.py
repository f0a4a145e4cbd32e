"""What an episode came to, from SUMO's list of its trips and from a second-by-second watch of those who stand.

Measures are RESCO's: the delay of a trip is its time loss and its departure delay, trips count whether or not they
finished, and one that never departed has waited from its planned departure to the end. Beside the means stand the
90th percentile and the longest wait, which a mean hides.
"""

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from sim.detectors import HALTING_MPS
from sim.network import Network

METRICS = {
    "delay": "mean of time loss and departure delay over all trips, s",
    "trip_time": "mean seconds on the road of the trips that departed",
    "wait": "mean seconds that they stood",
    "queue": "vehicles that stand or wait to enter, mean over time, per signal",
    "p90_wait": "90th percentile over all trips of the seconds stood and waited to enter",
    "longest_wait": "the longest that a vehicle stood before one stop line, or waited to enter, s",
    "never_departed": "trips that could not enter until the end",
    "unfinished": "trips on the road at the end",
    "teleports": "vehicles that SUMO moved by force",
    "trips": "all trips that were due",
}


class Watch:
    """A signal driver around another one, which it measures: how long vehicles stand, and how many do."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.native = getattr(driver, "native", False)  # SUMO runs the signals itself
        self.programs = getattr(driver, "programs", None)

    def reset(self, network: Network) -> None:
        """A new episode begins."""
        self._driver.reset(network)
        self._stops, self._signals = frozenset(network.stop_edges), len(network.ids)
        self._wait: dict[str, int] = {}
        self._edge: dict[str, str] = {}
        self._standing = self._seconds = self._longest = 0

    def see(
        self,
        vehicles: Iterable,
        pending: Iterable[str],
        gone: Iterable[str],
        route_of: Callable[[str], tuple[str, ...]],
    ) -> None:
        """Takes in one second. Args: as `sim.eyes.Eyes.look`."""
        vehicles = list(vehicles)
        for name in gone:
            self._wait.pop(name, None)
            self._edge.pop(name, None)
        for name, (lane, _, speed) in vehicles:
            edge = lane[: lane.rfind("_")]
            before = self._edge.get(name)
            if edge != before:
                self._edge[name] = edge
                if before is None or before in self._stops:  # it entered, or crossed a stop line
                    self._wait[name] = 0
            if speed < HALTING_MPS:
                self._stand(name)
        for name in pending:
            self._stand(name)
        self._seconds += 1
        if hasattr(self._driver, "see"):
            self._driver.see(vehicles, pending, gone, route_of)

    def states(self, prices: np.ndarray) -> list[tuple[str, str]]:
        """What the driver itself shows."""
        return self._driver.states(prices)

    def measured(self) -> dict[str, float]:
        """The longest wait and the mean queue so far."""
        return {
            "longest_wait": float(self._longest),
            "queue": self._standing / max(self._seconds, 1) / self._signals,
        }

    def _stand(self, name: str) -> None:
        self._wait[name] = wait = self._wait.get(name, 0) + 1
        self._longest = max(self._longest, wait)
        self._standing += 1


def trip_metrics(trips_file: Path) -> dict[str, float]:
    """Means over a file of `--tripinfo-output`, unfinished and undeparted trips included."""
    rows = [trip.attrib for trip in ET.parse(trips_file).getroot().iter("tripinfo")]

    def column(name: str) -> np.ndarray:
        return np.array([float(row[name]) for row in rows])

    departed, arrived = column("depart") >= 0, column("arrival") >= 0
    late, stood = column("departDelay"), column("waitingTime")
    return {
        "delay": float((column("timeLoss") + late).mean()),
        "trip_time": float(column("duration")[departed].mean()),
        "wait": float(stood[departed].mean()),
        "p90_wait": float(np.quantile(stood + late, 0.9)),
        "never_departed": int((~departed).sum()),
        "unfinished": int((departed & ~arrived).sum()),
        "trips": len(rows),
    }
