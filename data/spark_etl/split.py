"""Chronological parts of a recording: train, validation, gap, calibration, gap, test, or rolling-origin folds of them.

Each part serves one purpose: the models learn on train; early stopping, clusters and the flow use val; conformal
quantiles and p-value scores come from calibration alone.
"""

import dataclasses

from data.errors import DataError

SHARES = {"train": 0.50, "val": 0.15, "calibration": 0.20, "test": 0.15}
LONG_GAP = 24  # six hours, the paper's gap
SHORT_RECORDING_DAYS = 21
MAX_FOLDS = 3
MIN_WINDOWS = 4  # of every part; fewer could not be learnt from nor calibrated with


@dataclasses.dataclass(frozen=True)
class Fold:
    """Half-open step ranges."""

    train: tuple[int, int]
    val: tuple[int, int]
    calibration: tuple[int, int]
    test: tuple[int, int]


def split_recording(num_steps: int, steps_per_day: int, window: int, horizon: int) -> list[Fold]:
    """One chronological fold for three weeks or more, else up to three rolling-origin folds with a day of test each.

    The later folds train on what the earlier ones tested on, so the test parts together cover days even of a short
    recording. Gaps are at least window + horizon steps: no model input or target is shared across a gap.
    """
    span = window + horizon
    if num_steps >= SHORT_RECORDING_DAYS * steps_per_day:
        gap = max(LONG_GAP, span)
        test = int((num_steps - 2 * gap) * SHARES["test"])
        if _fits(num_steps, test, gap, span):
            return [_fold(num_steps, test, gap, span)]
    for folds in range(MAX_FOLDS, 1, -1):
        test = steps_per_day
        ends = [num_steps - (folds - 1 - k) * test for k in range(folds)]
        if _fits(ends[0], test, span, span):
            return [_fold(end, test, span, span) for end in ends]
    test = _single_test(num_steps, span)
    if not _fits(num_steps, test, span, span):
        needed = next(n for n in range(num_steps + 1, 100 * span) if _fits(n, _single_test(n, span), span, span))
        raise DataError(
            f"The recording has only {num_steps} steps; at least {needed} are needed to train, calibrate and test "
            "with gaps between. Bring more days, or a smaller --bin-minutes."
        )
    return [_fold(num_steps, test, span, span)]


def _single_test(num_steps: int, span: int) -> int:
    return max(int((num_steps - 2 * span) * SHARES["test"]), span + MIN_WINDOWS - 1)


def _lengths(end: int, test: int, gap: int) -> tuple[int, int, int]:
    usable = end - test - 2 * gap
    rest = SHARES["train"] + SHARES["val"] + SHARES["calibration"]
    val = int(usable * SHARES["val"] / rest)
    calibration = int(usable * SHARES["calibration"] / rest)
    return usable - val - calibration, val, calibration


def _fits(end: int, test: int, gap: int, span: int) -> bool:
    return min(*_lengths(end, test, gap), test) >= span + MIN_WINDOWS - 1


def _fold(end: int, test: int, gap: int, span: int) -> Fold:
    train, val, calibration = _lengths(end, test, gap)
    calibration_start = train + val + gap
    fold = Fold(
        train=(0, train),
        val=(train, train + val),
        calibration=(calibration_start, calibration_start + calibration),
        test=(end - test, end),
    )
    assert fold.test[0] - fold.calibration[1] == gap >= span
    return fold
