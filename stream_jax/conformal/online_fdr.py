"""Online procedures: decide each hypothesis when it arrives, and control the false-discovery rate of the whole log.

The paper (Temporal Considerations) controls each step alone and points to these for the rest. What they prove:

- `lord_plus_plus`, `saffron`: FDR <= level for independent p-values, and mFDR <= level for p-values that are
  super-uniform given the past. Conformal p-values that share one calibration set are neither, so here they are
  heuristics with a record of working, not guarantees.
- `e_lond`: FDR <= level under any dependence, from e-values.

The decision of a stream of T hypotheses costs O(T^2): feed it one hypothesis per step (`p_values.simes_combine`).
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class OnlineRejections(NamedTuple):
    """Decisions along a stream."""

    rejected: Array  # [T] bool
    level: Array  # [T] test level at each position, known before its p-value


def lord_plus_plus(
    p_values: Array, level: float, *, initial_wealth: float | None = None, spending: Array | None = None
) -> OnlineRejections:
    """LORD++ (Ramdas et al. 2017): alpha_t = w0 g_t + (level - w0) g_{t - t1} + level sum_{j >= 2} g_{t - tj}.

    t_j is the time of the j-th rejection. Every rejection so buys the stream a new spending sequence.

    Args:
        p_values: [T] in time order.
        initial_wealth: w0 in (0, level), half the level unless given.
        spending: [T] the sequence g, non-negative with sum at most 1.
    """
    spending = lord_spending(p_values.shape[0]) if spending is None else spending
    wealth = level / 2.0 if initial_wealth is None else initial_wealth
    return _spend(p_values, level, wealth, spending, candidate_cutoff=None)


def saffron(
    p_values: Array,
    level: float,
    *,
    candidate_cutoff: float = 0.5,
    initial_wealth: float | None = None,
    spending: Array | None = None,
) -> OnlineRejections:
    """SAFFRON (Ramdas et al. 2018): LORD++ whose clock stands still while p-values are at most `candidate_cutoff`.

    Adapts to the share of nulls, as Storey does offline. Arguments as in `lord_plus_plus`.
    """
    spending = power_spending(p_values.shape[0]) if spending is None else spending
    wealth = level / 2.0 if initial_wealth is None else initial_wealth
    return _spend(p_values, level, wealth, spending, candidate_cutoff=candidate_cutoff)


def e_lond(e_values: Array, level: float, *, spending: Array | None = None) -> OnlineRejections:
    """e-LOND (Xu and Ramdas 2024): rejects e_t >= 1 / alpha_t with alpha_t = level g_t (1 + rejections so far)."""
    chex.assert_rank(e_values, 1)
    spending = power_spending(e_values.shape[0]) if spending is None else spending

    def step(count: Array, inputs: tuple[Array, Array]) -> tuple[Array, OnlineRejections]:
        e_value, share = inputs
        test_level = level * share * (1 + count)
        rejected = e_value * test_level >= 1.0
        return count + rejected, OnlineRejections(rejected, test_level)

    return jax.lax.scan(step, jnp.zeros((), jnp.int32), (e_values, spending))[1]


def lord_spending(length: int) -> Array:
    """g_j proportional to log(max(j, 2)) / (j exp(sqrt(log j))), normalised over the stream: [length]."""
    j = np.arange(1, length + 1, dtype=np.float64)
    weight = np.log(np.maximum(j, 2.0)) / (j * np.exp(np.sqrt(np.log(j))))
    return jnp.asarray(weight / weight.sum(), jnp.float32)


def power_spending(length: int, exponent: float = 1.6) -> Array:
    """g_j proportional to j^-exponent, normalised over the stream: [length]."""
    weight = np.arange(1, length + 1, dtype=np.float64) ** -exponent
    return jnp.asarray(weight / weight.sum(), jnp.float32)


def _spend(
    p_values: Array, level: float, initial_wealth: float, spending: Array, candidate_cutoff: float | None
) -> OnlineRejections:
    """Each source of wealth (the start, then every rejection) pays grant * g[age]; SAFFRON ages on non-candidates."""
    chex.assert_rank([p_values, spending], [1, 1])
    length = p_values.shape[0]

    def step(carry: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[tuple, OnlineRejections]:
        grant, age = carry  # [T + 1] paid in all by source s, and its clock; source 0 is the start
        p_value, position = inputs
        test_level = jnp.sum(grant * spending[jnp.minimum(age, length - 1)])
        if candidate_cutoff is not None:
            test_level = jnp.minimum((1.0 - candidate_cutoff) * test_level, candidate_cutoff)
        rejected = p_value <= test_level
        is_first = jnp.sum(grant > 0.0) == 1
        new_grant = jnp.where(is_first, level - initial_wealth, level) * rejected
        tick = 1 if candidate_cutoff is None else jnp.where(p_value <= candidate_cutoff, 0, 1)
        age = jnp.where(jnp.arange(length + 1) <= position, age + tick, age)
        return (grant.at[position + 1].set(new_grant), age), OnlineRejections(rejected, test_level)

    grant = jnp.zeros(length + 1).at[0].set(initial_wealth)
    start = (grant, jnp.zeros(length + 1, jnp.int32))
    return jax.lax.scan(step, start, (p_values, jnp.arange(length)))[1]
