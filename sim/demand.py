"""City flows -> trips through the road network, city incidents -> closed lanes and surges.

The forecast of the cells is thereby a forecast of the demand that the signals will meet, which the paper leaves
unconnected (Section 4.3). In each step of the recording an intersection sends out trips in proportion to the flow
observed in its coverage area; a trip's goal is drawn by gravity, in proportion to the flow around it and falling with
distance. Departures are Poisson. Everything is a function of the seed.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim.closures import RoadIncident, closing_lane
from sim.errors import RoadError
from sim.network import Network
from sim.routes import Roads, edges_of, find_paths, read_roads
from sim.session import Scenario
from stream_jax import store
from stream_jax.task import Limits

# What a labelled event of a city, or an injected anomaly, means on the road; other kinds close a lane too.
ON_ROAD = {
    "accident": "closure",
    "closure": "closure",
    "drop": "closure",
    "surge": "surge",
    "level_shift": "surge",
    "outage": "none",  # the city's sensors fail, its roads do not
}


@dataclasses.dataclass(frozen=True)
class DemandConfig:
    """How trips are drawn; the paper gives none of it."""

    warmup_s: int = 600  # shorter, the first vehicles' way to the stop line would look like a lack of throughput
    duration_s: int = 2400  # 40 control steps of a minute
    bin_s: int = 900  # length of a step of the recording
    inner_weight: float = 0.5  # of an edge between intersections as start or end of a trip; the fringe has 1
    gravity_m: float = 300.0  # goals at this distance attract half as much as ones next door
    perceptions: int = 8  # views of travel times that drivers have
    surge: float = 1.5  # factor on the demand around a surge, beyond the rise that the city observed

    def __post_init__(self) -> None:
        if self.warmup_s < 0 or self.duration_s <= 0 or self.bin_s <= 0:
            raise ValueError("warm-up, duration and step of the recording must be positive numbers of seconds")


DEFAULT_DEMAND = DemandConfig()


@dataclasses.dataclass(frozen=True)
class DemandLevel:
    """How many vehicles want to drive, and what is asked of the signals then."""

    name: str
    vehicles_per_hour: float  # into the whole network when the city's flow is at its mean
    limits: Limits


# The city's flow in the hours of an episode, relative to its mean. A level is a degree of saturation: at night any
# plan is safe, and in the worst rush hour of the year none is, whatever the level.
BUSY_HOURS = (1.2, 1.6)
# Chosen on controllers without learning, on days of validation: experiments/demand_sweep.py has safety against demand.
DEMAND_LEVELS = {
    "moderate": DemandLevel("moderate", 2600.0, Limits()),
    "heavy": DemandLevel("heavy", 4200.0, Limits(queue=10.0)),
    "overload": DemandLevel("overload", 6000.0, Limits()),
}


class CityIncident(NamedTuple):
    """An incident of the city at the intersection that covers its cell."""

    signal: int
    start: int  # step of the recording
    stop: int
    kind: str


def city_incidents(events: dict[str, np.ndarray] | None, weights: np.ndarray) -> list[CityIncident]:
    """Labelled incidents inside the coverage areas, each at the intersection that holds most of its cell.

    Args:
        events: start, stop (steps), cell, kind (1 + index in `kinds`), as `TrafficDataset.events` returns them.
        weights: [I, N] share of each cell in each area.
    """
    if events is None:
        return []
    found = zip(events["start"], events["stop"], events["cell"], events["kind"], strict=True)
    return [
        CityIncident(int(weights[:, cell].argmax()), int(start), int(stop), str(events["kinds"][kind - 1]))
        for start, stop, cell, kind in found
        if weights[:, cell].max() > 0
    ]


def waking_steps(slots: np.ndarray, part: tuple[int, int], cfg: DemandConfig) -> np.ndarray:
    """Steps of a part at which an episode may begin: between 6 and 22 h local time, its end inside the part. [W]

    Args:
        slots: [L] local step of the week of every step of the recording.
    """
    per_hour = 3600 // cfg.bin_s
    steps = np.arange(part[0] + 1, part[1] - -(-cfg.duration_s // cfg.bin_s) + 1)
    hour = slots[steps] % (24 * per_hour) // per_hour
    return steps[(hour >= 6) & (hour < 22)]


def trip_rates(
    flow: np.ndarray, first_step: int, vehicles_per_hour: float, incidents: Sequence[CityIncident], cfg: DemandConfig
) -> np.ndarray:
    """Trips per second of each intersection in the warm-up and in each step of the episode. [1 + T, I]

    The warm-up has the flow of the step before the first; the mean of `flow` over all its steps and intersections
    is what `vehicles_per_hour` refers to.
    """
    steps = first_step - 1 + np.arange(1 + -(-cfg.duration_s // cfg.bin_s))
    share = flow[steps.clip(0)] / (flow.mean() * flow.shape[1])
    for event in incidents:
        is_during = (steps >= event.start) & (steps < event.stop)
        if ON_ROAD.get(event.kind) == "surge":
            share[is_during, event.signal] *= cfg.surge
    return vehicles_per_hour / 3600.0 * share


class TripPlanner:
    """Draws trips on one network, which it reads once."""

    def __init__(self, network: Network, cfg: DemandConfig) -> None:
        self.network, self.cfg, self.roads = network, cfg, read_roads(network)

    def scenario(
        self,
        seed: int,
        flow: np.ndarray,
        first_step: int,
        vehicles_per_hour: float,
        incidents: Sequence[CityIncident],
        folder: Path,
    ) -> Scenario:
        """One episode's trips, written to `folder`, and its incidents. Args: flow: [L, I] of the whole recording."""
        cfg, rng = self.cfg, np.random.default_rng(seed)
        _check(flow, first_step, vehicles_per_hour, len(self.network.ids), cfg)
        rates = trip_rates(flow, first_step, vehicles_per_hour, incidents, cfg)
        steps = (first_step - 1 + np.arange(len(rates))).clip(0)
        lines = draw_trips(rng, self.network, self.roads, rates, flow[steps], cfg)
        path = folder / f"trips-{vehicles_per_hour:g}-{first_step}-{seed}.rou.xml"
        write_trips(path, lines)
        closures = road_incidents(rng, self.network, incidents, first_step, cfg)
        episode = flow[first_step : first_step + len(rates) - 1]
        return Scenario(path, closures, cfg.warmup_s, cfg.duration_s, seed, first_step, episode)


def make_scenario(
    seed: int,
    network: Network,
    flow: np.ndarray,
    first_step: int,
    vehicles_per_hour: float,
    incidents: Sequence[CityIncident],
    folder: Path,
    cfg: DemandConfig = DEFAULT_DEMAND,
) -> Scenario:
    """One scenario; `TripPlanner` makes many without reading the network again."""
    return TripPlanner(network, cfg).scenario(seed, flow, first_step, vehicles_per_hour, incidents, folder)


def road_incidents(
    rng: np.random.Generator, network: Network, incidents: Sequence[CityIncident], first_step: int, cfg: DemandConfig
) -> tuple[RoadIncident, ...]:
    """Closed lanes of an episode: city accidents and closures that overlap it, each on a random approach."""
    closures = []
    for event in incidents:
        start_s = cfg.warmup_s + (event.start - first_step) * cfg.bin_s
        end_s = min(cfg.warmup_s + (event.stop - first_step) * cfg.bin_s, cfg.warmup_s + cfg.duration_s)
        is_closure = ON_ROAD.get(event.kind, "closure") == "closure"
        sides = closable_sides(network, event.signal)
        if is_closure and sides and max(start_s, 0) < end_s:
            side = int(rng.choice(sides))
            closures.append(RoadIncident(event.signal, float(max(start_s, 0)), float(end_s), "closure", side))
    return tuple(closures)


def closable_sides(network: Network, signal: int) -> list[int]:
    """Sides of an intersection from which a lane can be taken without cutting off a turn."""
    sides = []
    for side in range(4):
        with contextlib.suppress(RoadError):
            closing_lane(network, RoadIncident(signal, 0.0, 1.0, "closure", side))
            sides.append(side)
    return sides


def draw_trips(
    rng: np.random.Generator,
    network: Network,
    roads: Roads,
    rates: np.ndarray,
    flow: np.ndarray,
    cfg: DemandConfig,
) -> list[tuple[float, str]]:
    """Departure time in s and edges of every trip, in order of departure.

    Args:
        rates: [1 + T, I] trips per second, first of the warm-up, then of each step of the recording.
        flow: [1 + T, I] what attracts goals.
    """
    paths = find_paths(roads, rng, cfg.perceptions)
    start_s = np.concatenate([[0.0], cfg.warmup_s + cfg.bin_s * np.arange(len(rates) - 1)])
    end_s = np.minimum(np.append(start_s[1:], np.inf), cfg.warmup_s + cfg.duration_s)
    origin_share = origin_shares(
        roads.origin_signal, roads.origin_is_entry, np.any(paths.reachable, axis=1), cfg, rates.shape[1]
    )
    depart, origin, goal = [], [], []
    for piece, (low, high) in enumerate(zip(start_s, end_s, strict=True)):
        pull = goal_chances(network, roads, paths.reachable, flow[piece], cfg)  # [O, D]
        mean = rates[piece][roads.origin_signal] * origin_share * (high - low)  # [O]
        count = rng.poisson(mean)
        for place in np.nonzero(count)[0]:
            origin += [int(place)] * count[place]
            goal += rng.choice(len(roads.goals), size=count[place], p=pull[place]).tolist()
        depart.append(rng.uniform(low, high, count.sum()))
    seconds = np.round(np.concatenate(depart), 1)
    view = rng.integers(cfg.perceptions, size=len(seconds))
    order = np.argsort(seconds, kind="stable")
    names = roads.ids
    return [
        (float(seconds[i]), " ".join(names[edge] for edge in edges_of(roads, paths, int(view[i]), origin[i], goal[i])))
        for i in order
    ]


def write_trips(path: Path, trips: list[tuple[float, str]]) -> None:
    """Writes a SUMO route file, whole or not at all; equal trips give equal bytes."""
    lines = ["<routes>"]
    for number, (depart, edges) in enumerate(trips):
        lines.append(
            f'<vehicle id="{number}" depart="{depart:.1f}" departLane="best" departSpeed="max">'
            f'<route edges="{edges}"/></vehicle>'
        )
    store.write_text(path, "\n".join([*lines, "</routes>", ""]))


def _check(flow: np.ndarray, first_step: int, vehicles_per_hour: float, num_signals: int, cfg: DemandConfig) -> None:
    steps = -(-cfg.duration_s // cfg.bin_s)
    if flow.ndim != 2 or flow.shape[1] != num_signals or not flow.mean() > 0 or flow.min() < 0:
        raise RoadError(f"flow must be [steps, {num_signals}], not negative and not all zero, got shape {flow.shape}")
    if not 0 <= first_step <= len(flow) - steps:
        raise RoadError(f"an episode of {steps} steps from step {first_step} does not fit in {len(flow)} steps of flow")
    if not 0 < vehicles_per_hour < np.inf:
        raise RoadError(f"vehicles per hour must be a positive number, got {vehicles_per_hour}")


def origin_shares(
    signal: np.ndarray, is_fringe: np.ndarray, usable: np.ndarray, cfg: DemandConfig, num_signals: int
) -> np.ndarray:
    """Each edge's share of its intersection's trips, [O]; an intersection without usable edges sends none."""
    weight = np.where(is_fringe, 1.0, cfg.inner_weight) * usable
    total = np.bincount(signal, weight, num_signals)
    return weight / np.maximum(total, 1e-12)[signal]


def goal_chances(
    network: Network, roads: Roads, reachable: np.ndarray, flow: np.ndarray, cfg: DemandConfig
) -> np.ndarray:
    """Probability of each goal for a trip from each origin, [O, D]; never the intersection that it meets first."""
    usable = np.ones(len(roads.goals), bool)
    attraction = (flow[roads.goal_signal] + 1e-9) * origin_shares(
        roads.goal_signal, roads.goal_is_exit, usable, cfg, len(flow)
    )
    place = np.asarray(network.position)
    gap = np.linalg.norm(place[roads.origin_signal][:, None] - place[roads.goal_signal][None], axis=-1)  # [O, D]
    is_other = roads.origin_signal[:, None] != roads.goal_signal[None]
    pull = attraction / (1.0 + gap / cfg.gravity_m) * is_other * reachable
    pull = np.where(pull.sum(axis=1, keepdims=True) > 0, pull, reachable)
    return pull / np.maximum(pull.sum(axis=1, keepdims=True), 1e-12)
