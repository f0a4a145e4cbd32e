"""Uncertainty of a metric over a test period: circular moving-block bootstrap over time.

Cells of one step share shocks and steps follow one another, so neither labels nor steps count as independent: whole
blocks of steps are drawn, with all their cells. The paper gives no intervals for its forecasting tables.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array

EPS = 1e-12


class BootstrapInterval(NamedTuple):
    """A statistic and the percentile interval of its block-bootstrap replicates, widened where needed to hold it."""

    estimate: Array  # []
    lower: Array  # []
    upper: Array  # []
    std: Array  # [] of the replicates


@partial(jax.jit, static_argnames=("statistic", "block", "num_replicates", "level"))
def block_bootstrap(
    key: Array,
    sums: Array,
    statistic: Callable[[Array], Array],
    block: int,
    num_replicates: int = 1000,
    level: float = 0.95,
) -> BootstrapInterval:
    """Interval for a statistic of sums over time.

    The interval always holds the estimate. Every replicate of a period of at most one block is made of the same steps
    as the estimate, added in another order. Such an interval is as wide as a rounding error and says nothing.

    Args:
        key: random key.
        sums: [W, Q] sums over the cells of each step: a mean needs a numerator and a count, NRMSE three columns.
        statistic: [Q] totals over the drawn steps -> scalar.
        block: steps in a block; at least the time over which errors are correlated.
        num_replicates: bootstrap samples.
        level: of the interval.
    """
    replicates = jax.vmap(statistic)(resampled_totals(key, sums, block, num_replicates))
    tail = (1.0 - level) / 2.0
    lower, upper = jnp.quantile(replicates, jnp.array([tail, 1.0 - tail]))
    estimate = statistic(sums.sum(axis=0))
    return BootstrapInterval(estimate, jnp.minimum(lower, estimate), jnp.maximum(upper, estimate), replicates.std())


def paired_difference(
    key: Array,
    sums: Array,
    other_sums: Array,
    statistic: Callable[[Array], Array],
    block: int,
    num_replicates: int = 1000,
    level: float = 0.95,
) -> BootstrapInterval:
    """Interval for statistic(first) - statistic(second) when both methods met the same steps, drawn together."""
    chex.assert_equal_shape([sums, other_sums])
    both = jnp.concatenate([sums, other_sums], axis=1)
    return block_bootstrap(key, both, _Difference(statistic), block, num_replicates, level)


@dataclasses.dataclass(frozen=True)
class _Difference:
    """Of a statistic between two halves of the totals; equal ones share a compiled bootstrap, as closures would not."""

    statistic: Callable[[Array], Array]

    def __call__(self, totals: Array) -> Array:
        first, second = jnp.split(totals, 2)
        return self.statistic(first) - self.statistic(second)


def resampled_totals(key: Array, sums: Array, block: int, num_replicates: int) -> Array:
    """Totals [replicates, Q] over W steps drawn as blocks that wrap around the end, so every step is equally likely."""
    chex.assert_rank(sums, 2)
    num_steps = sums.shape[0]
    num_blocks = -(-num_steps // block)
    start = jax.random.randint(key, (num_replicates, num_blocks), 0, num_steps)
    index = (start[:, :, None] + jnp.arange(block)) % num_steps  # [replicates, blocks, block]
    return jax.vmap(lambda rows: sums[rows].sum(axis=0))(index.reshape(num_replicates, -1)[:, :num_steps])


def mean_sums(values: Array, mask: Array) -> Array:
    """Per-step numerator and count of a mean: [W, H, N] -> [W, 2]."""
    total = jnp.sum(jnp.where(mask, values, 0.0), axis=(1, 2))
    return jnp.stack([total, jnp.sum(mask, axis=(1, 2)).astype(jnp.float32)], axis=1)


def nrmse_sums(mean: Array, target: Array, mask: Array) -> Array:
    """Per-step squared error, |y| and count: [W, H, N] -> [W, 3]."""
    error = mean_sums((target - mean) ** 2, mask)
    return jnp.concatenate([error[:, :1], mean_sums(jnp.abs(target), mask)], axis=1)


def ratio_of_totals(totals: Array) -> Array:
    """Mean from the totals of `mean_sums`."""
    return totals[0] / jnp.maximum(totals[1], EPS)


def nrmse_of_totals(totals: Array) -> Array:
    """NRMSE from the totals of `nrmse_sums`: sqrt(S / n) / (Y / n)."""
    squared, absolute, count = totals
    return jnp.sqrt(squared * count) / jnp.maximum(absolute, EPS)


def effective_sample_size(coverage: BootstrapInterval) -> Array:
    """Independent labels whose coverage would vary as much as the block bootstrap says: p (1 - p) / variance."""
    return coverage.estimate * (1.0 - coverage.estimate) / jnp.maximum(coverage.std**2, EPS)
