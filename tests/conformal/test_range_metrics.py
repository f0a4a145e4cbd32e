"""VUS-PR equals its definition written out in loops, and average precision where buffers and events say nothing."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from stream_jax.conformal.range_metrics import soft_labels, volume_under_pr_surface


def events_of(label: np.ndarray) -> list[tuple[int, int, int]]:
    """(cell, first step, last step) of every run."""
    found = []
    for cell in range(label.shape[1]):
        step = 0
        while step < label.shape[0]:
            if label[step, cell]:
                first = step
                while step + 1 < label.shape[0] and label[step + 1, cell]:
                    step += 1
                found.append((cell, first, step))
            step += 1
    return found


def area_by_definition(scores: np.ndarray, label: np.ndarray, counted: np.ndarray, buffer: int) -> float:
    """One threshold after another, one cell-step after another."""
    soft = np.zeros(scores.shape)
    for cell, first, last in events_of(label):
        for step in range(scores.shape[0]):
            distance = max(first - step, step - last, 0)
            if distance == 0:
                soft[step, cell] = 1.0
            elif distance <= buffer // 2:
                soft[step, cell] = max(soft[step, cell], np.sqrt(1.0 - distance / buffer))
    kept = [e for e in events_of(label) if counted[e[1] : e[2] + 1, e[0]].any()]
    positives = 0.5 * (label[counted].sum() + soft[counted].sum())
    area, before = 0.0, 0.0
    for threshold in sorted(set(scores[counted]), reverse=True):
        alarm = (scores >= threshold) & counted
        reach = buffer // 2
        touched = np.mean([alarm[max(a - reach, 0) : b + reach + 1, cell].any() for cell, a, b in kept])
        recall = min(soft[alarm].sum() / positives, 1.0) * touched
        area += (recall - before) * soft[alarm].sum() / alarm.sum()
        before = recall
    return area


def a_recording(seed: int, decimals: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    label = np.zeros((30, 4), bool)
    for _ in range(5):
        first, cell = rng.integers(28), rng.integers(4)
        label[first : first + rng.integers(1, 5), cell] = True
    scores = (rng.normal(size=label.shape) + 1.5 * label).round(decimals)
    return scores, label, rng.random(label.shape) < 0.85


@pytest.mark.parametrize("decimals", [0, 6], ids=["ties", "no ties"])
@pytest.mark.parametrize("seed", range(3))
def test_the_volume_is_the_mean_of_the_areas_by_definition(seed, decimals):
    scores, label, counted = a_recording(seed, decimals)
    expected = np.mean([area_by_definition(scores, label, counted, buffer) for buffer in range(6)])
    found = volume_under_pr_surface(scores, label, tested=counted, max_buffer=5)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("decimals", [0, 6], ids=["ties", "no ties"])
def test_without_a_buffer_a_single_event_has_sklearns_average_precision(decimals):
    rng = np.random.default_rng(1)
    label = np.zeros((60, 3), bool)
    label[20:35, 1] = True  # one event: touched as soon as anything is found
    scores = (rng.normal(size=label.shape) + label).round(decimals)
    expected = average_precision_score(label.ravel(), scores.ravel())
    assert volume_under_pr_surface(scores, label, max_buffer=0) == pytest.approx(expected, abs=1e-12)


def test_slopes_fall_with_the_root_of_the_distance_and_end_halfway_through_the_buffer():
    is_anomaly = np.zeros((9, 2), bool)
    is_anomaly[4, 0] = True
    # Buffer 4 reaches two steps: sqrt(1 - 1/4) and sqrt(1 - 2/4), in the same cell alone.
    expected = np.zeros((9, 2))
    expected[2:7, 0] = [np.sqrt(0.5), np.sqrt(0.75), 1.0, np.sqrt(0.75), np.sqrt(0.5)]
    np.testing.assert_allclose(soft_labels(is_anomaly, 4), expected)


def test_an_alarm_one_step_late_is_worth_more_than_one_far_away():
    label = np.zeros((40, 1), bool)
    label[20] = True
    late, far = np.zeros((40, 1)), np.zeros((40, 1))
    late[21], far[35] = 1.0, 1.0
    assert volume_under_pr_surface(late, label) > 2 * volume_under_pr_surface(far, label)
    assert volume_under_pr_surface(late, label, max_buffer=0) == volume_under_pr_surface(far, label, max_buffer=0)


def test_a_perfect_ranking_without_buffer_is_one_and_no_anomaly_is_nan():
    label = np.zeros((20, 2), bool)
    label[3:5, 0] = label[10, 1] = True
    assert volume_under_pr_surface(label.astype(float), label, max_buffer=0) == pytest.approx(1.0)
    assert np.isnan(volume_under_pr_surface(np.ones((5, 2)), np.zeros((5, 2), bool)))


def test_a_score_that_is_not_a_number_ranks_last():
    label = np.array([[True], [False], [False]])
    scores = np.array([[np.nan], [1.0], [0.0]])
    assert volume_under_pr_surface(scores, label, max_buffer=0) == pytest.approx(1 / 3)
