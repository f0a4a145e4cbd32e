"""Injected anomalies have the prevalence, sizes, durations and labels they should."""

import numpy as np
import pytest

from data.injection import DROP, LEVEL_SHIFT, NORMAL, InjectionConfig, inject_anomalies

NUM_STEPS, NUM_CELLS, START = 400, 50, 100
SENDERS, RECEIVERS = np.arange(NUM_CELLS - 1), np.arange(1, NUM_CELLS)
VALUES = np.random.default_rng(0).poisson(100.0, (NUM_STEPS, NUM_CELLS)).astype(np.float32)
SD = np.full(NUM_CELLS, 10.0)


def inject(seed: int, values: np.ndarray = VALUES, **config):
    return inject_anomalies(
        np.random.default_rng(seed), values, SD, SENDERS, RECEIVERS, config=InjectionConfig(**config), start=START
    )


def test_exactly_five_percent_of_the_part_after_start_is_anomalous():
    result = inject(1)
    assert result.label.sum() == round(0.05 * (NUM_STEPS - START) * NUM_CELLS)
    assert not result.label[:START].any()
    np.testing.assert_array_equal(result.values[:START], VALUES[:START])


def test_labels_are_exactly_where_values_changed_and_the_input_is_untouched():
    values = VALUES.copy()
    values[:, ::3] = 0.0  # a drop of nothing is no anomaly
    before = values.copy()
    result = inject(2, values)
    np.testing.assert_array_equal(values, before)
    np.testing.assert_array_equal(result.label, result.values != values)
    np.testing.assert_array_equal(result.label, result.kind != NORMAL)
    assert not np.any((result.kind == DROP) & (values == 0.0))


def test_sizes_are_those_of_the_configuration_and_counts_stay_counts():
    result = inject(3)
    shift = (result.values - VALUES)[result.kind == LEVEL_SHIFT]
    assert np.all((np.abs(shift) >= 39.5) & (np.abs(shift) <= 80.5))  # 4 to 8 times 10, rounded
    assert (shift > 0).any() and (shift < 0).any()
    share = (result.values / VALUES)[result.kind == DROP]
    assert share.min() > 0.19 and share.max() < 0.61
    assert result.values.min() >= 0.0
    np.testing.assert_array_equal(result.values, np.round(result.values))
    assert result.values.dtype == VALUES.dtype


def test_shifts_of_small_counts_go_up():
    result = inject(4, np.ones_like(VALUES), drop_probability=0.0)
    assert np.all(result.values[result.label] > 1.0)


def test_same_seed_same_anomalies_and_another_seed_others():
    np.testing.assert_array_equal(inject(5).values, inject(5).values)
    assert np.any(inject(5).label != inject(6).label)


def test_lone_events_last_one_to_four_steps_in_one_cell():
    # At a rate of .2 % events hardly ever meet; nothing spreads.
    label = inject(7, rate=0.002, spread_probability=0.0).label
    padded = np.pad(label.astype(int), ((1, 1), (0, 0)))
    starts = np.argwhere(np.diff(padded, axis=0) == 1)
    durations = [label[step:, cell].argmin() if not label[step:, cell].all() else 1 for step, cell in starts]
    assert set(durations) <= {1, 2, 3, 4} and len(set(durations)) > 1


def test_spreading_events_reach_both_neighbours_at_once():
    label = inject(8, rate=0.002, spread_probability=1.0).label
    widths = label.sum(axis=1)
    # A cell of the road and its two neighbours; two at the ends and in the last, cut event.
    assert widths.max() >= 3
    assert np.mean(widths[widths > 0] >= 2) > 0.8


def test_missing_cell_steps_are_neither_changed_nor_counted():
    observed = np.random.default_rng(9).random(VALUES.shape) < 0.5
    result = inject_anomalies(np.random.default_rng(9), VALUES, SD, SENDERS, RECEIVERS, observed=observed)
    assert not np.any(result.label & ~observed)
    assert result.label.sum() == round(0.05 * observed.sum())


def test_impossible_requests_are_refused():
    with pytest.raises(ValueError, match="could be changed"):
        inject(10, np.zeros_like(VALUES), drop_probability=1.0, rate=0.002)
    with pytest.raises(ValueError, match="negative"):
        inject(10, -VALUES)
    with pytest.raises(ValueError, match="start"):
        inject_anomalies(np.random.default_rng(0), VALUES, SD, SENDERS, RECEIVERS, start=NUM_STEPS)
