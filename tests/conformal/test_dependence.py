"""Dependence measures recover known correlations, and invalid null p-values are seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal, stats

from stream_jax.conformal.dependence import (
    block_uniformity_test,
    dependence_report,
    lag1_autocorrelation,
    morans_i,
    null_uniformity,
    within_step_correlation,
)

# A ring of 40 cells with self-loops, edges both ways.
CELLS = jnp.arange(40)
SENDERS = jnp.concatenate([CELLS, CELLS, CELLS])
RECEIVERS = jnp.concatenate([CELLS, (CELLS + 1) % 40, (CELLS - 1) % 40])


within = jax.jit(within_step_correlation)
lag1 = jax.jit(lag1_autocorrelation)


def factor_scores(rho: float, persistence: float, num_steps: int = 600) -> np.ndarray:
    """[T, 40] Gaussian with correlation rho within a step; the common factor is autoregressive."""
    rng = np.random.default_rng(0)
    shocks = np.sqrt(1 - persistence**2) * rng.normal(size=num_steps)
    shared = signal.lfilter([1.0], [1.0, -persistence], shocks)  # f_t = persistence f_{t-1} + shock_t
    own = rng.normal(size=(num_steps, 40))
    return (np.sqrt(rho) * shared[:, None] + np.sqrt(1 - rho) * own).astype(np.float32)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_morans_i_of_a_chain_of_four_by_hand(wrap):
    # Values 1 2 3 4 on 0-1-2-3: d = -1.5 -.5 .5 1.5, products .75 - .25 + .75 = 1.25 over 3 edges, sum d^2 = 5:
    # (4 / 3) * 1.25 / 5 = 1/3. Self-loops must not count.
    senders, receivers = jnp.array([0, 1, 2, 0, 1, 2, 3]), jnp.array([1, 2, 3, 0, 1, 2, 3])
    result = wrap(morans_i)(jnp.array([[1.0, 2.0, 3.0, 4.0]]), senders, receivers)
    np.testing.assert_allclose(result, 1 / 3, rtol=1e-6)
    # A missing cell 3 leaves d = -1 0 1: products 0; the constant second step has no spread and is left out.
    values = jnp.array([[1.0, 2.0, 3.0, 99.0], [5.0, 5.0, 5.0, 5.0]])
    observed = jnp.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool)
    np.testing.assert_allclose(wrap(morans_i)(values, senders, receivers, observed=observed), 0.0, atol=1e-7)


def test_alternating_cells_have_morans_i_minus_one_and_waves_have_its_cosine():
    alternating = jnp.where(CELLS % 2 == 0, 1.0, -1.0)[None]
    np.testing.assert_allclose(jax.jit(morans_i)(alternating, SENDERS, RECEIVERS), -1.0, rtol=1e-5)
    # On a ring, d_i = cos(w i) gives sum d_i d_{i+1} / sum d_i^2 = cos(w).
    wave = jnp.cos(2 * jnp.pi * CELLS / 40)[None]
    np.testing.assert_allclose(jax.jit(morans_i)(wave, SENDERS, RECEIVERS), np.cos(2 * np.pi / 40), rtol=1e-5)


def test_correlations_within_and_between_steps_are_those_of_the_simulated_factor():
    scores = factor_scores(rho=0.5, persistence=0.6)
    # The factor's own sample variance over 600 steps with persistence .6 has a standard error of
    # sqrt(2 / 600 * (1 + .36) / (1 - .36)) = .084 and moves both estimates: rho = .5 by .25 * .084 = .02.
    assert abs(within(scores) - 0.5) < 3 * 0.021
    # A cell's lag-1 correlation is rho * persistence = .3; its standard error is that of the factor, about .03.
    assert abs(lag1(scores) - 0.3) < 3 * 0.03
    independent = factor_scores(rho=0.0, persistence=0.0)
    assert abs(within(independent)) < 3 / np.sqrt(600 * 780) + 1 / 600
    assert abs(lag1(independent)) < 3 / np.sqrt(600 * 40) + 1 / 600


def test_within_step_correlation_is_the_mean_of_the_correlation_matrix_and_ignores_missing_cells():
    scores = factor_scores(rho=0.3, persistence=0.0, num_steps=50)
    matrix = np.corrcoef(scores.T)
    expected = matrix[~np.eye(40, dtype=bool)].mean()
    np.testing.assert_allclose(within(scores), expected, rtol=1e-4)
    padded = np.concatenate([scores, np.full((50, 2), 1e3, np.float32)], axis=1)
    observed = np.arange(42) < 40 + np.zeros((50, 1))
    np.testing.assert_allclose(within(padded, observed=observed), expected, rtol=1e-4)


def test_uniform_p_values_pass_and_p_values_halved_fail():
    p_values = np.random.default_rng(1).random((200, 40))
    good = null_uniformity(jax.random.key(2), p_values)
    assert good.kolmogorov < 1.63 / np.sqrt(8000)  # 1 % critical value of the Kolmogorov law
    assert np.all(good.binomial_p > 0.001)
    assert np.all((good.lower <= good.rate) & (good.rate <= good.upper))
    bad = null_uniformity(jax.random.key(2), p_values / 2)
    np.testing.assert_allclose(bad.excess, 0.5, atol=0.01)  # F(t) = 2 t up to t = 1/2
    assert bad.binomial_p[2] < 1e-6 and bad.lower[2] > 0.05
    conservative = null_uniformity(jax.random.key(2), np.sqrt(p_values))
    assert conservative.excess < 0.01 < conservative.kolmogorov


def test_kolmogorov_distance_of_tied_p_values_by_hand():
    # Null p-values .5 .5 .5 1: F jumps from 0 to 3/4 at .5: above by .25, below by .5 just before. The .01 is no null.
    p_values = jnp.array([[0.5, 0.5], [0.5, 1.0], [0.01, 0.01]])
    is_null = jnp.array([[1, 1], [1, 1], [0, 0]], bool)
    result = null_uniformity(jax.random.key(0), p_values, is_null=is_null, block_steps=1)
    assert (result.num_p_values, result.kolmogorov, result.excess) == (4, 0.5, 0.25)
    np.testing.assert_array_equal(result.rate, 0.0)


def test_blocks_of_time_widen_the_interval_of_the_null_rate_when_cells_move_together():
    together = stats.norm.cdf(factor_scores(rho=0.9, persistence=0.9))
    independent = np.random.default_rng(3).random((600, 40))
    wide, narrow = (null_uniformity(jax.random.key(4), p) for p in (together, independent))
    assert (wide.upper - wide.lower)[3] > 5 * (narrow.upper - narrow.lower)[3]


def ranks(scores):
    """Each score's share of scores at least as large."""
    return 1.0 - stats.rankdata(scores, method="min").reshape(scores.shape) / scores.size + 1.0 / scores.size


def test_blocks_forgive_cells_that_move_together_where_counting_cells_one_by_one_does_not():
    # 20 calibration and test sets of one law, cells of a step strongly correlated: pooled counting rejects most of
    # them at 5 %, the block test should reject about one. P(more than 4 of 20) = 0.003 at 5 %, 0.04 at 10 %.
    by_block, by_cell = [], []
    for trial in range(20):
        rng = np.random.default_rng(trial)
        scores = rng.normal(size=(240, 1)) * 0.7 + rng.normal(size=(240, 20)) * 0.7
        calibration, test = scores[:120], scores[120:]
        p = (1.0 + (calibration.ravel() >= test[..., None]).sum(-1)) / (calibration.size + 1.0)
        found = block_uniformity_test(jax.random.key(trial), ranks(calibration), p, block_steps=2, num_replicates=500)
        by_block.append(found.uniform_p <= 0.05)
        by_cell.append(stats.kstest(p.ravel(), "uniform").pvalue <= 0.05)
    assert sum(by_cell) > 10 and sum(by_block) <= 4


def test_the_block_test_sees_inflated_scores_and_tells_excess_from_caution():
    rng = np.random.default_rng(1)
    calibration = ranks(rng.normal(size=(200, 20)))
    uniform = rng.random((200, 20))
    uniform[:, 3] = np.nan  # left out
    small = block_uniformity_test(jax.random.key(0), calibration, uniform**2)
    large = block_uniformity_test(jax.random.key(0), calibration, np.sqrt(uniform))
    assert small.excess_p < 0.01 and small.uniform_p < 0.01
    assert large.excess_p > 0.5 and large.uniform_p < 0.01


def test_report_collects_all_measures():
    scores = factor_scores(rho=0.5, persistence=0.6)
    p_values = np.random.default_rng(5).random((100, 40))
    observed = np.broadcast_to(np.arange(600)[:, None] >= 10, scores.shape)
    report = dependence_report(jax.random.key(6), scores, p_values, SENDERS, RECEIVERS, observed=observed)
    assert (report.num_steps, report.num_scores) == (590, 590 * 40)
    # The common factor is removed with each step's mean: what is left has E I = -1 / 39.
    assert abs(report.morans_i + 1 / 39) < 3 / np.sqrt(600 * 40)
    assert report.null_uniformity.num_p_values == 4000
