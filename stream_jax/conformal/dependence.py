"""Measures how far anomaly scores depend on each other and whether null p-values are uniform.

Paper: Section "Empirical Dependence Verification". Positive dependence by itself harms neither BH nor BY. It matters
for calibration: when the cells of a step move together, n pooled scores are worth little more than their number of
steps, and the p-values of normal cells need not be super-uniform. So the report puts the correlation within steps and
between steps beside the null's P(p <= t) with intervals that resample whole blocks of steps.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import stats

from stream_jax.conformal.bootstrap import resampled_totals

THRESHOLDS = (0.001, 0.01, 0.05, 0.1)
TEST_THRESHOLDS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)

_EPS = 1e-12  # variances of constant series

_resample = jax.jit(resampled_totals, static_argnums=(2, 3))


class NullUniformity(NamedTuple):
    """Whether the p-values of normal cells are super-uniform, overall and at small thresholds."""

    num_p_values: int
    kolmogorov: float  # sup_t |F(t) - t|
    excess: float  # sup_t (F(t) - t): positive and large means invalid, the other side only conservative
    threshold: np.ndarray  # [K] t
    rate: np.ndarray  # [K] share of null p-values <= t; valid p-values have rate <= t
    lower: np.ndarray  # [K] block-bootstrap interval of the rate, 95 %
    upper: np.ndarray  # [K]
    binomial_p: np.ndarray  # [K] P(at least as many) if the p-values were independent and uniform


class BlockTest(NamedTuple):
    """Whether held-out p-values are uniform, judged by the fluctuation of whole blocks of steps."""

    excess_p: float  # small: too many small p-values, the level is broken
    uniform_p: float  # small: not uniform, in either direction


class DependenceReport(NamedTuple):
    """What a reader needs to judge a pooled calibration set."""

    num_steps: int  # the honest sample size when cells move together
    num_scores: int
    morans_i: float  # spatial autocorrelation, mean over steps; about -1 / (N - 1) without any
    lag1_autocorrelation: float  # of a cell's score, mean over cells
    within_step_correlation: float  # mean correlation between two cells of one step
    null_uniformity: NullUniformity


def dependence_report(
    key: Array,
    scores: Array,
    null_p_values: Array,
    senders: Array,
    receivers: Array,
    *,
    observed: Array | None = None,
    is_null: Array | None = None,
    block_steps: int = 10,
) -> DependenceReport:
    """All measures at once; on the host.

    Args:
        scores: [T, N] calibration or test scores in time order.
        null_p_values: [T', N] p-values of held-out steps in time order.
        senders: [E] edges; self-loops are ignored.
        observed: [T, N] bool, which scores exist.
        is_null: [T', N] bool, which p-values belong to normal cells.
    """
    present = np.ones(scores.shape, bool) if observed is None else np.asarray(observed)
    spatial, temporal, within = _correlations(scores, senders, receivers, present)
    return DependenceReport(
        num_steps=int(present.any(axis=1).sum()),
        num_scores=int(present.sum()),
        morans_i=float(spatial),
        lag1_autocorrelation=float(temporal),
        within_step_correlation=float(within),
        null_uniformity=null_uniformity(key, null_p_values, is_null=is_null, block_steps=block_steps),
    )


def morans_i(values: Array, senders: Array, receivers: Array, *, observed: Array | None = None) -> Array:
    """Mean over steps of Moran's I = (n / W) sum_ij w_ij d_i d_j / sum_i d_i^2 with unit weights on the edges.

    d is the deviation from the step's mean; self-loops carry no weight. Steps without spread or edges are left out.
    """
    chex.assert_rank([values, senders, receivers], [2, 1, 1])
    present = jnp.ones(values.shape, bool) if observed is None else observed
    count = present.sum(axis=1)  # [T]
    mean = jnp.where(present, values, 0.0).sum(axis=1) / jnp.maximum(count, 1)
    deviation = jnp.where(present, values - mean[:, None], 0.0)  # [T, N]
    weight = present[:, senders] & present[:, receivers] & (senders != receivers)  # [T, E]
    covariance = jnp.sum(weight * deviation[:, senders] * deviation[:, receivers], axis=1)
    spread = jnp.sum(deviation**2, axis=1)
    is_defined = (spread > _EPS) & (weight.sum(axis=1) > 0)
    per_step = count * covariance / jnp.maximum(weight.sum(axis=1) * spread, _EPS)
    return jnp.sum(jnp.where(is_defined, per_step, 0.0)) / is_defined.sum()


def lag1_autocorrelation(values: Array, *, observed: Array | None = None) -> Array:
    """Correlation between a cell's consecutive values, over all cells and consecutive observed pairs of [T, N]."""
    chex.assert_rank(values, 2)
    present = jnp.ones(values.shape, bool) if observed is None else observed
    z = _standardise(values, present)
    is_pair = present[:-1] & present[1:]
    return jnp.sum(z[:-1] * z[1:]) / is_pair.sum()


def within_step_correlation(values: Array, *, observed: Array | None = None) -> Array:
    """Mean over pairs of cells of their correlation over the steps of [T, N]: the paper's rho_block of one step.

    With z standardised per cell, sum_{i != j} z_i z_j = (sum_i z_i)^2 - sum_i z_i^2: no N x N matrix is formed.
    """
    chex.assert_rank(values, 2)
    present = jnp.ones(values.shape, bool) if observed is None else observed
    z = _standardise(values, present)
    count = present.sum(axis=1)  # [T]
    products = z.sum(axis=1) ** 2 - jnp.sum(z**2, axis=1)
    return products.sum() / jnp.sum(count * (count - 1))


def null_uniformity(
    key: Array,
    p_values: Array,
    *,
    is_null: Array | None = None,
    thresholds: tuple[float, ...] = THRESHOLDS,
    block_steps: int = 10,
    num_replicates: int = 1000,
) -> NullUniformity:
    """Compares null p-values [T, N] with the uniform law; on the host."""
    chex.assert_rank(p_values, 2)
    kept = np.ones(p_values.shape, bool) if is_null is None else np.asarray(is_null)
    null_p = np.sort(np.asarray(p_values, np.float64)[kept])
    size = null_p.size
    if size == 0:
        raise ValueError("no null p-values")
    # Only where a tie ends does F jump to its rank; the left limit there is the previous rank.
    above = np.max(np.searchsorted(null_p, null_p, side="right") / size - null_p)
    below = np.max(null_p - np.searchsorted(null_p, null_p, side="left") / size)
    cutoffs = np.asarray(thresholds)
    hits = (np.asarray(p_values)[..., None] <= cutoffs) & kept[..., None]  # [T, N, K]
    step_sums = np.concatenate([hits.sum(axis=1), kept.sum(axis=1, keepdims=True)], axis=1)  # [T, K + 1]
    totals = np.asarray(_resample(key, step_sums.astype(np.float32), block_steps, num_replicates))
    replicates = totals[:, :-1] / np.maximum(totals[:, -1:], 1.0)  # [R, K]
    num_hits = hits.sum(axis=(0, 1))
    return NullUniformity(
        num_p_values=size,
        kolmogorov=float(max(above, below)),
        excess=float(max(above, 0.0)),
        threshold=cutoffs,
        rate=num_hits / size,
        lower=np.quantile(replicates, 0.025, axis=0),
        upper=np.quantile(replicates, 0.975, axis=0),
        binomial_p=stats.binom.sf(num_hits - 1, size, cutoffs),
    )


def block_uniformity_test(
    key: Array,
    calibration_p: np.ndarray,
    null_p: np.ndarray,
    *,
    thresholds: tuple[float, ...] = TEST_THRESHOLDS,
    block_steps: int = 24,
    num_replicates: int = 2000,
) -> BlockTest:
    """Tests uniformity of p-values whose cells move together and whose calibration set is itself a sample of steps.

    The statistic is the largest studentised difference between the share of null p-values and of calibration ranks
    below a threshold; its law is that of the centred block bootstrap of both.

    Args:
        calibration_p: [Tc, N] ranks of the calibration scores among themselves, in (0, 1]; NaN where there is none.
        null_p: [T, N] p-values of held-out normal cells; NaN where there is none.
        block_steps: of a bootstrap block; at least the time over which scores are correlated.
    """
    shares, replicates = zip(
        *(
            _block_shares(part_key, p, thresholds, min(block_steps, p.shape[0]), num_replicates)
            for part_key, p in zip(jax.random.split(key), (calibration_p, null_p), strict=True)
        ),
        strict=True,
    )
    observed = shares[1] - shares[0]  # [K]
    noise = (replicates[1] - shares[1]) - (replicates[0] - shares[0])  # [R, K]
    spread = np.maximum(noise.std(axis=0), _EPS)
    excess = (noise / spread).max(axis=1) >= (observed / spread).max()
    either = np.abs(noise / spread).max(axis=1) >= np.abs(observed / spread).max()
    count = num_replicates + 1.0
    return BlockTest(float((1 + excess.sum()) / count), float((1 + either.sum()) / count))


def _block_shares(
    key: Array, p_values: np.ndarray, thresholds: tuple[float, ...], block: int, num_replicates: int
) -> tuple[np.ndarray, np.ndarray]:
    """Share of p-values at or below each threshold [K], and its block-bootstrap replicates [R, K]."""
    kept = ~np.isnan(p_values)
    hits = (p_values[..., None] <= np.asarray(thresholds)) & kept[..., None]  # [T, N, K]
    sums = np.concatenate([hits.sum(axis=1), kept.sum(axis=1, keepdims=True)], axis=1).astype(np.float32)
    totals = np.asarray(_resample(key, sums, block, num_replicates))
    overall = sums.sum(axis=0)
    return overall[:-1] / np.maximum(overall[-1], 1.0), totals[:, :-1] / np.maximum(totals[:, -1:], 1.0)


@jax.jit
def _correlations(scores: Array, senders: Array, receivers: Array, observed: Array) -> tuple[Array, Array, Array]:
    return (
        morans_i(scores, senders, receivers, observed=observed),
        lag1_autocorrelation(scores, observed=observed),
        within_step_correlation(scores, observed=observed),
    )


def _standardise(values: Array, present: Array) -> Array:
    """Each cell to mean 0 and variance 1 over its observed steps; 0 where not observed or constant."""
    count = jnp.maximum(present.sum(axis=0), 1)
    mean = jnp.where(present, values, 0.0).sum(axis=0) / count
    deviation = jnp.where(present, values - mean, 0.0)
    variance = jnp.sum(deviation**2, axis=0) / count
    return jnp.where(variance > _EPS, deviation / jnp.sqrt(jnp.maximum(variance, _EPS)), 0.0)
