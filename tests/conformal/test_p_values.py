"""Conformal p-values are ranks, exact at ties and valid; the variants do what their names say."""

import itertools
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stream_jax.conformal.fdr import bh_reject
from stream_jax.conformal.p_values import (
    InvalidPValueWarning,
    bonferroni_combine,
    calibration_conditional_p_values,
    cauchy_combine,
    conformal_p_values,
    expected_trimming_fdr,
    exponential_tail_p_values,
    gaussian_p_values,
    label_trim_mask,
    paper_trimmed_p_values,
    simes_combine,
    student_t_p_values,
)

# Compiled once per shape: run op by op, these tests would spend their time in the compiler.
conformal = jax.jit(conformal_p_values, static_argnames=("two_sided", "assume_sorted"))
exponential_tail = jax.jit(exponential_tail_p_values)
conditional = jax.jit(calibration_conditional_p_values, static_argnames="failure")
bonferroni = jax.jit(bonferroni_combine)
cauchy = jax.jit(cauchy_combine)
simes = jax.jit(simes_combine, static_argnames="any_dependence")
label_trim = jax.jit(label_trim_mask, static_argnames="budget")
bh = jax.jit(bh_reject)

# Few distinct values, so that ties abound; fixed lengths, so that each function compiles once.
tied_calibration = st.lists(st.integers(0, 6), min_size=30, max_size=30).map(np.float32)
tied_scores = st.lists(st.integers(-1, 7), min_size=8, max_size=8).map(np.float32)


def trimmed(calibration, scores, fraction):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InvalidPValueWarning)
        return paper_trimmed_p_values(calibration, scores, trim_fraction=fraction)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_p_value_is_one_plus_the_number_at_least_as_large_over_n_plus_one(wrap):
    # n = 4: nothing >= 5 -> 1/5; {4} >= 4 -> 2/5; {3, 4} >= 2.5 -> 3/5; all >= 0 -> 5/5.
    p_values = wrap(conformal_p_values)(jnp.array([3.0, 1.0, 4.0, 2.0]), jnp.array([5.0, 4.0, 2.5, 0.0]))
    chex.assert_trees_all_close(p_values, jnp.array([0.2, 0.4, 0.6, 1.0]), rtol=1e-7)


@given(tied_calibration, tied_scores, st.lists(st.booleans(), min_size=30, max_size=30).map(np.array))
@settings(max_examples=60, deadline=None)
def test_p_value_counts_ties_and_respects_the_mask(calibration, scores, mask):
    kept = calibration[mask]
    expected = [(1 + np.sum(kept >= s)) / (1 + kept.size) for s in scores]
    actual = conformal(jnp.asarray(calibration), jnp.asarray(scores), calibration_mask=jnp.asarray(mask))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_smallest_p_value_is_the_float32_nearest_to_one_over_n_plus_one():
    for n in (36_678, 1_000_000):
        p_value = conformal(jnp.zeros(n), jnp.array([1.0]))
        assert p_value[0] == np.float32(1.0 / (n + 1))


def test_each_of_ten_exchangeable_scores_gets_its_own_tenth():
    # Leave each of ten distinct scores out in turn: the p-values are 1/10, 2/10, ..., 1: exactly uniform.
    scores = np.random.default_rng(0).normal(size=10).astype(np.float32)
    leave_one_out = jax.vmap(lambda s, kept: conformal(scores, s, calibration_mask=kept))
    p_values = leave_one_out(scores, ~np.eye(10, dtype=bool))
    np.testing.assert_allclose(np.sort(p_values), np.arange(1, 11) / 10, rtol=1e-6)


def test_nan_score_is_no_evidence_and_nan_calibration_is_conservative():
    assert conformal(jnp.array([1.0, 2.0]), jnp.nan) == 1.0
    # The NaN counts as +inf: (1 + 1) / 3.
    np.testing.assert_allclose(conformal(jnp.array([1.0, jnp.nan]), jnp.array([5.0])), 2 / 3, rtol=1e-6)


def test_sorted_calibration_may_be_declared_sorted():
    rng = np.random.default_rng(1)
    calibration, scores = rng.normal(size=50).astype(np.float32), rng.normal(size=(7, 3)).astype(np.float32)
    for two_sided in (False, True):
        plain = conformal(calibration, scores, two_sided=two_sided)
        fast = conformal(np.sort(calibration), scores, two_sided=two_sided, assume_sorted=True)
        chex.assert_trees_all_equal(plain, fast)


def test_two_sided_p_value_finds_scores_that_are_too_small():
    # n = 9 scores 1..9. s = 0: upper 10/10, lower 1/10 -> 2/10. s = 5: upper 6/10, lower 6/10 -> 1.
    p_values = conformal(jnp.arange(1.0, 10.0), jnp.array([0.0, 5.0, 10.0]), two_sided=True)
    np.testing.assert_allclose(p_values, [0.2, 1.0, 0.2], rtol=1e-6)


def test_label_trim_removes_confirmed_outliers_within_the_budget_only():
    # budget 0.4 of 5 -> the two largest (9, 7) are labelled. 7 is normal and stays; the outlier 3 is never asked.
    scores = jnp.array([1.0, 9.0, 3.0, 7.0, 5.0])
    is_outlier = jnp.array([False, True, True, False, False])
    chex.assert_trees_all_equal(label_trim(scores, is_outlier, budget=0.4), jnp.array([True, False, True, True, True]))
    chex.assert_trees_all_equal(label_trim(scores, is_outlier, budget=0.0), jnp.ones(5, bool))


@given(tied_calibration, tied_scores, st.floats(0.0, 0.9), st.floats(0.0, 0.9))
@settings(max_examples=60, deadline=None)
def test_more_trimming_lowers_every_p_value_down_to_the_floor_so_rejections_are_nested(calibration, scores, one, other):
    calibration, scores = jnp.asarray(calibration), jnp.asarray(scores)
    less, more = (trimmed(calibration, scores, fraction) for fraction in sorted((one, other)))
    # (1 + # - k) / (1 + n - k) falls in k while # > k; after that p is the floor 1 / (1 + n - k), which creeps up.
    floor = trimmed(calibration, jnp.full(8, 99.0), max(one, other))
    assert jnp.all(more <= jnp.maximum(less, floor))
    # Nothing is lost as long as the floor clears the first BH cutoff, .9 / 8 for fewer than 22 of 30 scores trimmed.
    if floor[0] <= 0.9 / 8:
        assert jnp.all(~bh(less, 0.9) | bh(more, 0.9))


def test_trimming_costs_the_largest_score_its_resolution():
    # Nothing is above it, so removing k = 10 of 100 only moves the floor from 1 / 101 to 1 / 91.
    p_values = [trimmed(jnp.arange(100.0), jnp.array([200.0]), fraction)[0] for fraction in (0.0, 0.1)]
    np.testing.assert_allclose(p_values, [1 / 101, 1 / 91], rtol=1e-6)


def test_trimming_gives_a_share_tau_of_nulls_the_smallest_p_value():
    num_tests, tau, n = 40_000, 0.02, 4000
    rng = np.random.default_rng(3)
    p_values = np.asarray(trimmed(jnp.asarray(rng.normal(size=n)), jnp.asarray(rng.normal(size=num_tests)), tau))
    share = np.mean(p_values <= 1.0 / (n - tau * n + 1) * (1 + 1e-6))
    # Given the calibration the share is binomial around a Beta(80, 3921) tail mass: both spreads enter.
    standard_error = np.sqrt(tau * (1 - tau) * (1 / num_tests + 1 / n))
    assert abs(share - tau) < 3 * standard_error


def test_paper_trimming_warns_with_the_false_discovery_rate_to_expect():
    # tau m0 / (tau m0 + m1) = .02 * .95 / (.02 * .95 + .05) = .019 / .069 = .275
    assert expected_trimming_fdr(0.02, 0.05) == pytest.approx(0.2754, abs=1e-4)
    with pytest.warns(InvalidPValueWarning, match="FDR of about 0.275"):
        p_values = paper_trimmed_p_values(jnp.arange(100.0), jnp.array([98.5, 97.5]), trim_fraction=0.02)
    # 98 and 99 leave: nothing is left above either score, 1 / (1 + 98).
    np.testing.assert_allclose(p_values, [1 / 99, 1 / 99], rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        untrimmed = paper_trimmed_p_values(jnp.arange(100.0), jnp.array([98.5]), trim_fraction=0.0)
    np.testing.assert_allclose(untrimmed, conformal(jnp.arange(100.0), jnp.array([98.5])))


def test_calibration_conditional_adjustment_by_hand_for_four_scores():
    # n = 4, k = 2, failure = .1: b = 1 - sqrt(.1 * i (i - 1) / 12) for i = 4, 3, 2, 1, then 1.
    # i = 4: 1 - sqrt(.1) = .68377; i = 3: 1 - sqrt(.05) = .77639; i = 2: 1 - sqrt(1/60) = .87090; i = 1: 1.
    scores = jnp.array([4.5, 3.5, 2.5, 1.5, 0.5])
    p_values = conditional(jnp.arange(1.0, 5.0), scores, failure=0.1)
    np.testing.assert_allclose(p_values, [0.68377, 0.77639, 0.87090, 1.0, 1.0], atol=1e-5)


def test_calibration_conditional_p_values_hold_for_nine_calibration_sets_in_ten():
    # Scores U(0, 1): given the set, P(p <= p(U_(j))) = 1 - U_(j-1), which validity bounds by p(U_(j)) for all j.
    calibration = np.sort(np.random.default_rng(4).random((1000, 200), np.float32), axis=1)
    below = np.pad(calibration[:, :-1], ((0, 0), (1, 0)))

    def share_valid(p_value_function):
        p_values = np.asarray(jax.vmap(p_value_function)(calibration, calibration))
        return np.mean(np.all(1.0 - below <= p_values + 1e-6, axis=1))

    standard_error = np.sqrt(0.1 * 0.9 / 1000)
    assert share_valid(conditional) > 0.9 - 3 * standard_error
    assert share_valid(conformal) < 0.2


def test_exponential_tail_is_exact_for_an_exponential_score_and_ignores_outliers_in_calibration():
    clean = np.random.default_rng(5).exponential(size=40_000).astype(np.float32)
    dirty = np.where(np.arange(40_000) < 800, np.float32(30.0), clean)  # 2 % outliers
    p_clean = exponential_tail(clean, jnp.array([8.0]))
    p_dirty = exponential_tail(dirty, jnp.array([8.0]))
    # log p has the standard error of 5.7 / sqrt(8000 body scores) = .064 from the rate.
    assert abs(np.log(p_clean[0]) + 8.0) < 3 * 0.064
    assert p_dirty[0] < 3 * np.exp(-8.0)  # where ranks give the floor of 801 / 40001 = .02
    assert conformal(dirty, jnp.array([8.0]))[0] > 0.02


def test_exponential_tail_continues_the_ranks_and_never_increases():
    calibration = np.abs(np.random.default_rng(6).normal(size=1000)).astype(np.float32)
    scores = np.linspace(0.0, 6.0, 500, dtype=np.float32)
    p_values = np.asarray(exponential_tail(calibration, scores))
    assert np.all(np.diff(p_values) <= 0.0)
    is_body = scores <= np.sort(calibration)[899]
    np.testing.assert_array_equal(p_values[is_body], np.asarray(conformal(calibration, scores))[is_body])


def test_parametric_p_values_are_the_two_sided_tails():
    residuals = np.array([0.0, 1.959964, -3.0, 6.0])
    np.testing.assert_allclose(gaussian_p_values(2.0 * residuals + 1.0, mean=1.0, sd=2.0)[1], 0.05, rtol=1e-5)
    # A Student t with 5 degrees of freedom has variance 5/3.
    expected = 2 * stats.t.sf(np.abs(residuals) * np.sqrt(5 / 3), 5)
    np.testing.assert_allclose(student_t_p_values(residuals, degrees_of_freedom=5.0), expected, rtol=2e-4)


def test_intersection_p_value_is_the_smallest_times_the_number_of_cells():
    p_values = jnp.array([0.01, 0.4, 0.9, 0.02])
    members = jnp.array([[1, 1, 0, 0], [0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
    # 2 * .01; min(1, 2 * .4); 4 * .01; nothing to test.
    np.testing.assert_allclose(bonferroni(p_values, members), [0.02, 0.8, 0.04, 1.0], rtol=1e-6)
    tested = jnp.array([False, True, True, True])  # 1 * .4; 2 * .4; 3 * .02; none
    np.testing.assert_allclose(bonferroni(p_values, members, tested=tested), [0.4, 0.8, 0.06, 1.0], rtol=1e-6)


def test_cauchy_combination_of_equal_p_values_is_that_p_value():
    members = jnp.ones((1, 6), bool)
    for p in (1e-6, 0.01, 0.3):
        np.testing.assert_allclose(cauchy(jnp.full(6, p), members), p, rtol=1e-4)
    # One calm cell does not veto: cot(pi .999) = -318 against cot(pi 1e-6) = 318310 leaves about 2e-6 of two.
    np.testing.assert_allclose(cauchy(jnp.array([1e-6, 1.0]), members[:, :2]), 2e-6, rtol=2e-3)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_combined_p_values_are_super_uniform_under_strong_dependence(rho):
    num_draws = 20_000
    rng = np.random.default_rng(7)
    z = np.sqrt(rho) * rng.normal(size=(num_draws, 1)) + np.sqrt(1 - rho) * rng.normal(size=(num_draws, 8))
    p_values = gaussian_p_values(z.astype(np.float32))
    members = np.ones((1, 8), bool)
    for level, combine in itertools.product((0.01, 0.05), (bonferroni, cauchy)):
        share = np.mean(np.asarray(jax.vmap(combine, in_axes=(0, None))(p_values, members)) <= level)
        allowance = 1.1 if combine is cauchy else 1.0  # approximate by nature
        assert share <= allowance * level + 3 * np.sqrt(level / num_draws)


def test_simes_p_value_of_a_step_is_the_best_ranked_one():
    # Sorted .01, .04, .5, .9 with m = 4: .04, .08, .67, .9 -> .04; times 25/12 under any dependence.
    p_values = jnp.array([0.5, 0.01, 0.9, 0.04])
    np.testing.assert_allclose(simes(p_values), 0.04, rtol=1e-6)
    np.testing.assert_allclose(simes(p_values, any_dependence=True), 0.04 * 25 / 12, rtol=1e-6)
    # Without the .01, m = 3: .12, .75, .9 -> .12.
    np.testing.assert_allclose(simes(p_values, tested=jnp.array([1, 0, 1, 1], bool)), 0.12, rtol=1e-6)
    assert simes(p_values, tested=jnp.zeros(4, bool)) == 1.0
