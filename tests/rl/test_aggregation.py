"""From cells to intersections: flows add up, variances stay variances, p-values stay valid and intervals cover."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.rl.aggregation import (
    AggregationConfig,
    Aggregator,
    aggregate,
    calibrate,
    city_view,
    correlation,
    distances_km,
    empirical_correlation,
    fit_length,
    recalibration_factor,
    square_weights,
    wendland,
)

GRID = jnp.stack(jnp.meshgrid(jnp.arange(5.0), jnp.arange(5.0)), -1).reshape(-1, 2) * 1000.0  # [25, 2] metres
RESIDUALS = jax.random.normal(jax.random.key(0), (20, 25)) @ jax.random.normal(jax.random.key(1), (25, 25))


def smallest_eigenvalue(matrix):
    return np.linalg.eigvalsh(np.asarray(matrix, np.float64)).min()  # float64: the question is a sign near 0


class TestAggregate(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_a_sum_of_two_equal_cells_has_the_textbook_variance(self):
        # sigma 1 each, correlation .5: var(a + b) = 1 + 1 + 2 * .5 = 3; half of the first cell alone: sd .5.
        weights = jnp.array([[1.0, 1.0], [0.5, 0.0]])
        spread = jnp.array([[1.0, 0.5], [0.5, 1.0]])
        mean, sigma = self.variant(aggregate)(weights, spread, jnp.array([[4.0, 6.0]]), jnp.ones((1, 2)))
        np.testing.assert_allclose(mean, [[10.0], [2.0]])
        np.testing.assert_allclose(sigma, [[np.sqrt(3.0)], [0.5]], rtol=1e-6)


def test_shares_of_a_cell_over_areas_that_tile_the_city_add_up_to_one():
    areas = jnp.array([[1000.0, 1000.0], [1000.0, 3000.0], [3000.0, 1000.0], [3000.0, 3000.0]])
    inner = jnp.array([[1000.0, 1200.0], [2000.0, 2000.0], [2200.0, 1000.0]])
    weights = square_weights(inner, 1000.0, areas, 2000.0)
    np.testing.assert_allclose(weights.sum(0), 1.0, rtol=1e-6)
    # A cell centred on the corner of four areas gives a quarter to each.
    np.testing.assert_allclose(weights[:, 1], 0.25, rtol=1e-6)
    np.testing.assert_allclose(square_weights(inner, 1000.0, areas, 2000.0, "paper").sum(1)[0], 1.0, rtol=1e-6)


@pytest.mark.parametrize("covariance", ["kernel", "diagonal", "empirical"])
def test_no_weights_give_a_negative_variance(covariance):
    spread = correlation(GRID, RESIDUALS, AggregationConfig(covariance=covariance))
    weights = np.asarray(jax.random.normal(jax.random.key(2), (500, 25)), np.float64)
    variance = np.einsum("in,nm,im->i", weights, np.asarray(spread, np.float64), weights)
    # Entries are rounded to float32: w'Ew is at most the sum of |w|^2 (25) times 25 entries of 6e-8.
    assert variance.min() >= -25 * 25 * 6e-8
    assert smallest_eigenvalue(spread) >= -25 * 6e-8
    np.testing.assert_allclose(np.diag(spread), 1.0, rtol=1e-6)


def test_the_papers_hard_cut_is_not_a_covariance():
    # Three cells in a row, the ends too far apart: correlations 1, .9, cut to 0 -> the smallest eigenvalue is
    # 1 - .9 sqrt(2) = -.273, while the taper keeps it positive.
    row = jnp.array([[0.0, 0.0], [7000.0, 0.0], [14000.0, 0.0]])
    shared = jax.random.normal(jax.random.key(3), (4000, 1))
    residuals = 3.0 * shared + jax.random.normal(jax.random.key(4), (4000, 3))  # correlation 9 / 10
    cut = correlation(row, residuals, AggregationConfig(covariance="paper_cut"))
    assert abs(smallest_eigenvalue(cut) - (1.0 - 0.9 * np.sqrt(2.0))) < 0.02  # 4000 draws: sd of a correlation .003
    tapered = correlation(row, residuals, AggregationConfig(covariance="empirical"))
    assert smallest_eigenvalue(tapered) > 0
    # Even then the aggregated spread is a number, not NaN.
    signed = jnp.array([[1.0, -1.4, 1.0]])
    assert float(aggregate(signed, cut, jnp.zeros((1, 3)), jnp.ones((1, 3)))[1][0, 0]) == 0.0


def test_a_taper_is_one_at_home_and_gone_at_its_reach():
    # (1 - .5)^4 (4 * .5 + 1) = 3 / 16.
    np.testing.assert_allclose(wendland(jnp.array([0.0, 0.5, 1.0, 2.0])), [1.0, 0.1875, 0.0, 0.0], atol=1e-7)


def test_the_fitted_length_is_that_of_the_field_it_came_from():
    distance = distances_km(GRID)
    for length in (1.0, 4.0):
        root = jnp.linalg.cholesky(jnp.exp(-distance / length) + 1e-6 * jnp.eye(25))
        residuals = jax.random.normal(jax.random.key(5), (4000, 25)) @ root.T
        # Candidates are a factor sqrt(2) apart, far more than 4000 draws leave open.
        np.testing.assert_allclose(jax.jit(fit_length)(distance, residuals), length, rtol=1e-5)


def test_a_cell_that_never_moves_is_uncorrelated():
    residuals = jnp.stack([jnp.array([1.0, -1.0, 2.0]), jnp.zeros(3)], -1)
    np.testing.assert_allclose(empirical_correlation(residuals), np.eye(2), atol=1e-6)


def test_intersection_p_values_stay_valid_when_cells_move_together():
    # Correlation .9 under the null, 8 cells in each of 2 areas; P(p <= a) <= a, with 3 sd of 20000 draws.
    draws = 20000
    shared = jax.random.normal(jax.random.key(6), (draws, 1))
    noise = jax.random.normal(jax.random.key(7), (draws, 16))
    p_values = jax.scipy.stats.norm.sf(jnp.sqrt(0.9) * shared + jnp.sqrt(0.1) * noise)
    weights = jnp.repeat(jnp.eye(2), 8, axis=1)
    aggregator = Aggregator(weights, jnp.eye(16), jnp.ones((2, 1)), jnp.ones(2))
    flat = jnp.ones((1, 16))
    view = jax.jit(jax.vmap(lambda p: city_view(aggregator, flat, flat, p, p <= 0.01)))(p_values)
    for level in (0.01, 0.05, 0.2):
        assert float((view.p_value <= level).mean()) <= level + 3 * np.sqrt(level / draws)
    np.testing.assert_array_equal(view.anomalous, (p_values.reshape(draws, 2, 8).min(-1) <= 0.01))


def forecast(key, steps):
    """Strongly dependent cells whose forecaster claims half of the true spread."""
    shared_key, noise_key = jax.random.split(key)
    shared = jax.random.normal(shared_key, (steps, 2, 1))
    actual = 20.0 + 4.0 * (shared + jax.random.normal(noise_key, (steps, 2, 25)))
    return jnp.full_like(actual, 20.0), jnp.full_like(actual, 2.0), actual


def test_intervals_of_intersections_cover_after_recalibration():
    keys = jax.random.split(jax.random.key(8), 3)
    weights = square_weights(GRID, 1000.0, GRID[jnp.array([6, 18])], 2000.0)
    validation, calibration, test = forecast(keys[0], 300), forecast(keys[1], 1000), forecast(keys[2], 2000)
    aggregator = calibrate(weights, GRID, (validation[0], validation[2]), calibration)
    aggregator_view = jax.vmap(lambda m, s: aggregate(aggregator.weights, aggregator.correlation, m, s))
    mean, sigma = aggregator_view(*test[:2])  # [M, I, H]
    flow = jnp.einsum("in,mhn->mih", weights, test[2])
    error = jnp.abs(flow - mean) / 1.6449
    assert float((error <= sigma).mean()) < 0.75  # as claimed, the intervals do not cover 90 %
    covered = (error <= aggregator.factor * sigma).mean(0)  # [I, H]
    # Coverage is Beta with sd .0095 over calibrations, then .0067 over 2000 tests: 3 sd together = .035.
    assert float(jnp.abs(covered - 0.9).max()) < 0.035


def test_too_few_calibration_steps_are_refused():
    short = jnp.ones((8, 1, 1))  # ceil(9 * .9) = 9 > 8
    with pytest.raises(ValueError, match="8 calibration steps cannot promise"):
        recalibration_factor(short, short, short, 0.9)
    np.testing.assert_allclose(recalibration_factor(*[jnp.ones((9, 1, 1))] * 3, 0.9), 0.0)


def test_a_view_is_relative_to_the_usual_flow_and_neutral_where_nothing_is_covered():
    aggregator = Aggregator(jnp.array([[1.0, 1.0], [0.0, 0.0]]), jnp.eye(2), jnp.full((2, 1), 2.0), jnp.array([5.0, 0]))
    sigma = jnp.array([[3.0, 4.0]])
    view = city_view(aggregator, jnp.array([[4.0, 6.0]]), sigma, jnp.array([0.04, 0.5]), jnp.array([True, False]))
    np.testing.assert_allclose(view.mean, [[2.0], [1.0]])  # 10 / 5
    np.testing.assert_allclose(view.sigma, [[2.0], [0.0]])  # 2 * 5 / 5
    np.testing.assert_allclose(view.p_value, [0.08, 1.0])  # two cells, Bonferroni
    np.testing.assert_allclose(view.anomalous, [1.0, 0.0])
    # A cell that was not tested neither counts nor raises the flag.
    untested = city_view(aggregator, sigma, sigma, jnp.array([0.04, 0.5]), jnp.ones(2, bool), jnp.array([False, True]))
    np.testing.assert_allclose(untested.p_value, [0.5, 1.0])
    assert (
        float(city_view(aggregator, sigma, sigma, jnp.ones(2), jnp.ones(2, bool), jnp.zeros(2, bool)).anomalous[0]) == 0
    )


def test_bad_settings_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match="level inside"):
        AggregationConfig(level=1.0)
