"""Units in which the neural rivals see a recording, learned from the training part alone, and weights of its graph."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting.profile import EPS, TARGET, WindowConfig, targets
from stream_jax.types import ForecastData, RoadGraph, TrafficSeries

SPREAD_FLOOR = 0.05  # smallest spread of a cell, as a share of all cells'


class Scale(NamedTuple):
    """Units learned from the training part only."""

    mean: Array  # [F]
    std: Array  # [F]
    spread: Array  # [N] standard deviation of each cell's flow, in units of std
    change: Array  # [] root mean square change of the flow over a forecast, in units of std


def fit_scale(data: ForecastData, cfg: WindowConfig) -> Scale:
    """Means and deviations of what the training part observed; a feature that never varies keeps its unit."""
    series, step = data.series, jnp.arange(data.series.slot.shape[0])
    in_train = (step >= data.train.min() - cfg.history + 1) & (step <= data.train.max() + cfg.horizon)
    weight = series.observed & in_train[:, None, None]
    mean = _mean(series.values, weight, (0, 1))
    std = jnp.sqrt(_mean((series.values - mean) ** 2, weight, (0, 1)))
    std = jnp.where(std > 0, std, 1.0)
    flow, seen = series.values[..., TARGET] / std[TARGET], weight[..., TARGET]
    variance = _mean((flow - _mean(flow, seen, 0)) ** 2, seen, 0)  # [N]
    typical = jnp.where(jnp.any(variance > 0), jnp.sqrt(variance.mean()), 1.0)
    target, mask = targets(series, data.train, cfg.horizon)
    change = target - series.values[data.train][:, None, :, TARGET]
    known = mask & series.observed[data.train][:, None, :, TARGET]
    moved = jnp.sqrt(_mean(change**2, known, (0, 1, 2))) / std[TARGET]
    return Scale(mean, std, jnp.maximum(jnp.sqrt(variance), SPREAD_FLOOR * typical), jnp.where(moved > 0, moved, 1.0))


def z_scores(series: TrafficSeries, scale: Scale) -> Array:
    """The recording in units of the training part, [L, N, F]; 0 where not observed."""
    return jnp.where(series.observed, (series.values - scale.mean) / scale.std, 0.0)


def adjacency(graph: RoadGraph) -> Array:
    """Weights [N, N] from sender (row) to receiver: exp(-(d / typical d)^2) of each edge's distance, 1 on the diagonal.

    The kernel of DCRNN, which the graph networks were published with, but with the edges' root mean square distance
    instead of their standard deviation: on a grid all edges are about as long.
    """
    distance = graph.edge_features[:, 0]
    is_self = graph.senders == graph.receivers
    square = jnp.sum(jnp.where(is_self, 0.0, distance**2)) / jnp.maximum(jnp.sum(~is_self), 1)
    weight = jnp.where(is_self, 1.0, jnp.exp(-(distance**2) / jnp.maximum(square, EPS)))
    num_nodes = graph.position.shape[0]
    return jnp.zeros((num_nodes, num_nodes)).at[graph.senders, graph.receivers].set(weight)


def _mean(values: Array, weight: Array, axes: int | tuple[int, ...]) -> Array:
    return jnp.where(weight, values, 0.0).sum(axes) / jnp.maximum(weight.sum(axes), 1)
