"""Residuals line up the forecasts of one step from many origins, and depend on static inputs only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from stream_jax.conformal import intervals
from stream_jax.flows.residuals import QUIET, SIGMA_FLOOR, residual_now, residual_vectors, sigma_factor, without_outages
from stream_jax.types import Forecast

ORIGINS = np.arange(10, 14)  # W = 4
HORIZON = 2


def known_forecasts():
    """One cell whose value at step t is t; the forecast from origin o with lead h is t - 0.1 o - h, sigma 2 h."""
    lead = np.arange(1, HORIZON + 1)
    target = (ORIGINS[:, None] + lead)[..., None].astype(np.float32)  # [W, H, 1]
    mean = target - (0.1 * ORIGINS[:, None] + lead)[..., None]
    sigma = np.broadcast_to(2.0 * lead[:, None], target.shape)
    return Forecast(jnp.asarray(mean), jnp.asarray(sigma)), jnp.asarray(target)


def test_rows_hold_the_mean_error_of_all_forecasts_of_one_step():
    forecast, target = known_forecasts()
    (z, observed, unit, _), time = residual_vectors(forecast, target, jnp.ones_like(target, bool), ORIGINS)
    # Step 12: from origin 11 (1.1 + 1) / 2 = 1.05, from origin 10 (1.0 + 2) / 4 = 0.75; a step later 0.05, 0.025 more.
    # Their means: 0.9, 0.9375, 0.975. One vehicle is 1 / 2 and 1 / 4, on average 3 / 8.
    np.testing.assert_array_equal(time, [12, 13, 14])
    np.testing.assert_allclose(z[:, 0], [[0.9], [0.9375], [0.975]], atol=1e-5)
    np.testing.assert_allclose(unit[:, 0], 3 / 8)
    assert observed.all()


def test_all_leads_side_by_side_when_asked_for():
    forecast, target = known_forecasts()
    seen = jnp.ones_like(target, bool)
    (z, observed, unit, _), _ = residual_vectors(forecast, target, seen, ORIGINS, leads="all")
    np.testing.assert_allclose(z[:, 0], [[1.05, 0.75], [1.1, 0.775], [1.15, 0.8]], atol=1e-5)
    np.testing.assert_allclose(unit[:, 0], [[1 / 2, 1 / 4]] * 3)
    assert observed.all()


def test_a_missing_value_takes_its_own_row_out_and_no_other():
    forecast, target = known_forecasts()
    mask = target != 13.0
    (z, observed, _, _), time = residual_vectors(forecast, target, mask, ORIGINS)
    np.testing.assert_array_equal(observed[:, 0], time != 13)
    np.testing.assert_array_equal(z[1, 0], 0.0)


def test_a_missing_forecast_takes_the_rows_out_that_need_it():
    forecast, target = known_forecasts()
    forecast = forecast._replace(sigma=forecast.sigma.at[1].set(jnp.inf))  # origin 11 forecast nothing
    (_, observed, _, _), time = residual_vectors(forecast, target, jnp.ones_like(target, bool), ORIGINS)
    np.testing.assert_array_equal(time[~observed[:, 0]], [12, 13])  # its leads 1 and 2


def test_several_targets_stay_apart():
    forecast, target = known_forecasts()
    double = lambda leaf: jnp.stack([leaf, 3.0 * leaf], axis=-1)  # noqa: E731
    two = Forecast(double(forecast.mean), jnp.stack([forecast.sigma] * 2, axis=-1))
    (z, observed, _, _), _ = residual_vectors(two, double(target), jnp.ones((4, 2, 1, 2), bool), ORIGINS)
    # Errors of the second target are three times as large.
    np.testing.assert_allclose(z[0, 0], [0.9, 2.7], atol=1e-5)
    assert observed.shape == (3, 1)


def test_origins_with_a_hole_are_refused():
    forecast, target = known_forecasts()
    with pytest.raises(ValueError, match="one step apart"):
        residual_vectors(forecast, target, jnp.ones_like(target, bool), np.array([10, 11, 13, 14]))


def test_a_cell_in_which_nothing_is_expected_is_finite_and_not_tested():
    zeros = jnp.zeros((4, 2, 1))
    forecast = Forecast(zeros, jnp.full_like(zeros, 1e-9))
    rows, _ = residual_vectors(forecast, zeros + 1.0, jnp.ones_like(zeros, bool), ORIGINS)
    assert not rows.observed.any()
    np.testing.assert_array_equal(rows.z, 0.0)
    # Half a vehicle expected: one more than that over the floor, (1 - 0.5) / 0.29, not / 1e-9.
    rows, _ = residual_vectors(forecast._replace(mean=zeros + QUIET), zeros + 1.0, jnp.ones_like(zeros, bool), ORIGINS)
    assert rows.observed.all()
    np.testing.assert_allclose(rows.z, 0.5 / SIGMA_FLOOR, rtol=1e-6)


def test_sigma_factor_is_the_conformal_radius_over_the_normal_quantile():
    # Cluster 0: scores 1 .. 19 in one cell, 90 %: rank ceil(20 * 0.9) = 18. Cluster 1: five scores are too few.
    score = jnp.stack([jnp.arange(1.0, 20.0), jnp.where(jnp.arange(19) < 5, 1.0, jnp.nan)], axis=-1)[:, None]
    forecast = Forecast(jnp.zeros_like(score), jnp.ones_like(score))
    compiled = jax.jit(sigma_factor, static_argnums=(4, 5))
    factor = compiled(forecast, score, ~jnp.isnan(score), jnp.array([0, 1]), 2, 0.9)
    np.testing.assert_allclose(factor, [[18.0 / stats.norm.ppf(0.95), 1.0]], rtol=1e-5)


def test_adaptive_levels_do_not_move_residuals_and_live_rows_equal_recorded_ones():
    keys = jax.random.split(jax.random.key(0), 3)
    num_cells, num_origins = 3, 9
    shape = (num_origins, HORIZON, num_cells)
    forecast = Forecast(5.0 + jax.random.normal(keys[0], shape), 1.0 + jax.random.uniform(keys[1], shape))
    series = 3.0 * jax.random.normal(keys[2], (num_origins + HORIZON, num_cells))
    target = jnp.stack([series[h + 1 : h + 1 + num_origins] for h in range(HORIZON)], axis=1)
    mask = jnp.ones(shape, bool)
    cfg = intervals.ConformalConfig(num_clusters=1)
    factor = jnp.full((HORIZON, num_cells), 1.5)
    start = jax.jit(intervals.calibrate, static_argnums=4)(forecast, target, mask, jnp.zeros(num_cells, int), cfg)

    def run(state):
        rows, radii = [], []
        for origin in range(num_origins):
            rows.append(residual_of(state.pending_forecast, series[origin], mask[0, 0], factor))
            now = jax.tree.map(lambda leaf, origin=origin: leaf[origin], forecast)
            state, _ = update(state, now, series[origin], mask[0, 0])
            radii.append(state.radius)
        return jnp.stack([row.z for row in rows]), jnp.stack([row.observed for row in rows]), jnp.stack(radii)

    residual_of = jax.jit(residual_now)
    update = jax.jit(lambda *args: intervals.update(*args, cfg))
    z, observed, radius = run(start)
    other_z, _, other_radius = run(start._replace(level=start.level + 0.3))
    assert (radius != other_radius).any()
    np.testing.assert_array_equal(z, other_z)
    recorded, _ = residual_vectors(forecast, target, mask, np.arange(num_origins), factor)
    # Recorded rows are steps H .. W; the live run ends at origin W - 1 and starts without pending forecasts.
    np.testing.assert_array_equal(observed.all(axis=1), np.arange(num_origins) >= HORIZON)
    np.testing.assert_allclose(z[HORIZON:], recorded.z[:-1], rtol=1e-6)


def city_of(counts):
    """One step of a city whose four forecasts were 100 vehicles in each of four cells."""
    pending = Forecast(jnp.full((2, 2, 4), 100.0), jnp.full((2, 2, 4), 10.0))
    return residual_now(pending, jnp.asarray(counts), jnp.ones(4, bool))


@pytest.mark.parametrize(
    ("share", "ratio", "flagged"),
    [(1.0, 1.0, 0), (0.6, 0.6444, 0), (0.5, 0.5556, 1), (1.6, 1.5333, 0), (1.8, 1.7111, 1)],
)
def test_a_step_is_an_outage_when_the_whole_city_leaves_its_forecast(share, ratio, flagged):
    # (400 share + 50) / 450, flagged outside 1 / 1.6 = 0.625 .. 1.6.
    rows, broken = jax.jit(without_outages)(city_of([100.0 * share] * 4))
    np.testing.assert_allclose(rows.city, ratio, atol=1e-4)
    assert bool(broken) == bool(flagged)
    assert bool(rows.observed.any()) != bool(flagged)


def test_one_cell_alone_is_no_outage_however_far_off():
    rows, broken = without_outages(city_of([0.0, 100.0, 100.0, 100.0]))
    assert not bool(broken) and float(rows.z[0, 0]) == -10.0
