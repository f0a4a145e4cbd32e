"""Scores of forecasts and intervals: errors, coverage, widths, proper scores, calibration, coverage by group.

Implements the metrics of the paper's forecasting tables and its calibration figure. NRMSE and RIW share one
normaliser, the mean of |y| over the labels that are scored. Coverage above its target is not better coverage, and
coverage / RIW rewards intervals that cover too little, so the Winkler score, which true quantiles minimise, is the
one to rank by.
"""

from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from stream_jax.conformal.bootstrap import (
    block_bootstrap,
    effective_sample_size,
    mean_sums,
    nrmse_of_totals,
    nrmse_sums,
    ratio_of_totals,
)
from stream_jax.conformal.intervals import contains
from stream_jax.types import Forecast, Interval

EPS = 1e-12
NUM_PIT_BINS = 20
RELIABILITY_LEVELS = tuple(k / 20 for k in range(1, 20))


class PointErrors(NamedTuple):
    """Errors of the predicted mean over the scored labels."""

    nrmse: Array  # [] RMSE / mean |y|
    rmse: Array  # [] physical units
    mae: Array  # [] physical units, <= rmse
    normaliser: Array  # [] mean |y|, physical units
    noise_floor: Array  # [] NRMSE of a forecaster that knows the mean of Poisson counts: sqrt(mean) / mean


class IntervalQuality(NamedTuple):
    """Coverage and width of intervals over the scored labels."""

    coverage: Array  # []
    riw: Array  # [] mean width of the finite intervals / mean |y|; an empty set has width 0
    efficiency: Array  # [] coverage / riw
    winkler: Array  # [] mean over finite intervals that are not empty, physical units
    infinite_share: Array  # [] intervals without an upper end
    empty_share: Array  # []


class PitHistogram(NamedTuple):
    """Probability integral transform: flat when the predicted distribution is right."""

    share: Array  # [bins], sums to 1
    ks: Array  # [] Kolmogorov-Smirnov distance from the uniform law


class Reliability(NamedTuple):
    """Coverage of central Gaussian intervals against their nominal coverage."""

    nominal: Array  # [levels]
    observed: Array  # [levels]
    error: Array  # [] mean |observed - nominal|


class GroupCoverage(NamedTuple):
    """Coverage of each group; a group without labels has count 0 and coverage 0."""

    coverage: Array  # [groups]
    count: Array  # [groups] int32


def masked_mean(values: Array, mask: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """Mean where the mask is True; 0 where it nowhere is."""
    count = jnp.sum(jnp.broadcast_to(mask, values.shape), axis=axis)
    return jnp.sum(jnp.where(mask, values, 0.0), axis=axis) / jnp.maximum(count, 1)


def point_errors(mean: Array, target: Array, mask: Array) -> PointErrors:
    """Errors of a predicted mean."""
    error = jnp.where(mask, target - mean, 0.0)
    rmse = jnp.sqrt(masked_mean(error**2, mask))
    normaliser = jnp.maximum(masked_mean(jnp.abs(target), mask), EPS)
    mae = masked_mean(jnp.abs(error), mask)
    return PointErrors(rmse / normaliser, rmse, mae, normaliser, noise_floor=1.0 / jnp.sqrt(normaliser))


def width(interval: Interval) -> Array:
    """Length of each interval: 0 for the empty set, inf for the half-line."""
    return jnp.where(interval.lower > interval.upper, 0.0, interval.upper - interval.lower)


def winkler(interval: Interval, target: Array, alpha: float) -> Array:
    """Width plus 2 / alpha times the distance of the label from the interval; the smaller the better."""
    below = jnp.maximum(interval.lower - target, 0.0)
    above = jnp.maximum(target - interval.upper, 0.0)
    return interval.upper - interval.lower + (2.0 / alpha) * (below + above)


def interval_quality(interval: Interval, target: Array, mask: Array, alpha: float) -> IntervalQuality:
    """Coverage, relative width and Winkler score of intervals at miscoverage alpha."""
    is_empty = interval.lower > interval.upper
    is_infinite = jnp.isinf(interval.upper) & ~is_empty
    normaliser = jnp.maximum(masked_mean(jnp.abs(target), mask), EPS)
    coverage = masked_mean(contains(interval, target), mask)
    riw = masked_mean(width(interval), mask & ~is_infinite) / normaliser
    return IntervalQuality(
        coverage=coverage,
        riw=riw,
        efficiency=coverage / jnp.maximum(riw, EPS),
        winkler=masked_mean(winkler(interval, target, alpha), mask & ~is_infinite & ~is_empty),
        infinite_share=masked_mean(is_infinite, mask),
        empty_share=masked_mean(is_empty, mask),
    )


def crps_gaussian(forecast: Forecast, target: Array) -> Array:
    """Continuous ranked probability score of a Gaussian, closed form, in physical units."""
    z = (target - forecast.mean) / forecast.sigma
    spread = z * (2.0 * norm.cdf(z) - 1.0) + 2.0 * norm.pdf(z) - 1.0 / jnp.sqrt(jnp.pi)
    return forecast.sigma * spread


def pinball(quantile: Array, target: Array, level: float | Array) -> Array:
    """Loss of a predicted quantile of that level."""
    excess = target - quantile
    return jnp.maximum(level * excess, (level - 1.0) * excess)


def pit_values(forecast: Forecast, target: Array) -> Array:
    """Predicted probability of a value below the label."""
    return norm.cdf((target - forecast.mean) / forecast.sigma)


def pit_histogram(forecast: Forecast, target: Array, mask: Array, num_bins: int = NUM_PIT_BINS) -> PitHistogram:
    """Histogram of the PIT values and their distance from uniform."""
    pit = pit_values(forecast, target)
    index = jnp.clip((pit * num_bins).astype(jnp.int32), 0, num_bins - 1)
    counts = jnp.zeros(num_bins).at[index.ravel()].add(mask.ravel().astype(jnp.float32))
    return PitHistogram(share=counts / jnp.maximum(counts.sum(), 1.0), ks=ks_uniform(pit, mask))


def ks_uniform(values: Array, mask: Array) -> Array:
    """Largest gap between the empirical distribution of the masked-in values and the uniform law on [0, 1]."""
    ordered = jnp.sort(jnp.where(mask, values, jnp.inf).ravel())
    count = jnp.maximum(jnp.sum(mask), 1)
    rank = jnp.arange(ordered.shape[0])
    gap = jnp.maximum((rank + 1) / count - ordered, ordered - rank / count)
    return jnp.max(jnp.where(jnp.isfinite(ordered), gap, 0.0))


def reliability(forecast: Forecast, target: Array, mask: Array) -> Reliability:
    """Coverage of the central Gaussian intervals of nominal coverage 5 % to 95 %."""
    nominal = jnp.asarray(RELIABILITY_LEVELS)
    # |2 PIT - 1| <= level says that the label lies in the central interval of that level.
    centrality = jnp.abs(2.0 * pit_values(forecast, target) - 1.0)
    observed = jnp.stack([masked_mean(centrality <= level, mask) for level in RELIABILITY_LEVELS])
    return Reliability(nominal, observed, error=jnp.mean(jnp.abs(observed - nominal)))


def coverage_by_group(hit: Array, mask: Array, group: Array, num_groups: int) -> GroupCoverage:
    """Coverage inside each group of labels.

    Args:
        hit: [W, H, N] bool from `contains`.
        mask: [W, H, N] bool.
        group: int in [0, num_groups), broadcastable to hit: arange(H)[:, None] for horizons, cluster for clusters,
            the hour of every label [W, H, 1] for hours, `load_quintile(target, mask)` for loads.
        num_groups: how many.
    """
    index = jnp.broadcast_to(group, hit.shape).ravel()
    count = jnp.zeros(num_groups, jnp.int32).at[index].add(mask.ravel().astype(jnp.int32))
    hits = jnp.zeros(num_groups, jnp.int32).at[index].add((hit & mask).ravel().astype(jnp.int32))
    return GroupCoverage(hits / jnp.maximum(count, 1), count)


def load_quintile(load: Array, mask: Array) -> Array:
    """Which fifth, 0 to 4, of the masked-in loads each load falls in.

    Give it the predicted mean to ask about conditions known beforehand; groups by the label itself are chosen by the
    outcome, and no interval that is right on average covers evenly across those.
    """
    ordered = jnp.sort(jnp.where(mask, load, jnp.inf).ravel())
    count = jnp.sum(mask)
    edges = ordered[jnp.stack([count * k // 5 for k in range(1, 5)])]  # [4]
    return jnp.sum(load[..., None] >= edges, axis=-1)


def worst_decile_coverage(hit: Array, mask: Array) -> Array:
    """Mean coverage of the tenth of the cells that are covered least, horizons pooled."""
    by_cell = masked_mean(hit, mask, axis=(0, 1))  # [N]
    is_seen = jnp.any(mask, axis=(0, 1))
    num_worst = jnp.maximum(jnp.sum(is_seen) // 10, 1)
    ordered = jnp.sort(jnp.where(is_seen, by_cell, jnp.inf))
    return masked_mean(ordered, jnp.arange(ordered.shape[0]) < num_worst)


def evaluate(
    key: Array,
    forecast: Forecast,
    interval: Interval,
    target: Array,
    mask: Array,
    cluster: Array,
    slot: Array,
    alpha: float,
    steps_per_day: int = 96,
    block: int = 24,
) -> dict[str, float]:
    """Every forecasting metric by name, for one row each in the results; called on the host.

    Args:
        key: for the bootstrap.
        forecast: [W, H, N] over consecutive origins.
        interval: [W, H, N].
        target: [W, H, N].
        mask: [W, H, N] bool.
        cluster: [N].
        slot: [W, H] local slot of the week of each label.
        alpha: miscoverage that the intervals aim at.
        steps_per_day: slots in a day.
        block: bootstrap block in steps; 24 is six hours.
    """
    chex.assert_equal_shape([forecast.mean, forecast.sigma, interval.lower, interval.upper, target, mask])
    horizon = target.shape[1]
    row = _overall(forecast, interval, target, mask, alpha)
    for h in range(horizon):
        at_h = jax.tree.map(lambda x, h=h: x[:, h : h + 1], (forecast, interval, target, mask))
        row |= {f"{name}_h{h + 1}": value for name, value in _overall(*at_h, alpha).items()}
    hit = contains(interval, target)
    row |= _worst_groups(hit, forecast.mean, mask, cluster, slot, int(cluster.max()) + 1, steps_per_day)

    cover_key, error_key = jax.random.split(key)
    coverage = block_bootstrap(cover_key, mean_sums(hit, mask), ratio_of_totals, block)
    nrmse = block_bootstrap(error_key, nrmse_sums(forecast.mean, target, mask), nrmse_of_totals, block)
    row |= {"coverage_lower": coverage.lower, "coverage_upper": coverage.upper}
    row |= {"nrmse_lower": nrmse.lower, "nrmse_upper": nrmse.upper}
    row["effective_labels"] = effective_sample_size(coverage)
    return {name: float(value) for name, value in row.items()}


@partial(jax.jit, static_argnames="alpha")
def _overall(
    forecast: Forecast, interval: Interval, target: Array, mask: Array, alpha: float
) -> dict[str, float | Array]:
    quality = interval_quality(interval, target, mask, alpha)
    errors = point_errors(forecast.mean, target, mask)
    return {
        **errors._asdict(),
        **quality._asdict(),
        "winkler_relative": quality.winkler / errors.normaliser,
        "crps": masked_mean(crps_gaussian(forecast, target), mask),
        "pit_ks": pit_histogram(forecast, target, mask).ks,
        "calibration_error": reliability(forecast, target, mask).error,
    }


@partial(jax.jit, static_argnames=("num_clusters", "steps_per_day"))
def _worst_groups(
    hit: Array, load: Array, mask: Array, cluster: Array, slot: Array, num_clusters: int, steps_per_day: int
) -> dict[str, float | Array]:
    """Lowest coverage over clusters, hours and predicted-load fifths, and that of the worst tenth of the cells."""
    hour = (slot % steps_per_day) * 24 // steps_per_day  # [W, H]
    groups = {
        "cluster": (cluster, num_clusters),
        "hour": (hour[:, :, None], 24),
        "load_quintile": (load_quintile(load, mask), 5),
    }
    row: dict[str, float | Array] = {"coverage_worst_decile_cell": worst_decile_coverage(hit, mask)}
    for name, (group, num_groups) in groups.items():
        by_group = coverage_by_group(hit, mask, group, num_groups)
        row[f"coverage_worst_{name}"] = jnp.min(jnp.where(by_group.count > 0, by_group.coverage, jnp.inf))
    quintiles = coverage_by_group(hit, mask, *groups["load_quintile"]).coverage
    return row | {f"coverage_load_{k + 1}": value for k, value in enumerate(quintiles)}
