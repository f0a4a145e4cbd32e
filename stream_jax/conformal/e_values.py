"""E-values for anomaly scores: non-negative evidence with mean at most 1 under the null, for e-BH and e-LOND.

An alternative to the p-values of the paper's Eq. pvalue whose procedures need no assumption on the dependence between
cells and, with few calibration scores, keep more power than Benjamini-Yekutieli.
"""

import chex
import jax
import jax.numpy as jnp
from jax import Array


def soft_rank_e_values(
    calibration_scores: Array,
    scores: Array,
    *,
    mean: float | Array = 0.0,
    sd: float | Array = 1.0,
    sharpness: float = 2.0,
    score_cap: float = 12.0,
    calibration_mask: Array | None = None,
) -> Array:
    """Soft-rank e-values (n + 1) w(s) / (w(s) + sum_j w(s_j)) with w(s) = exp(sharpness min(s, score_cap)).

    The mean is exactly 1 for a score exchangeable with the calibration scores. Heavy-tailed scores lose power: one
    large calibration score takes the whole sum.

    Args:
        calibration_scores: [n].
        scores: any shape; NaN is no evidence (e = 0).
        mean: subtracted first; from data that are not the calibration scores, as is `sd`.
        calibration_mask: [n] bool, False leaves an entry out.
    """
    chex.assert_rank(calibration_scores, 1)
    log_weight = sharpness * jnp.minimum((scores - mean) / sd, score_cap)
    log_calibration = sharpness * jnp.minimum((calibration_scores - mean) / sd, score_cap)  # [n]
    size = calibration_scores.shape[0]
    if calibration_mask is not None:
        log_calibration = jnp.where(calibration_mask, log_calibration, -jnp.inf)
        size = calibration_mask.sum()
    # (n + 1) / (1 + exp(log sum_j w_j - log w)): no weight is ever exponentiated alone.
    e_value = (size + 1.0) * jax.nn.sigmoid(log_weight - jax.nn.logsumexp(log_calibration))
    return jnp.where(jnp.isnan(scores), 0.0, e_value)


def p_to_e_values(p_values: Array, kappa: float = 0.5) -> Array:
    """The calibrator kappa p^(kappa - 1), 0 < kappa < 1: a valid e-value from any valid p-value, at a great loss."""
    return kappa * jnp.power(p_values, kappa - 1.0)
