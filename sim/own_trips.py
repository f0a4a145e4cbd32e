"""A user's own trips as the demand of many episodes: windows of time that begin where vehicles depart.

SUMO itself skips what departs before a window and scales the rest, so flows, vehicle types and additional files mean
what they always mean. Here it is only read when something departs.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import sumolib
from sumolib.miscutils import parseTime

from sim.city_road import GOLDEN_RATIO
from sim.errors import RoadError
from sim.scenario import Scenario
from sim.session import EMPTY_S
from sim.sumocfg import SumoConfig, demand_of, is_sumocfg, parse, read_sumocfg

MINUTE_S = 60


class OwnTrips(NamedTuple):
    """What a file of trips, or a whole configuration, lets drive, and when."""

    file: Path
    config: SumoConfig | None  # None: a route file alone
    departs: np.ndarray  # [M] bool, whether something departs in each minute of SUMO's clock
    end_s: int  # of the last departure, or of the configuration if that is earlier


def read_own_trips(path: Path) -> OwnTrips:
    """Reads when vehicles depart. Args: path: .rou.xml, also packed by gzip, or .sumocfg.

    Raises:
        RoadError: the file does not exist, is no XML, or lets nothing depart.
    """
    path = Path(path)
    if not path.is_file():
        raise RoadError(f"there is no file of trips {path}; give SUMO's .rou.xml or .sumocfg with --routes")
    config = read_sumocfg(path) if is_sumocfg(path) else None
    file = demand_of(config) if config else path.resolve()
    found = [span for one in ((*config.routes, *config.additional) if config else (file,)) for span in _spans(one)]
    begin_s, end_s = (config.begin_s, config.end_s) if config else (0, None)
    found = [(max(a, begin_s), b) for a, b in found if b >= begin_s and (end_s is None or a < end_s)]
    if not found:
        raise RoadError(f"no vehicle, trip or flow of {path} departs")
    last_s = max(b for _, b in found) + 1
    end_s = last_s if end_s is None else min(last_s, end_s)
    departs = np.zeros(-(-end_s // MINUTE_S), bool)
    for first, last in found:
        departs[first // MINUTE_S : last // MINUTE_S + 1] = True
    return OwnTrips(file, config, departs, end_s)


def windows(
    trips: OwnTrips, seeds: range, warmup_s: int, duration_s: int, factor: float, signals: int
) -> list[Scenario]:
    """One episode per seed; consecutive seeds spread evenly over the minutes at which one may begin.

    Trips that are over sooner make shorter episodes, of whole minutes. With more seeds than minutes some episodes are
    the same vehicles with other drivers.

    Args:
        factor: what SUMO multiplies the vehicles by, leaving some out or driving some twice.
        signals: of the network.
    """
    starts = np.array(start_minutes(trips, warmup_s + duration_s))
    left_s = trips.end_s - MINUTE_S * int(starts[0]) - warmup_s
    if left_s < MINUTE_S:
        raise RoadError(f"the trips of {trips.file} are over before a warm-up of {warmup_s} s and a minute have passed")
    config = trips.config.file if trips.config else None
    flow = np.zeros((1, signals))
    scenarios = []
    for seed in seeds:
        start = int(starts[int(seed * GOLDEN_RATIO % 1.0 * len(starts))])
        length = min(duration_s, (trips.end_s - MINUTE_S * start - warmup_s) // MINUTE_S * MINUTE_S)
        scenarios.append(Scenario(trips.file, (), warmup_s, length, seed, -1, flow, MINUTE_S * start, config, factor))
    return scenarios


def start_minutes(trips: OwnTrips, length_s: int) -> list[int]:
    """Minutes at which an episode may begin: something departs soon, and trips last until its end; at least one."""
    soon = EMPTY_S // MINUTE_S // 2
    first = int(np.argmax(trips.departs))
    last = max((trips.end_s - length_s) // MINUTE_S, first)
    return [minute for minute in range(first, last + 1) if trips.departs[minute : minute + soon].any()]


def check_network(trips: OwnTrips, network: Path) -> None:
    """Refuses trips of a configuration that is about another network: SUMO would drive that one."""
    if trips.config is None:
        return
    theirs = read_sumocfg(network).network if is_sumocfg(network) else Path(network).resolve()
    if theirs != trips.config.network:
        raise RoadError(f"{trips.config.file} is about the network {trips.config.network}, not {network}")


def _spans(path: Path) -> list[tuple[int, int]]:
    """First and last second at which each vehicle, trip or flow departs; words such as triggered are left out."""
    found: list[tuple[int, int]] = []

    def begins(name: str, attributes: dict[str, str]) -> None:
        if name in ("vehicle", "trip"):
            first = _second(attributes.get("depart"))
            found.extend([] if first is None else [(first, first)])
        elif name == "flow":
            first = _second(attributes.get("begin", "0"))
            last = _second(attributes.get("end"))
            found.extend([] if first is None else [(first, first if last is None else max(first, last))])

    with sumolib.openz(str(path), mode="rb") as stream:
        parse(path, stream, begins)
    return found


def _second(text: str | None) -> int | None:
    try:
        seconds = parseTime(text) if text else None
        return None if seconds is None or seconds < 0 else int(seconds)
    except (ValueError, OverflowError):
        return None
