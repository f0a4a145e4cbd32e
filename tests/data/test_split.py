"""Parts of a recording: ordered, apart, long enough to hold windows, and a true sentence where that cannot be."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.spark_etl.split import LONG_GAP, MIN_WINDOWS, Fold, split_recording

WINDOW, HORIZON = 12, 4
SPAN = WINDOW + HORIZON


def parts(fold: Fold) -> list[tuple[int, int]]:
    return [fold.train, fold.val, fold.calibration, fold.test]


@settings(max_examples=300, deadline=None)
@given(
    num_steps=st.integers(1, 6000),
    steps_per_day=st.sampled_from([6, 8, 24, 48, 96, 144, 288]),
    window=st.integers(1, 24),
    horizon=st.integers(1, 12),
)
def test_parts_are_ordered_apart_and_hold_windows_whatever_the_length(num_steps, steps_per_day, window, horizon):
    span = window + horizon
    try:
        folds = split_recording(num_steps, steps_per_day, window, horizon)
    except DataError:
        return
    for fold in folds:
        bounds = parts(fold)
        assert bounds[0][0] == 0 and bounds[-1][1] <= num_steps
        assert fold.train[1] == fold.val[0]
        assert fold.calibration[0] - fold.val[1] >= span
        assert fold.test[0] - fold.calibration[1] >= span
        assert min(stop - start for start, stop in bounds) >= span + MIN_WINDOWS - 1
    assert folds[-1].test[1] == num_steps


@settings(max_examples=60, deadline=None)
@given(
    num_steps=st.integers(1, 119),
    steps_per_day=st.sampled_from([8, 24, 96, 288]),
    window=st.integers(1, 24),
    horizon=st.integers(1, 12),
)
def test_the_needed_length_in_the_error_is_exactly_enough(num_steps, steps_per_day, window, horizon):
    try:
        split_recording(num_steps, steps_per_day, window, horizon)
        return
    except DataError as error:
        needed = int(re.search(r"at least (\d+) are needed", str(error)).group(1))
    assert needed > num_steps
    assert split_recording(needed, steps_per_day, window, horizon)
    with pytest.raises(DataError, match=f"only {needed - 1} steps; at least {needed} are needed"):
        split_recording(needed - 1, steps_per_day, window, horizon)


@settings(max_examples=100, deadline=None)
@given(num_steps=st.integers(350, 21 * 96 - 1))
def test_rolling_folds_test_on_different_whole_days_at_the_end(num_steps):
    folds = split_recording(num_steps, 96, WINDOW, HORIZON)
    assert 2 <= len(folds) <= 3
    tests = [fold.test for fold in folds]
    # One day each, back to back, ending with the recording: disjoint, and together they cover len(folds) days.
    assert all(stop - start == 96 for start, stop in tests)
    assert [stop for _, stop in tests[:-1]] == [start for start, _ in tests[1:]]
    assert tests[-1][1] == num_steps


def test_three_weeks_are_split_once_with_six_hour_gaps_in_the_stated_shares():
    # 2016 steps, two gaps of 24: 1968 usable; test int(0.15 * 1968) = 295; of the other 1673 val takes
    # int(1673 * 0.15 / 0.85) = 295 and calibration int(1673 * 0.20 / 0.85) = 393; train keeps 985.
    (fold,) = split_recording(21 * 96, 96, WINDOW, HORIZON)
    assert fold == Fold((0, 985), (985, 1280), (1304, 1697), (1721, 2016))
    assert fold.calibration[0] - fold.val[1] == LONG_GAP == fold.test[0] - fold.calibration[1]


def test_a_week_gives_three_folds_worked_by_hand():
    # 593 steps of T-Drive: tests end at 401, 497, 593. First fold: 401 - 96 - 32 = 273 usable before the test;
    # val int(273 * 15/85) = 48, calibration int(273 * 20/85) = 64, train 161.
    folds = split_recording(593, 96, WINDOW, HORIZON)
    assert folds[0] == Fold((0, 161), (161, 209), (225, 289), (305, 401))
    assert [fold.test for fold in folds] == [(305, 401), (401, 497), (497, 593)]
