"""Step-up procedures agree with scipy and with exact arithmetic, and size and masks are handled to the unit."""

from fractions import Fraction

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from stream_jax.conformal.fdr import (
    CalibrationSizeWarning,
    bh_reject,
    by_reject,
    check_calibration_size,
    e_bh_reject,
    e_step_up,
    required_calibration_size,
    step_up,
    storey_bh_reject,
)
from stream_jax.conformal.p_values import conformal_p_values

REJECT = {"bh": jax.jit(bh_reject), "by": jax.jit(by_reject)}
e_bh = jax.jit(e_bh_reject)
SIZE = 20  # one length, one compilation

ranks = st.lists(st.integers(1, 200), min_size=SIZE, max_size=SIZE)  # conformal p-values r / 200, often tied
p_value_lists = st.lists(st.floats(2.0**-20, 1.0, width=32), min_size=SIZE, max_size=SIZE)
masks = st.lists(st.booleans(), min_size=SIZE, max_size=SIZE).map(np.array)


def exact_step_up(p_values: list[Fraction], level: Fraction, procedure: str) -> list[bool]:
    """The definition in rational arithmetic."""
    m = len(p_values)
    correction = sum(Fraction(1, k) for k in range(1, m + 1)) if procedure == "by" else 1
    passing = [p for k, p in enumerate(sorted(p_values), 1) if p <= k * level / (m * correction)]
    return [bool(passing) and p <= max(passing) for p in p_values]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_by_rejects_the_two_smallest_of_four_and_reports_its_threshold(wrap):
    # m = 4, 1 + 1/2 + 1/3 + 1/4 = 25/12, level .05: cutoffs .006, .012, .018, .024, so k* = 2.
    p_values = jnp.array([0.020, 0.001, 0.800, 0.010])
    result = wrap(lambda p: step_up(p, 0.05, procedure="by"))(p_values)
    chex.assert_trees_all_equal(result.rejected, jnp.array([False, True, False, True]))
    assert result.count == 2
    np.testing.assert_allclose(result.threshold, 0.012, rtol=1e-6)


def test_no_rejection_has_count_and_threshold_zero():
    result = step_up(jnp.array([0.5, 0.9]), 0.05)
    assert result.count == 0 and result.threshold == 0.0 and not result.rejected.any()


def test_bh_steps_up_past_a_p_value_above_its_own_cutoff():
    # Cutoffs .0125, .025, .0375, .05: .03 > .025 fails alone, .035 <= .0375 pulls it in; .2 stays.
    rejected = REJECT["bh"](jnp.array([0.001, 0.03, 0.035, 0.2]), 0.05)
    chex.assert_trees_all_equal(rejected, jnp.array([True, True, True, False]))


@given(p_value_lists, st.sampled_from(["bh", "by"]), st.floats(0.01, 0.5))
@settings(max_examples=80, deadline=None)
def test_rejections_are_those_of_scipys_adjusted_p_values(p_values, procedure, level):
    adjusted = false_discovery_control(np.float64(p_values), method=procedure)
    assume(np.all(np.abs(adjusted / level - 1.0) > 2e-6))  # float32 cannot tell closer values apart
    rejected = REJECT[procedure](jnp.asarray(p_values, jnp.float32), level)
    np.testing.assert_array_equal(rejected, adjusted <= level)


@given(ranks, st.sampled_from(["bh", "by"]), st.sampled_from([Fraction(1, 20), Fraction(3, 10), Fraction(9, 10)]))
@settings(max_examples=80, deadline=None)
def test_p_values_that_equal_their_cutoff_are_rejected_as_in_exact_arithmetic(ranks, procedure, level):
    exact = exact_step_up([Fraction(r, 200) for r in ranks], level, procedure)
    rejected = REJECT[procedure](jnp.asarray(ranks, jnp.float32) / 200.0, float(level))
    np.testing.assert_array_equal(rejected, exact)


@pytest.mark.parametrize(("level", "denominator"), [(0.05, 400), (0.1, 200), (0.2, 100)])
def test_k_p_values_tied_at_the_kth_cutoff_are_rejected_and_just_above_it_none(level, denominator):
    # m = 20: the k-th BH cutoff k level / 20 is k / denominator, but float32 rounds the two differently.
    for k in range(1, SIZE + 1):
        p_values = np.where(np.arange(SIZE) < k, np.float32(k) / np.float32(denominator), np.float32(1.0))
        for reject in (bh_reject, REJECT["bh"]):  # compiled or not, the same decision
            assert reject(p_values, level).sum() == k
            assert reject(p_values * np.float32(1.0 + 2e-6), level).sum() == 0


@given(p_value_lists, masks, st.floats(0.01, 0.9))
@settings(max_examples=60, deadline=None)
def test_by_rejects_a_subset_of_bh(p_values, mask, level):
    p_values = jnp.asarray(p_values, jnp.float32)
    assert jnp.all(~REJECT["by"](p_values, level, tested=mask) | REJECT["bh"](p_values, level, tested=mask))


@given(ranks, masks, st.sampled_from(["bh", "by"]))
@settings(max_examples=80, deadline=None)
def test_masked_entries_are_no_tests(ranks, mask, procedure):
    rejected = np.asarray(REJECT[procedure](jnp.asarray(ranks, jnp.float32) / 200.0, 0.3, tested=mask))
    assert not rejected[~mask].any()
    kept = [Fraction(r, 200) for r, is_kept in zip(ranks, mask, strict=True) if is_kept]
    np.testing.assert_array_equal(rejected[mask], exact_step_up(kept, Fraction(3, 10), procedure))


def test_a_nan_p_value_counts_as_a_test_that_is_not_rejected():
    # m = 2 with the NaN: cutoff .025 < .03; without it .05 >= .03.
    p_values = jnp.array([0.03, jnp.nan])
    assert not REJECT["bh"](p_values, 0.05).any()
    chex.assert_trees_all_equal(REJECT["bh"](p_values, 0.05, tested=~jnp.isnan(p_values)), jnp.array([True, False]))


def test_e_bh_rejects_the_largest_by_hand():
    # m = 4, level .1: need k e_(k) >= 40. 50; 2 * 21 = 42; 3 * 13 = 39; 4 * 1: k* = 2, threshold 20.
    e_values = jnp.array([21.0, 1.0, 50.0, 13.0])
    result = e_step_up(e_values, 0.1)
    chex.assert_trees_all_equal(result.rejected, jnp.array([True, False, True, False]))
    assert result.count == 2 and result.threshold == 20.0
    # Without the last m = 3: need 30, and 13 is no test.
    chex.assert_trees_all_equal(
        e_bh(e_values, 0.1, tested=jnp.array([1, 1, 1, 0], bool)), jnp.array([True, False, True, False])
    )
    assert e_step_up(jnp.ones(3), 0.1).threshold == jnp.inf


@given(p_value_lists, st.floats(0.01, 0.9))
@settings(max_examples=60, deadline=None)
def test_e_bh_of_inverse_p_values_is_bh(p_values, level):
    # k / p_(k) >= m / level is p_(k) <= k level / m.
    p_values = jnp.asarray(p_values, jnp.float32)
    adjusted = false_discovery_control(np.float64(p_values))
    assume(np.all(np.abs(adjusted / level - 1.0) > 2e-6))
    chex.assert_trees_all_equal(e_bh(1.0 / p_values, level), REJECT["bh"](p_values, level))


def test_storey_doubles_the_level_when_half_are_far_from_null():
    # One of 4 exceeds 1/2: pi0 = (1 + 1) / (4 * .5) = 1: BH. None of 4: pi0 = 1/2: BH at .1.
    storey = jax.jit(storey_bh_reject)
    assert storey(jnp.array([0.02, 0.04, 0.07, 0.9]), 0.05).sum() == 0
    assert storey(jnp.array([0.02, 0.04, 0.07, 0.08]), 0.05).sum() == 4


def test_weights_of_mean_one_take_the_place_of_an_equal_budget():
    p_values, weights = jnp.array([0.03, 0.03, 0.6, 0.9]), jnp.array([1.0, 5.0, 1.0, 1.0])
    assert not bh_reject(p_values, 0.05).any()  # .03 > 2 * .05 / 4
    # Weights of mean 2: p / w = (.06, .012, 1.2, 1.8), and .012 <= .05 / 4.
    for scale in (1.0, 40.0):
        found = step_up(p_values, 0.05, procedure="bh", weights=scale * weights)
        np.testing.assert_array_equal(found.rejected, [False, True, False, False])
    equal = step_up(p_values, 0.2, weights=jnp.full(4, 7.0))
    chex.assert_trees_all_close(equal, step_up(p_values, 0.2))
    # What is not tested has no share: the mean of the two left is 3, so p / w = .018 <= .05 / 2.
    tested = jnp.array([True, True, False, False])
    masked = step_up(p_values, 0.05, procedure="bh", weights=weights.at[2].set(1e6), tested=tested)
    np.testing.assert_array_equal(masked.rejected, [False, True, False, False])


def test_vmapped_decisions_trace_once():
    decide = jax.jit(jax.vmap(chex.assert_max_traces(by_reject, n=1), in_axes=(0, None)))
    for seed in range(3):
        assert decide(np.random.default_rng(seed).random((6, 20), np.float32), 0.05).shape == (6, 20)


@pytest.mark.parametrize(
    ("num_tests", "procedure", "size"),
    # m H_m / level = 293 * 6.259094 / .05 = 36678.29 <= n + 1; m / level = 5860 <= n + 1.
    [(293, "by", 36_678), (293, "bh", 5_859), (293, "e_bh", 5_859)],
)
def test_required_calibration_size_by_hand(num_tests, procedure, size):
    assert required_calibration_size(num_tests, 0.05, procedure) == size


@pytest.mark.parametrize("procedure", ["bh", "by"])
def test_one_huge_anomaly_is_rejected_from_the_required_size_on_and_not_one_below(procedure):
    size = required_calibration_size(293, 0.05, procedure)
    scores = jnp.zeros(293).at[17].set(1e6)
    for n, expected in ((size, 1), (size - 1, 0)):
        p_values = jax.jit(conformal_p_values)(np.linspace(-1.0, 1.0, n, dtype=np.float32), scores)
        rejected = REJECT[procedure](p_values, 0.05)
        assert rejected.sum() == expected and rejected[17] == bool(expected)


def test_too_small_a_calibration_set_is_told_the_number_it_needs(recwarn):
    assert check_calibration_size(36_678, 293, 0.05)
    assert not recwarn.list
    with pytest.warns(CalibrationSizeWarning, match="2000 .* BY .* at least 36678 are needed"):
        assert not check_calibration_size(2000, 293, 0.05)
    with pytest.raises(ValueError, match="level"):
        required_calibration_size(293, 5.0)
