"""Ranks, order statistics and means of conformal scores, pooled over the cells of a cluster.

The quantile of Sec. "Spatially-Adaptive Conformal Calibration", Step 2, as the order statistic that it has to be.
"""

import jax
import jax.numpy as jnp
from jax import Array

# (n + 1) * alpha is often a whole number; this much relative slack keeps float32 from falling just below it.
RANK_SLACK = 2.0**-21
# Non-negative floats sort as their bit patterns do, so 31 halvings find any order statistic exactly.
FLOAT_BITS = 31
INF_BITS = 0x7F800000


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


def cluster_radius(scores: Array, cluster: Array, alpha: Array) -> Array:
    """Conformal radius of every cluster and horizon at its own level.

    Args:
        scores: [R, H, N] non-negative, +inf where there is no score.
        cluster: [N] cluster of each cell.
        alpha: [C, H] miscoverage levels.
    """
    num_clusters = alpha.shape[0]
    bits = jax.lax.bitcast_convert_type(scores, jnp.int32)

    def count_up_to(limit: Array) -> Array:  # [C, H] -> [C, H]
        below = jnp.sum(bits <= limit[cluster].T, axis=0, dtype=jnp.int32)  # [H, N]
        return cluster_sum(below, cluster, num_clusters)

    count = count_up_to(jnp.full(alpha.shape, INF_BITS - 1, jnp.int32))
    rank = conformal_rank(count, alpha)

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = low + (high - low) // 2
        reached = count_up_to(middle) >= rank
        return jnp.where(reached, low, middle + 1), jnp.where(reached, middle, high)

    start = (jnp.zeros(alpha.shape, jnp.int32), jnp.full(alpha.shape, INF_BITS, jnp.int32))
    _, high = jax.lax.fori_loop(0, FLOAT_BITS, halve, start)
    return radius_at_rank(jax.lax.bitcast_convert_type(high, jnp.float32), rank, count)


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
