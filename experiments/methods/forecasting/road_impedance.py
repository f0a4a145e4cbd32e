"""How hard each cell is to enter, from its flow and its capacity, and how that differs between neighbours.

Eqs. (4), (5) and (8) of the RIPCN paper (arXiv 2512.21685); what was assumed is said in `ripcn.py`.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting.neural import NeuralConfig
from experiments.methods.forecasting.profile import TARGET, flow_of, newest_training_step
from experiments.methods.forecasting.scale import fit_scale
from stream_jax.types import ForecastData

MOST_CONGESTED = 2.0  # flow over capacity; the fourth power of more would be noise


@dataclasses.dataclass(frozen=True)
class ImpedanceConfig(NeuralConfig):
    """The Bureau of Public Roads' numbers, alpha and beta of Eq. (2)."""

    congestion: float = 0.15
    power: float = 4.0


class Roads(NamedTuple):
    """What the network knows of the graph and of each cell, from the training part."""

    along: Array  # [N, N] row = receiver: the mean over the senders of its edges
    against: Array  # [N, N] row = sender: the mean over the receivers
    capacity: Array  # [N]
    variation: Array  # [N] standard deviation of the flow over its mean
    unit: tuple[Array, Array]  # mean and standard deviation of a flow, of all cells
    typical: tuple[Array, Array]  # the same of an impedance


def read_roads(data: ForecastData, cfg: ImpedanceConfig) -> Roads:
    """Everything from the training part alone."""
    num_cells = data.graph.position.shape[0]
    joined = jnp.zeros((num_cells, num_cells)).at[data.graph.receivers, data.graph.senders].set(1.0)
    joined = joined * (1.0 - jnp.eye(num_cells))
    along, against = (one / jnp.maximum(one.sum(axis=1, keepdims=True), 1.0) for one in (joined, joined.T))
    flow, seen = flow_of(data.series)
    seen = seen * (jnp.arange(len(flow)) <= newest_training_step(data, cfg.horizon))[:, None]
    count = jnp.maximum(seen.sum(axis=0), 1.0)
    mean = (flow * seen).sum(axis=0) / count
    deviation = jnp.sqrt((seen * (flow - mean) ** 2).sum(axis=0) / count)
    capacity = jnp.where(mean > 0, (flow * seen).max(axis=0), 1.0)
    variation = deviation / jnp.where(mean > 0, mean, 1.0)
    scale = fit_scale(data, cfg)
    hard = _impedance(flow, capacity, variation, cfg)
    centre = (hard * seen).sum() / jnp.maximum(seen.sum(), 1.0)
    spread = jnp.sqrt((seen * (hard - centre) ** 2).sum() / jnp.maximum(seen.sum(), 1.0))
    typical = (centre, jnp.where(spread > 0, spread, 1.0))
    return Roads(along, against, capacity, variation, (scale.mean[TARGET], scale.std[TARGET]), typical)


def impedance(flow: Array, roads: Roads, cfg: ImpedanceConfig) -> Array:
    """Eq. (4) with a free-flow time of 1, in z-scores: flows [..., N] to as many impedances."""
    return (_impedance(flow, roads.capacity, roads.variation, cfg) - roads.typical[0]) / roads.typical[1]


def gather(nodes: Array, hard: Array, walk: Array) -> tuple[Array, Array]:
    """What neighbours show, and the same weighted by how much harder they are than the cell itself, Eq. (8).

    sum_m A_nm (r_m - r_n) h_m = (A (r h))_n - r_n (A h)_n needs no graph of its own for every step.

    Args: nodes [N, ..., C]; hard [N, ...]; walk [N, N].
    """
    both = jnp.concatenate([nodes, hard[..., None] * nodes], axis=-1)
    around, pushed = jnp.split(jnp.einsum("nm,m...->n...", walk, both), 2, axis=-1)
    return around, pushed - hard[..., None] * around


def _impedance(flow: Array, capacity: Array, variation: Array, cfg: ImpedanceConfig) -> Array:
    load = jnp.clip(flow / capacity, 0.0, MOST_CONGESTED)
    return (1.0 + cfg.congestion * load**cfg.power) * (1.0 + variation)
