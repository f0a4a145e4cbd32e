"""Safe capacity: found where it is known, with an interval that holds it; a bound where hours give no number."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from experiments.evaluation import capacity
from experiments.evaluation.capacity import Curve

RATES = capacity.grid(1500, 6000)
SPREAD = (0.12, 0.06, 0.07)  # of the log demand at which an hour fails: by hour, by hour and controller, by drive


def hours_of(rng, middle, count, shared=None):
    """A drive of hours that fail at a log-normal demand of this median; `shared` is what all controllers meet."""
    by_hour = SPREAD[0] * (rng.standard_normal(count) if shared is None else shared)
    fails = np.log(middle) + by_hour + SPREAD[1] * rng.standard_normal(count)
    fails = fails[:, None] + SPREAD[2] * rng.standard_normal((count, len(RATES)))
    return lambda rate: np.log(rate) < fails[:, RATES.index(rate)]


def true_capacity(middle):
    return middle * np.exp(scipy.stats.norm.ppf(1 - capacity.TARGET) * np.linalg.norm(SPREAD))


def test_rates_are_three_percent_apart_and_the_same_between_other_ends():
    ratio = np.array(RATES[1:]) / RATES[:-1]
    assert RATES[0] >= 1500 and RATES[-1] <= 6000 and 1.028 < ratio.min() < ratio.max() < 1.032
    assert set(capacity.grid(2000, 4000)) <= set(RATES)
    assert capacity.grid(1000, 1030) == [1000, 1030]


def test_a_curve_that_never_rises_is_the_isotonic_fit():
    share = np.random.default_rng(0).random((20, 9))
    fitted = [scipy.optimize.isotonic_regression(one, increasing=False).x for one in share]
    np.testing.assert_allclose(capacity.never_rising(share), fitted)


def test_a_step_is_found_with_the_fewest_drives():
    asked = []

    def drive(rate):
        asked.append(rate)
        return np.full(20, rate <= 3300)

    curve = capacity.search(drive, RATES)
    assert len(asked) <= capacity.bisections(RATES) == 6
    assert list(curve.rates) == sorted(asked) and curve.safe.shape == (20, len(asked))
    last = max(rate for rate in RATES if rate <= 3300)
    assert last < capacity.estimate(curve).value < last * capacity.FINENESS**0.1  # 0.05 of the way to the next


def test_the_crossing_lies_on_a_straight_line_over_log_demand():
    curve = Curve(np.array([1000.0, 4000.0]), np.array([[1.0, 1.0]] * 9 + [[1.0, 0.0]]))
    assert capacity.estimate(curve).value == pytest.approx(2000.0)  # half of the way from 1 to 0.9


def test_one_hour_of_twenty_may_fail():
    rates = np.array([1000.0, 2000.0, 4000.0])
    safe = np.array([[1.0, 1.0, 0.0]] * 19 + [[1.0, 0.0, 0.0]])
    assert capacity.estimate(Curve(rates, safe)).value == pytest.approx(2000.0)


@pytest.mark.parametrize("hours", [20, 60])
def test_the_interval_holds_the_truth_in_93_of_100_sets(hours):
    rng, truth, held, values = np.random.default_rng(hours), true_capacity(3500), 0, []
    for seed in range(100):
        found = capacity.estimate(capacity.search(hours_of(rng, 3500, hours), RATES), seed)
        held += found.lower <= truth <= found.upper
        values.append(found.value)
    assert held >= 93
    assert np.median(values) == pytest.approx(truth, rel=0.04)


def test_rates_are_driven_until_one_is_clearly_too_high_and_one_always_safe():
    for seed in range(20):
        curve = capacity.search(hours_of(np.random.default_rng(seed), 3500, 20), RATES)
        assert np.isfinite(capacity.estimate(curve).upper) and curve.safe[:, 0].all()
        assert len(curve.rates) <= 10


def test_enough_hours_bound_capacity_from_below_and_twenty_do_not():
    rng = np.random.default_rng(0)
    few, many = (capacity.estimate(capacity.search(hours_of(rng, 3500, count), RATES)) for count in (20, 60))
    assert few.lower == 0 and few.upper < 4500
    assert 0.8 < many.lower / true_capacity(3500) < 1


def test_the_paired_interval_holds_the_true_gain_in_93_of_100_sets_of_sixty_hours():
    rng, held = np.random.default_rng(1), 0
    for seed in range(100):
        shared = rng.standard_normal(60)
        one, other = (capacity.search(hours_of(rng, middle, 60, shared), RATES) for middle in (3600, 3000))
        found = capacity.difference(one, other, seed)
        held += found.lower <= 20 <= found.upper
        assert found.upper - found.lower < 60
    assert held >= 93


def test_a_controller_does_not_differ_from_itself():
    curve = capacity.search(hours_of(np.random.default_rng(3), 3500, 20), RATES)
    assert capacity.difference(curve, curve) == (0.0, 0.0, 0.0)


def test_a_controller_that_is_safe_nowhere_or_everywhere_has_a_bound_and_no_number():
    nowhere, everywhere = (capacity.search(lambda _, v=v: np.full(60, v), RATES) for v in (False, True))
    some = capacity.search(hours_of(np.random.default_rng(3), 3500, 60), RATES)
    below, above = capacity.estimate(nowhere), capacity.estimate(everywhere)
    assert below == (f"below {RATES[0]}", 0.0, RATES[0])
    assert above.value == f"above {RATES[-1]}" and above.upper == np.inf and 4000 < above.lower <= RATES[-1]
    assert capacity.difference(everywhere, nowhere).value == f"above {100 * (RATES[-1] / RATES[0] - 1):.3g}"
    assert capacity.difference(nowhere, everywhere).value == f"below {100 * (RATES[0] / RATES[-1] - 1):.3g}"
    assert capacity.difference(nowhere, nowhere) == ("unknown", -100.0, np.inf)
    gap = capacity.difference(everywhere, some)
    assert gap.value.startswith("above ") and gap.upper == np.inf and 0 < gap.lower


def test_differences_are_of_every_pair_both_ways():
    rng = np.random.default_rng(4)
    curves = {
        name: capacity.search(hours_of(rng, middle, 60), RATES) for name, middle in {"a": 2500, "b": 3500}.items()
    }
    found = capacity.differences(curves)
    assert set(found) == {("a", "b"), ("b", "a")} and found["b", "a"].value > 0 > found["a", "b"].value
    assert 1 + found["b", "a"].value / 100 == pytest.approx(1 / (1 + found["a", "b"].value / 100))
