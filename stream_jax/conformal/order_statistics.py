"""Ranks, order statistics and means of conformal scores, pooled over the cells of a cluster.

The quantile of Sec. "Spatially-Adaptive Conformal Calibration", Step 2, as the order statistic that it has to be.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

# (n + 1) * alpha is often a whole number; this much relative slack keeps float32 from falling just below it.
RANK_SLACK = 2.0**-21
# Non-negative floats sort as their bit patterns do, so at most 31 halvings find any order statistic exactly.
INF_BITS = 0x7F800000
NEAR_BITS = 1 << 14  # first step away from a guess: two parts in a thousand; then eight times as much, and so on
LARGEST_STEP = NEAR_BITS * 8**4
INT8_MAX = 127


def conformal_rank(count: int | Array, alpha: float | Array) -> Array:
    """1-based rank ceil((n + 1)(1 - alpha)); above n means the whole line, below 1 the empty set."""
    expected_above = (jnp.asarray(count) + 1) * jnp.asarray(alpha)
    # ceil(n + 1 - x) = n + 1 - floor(x), and x = (n + 1) alpha is the smaller, hence the more exact, number.
    return count + 1 - jnp.floor(expected_above + jnp.abs(expected_above) * RANK_SLACK).astype(jnp.int32)


def radius_at_rank(value: Array, rank: Array, count: int | Array) -> Array:
    """The value of that rank, or +inf where the rank exceeds the count, or -inf where it is below 1."""
    return jnp.where(rank > count, jnp.inf, jnp.where(rank < 1, -jnp.inf, value))


def cluster_sum(values: Array, cluster: Array, num_clusters: int) -> Array:
    """Sums [H, N] over the cells of each cluster: [C, H]."""
    return jax.ops.segment_sum(values.T, cluster, num_segments=num_clusters)


def cluster_mean(values: Array, mask: Array, cluster: Array, num_clusters: int) -> tuple[Array, Array]:
    """Means [C, H] of [H, N] over each cluster's masked-in cells, 0 where there is none, and whether there is one."""
    count = cluster_sum(mask.astype(jnp.int32), cluster, num_clusters)
    total = cluster_sum(jnp.where(mask, values, 0.0), cluster, num_clusters)
    return total / jnp.maximum(count, 1), count > 0


def cluster_radius(scores: Array, cluster: Array, alpha: Array, near: Array | None = None) -> Array:
    """Conformal radius of every cluster and horizon at its own level.

    Args:
        scores: [R, H, N] non-negative, +inf where there is no score.
        cluster: [N] cluster of each cell.
        alpha: [C, H] miscoverage levels.
        near: [C, H] where to look first, such as the radii of a step ago; the result does not depend on it.
    """
    num_clusters = alpha.shape[0]
    blocks = _blocks(jax.lax.bitcast_convert_type(scores, jnp.int32))

    def count_up_to(limit: Array) -> Array:  # [C, H] -> [C, H], limit below INF_BITS
        each = jax.lax.optimization_barrier(limit[cluster].T + 0)  # [H, N]; else it is looked up once per score
        few = jnp.sum((blocks <= each).astype(jnp.int8), axis=1, dtype=jnp.int8)  # [B, H, N]
        return cluster_sum(jnp.sum(few, axis=0, dtype=jnp.int32), cluster, num_clusters)

    count = count_up_to(jnp.full(alpha.shape, INF_BITS - 1, jnp.int32))
    rank = conformal_rank(count, alpha)
    possible = (rank >= 1) & (rank <= count)

    def narrow(search: _Bracket) -> _Bracket:
        low, high, at, step = search
        reached = count_up_to(at) >= rank
        low, high = jnp.where(reached, low, at + 1), jnp.where(reached, at, high)
        # Steps away from the guess grow until the answer lies between two of them; from then on it is halved.
        away = jnp.where(reached, at - jnp.minimum(step, at - low), at + jnp.minimum(step, high - 1 - at))
        open_ended = jnp.where(reached, low == 0, high == INF_BITS) & (step < LARGEST_STEP)
        at = jnp.where(open_ended, away, low + (high - low) // 2)
        return _Bracket(low, high, at, 8 * jnp.minimum(step, LARGEST_STEP // 8))

    empty, full = jnp.zeros(alpha.shape, jnp.int32), jnp.full(alpha.shape, INF_BITS, jnp.int32)
    start = _Bracket(empty, full, full // 2, jnp.full_like(full, LARGEST_STEP))
    if near is not None:
        guess = jnp.where(jnp.isfinite(near) & (near >= 0), near, 1.0).astype(jnp.float32)
        start = _Bracket(empty, full, jax.lax.bitcast_convert_type(guess, jnp.int32), jnp.full_like(full, NEAR_BITS))
    found = jax.lax.while_loop(lambda search: jnp.any(possible & (search.low < search.high)), narrow, start)
    return radius_at_rank(jax.lax.bitcast_convert_type(found.high, jnp.float32), rank, count)


class _Bracket(NamedTuple):
    """Bit patterns [C, H]: the answer is at least `low` and at most `high`, and `at` is tried next."""

    low: Array
    high: Array
    at: Array
    step: Array


def _blocks(bits: Array) -> Array:
    """[R, H, N] -> [B, 127 or fewer, H, N], filled up with +inf: counts within a block fit into a byte."""
    num_blocks = -(-bits.shape[0] // INT8_MAX)
    size = -(-bits.shape[0] // num_blocks)
    filler = jnp.full((num_blocks * size - bits.shape[0], *bits.shape[1:]), INF_BITS, jnp.int32)
    return jnp.concatenate([bits, filler]).reshape(num_blocks, size, *bits.shape[1:])


def cluster_p_value(scores: Array, cluster: Array, new: Array, num_clusters: int) -> Array:
    """Largest level at which each new score would still be covered: (1 + #{scores >= new}) / (n + 1) in its cluster.

    Args:
        scores: [R, H, N], +inf where there is no score.
        cluster: [N] cluster of each cell.
        new: [H, N] scores to rank.
        num_clusters: C.

    Returns:
        [H, N] in (0, 1].
    """
    missing = jnp.sum(jnp.isinf(scores), axis=0)  # [H, N]; these also compare as above, so they are taken off again
    count = cluster_sum(scores.shape[0] - missing, cluster, num_clusters)  # [C, H]
    membership = jax.nn.one_hot(cluster, num_clusters, dtype=jnp.int32)  # [N, C]
    seat = jnp.sum(jnp.cumsum(membership, axis=0) * membership, axis=1) - 1  # [N] place of a cell in its cluster

    def rank_seat(place: int, ranked: Array) -> Array:
        """Ranks one cell of every cluster in a single pass over the scores."""
        seated = seat == place  # [N]
        query = cluster_sum(jnp.where(seated, new, 0.0), cluster, num_clusters)  # [C, H]
        above = jnp.sum(scores >= query[cluster].T, axis=0) - missing  # [H, N]
        p_value = (1 + cluster_sum(above, cluster, num_clusters)) / (1 + count)
        return jnp.where(seated, p_value[cluster].T, ranked)

    return jax.lax.fori_loop(0, seat.max() + 1, rank_seat, jnp.ones(new.shape))
