"""Dynamically tuned adaptive conformal inference: many step sizes, weighed by how well each has done.

Not in the paper; Gibbs and Candès (2022), with losses and errors averaged over the cells of a cluster.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.conformal.order_statistics import cluster_mean

STEP_SIZES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
MEMORY = 500  # steps over which the weights are tuned to follow the best step size
MIXING = 1.0 / (2 * MEMORY)  # share of the weight spread evenly again at each step


def init_experts(target: float, num_clusters: int, horizon: int) -> tuple[Array, Array]:
    """Every step size starts at the target level with equal weight: [J, C, H] each."""
    shape = (len(STEP_SIZES), num_clusters, horizon)
    return jnp.full(shape, target, jnp.float32), jnp.full(shape, 1.0 / len(STEP_SIZES), jnp.float32)


def update_experts(
    level: Array, weight: Array, p_value: Array, mask: Array, cluster: Array, target: float
) -> tuple[Array, Array]:
    """Moves each expert's level by its own error and its weight by its own pinball loss.

    Args:
        level: [J, C, H] one level per step size.
        weight: [J, C, H] summing to 1 over J.
        p_value: [H, N] largest level at which the arrived label would have been covered.
        mask: [H, N] where a label arrived.
        cluster: [N] cluster of each cell.
        target: miscoverage aimed at.
    """
    num_clusters = level.shape[1]
    at_cell = level[:, cluster].transpose(0, 2, 1)  # [J, H, N]
    excess = p_value - at_cell
    pinball = target * excess - jnp.minimum(excess, 0.0)
    missed = (excess <= 0.0).astype(jnp.float32)
    mean = jax.vmap(lambda values: cluster_mean(values, mask, cluster, num_clusters)[0])
    _, arrived = cluster_mean(missed[0], mask, cluster, num_clusters)  # [C, H]

    tilted = weight * jnp.exp(-_learning_rate(target) * mean(pinball))
    tilted = tilted / tilted.sum(axis=0)
    mixed = (1.0 - MIXING) * tilted + MIXING / len(STEP_SIZES)
    step_size = jnp.asarray(STEP_SIZES, jnp.float32)[:, None, None]
    moved = level + step_size * (target - mean(missed))
    return jnp.where(arrived, moved, level), jnp.where(arrived, mixed, weight)


def _learning_rate(target: float) -> float:
    """sqrt((log(J * MEMORY) + 2) / (MEMORY * E loss^2)), the expectation for a uniform p-value."""
    mean_square = (target**3 * (1.0 - target) ** 2 + target**2 * (1.0 - target) ** 3) / 3.0
    return math.sqrt((math.log(len(STEP_SIZES) * MEMORY) + 2.0) / (MEMORY * mean_square))
