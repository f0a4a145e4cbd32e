"""Chooses which cells of a step are anomalous at a controlled false-discovery rate.

Paper: Benjamini-Yekutieli (Eq. by, Theorem "FDR Control under Arbitrary Dependence"). What each procedure proves, with
valid p-values (or e-values) and per set of tests handed in together:

- `bh_reject`: FDR <= level when the p-values are independent or positively regression dependent (PRDS).
- `by_reject`: FDR <= level under any dependence.
- `storey_bh_reject`: FDR <= level under independence only.
- `e_bh_reject`: FDR <= level under any dependence, from e-values.

None of them repairs p-values that are not valid one by one.
"""

import math
import warnings
from typing import Literal, NamedTuple

import chex
import jax.numpy as jnp
import numpy as np
from jax import Array

Procedure = Literal["bh", "by", "e_bh"]

# Cutoffs such as 3 * 0.05 / 293 are rounded, so a p-value that equals its cutoff on paper may exceed it by an ulp or
# two in float32. Such a tie is a rejection; the level grows by the factor 1 + 5e-7 at most.
_TIE_SLACK = 4.0 * float(np.finfo(np.float32).eps)


class Rejections(NamedTuple):
    """What a step-up procedure decided."""

    rejected: Array  # [m] bool
    count: Array  # [] int32, k*: how many are rejected; 0 rejects nothing
    threshold: Array  # [] data-dependent: reject p <= threshold (e-BH: e >= threshold, +inf when k* = 0)


class CalibrationSizeWarning(UserWarning):
    """The calibration set is too small for a single anomaly to be rejected."""


def bh_reject(p_values: Array, level: float | Array, *, tested: Array | None = None) -> Array:
    """Benjamini-Hochberg: bool [m]. Entries with `tested` False are no tests: never rejected, not counted in m."""
    return step_up(p_values, level, procedure="bh", tested=tested).rejected


def by_reject(p_values: Array, level: float | Array, *, tested: Array | None = None) -> Array:
    """Benjamini-Yekutieli: BH at level / (1 + 1/2 + ... + 1/m), bool [m]; always a subset of BH's rejections."""
    return step_up(p_values, level, procedure="by", tested=tested).rejected


def e_bh_reject(e_values: Array, level: float | Array, *, tested: Array | None = None) -> Array:
    """e-BH: the k* largest e-values, k* = max{k : k e_(k) >= m / level}; bool [m]."""
    return e_step_up(e_values, level, tested=tested).rejected


def storey_bh_reject(
    p_values: Array, level: float | Array, *, cutoff: float = 0.5, tested: Array | None = None
) -> Array:
    """BH at level / pi0, where pi0 = (1 + #{p > cutoff}) / (m (1 - cutoff)) estimates the share of nulls; bool [m].

    Proven for independent p-values only: common shocks move pi0 and the error together. Rejects no p > cutoff.
    """
    counted = _counted(p_values, tested)
    size = jnp.maximum(counted.sum(), 1)
    null_share = (1.0 + jnp.sum(counted & (p_values > cutoff))) / (size * (1.0 - cutoff))
    return bh_reject(p_values, level / null_share, tested=tested) & (p_values <= cutoff)


def step_up(
    p_values: Array,
    level: float | Array,
    *,
    procedure: Literal["bh", "by"] = "by",
    tested: Array | None = None,
    weights: Array | None = None,
) -> Rejections:
    """Rejects the k* smallest p-values, k* = max{k : p_(k) <= k level / (m c)}, c = 1 (BH) or H_m (BY).

    p-values tied with the k*-th are rejected too, and a NaN p-value never is. With weights [m] > 0, which are scaled to
    mean 1 over the tests, p / w takes the place of p, also in the threshold. What the procedures promise holds for
    weights fixed in advance; weights that move together with the p-values that they weigh cost it.
    """
    chex.assert_rank(p_values, 1)
    counted = _counted(p_values, tested)
    size = counted.sum()
    if weights is not None:
        chex.assert_equal_shape([p_values, weights])
        mean = jnp.where(counted, weights, 0.0).sum() / jnp.maximum(size, 1)
        p_values = p_values * mean / weights
    correction = _harmonic_numbers(p_values.shape[0])[size] if procedure == "by" else 1.0
    per_rank = level / (jnp.maximum(size, 1) * correction)
    ranks = jnp.arange(1, p_values.shape[0] + 1)
    ordered = jnp.sort(jnp.where(counted & ~jnp.isnan(p_values), p_values, jnp.inf))
    passes = ordered <= ranks * per_rank * (1.0 + _TIE_SLACK)
    count = jnp.max(jnp.where(passes, ranks, 0))
    rejected = counted & (p_values <= ordered[jnp.maximum(count - 1, 0)]) & (count > 0)
    return Rejections(rejected, count, count * per_rank)


def e_step_up(e_values: Array, level: float | Array, *, tested: Array | None = None) -> Rejections:
    """e-BH with its count and threshold m / (level k*)."""
    chex.assert_rank(e_values, 1)
    counted = _counted(e_values, tested)
    required = counted.sum() / level
    ranks = jnp.arange(1, e_values.shape[0] + 1)
    ordered = -jnp.sort(-jnp.where(counted & ~jnp.isnan(e_values), e_values, -jnp.inf))
    passes = ranks * ordered * (1.0 + _TIE_SLACK) >= required
    count = jnp.max(jnp.where(passes, ranks, 0))
    rejected = counted & (e_values >= ordered[jnp.maximum(count - 1, 0)]) & (count > 0)
    return Rejections(rejected, count, jnp.where(count > 0, required / jnp.maximum(count, 1), jnp.inf))


def required_calibration_size(num_tests: int, level: float, procedure: Procedure = "by") -> int:
    """Fewest calibration scores with which one anomaly among `num_tests` can be rejected.

    The smallest conformal p-value is 1 / (n + 1) and must reach the first cutoff level / (m c). For e-BH the number is
    necessary, not sufficient: a soft-rank e-value stays below n + 1.
    """
    if num_tests < 1 or not 0.0 < level < 1.0:
        raise ValueError(f"need num_tests >= 1 and 0 < level < 1, got {num_tests} and {level}")
    correction = math.fsum(1.0 / k for k in range(1, num_tests + 1)) if procedure == "by" else 1.0
    return math.ceil(num_tests * correction / level - 1e-9) - 1  # 1e-9: 293 / 0.05 must not round up past 5860


def check_calibration_size(size: int, num_tests: int, level: float, procedure: Procedure = "by") -> bool:
    """Warns, with the number needed, when `size` calibration scores cannot reject a single anomaly; True if enough."""
    required = required_calibration_size(num_tests, level, procedure)
    if size < required:
        name = procedure.upper().replace("_", "-")
        message = f"{size} calibration scores are too few for {name} to reject one of {num_tests} tests at {level}"
        warnings.warn(f"{message}: at least {required} are needed.", CalibrationSizeWarning, stacklevel=2)
    return size >= required


def _counted(values: Array, tested: Array | None) -> Array:
    return jnp.ones(values.shape, bool) if tested is None else tested.astype(bool)


def _harmonic_numbers(largest: int) -> Array:
    """H_0 .. H_largest with H_0 = 1 by convention (no tests, no division by zero), summed in float64."""
    numbers = np.concatenate([[1.0], np.cumsum(1.0 / np.arange(1, largest + 1))])
    return jnp.asarray(numbers, jnp.float32)
