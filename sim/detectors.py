"""Follows every vehicle second by second: what detectors see, and what a control step measured.

The measurements behind the constraints of Section 4.3. A vehicle waits while it halts (below 0.1 m/s) on its present
approach; creeping forward does not forget, driving into the next link does. A vehicle that cannot enter the network yet
waits from its planned departure, at the intersection that it will meet first.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from sim.nema import Detectors
from sim.network import Network
from stream_jax.task import PHASES
from stream_jax.types import RoadMeasurement, on_host

HALTING_MPS = 0.1
ZONE_M = 40.0  # how far before the stop line a detector reaches
WINDOW_S = 900  # over which the served share is taken


class VehicleSeen(NamedTuple):
    """Where one vehicle is at the end of a second."""

    lane: str  # "" while SUMO carries it by force
    position_m: float
    speed_mps: float


class _Vehicle:
    """What is remembered of a vehicle while it is planned or on the road."""

    __slots__ = ("approach", "cell", "cells", "crosses", "is_new", "lane", "movement", "signal", "wait", "zone")

    def __init__(self, nowhere: "_Vehicle | None", is_new: bool) -> None:
        self.lane: str | None = None
        self.is_new = is_new
        self.wait = 0
        if nowhere is not None:
            self.leave(nowhere)

    def leave(self, nowhere: "_Vehicle") -> None:
        self.approach, self.signal, self.cell = nowhere.approach, nowhere.signal, nowhere.cell
        self.cells: tuple[int, ...] = ()
        self.movement: tuple[int, ...] = ()
        self.zone, self.crosses = np.inf, False


class Totals(NamedTuple):
    """Sums since the end of the warm-up."""

    vehicles: int  # whose planned departure lies after the warm-up
    vehicle_seconds: int  # that those spent, waiting to enter included, whether they finished or not
    finished: int  # trips that ended, also of vehicles that were there before
    teleports: int
    queue: float  # mean halting vehicles per intersection
    longest_wait: float  # s


class Tracker:
    """Turns one reading of all vehicles a second into detectors and measurements."""

    def __init__(self, network: Network, control_s: int, route_of: Callable[[str], tuple[str, ...]]) -> None:
        self._network = network
        self._route_of = route_of
        self._num_signals = len(network.ids)
        self._num_cells = self._num_signals * PHASES
        self._nowhere = self._outside()
        self._vehicles: dict[str, _Vehicle] = {}
        self._lane_cells = _lane_cells(network)
        self._default_cell = _default_cells(network)
        self._feeds = _feeds_matrix(network)
        self._window: deque = deque(maxlen=max(WINDOW_S // control_s, 1))
        self._is_counting = self._has_met = False
        self._clear_step()
        self._clear_totals()

    @property
    def has_met(self) -> bool:
        """Whether any vehicle was ever seen, waiting ones included."""
        return self._has_met

    def begin_totals(self) -> None:
        """Marks the end of the warm-up."""
        self._is_counting = True
        self._clear_totals()

    def second(
        self,
        seen: Iterable[tuple[str, VehicleSeen]],
        waiting: Iterable[str],
        gone: Iterable[str],
        forced: Iterable[str],
    ) -> Detectors:
        """Takes in one second.

        Args:
            seen: every vehicle in the network.
            waiting: vehicles whose planned departure has passed and that could not enter yet.
            gone: vehicles that ended their trip in this second.
            forced: vehicles that SUMO began to move by force in this second.
        """
        for name in forced:
            self._teleports += 1
            if name in self._vehicles:
                self._vehicles[name].leave(self._nowhere)  # it leaves without crossing the stop line
        for name in gone:
            self._finish(name)
        queue, present = [0] * (self._num_cells + 1), [0] * (self._num_cells + 1)
        links = [0] * (len(self._network.stop_edges) + 1)
        occupied = [False] * self._num_cells
        front = [0] * self._num_cells
        self._watch(seen, queue, present, links, occupied, front)
        self._watch_waiting(waiting, queue, present, links)
        return self._detectors(queue, present, links, occupied, front)

    def measure(self) -> RoadMeasurement:
        """What happened since the last call, as one control step."""
        served, arrived = np.array(self._served[:-1], np.float32), np.array(self._arrived[:-1], np.float32)
        self._window.append((served, arrived))
        queue = (self._queue / max(self._seconds, 1)).reshape(self._num_signals, PHASES)
        measured = RoadMeasurement(
            queue=on_host(queue.astype(np.float32)),
            wait=on_host(np.array(self._wait[:-1], np.float32)),
            served=on_host(served),
            arrived=on_host(arrived),
            served_window=on_host(np.sum([step[0] for step in self._window], axis=0)),
            arrived_window=on_host(np.sum([step[1] for step in self._window], axis=0)),
            travel_time=on_host(np.float32(self._travel_time)),
            finished=on_host(np.float32(self._finished)),
            teleports=on_host(np.float32(self._teleports)),
        )
        self._add_totals()
        self._clear_step()
        return measured

    def totals(self) -> Totals:
        """Sums of the control steps measured since `begin_totals`."""
        mean_queue = self._total_queue / max(self._total_seconds, 1) / self._num_signals
        return Totals(
            self._total_vehicles,
            self._total_vehicle_seconds,
            self._total_finished,
            self._total_teleports,
            mean_queue,
            self._total_wait,
        )

    def _watch(self, seen: Iterable, queue: list, present: list, links: list, occupied: list, front: list) -> None:
        """The loop over all vehicles: kept flat, it is the host's share of every simulated second."""
        vehicles, longest = self._vehicles, self._wait
        total = new = 0
        for name, (lane, position, speed) in seen:
            vehicle = vehicles.get(name) or self._meet(name)
            total += 1
            new += vehicle.is_new
            if lane != vehicle.lane:
                self._drive(vehicle, name, lane)
            present[vehicle.cell] += 1
            if speed < HALTING_MPS:
                vehicle.wait += 1
                queue[vehicle.cell] += 1
                links[vehicle.approach] += 1
            wait = vehicle.wait
            if wait > longest[vehicle.signal]:
                longest[vehicle.signal] = wait
            if position >= vehicle.zone:
                for cell in vehicle.cells:
                    occupied[cell] = True
                    if wait > front[cell]:
                        front[cell] = wait
        self._travel_time += total
        self._new_vehicle_seconds += new

    def _watch_waiting(self, waiting: Iterable[str], queue: list, present: list, links: list) -> None:
        for name in waiting:
            vehicle = self._vehicles.get(name) or self._meet(name)
            if vehicle.lane is None:
                self._drive(vehicle, name, f"{self._route_of(name)[0]}_0")
            vehicle.wait += 1
            queue[vehicle.cell] += 1
            present[vehicle.cell] += 1
            links[vehicle.approach] += 1
            self._wait[vehicle.signal] = max(self._wait[vehicle.signal], vehicle.wait)
            self._travel_time += 1
            self._new_vehicle_seconds += vehicle.is_new

    def _meet(self, name: str) -> _Vehicle:
        self._has_met = True
        self._vehicles[name] = vehicle = _Vehicle(self._nowhere, self._is_counting)
        self._new_vehicles += self._is_counting
        return vehicle

    def _finish(self, name: str) -> None:
        self._finished += 1
        vehicle = self._vehicles.pop(name, None)
        if vehicle is not None and vehicle.crosses:  # it crossed and ended within the second
            self._served[vehicle.signal] += 1

    def _drive(self, vehicle: _Vehicle, name: str, lane: str) -> None:
        """A vehicle changes to another lane, perhaps of another approach."""
        vehicle.lane = lane
        approach = self._network.approach_of.get(lane.rpartition("_")[0], -1)
        if approach != vehicle.approach:
            self._served[vehicle.signal] += vehicle.crosses
            vehicle.wait = 0
            vehicle.leave(self._nowhere)
            if approach >= 0:
                self._approach(vehicle, name, approach)
        vehicle.zone = self._network.stop_distance.get(lane, np.inf) - ZONE_M
        # Upstream of the stop-line lanes, where those are shorter than the detector, the route says the phase.
        vehicle.cells = self._lane_cells.get(lane, vehicle.movement)

    def _approach(self, vehicle: _Vehicle, name: str, approach: int) -> None:
        """A vehicle comes to an intersection; one that ends its trip before the stop line is no arrival there."""
        signal = int(self._network.approach_signal[approach])
        stop, route = self._network.stop_edges[approach], self._route_of(name)
        after = route.index(stop) + 1 if stop in route else len(route)
        vehicle.approach, vehicle.signal = approach, signal
        vehicle.cell, vehicle.crosses = self._default_cell[approach], after < len(route)
        if vehicle.crosses:
            self._arrived[signal] += 1
            phases = self._network.phases_of.get((stop, route[after]), ())
            vehicle.movement = tuple(signal * PHASES + phase for phase in phases)
            vehicle.cell = vehicle.movement[0] if phases else vehicle.cell

    def _detectors(self, queue: list, present: list, links: list, occupied: list, front: list) -> Detectors:
        shape = (self._num_signals, PHASES)
        halting = np.array(queue[:-1], float)
        self._queue += halting
        self._seconds += 1
        return Detectors(
            occupied=np.array(occupied).reshape(shape),
            front_wait=np.array(front, float).reshape(shape),
            queue=halting.reshape(shape),
            downstream=(self._feeds @ np.array(links[:-1], float)).reshape(shape),
            present=np.array(present[:-1], float).reshape(shape),
        )

    def _outside(self) -> _Vehicle:
        """Stands for every place that is on no approach; its indices are the last, unread ones."""
        nowhere = _Vehicle(None, False)
        nowhere.approach, nowhere.signal, nowhere.cell = -1, self._num_signals, self._num_cells
        return nowhere

    def _clear_step(self) -> None:
        self._served, self._arrived, self._wait = ([0] * (self._num_signals + 1) for _ in range(3))
        self._queue = np.zeros(self._num_cells)
        self._seconds = self._travel_time = self._finished = self._teleports = 0
        self._new_vehicles = self._new_vehicle_seconds = 0

    def _clear_totals(self) -> None:
        self._total_vehicles = self._total_vehicle_seconds = self._total_finished = self._total_teleports = 0
        self._total_seconds = 0
        self._total_queue = self._total_wait = 0.0

    def _add_totals(self) -> None:
        self._total_vehicles += self._new_vehicles
        self._total_vehicle_seconds += self._new_vehicle_seconds
        self._total_finished += self._finished
        self._total_teleports += self._teleports
        self._total_seconds += self._seconds
        self._total_queue += float(self._queue.sum())
        self._total_wait = max(self._total_wait, *self._wait[:-1])


def no_detectors(num_signals: int) -> Detectors:
    """An empty road."""
    zeros = np.zeros((num_signals, PHASES))
    return Detectors(zeros.astype(bool), zeros, zeros, zeros, zeros)


def _lane_cells(network: Network) -> dict[str, tuple[int, ...]]:
    """Lane at a stop line -> the cells (signal times phase) that its detector reports to."""
    cells: dict[str, tuple[int, ...]] = {}
    for signal, phases in enumerate(network.phase_lanes):
        for phase, lanes in enumerate(phases):
            for lane in lanes:
                cells[lane] = (*cells.get(lane, ()), signal * PHASES + phase)
    return cells


def _default_cells(network: Network) -> list[int]:
    """[A] the cell of vehicles whose movement is not known: the first of the approach's outermost lane that has one."""
    cells = _lane_cells(network)
    first = {lane.rpartition("_")[0]: cells[lane][0] for lane in sorted(cells, reverse=True)}
    return [first.get(edge, len(network.ids) * PHASES) for edge in network.stop_edges]


def _feeds_matrix(network: Network) -> np.ndarray:
    """[I * 8, A] 1 where the phase's vehicles drive into the approach."""
    matrix = np.zeros((len(network.ids) * PHASES, len(network.stop_edges)))
    for signal, phases in enumerate(network.feeds):
        for phase, approaches in enumerate(phases):
            matrix[signal * PHASES + phase, list(approaches)] = 1.0
    return matrix
