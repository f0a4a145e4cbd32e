"""What a compiled road consists of: its constants, its drivers, the trips of an hour, and its state.

A lane here is a queue: the vehicles that will cross one stop line of a signal on one lane, in order of arrival, from
the stop line of the signal before it on. Axes: C places of a lane with time first, L = I * lanes of a signal, lanes;
Q = I * M, movements; P hops, the stop lines that routes cross, one route after the other; O origins; N trips.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax.road.controller import LookaheadConfig, advance, start
from stream_jax.road.tables import Seen, Tables

NEVER = 1e9  # the second at which an empty place is ready
STRAIGHT, RIGHT, LEFT = 0, 1, 2
MOVES = 64  # a vehicle is its hop times this, plus its movement at the signal: one number instead of two


@dataclasses.dataclass(frozen=True)
class WorldConfig:
    """How a road is lived through; what is fitted is in `Drivers`."""

    control_s: int = 60  # length of a control step
    places: tuple[int, ...] = (1, 2, 4, 8, 9)  # vehicles in each place that a signal sees of a lane
    reach_s: float = 29.0  # a signal sees vehicles that could reach it so soon: 400 m at 50 km/h
    window: int = 15  # control steps over which the served share is taken
    teleport_s: int = 300  # a vehicle that stood at the front so long is let through by force
    leaving_s: int = 240  # longest way behind the last signal, in whole control steps


class Road(NamedTuple):
    """Constants of a network and the routes through it."""

    tables: Tables
    base: Array  # [L] int32 the first movement of the lane's signal among all Q
    phase: Array  # [L] int32 of the eight, whose queue the lane's counts for
    pocket: Array  # [L] int32 vehicles that fit between the stop line and where the lane begins
    behind: Array  # [L] int32 vehicles that fit upstream of that, on the lane that it begins from
    pocket_s: Array  # [L] s from there to the stop line
    siblings: Array  # [L, B] int32 lanes that begin from the same lane upstream; L: none
    candidates: Array  # [Q, K] int32 lanes that serve the movement; L: none
    exits: Array  # [Q, E] int32 lanes that begin behind the movement; L: none
    conflicts: Array  # [I, M, M] bool: the first crosses the second's way
    turn: Array  # [I, M] int32 STRAIGHT, RIGHT or LEFT
    hop_movement: Array  # [P] int32 among all Q
    hop_travel: Array  # [P] s from the stop line before, or from the trip's start, at the speed limits
    hop_is_last: Array  # [P] bool
    hop_tail: Array  # [P] s from a last stop line to the trip's end
    origin_signal: Array  # [O] int32 signal that trips from there meet first

    @property
    def lanes(self) -> int:
        """L."""
        return self.base.shape[0]

    @property
    def places(self) -> int:
        """C."""
        return int(np.max(self.pocket + self.behind)) + 2

    @property
    def origins(self) -> int:
        """O."""
        return self.origin_signal.shape[0]


class Drivers(NamedTuple):
    """What is fitted to SUMO: how vehicles drive."""

    headway_s: Array  # [3] between vehicles of a queue that go straight, right and left
    startup_s: Array  # [] lost when a queue gets green
    yellow_s: Array  # [] of yellow during which vehicles still cross
    time_factor: Array  # [] on travel times at the speed limits
    time_spread: Array  # [] standard deviation of a vehicle's travel time, relative
    wave_s: Array  # [] from one vehicle of a queue to the next, until it begins to move
    hole_s: Array  # [] the same, until the place that one left is free at the lane's beginning
    gap_s: Array  # [] that one who yields wants before the next vehicle
    kerb: Array  # [] vehicles by which the lane at the kerb is thought longer than it is
    late_s: Array  # [] by which a vehicle that had to wait reaches the next stop line later


class Hour(NamedTuple):
    """Who departs when, and which lanes are closed."""

    depart: Array  # [N] s, in order within each origin
    hop: Array  # [N] int32 the trip's first hop
    first: Array  # [O + 1] int32 the first trip of each origin
    closed: Array  # [X] int32 lane; L: none
    closed_from: Array  # [X] s
    closed_to: Array  # [X] s


class Lanes(NamedTuple):
    """The vehicles, each in its place."""

    ready: Array  # [C, L] s at which it would cross without any queue, NEVER where the place is empty
    vehicle: Array  # [C, L] int32 hop * MOVES + movement
    wait: Array  # [C, L] s that it has halted on this approach


class RoadState(NamedTuple):
    """Everything that changes."""

    now: Array  # [] s
    lanes: Lanes
    entered: Array  # [L] vehicles so far
    left: Array  # [L]
    left_at: Array  # [control_s, L] `left` at each second of the last minute
    free: Array  # [L] s at which the stop line is free again
    front: Array  # [L] vehicles of the queue that began to move since it got green
    stop: Array  # [L] of those, how many have stopped again
    moves: Array  # [L] bool: the queue had a way out in the last second
    inside: Array  # [L] bool: one who yields waits inside the junction, where there is room for him alone
    stuck: Array  # [L] s that the first vehicle has halted
    yellow: Array  # [I, M] s of yellow
    inserted: Array  # [O] trips that entered the road
    due: Array  # [O] trips whose departure has passed
    leaving: Array  # [leaving_s] vehicles that end their trips at each second from the control step's start on
    finished: Array  # []
    teleports: Array  # []
    delay: Array  # [] s lost so far at stop lines and before entering, by those who are through: differentiable
    window: Array  # [2, window, I] served and arrived of the last control steps
    signal: Any  # the controller's own
    hour: Hour


class Controller(NamedTuple):
    """What decides the signals; its state has the fields stage, colour and timer of `LookaheadState`."""

    start: Callable[[Tables], Any]
    advance: Callable[[Any, Seen, Array, Tables], tuple[Any, Array]]


def lookahead(cfg: LookaheadConfig | None = None) -> Controller:
    """The controller that drives SUMO, unchanged."""
    cfg = cfg or LookaheadConfig()
    return Controller(start, lambda state, seen, action, tables: advance(state, seen, action, tables, cfg))


def usual_drivers() -> Drivers:
    """Where fitting begins: textbook values."""
    values = (1.9, 2.1, 2.0), 1.5, 1.5, 1.05, 0.08, 1.1, 1.2, 4.0, 0.3, 2.0
    return Drivers(*(jnp.asarray(value, jnp.float32) for value in values))
