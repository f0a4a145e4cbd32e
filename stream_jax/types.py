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


class ConformalState(NamedTuple):
    """What conformal calibration carries from step to step."""

    cluster: Array  # [N] int32 cluster of each cell
    scores: Array  # [C, H, M] calibration scores, padded with +inf where a cluster has fewer
    count: Array  # [C, H] int32, how many of the M scores are real
    level: Array  # [C, H] miscoverage level, adapted online, unclipped
    radius: Array  # [C, H] current radius in units of sigma


class Interval(NamedTuple):
    """A prediction interval in physical units."""

    lower: Array  # [B, H, N]
    upper: Array  # [B, H, N]
