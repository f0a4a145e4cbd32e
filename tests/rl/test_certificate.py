"""Claims about certificates: the drift bound is algebra, the paper's theorem is false, margins cover what they say."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stream_jax.rl import certificate
from stream_jax.rl.certificate import DriftTerms
from stream_jax.rl.lyapunov import LyapunovConfig

CFG = LyapunovConfig()
TOY = LyapunovConfig(kappa=1.0, delta=0.1)
drift_bound = jax.jit(certificate.drift_bound, static_argnums=1)
margin = jax.jit(certificate.conformal_margin, static_argnums=1)


def biased_queue(start: float, steps: int = 400, bias: float = 0.1) -> tuple[DriftTerms, np.ndarray, np.ndarray]:
    """x' = x + 0.3 - u with L = x^2 and d_C = (x - 1)^+; the model predicts too little by `bias`.

    u is the least control with L(mu) - L(x) <= -kappa d_C + delta, so the filter is content at every step.
    """
    x = [start]
    predicted = []
    for _ in range(steps):
        violated = max(x[-1] - 1.0, 0.0)
        allowed = np.sqrt(max(x[-1] ** 2 - TOY.kappa * violated + TOY.delta, 0.0))
        predicted.append(min(x[-1] + 0.3 - bias, allowed))
        x.append(predicted[-1] + bias)
    x, mu = np.array(x), np.array(predicted)
    violated = np.maximum(x[:-1] - 1.0, 0.0)
    rows = [x[:-1] ** 2, mu**2, x[1:] ** 2, np.zeros(steps), violated]
    return DriftTerms(*(jnp.asarray(row, jnp.float32) for row in rows)), x, mu


def test_the_papers_theorem_certifies_a_queue_that_breaks_its_promise_and_we_refuse_it():
    _, x, mu = biased_queue(0.0)
    # At rest mu = x - 0.1 and (x - 0.1)^2 - x^2 = -(x - 1) + 0.1, so x = 1.09 / 0.8 = 1.3625.
    np.testing.assert_allclose(x[-1], 1.3625, atol=1e-6)
    violated = x[-1] - 1.0
    epsilon = abs(x[-1] - mu[-1]) / (x[-1] + 0.1)
    threshold = certificate.paper_epsilon_star(violated, 2.0 * x[-1], 1.0, TOY)
    np.testing.assert_allclose([epsilon, threshold], [0.0684, 0.0849], atol=5e-5)
    assert epsilon < certificate.paper_epsilon_star(violated, 2.0 * x[-1], np.sqrt(2.0), TOY)
    promised = TOY.delta / TOY.kappa
    assert violated > 3 * promised  # what the theorem excludes
    episodes = [biased_queue(start)[0] for start in (0.0, 0.5, 1.0, 2.0)]
    bounds = jax.vmap(lambda one: certificate.drift_bound(one, TOY))(
        jax.tree.map(lambda *rows: jnp.stack(rows), *episodes)
    )
    assert (bounds.excess_term < 1e-4).all()  # the filter never complained
    for target in (promised, 0.2):
        verdict = certificate.verdict(bounds, jnp.ones((4, 400), bool), target, TOY)
        assert not verdict.certified
        assert "exceeds the target" in verdict.failing
    # The same episodes do support a weaker promise, which they keep.
    assert certificate.verdict(bounds, jnp.ones((4, 400), bool), 0.5, TOY).certified
    assert bounds.realised.max() < 0.5


@given(st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_the_drift_bound_holds_on_every_path(seed):
    rng = np.random.default_rng(seed)
    values = rng.gamma(0.5, 2.0, 61) * rng.choice([0.01, 1.0, 30.0])
    predicted, violated = rng.gamma(0.5, 2.0, 60), rng.gamma(0.3, 1.0, 60)
    margins = rng.normal(size=60)
    rows = (values[:-1], predicted, values[1:], margins, violated)
    result = drift_bound(DriftTerms(*(jnp.asarray(row, jnp.float32) for row in rows)), CFG)
    assert result.holds
    assert result.realised <= result.bound * (1 + 1e-4) + 1e-3
    parts = result.delta_term + result.residual_term + result.excess_term + result.start_term
    np.testing.assert_allclose(result.bound, parts, rtol=1e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_the_terms_of_two_steps_by_hand(wrap):
    terms = DriftTerms(*(jnp.array(row) for row in ([1.0, 2.0], [0.5, 1.0], [2.0, 0.0], [0.1, 0.1], [1.0, 0.0])))
    result = wrap(lambda rows: certificate.drift_bound(rows, TOY))(terms)
    # xi = 1.5, -1: mean 0.25, less 0.1. exc = max(0, 0.5 + 0.1 - 1 + 1 - 0.1) = 0.5 and 0: mean 0.25. L(x_0) / 2 = 0.5.
    expected = [0.1 + 0.15 + 0.25 + 0.5, 0.1, 0.15, 0.25, 0.5, 0.5]
    np.testing.assert_allclose(result[:-1], expected, rtol=1e-5)
    assert result.holds


def test_a_log_with_a_missing_piece_is_found_out():
    # L falls from 100 to 0 while nothing is logged, again and again: the pieces do not telescope.
    steps = 50
    rows = [np.zeros(steps), np.zeros(steps), np.zeros(steps), np.full(steps, 1.0), np.full(steps, 3.0)]
    rows[1] -= 100.0  # a value that no Lyapunov function has
    rows[2] -= 200.0
    broken = drift_bound(DriftTerms(*(jnp.asarray(row, jnp.float32) for row in rows)), TOY)
    assert not broken.holds
    pair = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), broken)
    assert "not contiguous" in certificate.verdict(pair, jnp.ones((2, steps), bool), 5.0, TOY).failing


def test_an_infinite_margin_certifies_nothing():
    terms = biased_queue(0.0)[0]
    bound = drift_bound(terms._replace(margin=jnp.full(400, jnp.inf)), TOY)
    assert jnp.isinf(bound.bound)
    pair = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), bound)
    verdict = certificate.verdict(pair, jnp.zeros((2, 400), bool), 5.0, TOY)
    assert not verdict.certified
    assert "too few calibration residuals" in verdict.failing
    assert verdict.uncertified_share == 1.0


def test_one_episode_or_a_target_below_the_slack_is_refused_with_the_reason():
    good = jax.tree.map(lambda leaf: leaf[None], drift_bound(biased_queue(0.0, bias=0.0)[0], TOY))
    assert "one episode" in certificate.verdict(good, jnp.ones((1, 400), bool), 9.0, TOY).failing
    pair = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), good)
    verdict = certificate.verdict(pair, jnp.ones((2, 400), bool), 0.1, TOY)
    assert "does not exceed the slack" in verdict.failing
    text = certificate.describe(verdict)
    assert text.startswith("not certified: kappa")
    assert all(name in text for name in ("residual_term", "excess_term", "upper", "realised"))
    assert certificate.describe(certificate.verdict(pair, jnp.ones((2, 400), bool), 0.2, TOY)).startswith("certified")


def test_where_no_action_satisfies_the_condition_the_bound_is_what_was_observed_and_no_certificate():
    # With exc > 0 at every step L(mu) and m cancel: bound = mean d_C + L(x_T) / (kappa T), whatever model and margin
    # say; a larger margin would seem to promise more. L: 4, 1, 0.5; d_C: 0.1, 0.3: 0.2 + 0.5 / 2 = 0.45.
    def bound_under(margin, predicted):
        rows = [4.0, 1.0], predicted, [1.0, 0.5], [margin, margin], [0.1, 0.3]
        return drift_bound(DriftTerms(*(jnp.array(row) for row in rows)), TOY)

    for found in (bound_under(5.0, [2.0, 2.0]), bound_under(50.0, [0.0, 9.0])):
        np.testing.assert_allclose([found.realised, found.bound], [0.2, 0.45], rtol=1e-4)
    pair = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), bound_under(5.0, [2.0, 2.0]))
    refused = certificate.verdict(pair, jnp.zeros((2, 2), bool), 0.5, TOY)
    assert not refused.certified and refused.upper <= 0.5
    assert refused.failing == "100% of the executed actions did not satisfy the condition"
    assert certificate.verdict(pair, jnp.ones((2, 2), bool), 0.5, TOY).certified
    mostly = jnp.arange(20).reshape(2, 10) > 0  # 5 % did not
    assert certificate.verdict(pair, mostly, 0.5, TOY).certified


def test_the_upper_limit_is_students_over_episodes():
    # Bounds 1, 2, 3: mean 2, standard error 1 / sqrt 3, t(0.95, 2) = 2.92.
    base = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), drift_bound(biased_queue(0.0)[0], TOY))
    verdict = certificate.verdict(base._replace(bound=jnp.arange(1.0, 4.0)), jnp.ones((3, 9), bool), 3.7, TOY)
    np.testing.assert_allclose(verdict.upper, 2.0 + 2.91999 / np.sqrt(3.0), rtol=1e-4)
    assert verdict.certified


def test_the_margin_is_the_order_statistic_and_infinite_when_there_are_too_few():
    residuals = jnp.arange(1.0, 20.0)[::-1]  # n = 19: ceil(20 * 0.9) = 18
    assert margin(residuals, 0.1) == 18.0
    assert certificate.conformal_margin(residuals, 0.1) == 18.0
    assert jnp.isinf(margin(residuals[:8], 0.1))  # ceil(9 * 0.9) = 9 > 8


def test_the_margin_covers_fresh_exchangeable_residuals_at_exactly_its_rank_over_n_plus_one():
    num, trials = 29, 10_000
    draws = jax.random.t(jax.random.key(0), 4.0, (trials, num + 1))
    margins = jax.jit(jax.vmap(lambda row: certificate.conformal_margin(row, 0.1)))(draws[:, :-1])
    coverage = float((draws[:, -1] <= margins).mean())
    # k / (n + 1) = 27 / 30; four standard errors of a share of 10 000.
    assert abs(coverage - 27 / 30) < 4 * np.sqrt(0.9 * 0.1 / trials)


def test_one_step_per_episode_keeps_coverage_where_all_steps_pooled_lose_it():
    # Steps of an episode share their shock: 15 episodes are 15 residuals, not 15 * 20.
    trials, episodes, steps = 4000, 15, 20
    shock = jax.random.t(jax.random.key(1), 3.0, (trials, episodes + 1, 1))
    residuals = shock + 0.05 * jax.random.normal(jax.random.key(2), (trials, episodes + 1, steps))
    fresh = residuals[:, -1, 0]
    keys = jax.random.split(jax.random.key(3), trials)
    single = jax.jit(jax.vmap(lambda k, r: certificate.conformal_margin(certificate.one_per_episode(k, r), 0.1)))
    pooled = jax.jit(jax.vmap(lambda r: certificate.conformal_margin(r.ravel(), 0.1)))(residuals[:, :-1])
    error = np.sqrt(0.9 * 0.1 / trials)
    # ceil(16 * 0.9) / 16 = 15 / 16 for one per episode.
    assert abs(float((fresh <= single(keys, residuals[:, :-1])).mean()) - 15 / 16) < 4 * error
    # Pooled, the rank 0.9 falls among the steps of the 14th of 15 episodes: some 14 / 16, five standard errors short.
    assert float((fresh <= pooled).mean()) < 0.9 - 4 * error


def test_one_per_episode_draws_from_its_own_row_and_every_step_in_turn():
    table = jnp.arange(4000.0).reshape(1000, 4)
    drawn = np.asarray(certificate.one_per_episode(jax.random.key(4), table)).astype(int)
    np.testing.assert_array_equal(drawn // 4, np.arange(1000))
    # Counts of 4 equally likely steps among 1000: chi-square with 3 degrees of freedom.
    assert stats.chisquare(np.bincount(drawn % 4, minlength=4)).pvalue > 1e-3


def test_block_maxima_leave_out_the_incomplete_block():
    chex.assert_trees_all_equal(
        certificate.block_maxima(jnp.array([1.0, 5.0, 2.0, -3.0, -1.0, -2.0, 9.0]), 3), jnp.array([5.0, -1.0])
    )


def test_the_mean_margin_is_a_little_above_the_mean():
    residuals = jax.random.normal(jax.random.key(5), (400,)) + 1.0
    limit = float(certificate.mean_margin(jax.random.key(6), residuals, 1))
    # 1.645 standard errors of 0.05 above the sample mean; the bootstrap's own noise is some 5 % of that.
    assert abs(limit - float(residuals.mean()) - 1.645 * float(residuals.std()) / 20) < 0.02


def test_the_papers_decrease_rate_is_one_half_in_a_stationary_regime():
    noise = jax.random.normal(jax.random.key(9), (20_000,))
    _, x = jax.jit(lambda: jax.lax.scan(lambda s, e: (0.8 * s + e,) * 2, 0.0, noise))()
    # L = x^2. Steps are dependent; 20 000 of them leave a standard error below 0.005.
    assert abs(float(certificate.decrease_share(x**2)) - 0.5) < 0.015


def test_certified_share_counts_steps_that_did_decrease_enough():
    # L(x') - L(x) + d_C - 0.1: 0.4, -0.6, -0.1 (0 of violation, 0 of change): two of three.
    terms = DriftTerms(
        *(jnp.array(row) for row in ([1.0, 2.0, 1.0], [0.0] * 3, [1.0, 1.0, 1.0], [0.0] * 3, [0.5, 0.5, 0.0]))
    )
    np.testing.assert_allclose(certificate.certified_share(terms, TOY), 2 / 3, rtol=1e-6)
