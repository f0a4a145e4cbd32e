"""Scores a detector against labels: false-discovery proportions, recall, average precision, bootstrap intervals.

Paper: RQ2 (Eq. fdr), Table "Anomaly detection results", Section "Empirical Dependence Verification". Two definitions
of FDR are in use and may differ tenfold when anomalies are rare, so both are always computed: the mean over steps of
each step's false-discovery proportion, which is what a per-step procedure controls, and the pooled share of false
alarms in the log, 1 - precision, which is what an operator sees.

The bootstrap gives intervals. It cannot verify a procedure: the mean of its replicates is the sample's mean whatever
the block size, and only the spread knows about dependence.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.conformal.bootstrap import BootstrapInterval, paired_difference, resampled_totals


class StepCounts(NamedTuple):
    """What happened at each step; all metrics follow from it."""

    rejections: Array  # [T] cells rejected
    false_rejections: Array  # [T] rejected cells that are normal
    anomalies: Array  # [T] anomalous cells


class DetectionMetrics(NamedTuple):
    """Detection quality over a recording; NaN where there is nothing to divide by."""

    fdr_step: Array  # mean over all steps of V / max(R, 1)
    fdr_given_rejection: Array  # mean of V / R over the steps that reject; NaN if none does
    fdr_pooled: Array  # sum V / sum R = 1 - precision; 0 if nothing is rejected
    precision: Array  # pooled over steps; NaN if nothing is rejected
    recall: Array  # pooled over steps; NaN without anomalies
    f1: Array  # of pooled precision and recall; 0 if no anomaly is found


class MetricsBootstrap(NamedTuple):
    """Circular block bootstrap of the metrics; the space of a step is always kept together."""

    estimate: DetectionMetrics  # of the sample itself
    mean: DetectionMetrics  # over replicates
    lower: DetectionMetrics  # two-sided interval
    upper: DetectionMetrics
    upper_limit: DetectionMetrics  # one-sided: the true value lies below with the stated confidence


def false_discovery_proportion(rejected: Array, is_anomaly: Array, *, tested: Array | None = None) -> Array:
    """V / max(R, 1) along the last axis: 0 when nothing is rejected."""
    counts = count_steps(rejected, is_anomaly, tested=tested)
    return counts.false_rejections / jnp.maximum(counts.rejections, 1)


def count_steps(rejected: Array, is_anomaly: Array, *, tested: Array | None = None) -> StepCounts:
    """Counts along the last axis, [..., N] -> [...]; cells with `tested` False are left out."""
    chex.assert_equal_shape([rejected, is_anomaly])
    counted = jnp.ones(rejected.shape, bool) if tested is None else tested
    return StepCounts(
        rejections=jnp.sum(rejected & counted, axis=-1),
        false_rejections=jnp.sum(rejected & ~is_anomaly & counted, axis=-1),
        anomalies=jnp.sum(is_anomaly & counted, axis=-1),
    )


def detection_metrics(counts: StepCounts) -> DetectionMetrics:
    """All metrics from the counts of T steps."""
    chex.assert_rank(list(counts), 1)
    return _metrics_of_totals(_step_sums(counts).sum(axis=0))


def bootstrap_metrics(
    key: Array,
    counts: StepCounts,
    *,
    block_steps: int = 10,
    num_replicates: int = 1000,
    confidence: float = 0.95,
) -> MetricsBootstrap:
    """Intervals for the metrics by resampling circular blocks of `block_steps` consecutive steps."""
    chex.assert_rank(list(counts), 1)
    sums = _step_sums(counts)
    estimate = _metrics_of_totals(sums.sum(axis=0))
    values = jnp.stack(jax.vmap(_metrics_of_totals)(resampled_totals(key, sums, block_steps, num_replicates)))  # [6, R]
    tail = (1.0 - confidence) / 2.0
    lower, upper, upper_limit = jnp.nanquantile(values, jnp.array([tail, 1.0 - tail, confidence]), axis=1)
    held = jnp.stack(estimate)  # [6]; where it is NaN, the bounds are what the replicates say
    summaries = (jnp.nanmean(values, axis=1), jnp.fmin(lower, held), jnp.fmax(upper, held), upper_limit)
    return MetricsBootstrap(estimate, *(DetectionMetrics(*summary) for summary in summaries))


def paired_f1(
    key: Array, counts: StepCounts, other: StepCounts, *, block_steps: int = 10, num_replicates: int = 1000
) -> BootstrapInterval:
    """F1 of the first minus F1 of the second detector over the same T steps, drawn together."""
    chex.assert_rank([*counts, *other], 1)
    return paired_difference(key, _step_sums(counts), _step_sums(other), _f1_of_totals, block_steps, num_replicates)


def average_precision(scores: Array, is_anomaly: Array, *, tested: Array | None = None) -> Array:
    """Area under the precision-recall curve by steps (no interpolation); larger scores are more anomalous.

    Tied scores enter together. NaN without anomalies. Any shape, pooled.
    """
    chex.assert_equal_shape([scores, is_anomaly])
    counted = jnp.ones(scores.size, bool) if tested is None else tested.ravel()
    negated = jnp.where(counted, -scores.ravel(), jnp.inf)  # entries left out come last
    order = jnp.argsort(negated)
    ordered = negated[order]
    is_positive = (is_anomaly.ravel() & counted)[order]
    found = jnp.cumsum(is_positive)
    last_tied = jnp.searchsorted(ordered, ordered, side="right") - 1
    precision = found[last_tied] / (last_tied + 1.0)  # once the whole tie has entered
    return jnp.sum(jnp.where(is_positive, precision, 0.0)) / is_positive.sum()


def recall_by_kind(rejected: Array, kind: Array, num_kinds: int) -> Array:
    """Share of the anomalies of kind 1 .. num_kinds that are rejected, [num_kinds]; NaN for a kind that never occurs.

    Args:
        rejected: any shape, bool.
        kind: like rejected, int; 0 is normal.
    """
    chex.assert_equal_shape([rejected, kind])
    is_kind = kind.ravel()[None, :] == jnp.arange(1, num_kinds + 1)[:, None]  # [K, T N]
    return jnp.sum(is_kind & rejected.ravel(), axis=1) / is_kind.sum(axis=1)


def _step_sums(counts: StepCounts) -> Array:
    """[T, 6] columns whose totals over any set of steps determine every metric."""
    rejections, false_rejections, anomalies = (field.astype(jnp.float32) for field in counts)
    proportion = false_rejections / jnp.maximum(rejections, 1.0)
    columns = (jnp.ones_like(rejections), proportion, rejections > 0.0, rejections, false_rejections, anomalies)
    return jnp.stack(columns, axis=1)


def _f1_of_totals(totals: Array) -> Array:
    return _metrics_of_totals(totals).f1


def _metrics_of_totals(totals: Array) -> DetectionMetrics:
    num_steps, proportions, num_rejecting, rejections, false_rejections, anomalies = totals
    found = rejections - false_rejections
    return DetectionMetrics(
        fdr_step=proportions / num_steps,
        fdr_given_rejection=proportions / num_rejecting,
        fdr_pooled=false_rejections / jnp.maximum(rejections, 1.0),
        precision=found / rejections,
        recall=found / anomalies,
        # 2 P R / (P + R) with P = found / rejections and R = found / anomalies.
        f1=2.0 * found / jnp.maximum(rejections + anomalies, 1.0),
    )
