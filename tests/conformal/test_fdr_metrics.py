"""Both definitions of FDR by hand, average precision as sklearn's, and a bootstrap that leaves the mean alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from stream_jax.conformal.fdr_metrics import (
    StepCounts,
    average_precision,
    bootstrap_metrics,
    count_steps,
    detection_metrics,
    false_discovery_proportion,
    paired_f1,
    recall_by_kind,
)

metrics_of = jax.jit(detection_metrics)

# Step 1 rejects the anomalous cell 0 and three normal ones; step 2 rejects nothing and misses cell 1; step 3 rejects
# its one anomaly.
REJECTED = jnp.array([[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 1, 0]], bool)
IS_ANOMALY = jnp.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], bool)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_step_and_pooled_rates_of_three_steps_by_hand(wrap):
    metrics = wrap(lambda r, a: detection_metrics(count_steps(r, a)))(REJECTED, IS_ANOMALY)
    np.testing.assert_allclose(metrics.fdr_step, (3 / 4 + 0 + 0) / 3)
    np.testing.assert_allclose(metrics.fdr_given_rejection, (3 / 4 + 0) / 2)
    np.testing.assert_allclose(metrics.fdr_pooled, 3 / 5)
    np.testing.assert_allclose(metrics.precision, 2 / 5)
    np.testing.assert_allclose(metrics.recall, 2 / 3)
    # Precision 2/5, recall 2/3: 2 * (4/15) / (16/15) = 1/2.
    np.testing.assert_allclose(metrics.f1, 1 / 2)


def test_cells_without_data_are_left_out():
    tested = jnp.array([[1, 1, 1, 0], [1, 0, 1, 1], [1, 1, 1, 1]], bool)
    counts = count_steps(REJECTED, IS_ANOMALY, tested=tested)
    np.testing.assert_array_equal(jnp.stack(counts), [[3, 0, 1], [2, 0, 0], [1, 0, 1]])
    np.testing.assert_allclose(false_discovery_proportion(REJECTED, IS_ANOMALY, tested=tested), [2 / 3, 0, 0])


def test_nothing_rejected_is_no_false_discovery_and_no_anomaly_is_no_recall():
    metrics = metrics_of(StepCounts(*np.zeros((3, 3), int)))
    assert metrics.fdr_step == 0.0 and metrics.fdr_pooled == 0.0 and metrics.f1 == 0.0
    assert jnp.isnan(metrics.recall) and jnp.isnan(metrics.fdr_given_rejection) and jnp.isnan(metrics.precision)


def test_rare_bursts_pull_the_two_rates_apart():
    # 100 steps; 4 false alarms alone in 4 steps, 1 burst of 4 found: step rate 4/100, pooled 4/8.
    step = np.arange(100)
    false, found = np.where(step < 4, 1, 0), np.where(step == 50, 4, 0)
    counts = StepCounts(rejections=false + found, false_rejections=false, anomalies=found)
    metrics = metrics_of(counts)
    np.testing.assert_allclose([metrics.fdr_step, metrics.fdr_pooled], [0.04, 0.5], rtol=1e-6)


def test_bootstrap_mean_does_not_depend_on_the_block_size_and_its_spread_does():
    is_bad = (np.arange(300) // 10) % 7 == 0  # false alarms in runs of ten
    counts = StepCounts(*map(jnp.asarray, (np.full(300, 4), np.where(is_bad, 3, 0), np.full(300, 5))))
    sample = metrics_of(counts).fdr_step
    results = {}
    for block_steps in (1, 10):
        bootstrap = jax.jit(lambda key, b=block_steps: bootstrap_metrics(key, counts, block_steps=b))
        results[block_steps] = bootstrap(jax.random.key(block_steps))
        width = results[block_steps].upper.fdr_step - results[block_steps].lower.fdr_step
        # The interval is about 4 standard deviations wide; the mean of 1000 replicates has sd / sqrt(1000).
        assert abs(results[block_steps].mean.fdr_step - sample) < 4 * (width / 4) / np.sqrt(1000)
        assert results[block_steps].lower.fdr_step < sample < results[block_steps].upper_limit.fdr_step
    narrow, wide = (results[b].upper.fdr_step - results[b].lower.fdr_step for b in (1, 10))
    assert wide > 2 * narrow  # runs of ten: independent steps would be sqrt(10) times too sure


def test_average_precision_is_sklearns_also_with_ties():
    rng = np.random.default_rng(0)
    for decimals in (0, 6):
        scores = rng.normal(size=(40, 10)).round(decimals).astype(np.float32)
        is_anomaly = rng.random((40, 10)) < 0.2
        tested = rng.random((40, 10)) < 0.8
        expected = average_precision_score(is_anomaly[tested], scores[tested])
        actual = jax.jit(average_precision)(scores, is_anomaly, tested=tested)
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_recall_by_kind_counts_each_kind_alone():
    kind = jnp.array([[1, 1, 2, 0], [2, 2, 0, 0]])
    rejected = jnp.array([[1, 0, 1, 1], [1, 1, 0, 0]], bool)
    np.testing.assert_allclose(recall_by_kind(rejected, kind, 3), [0.5, 1.0, np.nan])


def test_two_detectors_are_compared_on_the_same_blocks_of_steps():
    # One anomaly a step; both detectors find it in every second block of ten steps only, and the second adds a false
    # alarm in the first half of the recording. F1 is 2 * 100 / (100 + 200) = 2 / 3 and 2 * 100 / (200 + 200) = 1 / 2.
    steps = jnp.arange(200)
    found, anomalies = (steps // 10) % 2, jnp.ones(200, int)
    clean = StepCounts(found, jnp.zeros(200, int), anomalies)
    noisy = StepCounts(found + (steps < 100), (steps < 100).astype(int), anomalies)
    key = jax.random.key(0)
    same = paired_f1(key, clean, clean)
    assert float(same.estimate) == float(same.lower) == float(same.upper) == 0.0
    paired = paired_f1(key, noisy, clean)
    np.testing.assert_allclose(paired.estimate, 1 / 2 - 2 / 3, rtol=1e-5)
    np.testing.assert_allclose(paired_f1(key, clean, noisy).estimate, 2 / 3 - 1 / 2, rtol=1e-5)
    # Both find less where few lucky blocks are drawn. Drawn apart, their differences would spread by the root of both
    # variances; drawn together, what they share cancels.
    alone = [bootstrap_metrics(jax.random.key(k), one) for k, one in enumerate((clean, noisy))]
    width = [float(one.upper.f1 - one.lower.f1) for one in alone]
    assert float(paired.upper - paired.lower) < 0.7 * np.hypot(*width)
