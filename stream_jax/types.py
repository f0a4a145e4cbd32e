"""Every pytree that crosses a room; imports nothing of ours.

Axes: S seeds, B batch, T history, H horizon, N cells, E edges, F features, C clusters.
"""

from typing import NamedTuple

from jax import Array


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


class TrafficWindow(NamedTuple):
    """A batch of forecasting examples."""

    history: Array  # [B, T, N, F] physical units
    observed: Array  # [B, T, N, F] bool
    target: Array  # [B, H, N], or [B, H, N, G] with G > 1 target features
    mask: Array  # like target, bool: True where the target was observed
    clock: Array  # [B, T + H, 4] calendar of history and horizon (known in advance)


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
