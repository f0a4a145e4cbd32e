"""What the signals see: every vehicle that meets them next, along its own route, and the room behind the stop line.

A vehicle belongs to the first signal on its route, however many edges and forks lie before it, and to the lane of the
stop edge that it stands on, or else to the emptiest lane that serves its turn. Vehicles that could not enter the
network yet are seen at the beginning of their first edge.
"""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sumolib

from sim.network import Network
from sim.stages import Stages
from stream_jax.road.tables import Seen
from stream_jax.types import on_host

HALTING_MPS = 0.1
SLOW_MPS = 2.0  # a vehicle that is slower closes the lane behind it
PLACE_M = 7.5  # of lane that a standing vehicle takes
REACH_M = 400.0  # how far upstream of the stop line vehicles are seen
PLACES = 24  # vehicles that are seen in one lane
EDGES = 20  # edges of a route that are looked at
ROOMY = 99.0  # room behind a stop line that no slow vehicle is near


class Ways(NamedTuple):
    """Lengths and speeds of a network, junctions included."""

    length: dict[str, float]  # edge -> m
    speed: dict[str, float]  # edge -> m/s
    inside: dict[tuple[str, str], float]  # edge, next edge -> metres inside the junction
    exits: dict[tuple[str, str], tuple[str, ...]]  # edge, next edge -> lanes driven into


class _Ahead(NamedTuple):
    """The signal that a vehicle meets next, seen from the beginning of an edge."""

    signal: int  # -1: none
    movement: int
    metres: float  # to the stop line
    seconds: float  # at the speed limits
    lanes: tuple[int, ...]  # rows of the stop edge's lanes that serve the turn
    stop_edge: str


class _Vehicle:
    """What is remembered of a vehicle on the road."""

    __slots__ = (
        "beyond_m",
        "beyond_s",
        "lane",
        "lanes",
        "movement",
        "place",
        "route",
        "signal",
        "speed",
        "step",
        "wait",
    )

    def __init__(self, route: tuple[str, ...]) -> None:
        self.lane: str | None = None
        self.route, self.step, self.wait = route, 0, 0
        self.signal = self.movement = -1


class Eyes:
    """Follows vehicles second by second; `look` says what every signal sees."""

    def __init__(self, network: Network, stages: Stages, reach_m: float = REACH_M) -> None:
        self._stages, self._reach = stages, reach_m
        self._ways = read_ways(network.net_file)
        self._vehicles: dict[str, _Vehicle] = {}
        self._ahead: dict[tuple[str, ...], _Ahead] = {}
        rows = [sorted({link.lane for link in links}) for links in network.links]
        self._row = {lane: row for lanes in rows for row, lane in enumerate(lanes)}
        self._lanes_of: dict[tuple[str, str], tuple[int, ...]] = {}
        for links in network.links:
            for link in links:
                before = self._lanes_of.get((link.edge, link.to_edge), ())
                self._lanes_of[link.edge, link.to_edge] = tuple(sorted({*before, self._row[link.lane]}))
        self._shape = len(rows), max(map(len, rows)), PLACES
        self._tail = {lane for turns in stages.turns for turn in turns for lane in self._ways.exits.get(turn, ())}

    def forget(self) -> None:
        """A new episode begins."""
        self._vehicles.clear()

    def look(
        self,
        vehicles: Iterable,
        pending: Iterable[str],
        gone: Iterable[str],
        route_of: Callable[[str], tuple[str, ...]],
    ) -> Seen:
        """Takes in one second.

        Args:
            vehicles: (name, (lane, position in m, speed in m/s)) of every vehicle in the network.
            pending: vehicles whose planned departure has passed and that could not enter yet.
            gone: vehicles that ended their trip in this second.
            route_of: the edges of a vehicle's route.
        """
        signals: list[list] = [[] for _ in range(self._shape[0])]
        tail: dict[str, float] = {}
        reach, watched = self._reach, self._tail
        for name in gone:
            self._vehicles.pop(name, None)
        for name, (lane, position, speed) in vehicles:
            vehicle = self._vehicles.get(name) or self._meet(name, route_of)
            if lane != vehicle.lane:
                self._drive(vehicle, lane)
            if speed < SLOW_MPS:
                if lane in watched and position < tail.get(lane, ROOMY * PLACE_M):
                    tail[lane] = position
                vehicle.wait += speed < HALTING_MPS
            if vehicle.signal >= 0:
                metres = vehicle.beyond_m - position
                if metres < reach:
                    signals[vehicle.signal].append((metres, vehicle.beyond_s - position / vehicle.speed, vehicle))
        for name in pending:
            vehicle = self._vehicles.get(name) or self._meet(name, route_of)
            if vehicle.lane is None:
                self._drive(vehicle, f"{vehicle.route[0]}_0")
            vehicle.wait += 1
            if vehicle.signal >= 0 and vehicle.beyond_m < reach:
                signals[vehicle.signal].append((vehicle.beyond_m, vehicle.beyond_s, vehicle))
        return self._seen(signals, tail)

    def _seen(self, signals: list[list], tail: dict[str, float]) -> Seen:
        _, rows, places = self._shape
        index, eta, waited, movement = [], [], [], []
        for signal, found in enumerate(signals):
            filled = [0] * rows
            for _, seconds, vehicle in sorted(found, key=_metres):
                row = vehicle.place
                if row < 0:
                    lanes = vehicle.lanes
                    row = lanes[0] if len(lanes) == 1 else min(lanes, key=filled.__getitem__)
                if filled[row] < places:
                    index.append((signal * rows + row) * places + filled[row])
                    eta.append(seconds)
                    waited.append(vehicle.wait)
                    movement.append(vehicle.movement)
                    filled[row] += 1
        flat = np.zeros((4, int(np.prod(self._shape))), np.float32)
        flat[:, index] = [eta, [1.0] * len(index), waited, movement]
        arrays = flat.reshape(4, *self._shape)
        arrives, count, since = (on_host(array) for array in arrays[:3])
        return Seen(arrives, count, since, on_host(arrays[3].astype(np.int32)), on_host(self._room(tail)))

    def _room(self, tail: dict[str, float]) -> np.ndarray:
        room = np.full(self._stages.tables.phase.shape, ROOMY, np.float32)
        if tail:
            for signal, turns in enumerate(self._stages.turns):
                for movement, turn in enumerate(turns):
                    lanes = self._ways.exits.get(turn, ())
                    if lanes:
                        metres = max(tail.get(lane, ROOMY * PLACE_M) for lane in lanes)
                        room[signal, movement] = int(metres / PLACE_M) if metres < ROOMY * PLACE_M else ROOMY
        return room

    def _meet(self, name: str, route_of: Callable[[str], tuple[str, ...]]) -> _Vehicle:
        self._vehicles[name] = vehicle = _Vehicle(tuple(route_of(name)))
        return vehicle

    def _drive(self, vehicle: _Vehicle, lane: str) -> None:
        """A vehicle changes to another lane, perhaps of another edge."""
        vehicle.lane = lane
        edge = lane.rpartition("_")[0]
        inside = 0.0
        if edge.startswith(":"):
            step, inside = vehicle.step + 1, self._ways.length.get(edge, 0.0)
        elif edge in vehicle.route[vehicle.step :]:
            step = vehicle.step = vehicle.route.index(edge, vehicle.step)
        else:
            step = len(vehicle.route)  # SUMO carries it by force, or it left its route
        way = vehicle.route[step : step + EDGES]
        ahead = self._ahead.get(way) or self._look_ahead(way)
        if (ahead.signal, ahead.movement) != (vehicle.signal, vehicle.movement):
            vehicle.wait, vehicle.signal, vehicle.movement = 0, ahead.signal, ahead.movement
        vehicle.lanes = ahead.lanes
        vehicle.speed = self._ways.speed.get(edge, 1.0)
        vehicle.beyond_m = ahead.metres + inside
        vehicle.beyond_s = ahead.seconds + inside / vehicle.speed
        row = self._row.get(lane, -1)
        vehicle.place = row if row in ahead.lanes and edge == ahead.stop_edge else -1

    def _look_ahead(self, way: tuple[str, ...]) -> "_Ahead":
        """The first signal on a way, and how far its stop line is from the way's beginning."""
        metres = seconds = 0.0
        found = _Ahead(-1, -1, 0.0, 0.0, (), "")
        for edge, after in itertools.pairwise(way):
            metres += self._ways.length[edge]
            seconds += self._ways.length[edge] / self._ways.speed[edge]
            if (edge, after) in self._stages.movement_of:
                place = self._stages.movement_of[edge, after]
                found = _Ahead(*place, metres, seconds, self._lanes_of[edge, after], edge)
                break
            inside = self._ways.inside.get((edge, after), 0.0)
            metres, seconds = metres + inside, seconds + inside / self._ways.speed[edge]
        self._ahead[way] = found
        return found


def read_ways(net_file: Path) -> Ways:
    """Reads lengths, speeds and the ways through junctions."""
    net = sumolib.net.readNet(str(net_file), withInternal=True)
    edges = net.getEdges(withInternal=True)
    inside, exits = {}, {}
    for edge in edges:
        for target, connections in edge.getOutgoing().items():
            turn = edge.getID(), target.getID()
            exits[turn] = tuple(sorted({one.getToLane().getID() for one in connections}))
            via = [one.getViaLaneID() for one in connections if one.getViaLaneID()]
            inside[turn] = net.getLane(via[0]).getLength() if via else 0.0
    length = {edge.getID(): edge.getLength() for edge in edges}
    return Ways(length, {edge.getID(): edge.getSpeed() for edge in edges}, inside, exits)


def _metres(found: tuple) -> float:
    return found[0]
