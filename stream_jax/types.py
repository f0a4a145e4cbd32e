"""Every pytree that crosses a room; imports nothing of ours.

Axes: S seeds, B batch, T history, H horizon, N cells, E edges, F features, C clusters, I intersections, K ensemble.
"""

from typing import NamedTuple, cast

import numpy as np
from jax import Array


def on_host(array: np.ndarray | np.generic) -> Array:
    """A numpy array, unchanged, as a field of a pytree: compiled functions take it like one on the device."""
    return cast(Array, array)


class RoadGraph(NamedTuple):
    """Cells as nodes; an edge says that what happens at its sender may matter at its receiver."""

    senders: Array  # [E] int32
    receivers: Array  # [E] int32, sorted; every node has a self-loop
    edge_features: Array  # [E, 3] distance in km, share of the receiver's observed entries, 1 if spatial neighbour
    position: Array  # [N, 2] cell centre, metres east and north of the city box's corner


class TrafficSeries(NamedTuple):
    """A whole recording, small enough for the device; windows are gathered from it by index."""

    values: Array  # [L, N, F] float32 in physical units; 0 where not observed
    observed: Array  # [L, N, F] bool, tells missing from zero
    clock: Array  # [L, 4] sin and cos of the local time of day, then of the local day of week
    slot: Array  # [L] int32, local quarter hour of the week, 0 = Monday 00:00 (times steps_per_day / 96)


class ForecastData(NamedTuple):
    """A recording, its graph and the forecast origins to learn from.

    A window around an origin (its history, ending at the origin, and its targets, beginning one step later) lies
    inside one part of the chronological split.
    """

    series: TrafficSeries  # the whole recording
    graph: RoadGraph
    train: Array  # [W] int32 origins: index of the last history step of each training window
    val: Array  # [W] int32, for early stopping


class Forecast(NamedTuple):
    """Predicted mean and standard deviation in physical units."""

    mean: Array  # [B, H, N], or [B, H, N, G] with several target features
    sigma: Array  # like mean, > 0


class Interval(NamedTuple):
    """A prediction interval in physical units; the whole half-line has upper = inf, the empty set has lower > upper."""

    lower: Array  # [..., H, N], >= 0
    upper: Array  # [..., H, N], >= 0


class ConformalState(NamedTuple):
    """What conformal calibration carries from step to step; C is the configured number of clusters."""

    cluster: Array  # [N] int32 cluster of each cell, in [0, C)
    scores: Array  # [R, H, N] ring of arrived scores |y - mean| / sigma, +inf where there is none
    cursor: Array  # [] int32, the ring's oldest row, overwritten next
    level: Array  # [C, H] miscoverage level, adapted online, unclipped
    radius: Array  # [C, H] current radius in units of sigma; +inf whole line, -inf empty set
    expert_level: Array  # [J, C, H] levels of the J step sizes that DtACI weighs; J = 0 otherwise
    expert_weight: Array  # [J, C, H] their weights, summing to 1 over J
    pending_forecast: Forecast  # [H, H, N] row d was issued d + 1 origins ago; sigma = +inf where none was
    pending_interval: Interval  # [H, H, N] the intervals issued with it


class Detection(NamedTuple):
    """Which cells are anomalous; a cell that was not tested has score 0, p-value 1 and is not rejected."""

    score: Array  # [..., N] larger is more anomalous
    p_value: Array  # [..., N] in (0, 1]
    rejected: Array  # [..., N] bool, chosen among the N cells of a step at a controlled false-discovery rate


class RoadMeasurement(NamedTuple):
    """What the road showed during one control step; a vehicle counts at the intersection that it will meet next."""

    queue: Array  # [I, 8] mean number of halting vehicles of each NEMA phase, upstream and not yet inserted ones too
    wait: Array  # [I] longest waiting time of any vehicle during the step, s
    served: Array  # [I] vehicles that crossed the stop line during the step
    arrived: Array  # [I] vehicles that came to the intersection's approaches during the step, inserted or waiting to be
    served_window: Array  # [I] the same over the last 15 min, or since the start
    arrived_window: Array  # [I]
    travel_time: Array  # [] vehicle-seconds spent in the network during the step, waiting to enter included
    finished: Array  # [] trips that ended during the step
    teleports: Array  # [] vehicles that SUMO moved by force during the step


class CityView(NamedTuple):
    """What the forecast and the detection say about each intersection's surroundings."""

    mean: Array  # [I, H] forecast flow of the coverage area, relative to the intersection's usual flow
    sigma: Array  # [I, H] its calibrated standard deviation, in the same unit
    p_value: Array  # [I] in (0, 1]
    anomalous: Array  # [I] 1.0 where a cell of the area was rejected, else 0.0


class RLState(NamedTuple):
    """The augmented state of the controller, in normalised units."""

    local: Array  # [I, 10] queues of the 8 phases, longest wait, served ratio: the physical part x
    mean: Array  # [I, H]
    sigma: Array  # [I, H]
    p_value: Array  # [I]
    anomalous: Array  # [I]
    plan: Array  # [I, A] the action in force
    clock: Array  # [5] sin and cos of time of day and day of week, share of the forecast step that is over


class Certificate(NamedTuple):
    """The decrease condition at one step: L(mu) + margin - L(x) <= -kappa d_C + delta."""

    value: Array  # [] L(x)
    decrease: Array  # [] L(x) - L(mu), predicted
    margin: Array  # []
    violation: Array  # [] d_C(x)
    excess: Array  # [] by how much the condition fails, 0 when it holds
    certified: Array  # [] bool
    source: Array  # [] int32: 0 policy, 1 projected, 2 previous, 3 default plan, 4 longest queue, 5 least excess


class Transition(NamedTuple):
    """One control step as the learner keeps it."""

    state: RLState
    action: Array  # [I, A] executed
    proposed: Array  # [I, A] before the filter
    reward: Array  # []
    cost: Array  # [C] relative violations, in the order of `Limits`
    next_state: RLState
    discount: Array  # [] 0 at the end of an episode
