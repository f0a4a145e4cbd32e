"""Splits a history window into trend and residual without reading the future, and fuses the two forecasts.

Section 4.1, "Dual-Stream Temporal Decomposition", Eqs. (trend), (residual) and (combined_unc). The paper's moving
average is centred and would read the targets; here it looks back only.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array

MAX_CORRELATION = 0.95  # at -1 two equal sigmas would cancel and the likelihood would have no bound


class Streams(NamedTuple):
    """Two parts that sum to the window."""

    trend: Array  # [T, ...]
    residual: Array  # [T, ...]


def causal_trend(window: Array, logits: Array) -> Streams:
    """Moving average over the present and earlier steps with softmax weights.

    At the left edge the weights are renormalised over the lags that exist.

    Args: window [T, ...]; logits [lags], lag 0 first.
    """
    chex.assert_rank(logits, 1)
    length, lags = window.shape[0], logits.shape[0]
    lag = jnp.arange(length)[:, None] - jnp.arange(length)[None, :]  # [T, T] steps from column back to row
    in_reach = (lag >= 0) & (lag < lags)
    weights = jax.nn.softmax(jnp.where(in_reach, logits[jnp.clip(lag, 0, lags - 1)], -jnp.inf), axis=1)
    trend = jnp.tensordot(weights, window, axes=1)
    return Streams(trend, window - trend)


def seasonal_mean(values: Array, observed: Array, slot: Array, in_train: Array, num_slots: int) -> Array:
    """Mean of the training part at each slot of the day, the cell's training mean where a slot was never seen.

    Args: values, observed [L, N, F]; slot [L] in [0, num_slots); in_train [L] bool. Returns [num_slots, N, F].
    """
    weight = observed & in_train[:, None, None]
    values = jnp.where(weight, values, 0.0)
    total = jax.ops.segment_sum(values, slot, num_slots)
    count = jax.ops.segment_sum(weight.astype(values.dtype), slot, num_slots)
    overall = total.sum(0) / jnp.maximum(count.sum(0), 1.0)  # [N, F]
    return jnp.where(count > 0, total / jnp.maximum(count, 1.0), overall)


def fuse(
    trend_mean: Array, trend_sigma: Array, residual_mean: Array, residual_sigma: Array, w_rho: Array, sigma_min: float
) -> tuple[Array, Array]:
    """Mean and sigma of the sum of two correlated parts, sigma bounded below by sigma_min.

    Only the fused sigma meets the data, so rho is not identified: it is a knob of the fit, not a finding.
    """
    rho = MAX_CORRELATION * jnp.tanh(w_rho)
    variance = trend_sigma**2 + residual_sigma**2 + 2.0 * rho * trend_sigma * residual_sigma
    return trend_mean + residual_mean, jnp.sqrt(variance + sigma_min**2)
