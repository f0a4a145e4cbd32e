"""Turns anomaly scores into p-values by their rank among calibration scores, and combines p-values of many cells.

Paper: Definition "Conformalized P-Values" (Eq. pvalue), Lemma "Trimming Preserves Super-Uniformity" and Algorithm 2,
Appendix "Conformalized vs. Parametric P-Values". Larger scores are more anomalous everywhere.

The plain conformal p-value is the default. The paper trims the largest calibration scores first; that hands the
smallest possible p-value to about a `trim_fraction` of all normal cells, so the variant is kept under the name
`paper_trimmed_p_values` and warns.
"""

import math
import warnings

import chex
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import betainc
from jax.scipy.stats import norm

# Cauchy combination: a p-value of 1 has the statistic -inf and would veto all others.
_LARGEST_CAUCHY_P = 0.999


class InvalidPValueWarning(UserWarning):
    """The p-values asked for are known not to be super-uniform under the null."""


def conformal_p_values(
    calibration_scores: Array,
    scores: Array,
    *,
    calibration_mask: Array | None = None,
    two_sided: bool = False,
    assume_sorted: bool = False,
) -> Array:
    """Conformal p-values (1 + #{calibration >= score}) / (1 + n): P(p <= a) <= a for an exchangeable score.

    Ties count against the score. A NaN score is no evidence (p = 1); a NaN calibration score counts as +inf.

    Args:
        calibration_scores: [n], from data screened without looking at the score itself.
        scores: any shape.
        calibration_mask: [n] bool, False leaves an entry out (and out of n).
        two_sided: twice the smaller of the upper and the lower p-value, to catch scores that are too small as well.
        assume_sorted: the scores are ascending and unmasked, as when one calibration serves many ticks.
    """
    chex.assert_rank(calibration_scores, 1)
    size = _calibration_size(calibration_scores, calibration_mask)
    at_least = _count_at_least(calibration_scores, scores, calibration_mask, assume_sorted)
    upper = _rank_p_value(at_least, size)
    if two_sided:
        flipped = -calibration_scores[::-1] if assume_sorted else -calibration_scores
        at_most = _count_at_least(flipped, -scores, calibration_mask, assume_sorted)
        upper = jnp.minimum(1.0, 2.0 * jnp.minimum(upper, _rank_p_value(at_most, size)))
    return jnp.where(jnp.isnan(scores), 1.0, upper)


def label_trim_mask(
    calibration_scores: Array,
    is_outlier: Array,
    budget: float = 0.08,
    *,
    calibration_mask: Array | None = None,
) -> Array:
    """Which calibration scores to keep when an expert labels the `budget` largest share of them.

    Only confirmed outliers among those leave, so the survivors are still a sample of normal scores; p-values from
    them keep their level when the labels are right and the budget exceeds the contamination (Bashari et al. 2025).

    Args:
        calibration_scores: [n].
        is_outlier: [n] bool; read only for the ceil(budget n) largest scores (more if tied with the last).
    """
    chex.assert_rank(calibration_scores, 1)
    chex.assert_equal_shape([calibration_scores, is_outlier])
    kept = jnp.ones_like(is_outlier, bool) if calibration_mask is None else calibration_mask
    descending = -jnp.sort(-jnp.where(kept, calibration_scores, -jnp.inf))
    num_labelled = _share_of(budget, _calibration_size(calibration_scores, calibration_mask))
    cutoff = descending[jnp.maximum(num_labelled - 1, 0)]
    is_labelled = (calibration_scores >= cutoff) & (num_labelled > 0)
    return kept & ~(is_labelled & is_outlier)


def calibration_conditional_p_values(calibration_scores: Array, scores: Array, *, failure: float = 0.1) -> Array:
    """P-values valid given the calibration set at hand, for all but a `failure` share of calibration sets.

    The Simes-type adjustment of Bates et al. (2023): the rank r = ceil((n + 1) p) becomes b_r with
    b_{n+1-i} = 1 - failure^(1/k) (i (i-1) ... (i-k+1) / (n (n-1) ... (n-k+1)))^(1/k), k = floor(n / 2), b_{n+1} = 1.
    Needs independent calibration scores and n >= 2; the smallest p-value is about 2 log(1 / failure) / n.
    """
    chex.assert_rank(calibration_scores, 1)
    adjusted = jnp.asarray(_simes_adjustment(calibration_scores.shape[0], failure), jnp.float32)  # [n + 1]
    at_least = _count_at_least(calibration_scores, scores, None, False)
    return jnp.where(jnp.isnan(scores), 1.0, adjusted[at_least])


def exponential_tail_p_values(
    calibration_scores: Array,
    scores: Array,
    *,
    threshold_quantile: float = 0.7,
    tail_quantile: float = 0.9,
) -> Array:
    """Model-based p-values: ranks in the body, a fitted exponential beyond the tail quantile. Not distribution-free.

    The rate is fitted between the two quantiles with everything above censored, so outliers in the calibration tail
    do not move it. Conservative if the score's density is log-concave (a radius is; a squared radius in one dimension
    is not) and anti-conservative for heavy tails: check the tail before use.
    """
    chex.assert_rank(calibration_scores, 1)
    n = calibration_scores.shape[0]
    ordered = jnp.sort(calibration_scores)
    start = ordered[math.ceil(threshold_quantile * n) - 1]
    end = ordered[math.ceil(tail_quantile * n) - 1]
    in_body = (ordered > start) & (ordered <= end)
    num_beyond = jnp.sum(ordered > end)
    exposure = jnp.sum(jnp.where(in_body, ordered - start, 0.0)) + num_beyond * (end - start)
    rate = in_body.sum() / jnp.maximum(exposure, jnp.finfo(jnp.float32).tiny)
    ranked = conformal_p_values(ordered, scores, assume_sorted=True)
    beyond = _rank_p_value(num_beyond, n) * jnp.exp(-rate * jnp.maximum(scores - end, 0.0))
    return jnp.where(scores > end, beyond, ranked)


def paper_trimmed_p_values(
    calibration_scores: Array, scores: Array, *, trim_fraction: float = 0.02, prevalence: float = 0.05
) -> Array:
    """The paper's p-values, with the top ceil(trim_fraction n) = k scores removed: (1 + max(# - k, 0)) / (1 + n - k).

    Invalid: about a `trim_fraction` of normal scores get the smallest p-value, at any n. Issues an
    `InvalidPValueWarning` with the false-discovery rate to expect when a share `prevalence` is anomalous.
    """
    chex.assert_rank(calibration_scores, 1)
    if not 0.0 <= trim_fraction < 1.0:
        raise ValueError(f"trim_fraction must be in [0, 1), got {trim_fraction}")
    if trim_fraction > 0.0:
        excess = expected_trimming_fdr(trim_fraction, prevalence)
        message = f"Trimming the top {trim_fraction:.1%} of clean calibration scores makes the p-values invalid"
        warnings.warn(f"{message}: expect an FDR of about {excess:.3f}.", InvalidPValueWarning, stacklevel=2)
    n = calibration_scores.shape[0]
    num_trimmed = _share_of(trim_fraction, n)
    at_least = _count_at_least(calibration_scores, scores, None, False)
    p_value = _rank_p_value(jnp.maximum(at_least - num_trimmed, 0), n - num_trimmed)
    return jnp.where(jnp.isnan(scores), 1.0, p_value)


def expected_trimming_fdr(trim_fraction: float, prevalence: float) -> float:
    """False-discovery rate tau m0 / (tau m0 + m1) when trimming rejects a share tau of nulls and every anomaly."""
    false = trim_fraction * (1.0 - prevalence)
    return false / (false + prevalence) if false > 0.0 else 0.0


def gaussian_p_values(residuals: Array, *, mean: float | Array = 0.0, sd: float | Array = 1.0) -> Array:
    """Two-sided tail probability of a residual under N(mean, sd^2): the paper's parametric baseline."""
    return 2.0 * norm.sf(jnp.abs(residuals - mean) / sd)


def student_t_p_values(
    residuals: Array, *, degrees_of_freedom: float, mean: float | Array = 0.0, sd: float | Array = 1.0
) -> Array:
    """Two-sided tail probability under a Student t scaled to standard deviation `sd`; degrees of freedom > 2."""
    squared = jnp.square((residuals - mean) / sd) * degrees_of_freedom / (degrees_of_freedom - 2.0)
    # P(|T| > t) = I_{v / (v + t^2)}(v / 2, 1 / 2), exact and accurate far in the tail.
    return betainc(degrees_of_freedom / 2.0, 0.5, degrees_of_freedom / (degrees_of_freedom + squared))


def bonferroni_combine(p_values: Array, members: Array, *, tested: Array | None = None) -> Array:
    """One p-value per intersection, min(1, n_j min_i p_i): valid however its cells depend on each other.

    Args:
        p_values: [N].
        members: [I, N] bool, the cells of each intersection; an intersection without tested cells gets p = 1.
        tested: [N] bool, False where a cell has no p-value.
    """
    counted = _counted_members(p_values, members, tested)
    smallest = jnp.where(counted, p_values, jnp.inf).min(axis=1)  # [I]
    count = counted.sum(axis=1)
    return jnp.where(count > 0, jnp.minimum(1.0, count * smallest), 1.0)


def cauchy_combine(p_values: Array, members: Array, *, tested: Array | None = None) -> Array:
    """One p-value per intersection from the mean of cot(pi p): approximate, accurate for small p-values only.

    More powerful than Bonferroni when many cells are a little anomalous. Arguments as in `bonferroni_combine`.
    """
    counted = _counted_members(p_values, members, tested)
    count = counted.sum(axis=1)
    # tan(pi (1/2 - p)) = 1 / tan(pi p), which keeps float32 accuracy as p -> 0.
    statistic = 1.0 / jnp.tan(jnp.pi * jnp.clip(p_values, jnp.finfo(jnp.float32).tiny, _LARGEST_CAUCHY_P))
    mean = jnp.where(counted, statistic, 0.0).sum(axis=1) / jnp.maximum(count, 1)
    return jnp.where(count > 0, jnp.arctan2(1.0, mean) / jnp.pi, 1.0)


def simes_combine(p_values: Array, *, tested: Array | None = None, any_dependence: bool = False) -> Array:
    """One p-value for a whole step, min_k m p_(k) / k; times 1 + 1/2 + ... + 1/m for validity under any dependence."""
    chex.assert_rank(p_values, 1)
    kept = jnp.ones(p_values.shape, bool) if tested is None else tested
    ranks = jnp.arange(1, p_values.shape[0] + 1)
    size = kept.sum()
    combined = jnp.min(jnp.sort(jnp.where(kept, p_values, jnp.inf)) * size / ranks)
    if any_dependence:
        combined = combined * jnp.sum(jnp.where(ranks <= size, 1.0 / ranks, 0.0))
    return jnp.where(size > 0, jnp.minimum(1.0, combined), 1.0)


def _calibration_size(calibration_scores: Array, calibration_mask: Array | None) -> int | Array:
    return calibration_scores.shape[0] if calibration_mask is None else calibration_mask.sum()


def _share_of(share: float, size: int | Array) -> int | Array:
    """ceil(share * size), safe from rounding: 0.07 * 100 is 7.000000000000001 and must not become 8."""
    if isinstance(size, int):
        return math.ceil(share * size * (1.0 - 1e-12))
    return jnp.ceil(share * size * (1.0 - 1e-6)).astype(int)


def _nan_as_infinite(calibration_scores: Array) -> Array:
    return jnp.where(jnp.isnan(calibration_scores), jnp.inf, calibration_scores)


def _rank_p_value(count: Array, size: int | Array) -> Array:
    # Integers up to 2^24 are exact in float32, so one rounded division gives 1 / (n + 1) to the last bit.
    return (1.0 + count.astype(jnp.float32)) / (1.0 + jnp.asarray(size, jnp.float32))


def _count_at_least(
    calibration_scores: Array, scores: Array, calibration_mask: Array | None, assume_sorted: bool
) -> Array:
    """#{calibration >= score} by one sort and a binary search each: O((n + m) log n)."""
    n = calibration_scores.shape[0]
    if assume_sorted:
        return n - jnp.searchsorted(calibration_scores, scores, side="left")
    ordered = _nan_as_infinite(calibration_scores)
    if calibration_mask is None:
        return n - jnp.searchsorted(jnp.sort(ordered), scores, side="left")
    ordered = jnp.sort(jnp.where(calibration_mask, ordered, -jnp.inf))
    # A score of -inf would find the entries left out; no more than the kept ones can be counted.
    return jnp.minimum(n - jnp.searchsorted(ordered, scores, side="left"), calibration_mask.sum())


def _simes_adjustment(n: int, failure: float) -> np.ndarray:
    """The table b_1 .. b_{n+1}, float64 on the host: the ratio of factorials cancels too much for float32."""
    k = n // 2
    log_factor = np.full(n + 1, -np.inf)  # by i = 0 .. n; b = 1 where i < k
    i = np.arange(k, n + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    log_ratio = log_factorial[i] - log_factorial[i - k] - log_factorial[n] + log_factorial[n - k]
    log_factor[i] = (math.log(failure) + log_ratio) / k
    return -np.expm1(log_factor)[::-1]


def _counted_members(p_values: Array, members: Array, tested: Array | None) -> Array:
    chex.assert_rank([p_values, members], [1, 2])
    chex.assert_equal(members.shape[1], p_values.shape[0])
    return members.astype(bool) if tested is None else members.astype(bool) & tested[None, :]
