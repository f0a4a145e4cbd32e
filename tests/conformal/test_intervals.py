"""Claims about calibrated, adaptive and online intervals."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.conformal.intervals import (
    ConformalConfig,
    aci_update,
    calibrate,
    conformal_radius,
    contains,
    interval,
    interval_at,
    run_online,
)
from stream_jax.types import Forecast

CALIBRATE = jax.jit(calibrate, static_argnames="cfg")
RUN = jax.jit(run_online, static_argnames="cfg")
ONE_CLUSTER = ConformalConfig(num_clusters=1)


def unit_forecast(shape: tuple[int, ...], mean: float = 100.0) -> Forecast:
    """A forecast far from 0, so that the cut at 0 does not act."""
    return Forecast(mean=np.full(shape, mean, np.float32), sigma=np.ones(shape, np.float32))


def ahead(series: np.ndarray, horizon: int) -> np.ndarray:
    """Labels [W, H, N] of the origins 0 .. L - H - 1 of a series [L, N]."""
    num_origins = series.shape[0] - horizon
    return np.stack([series[h + 1 : h + 1 + num_origins] for h in range(horizon)], axis=1).astype(np.float32)


def online(series: np.ndarray, num_cal: int, horizon: int, cfg: ConformalConfig):
    """Calibrates on the first labels of a series about 100 and runs over the rest."""
    target = ahead(series, horizon)
    cal, test = target[:num_cal], target[num_cal + horizon :]
    cluster = np.zeros(series.shape[1], np.int32)
    state = CALIBRATE(unit_forecast(cal.shape), cal, np.ones(cal.shape, bool), cluster, cfg=cfg)
    return RUN(state, unit_forecast(test.shape), test, np.ones(test.shape, bool), cfg=cfg)[1], test


def test_calibrated_radii_are_those_of_each_cluster_and_horizon():
    # Every (cluster, horizon) pool compared with the sorted scores of its cells: 20 % of 60 or more are missing.
    key = jax.random.key(1)
    target = 100.0 + jax.random.normal(key, (40, 3, 7)) * jnp.arange(1.0, 8.0)
    mask = jax.random.bernoulli(jax.random.key(2), 0.8, target.shape)
    cluster = jnp.array([0, 1, 1, 2, 0, 2, 2])
    cfg = ConformalConfig(num_clusters=4, rolling_steps=30)
    state = CALIBRATE(unit_forecast(target.shape), target, mask, cluster, cfg=cfg)
    scores, mask, cluster = np.abs(np.asarray(target) - 100.0)[-30:], np.asarray(mask)[-30:], np.asarray(cluster)
    for c in range(3):
        for h in range(3):
            pool = scores[:, h][:, cluster == c][mask[:, h][:, cluster == c]]
            rank = int(np.ceil(round((len(pool) + 1) * 0.9, 6)))
            assert state.radius[c, h] == np.sort(pool)[rank - 1]
    np.testing.assert_array_equal(state.radius[3], np.inf)  # a cluster without cells has no scores


def test_labels_that_tie_with_the_radius_are_covered():
    # Counts repeat, so the test score often equals the radius to the bit; (y - mean) / sigma * sigma rounds.
    mean = jax.random.uniform(jax.random.key(3), (10_000,), minval=0.0, maxval=50.0)
    label = jnp.round(mean + 7.0)
    sigma = jax.random.uniform(jax.random.key(4), mean.shape, minval=0.1, maxval=9.0)
    radius = jnp.abs(label - mean) / sigma
    assert contains(interval_at(radius, Forecast(mean, sigma)), label).all()


def test_scaling_the_data_by_two_scales_the_interval_exactly():
    target = 20.0 + 5.0 * jax.random.normal(jax.random.key(5), (60, 2, 3))
    mask = jnp.ones(target.shape, bool)
    forecast = Forecast(mean=jnp.full(target.shape, 20.0), sigma=jnp.full(target.shape, 3.0))
    cluster = np.zeros(3, np.int32)
    single = interval(CALIBRATE(forecast, target, mask, cluster, cfg=ONE_CLUSTER), forecast)
    doubled = Forecast(2.0 * forecast.mean, 2.0 * forecast.sigma)
    double = interval(CALIBRATE(doubled, 2.0 * target, mask, cluster, cfg=ONE_CLUSTER), doubled)
    chex.assert_trees_all_equal(double, jax.tree.map(lambda x: 2.0 * x, single))


def test_a_constant_sigma_keeps_the_coverage():
    # Split conformal covers whatever sigma is; only widths suffer. sd of coverage from 600 x 8 calibration and test
    # labels each is below sqrt(0.09 * 2 / 4800) = 0.006.
    true_sigma = jnp.broadcast_to(jnp.array([1.0, 5.0] * 4), (1200, 1, 8))
    target = 100.0 + true_sigma * jax.random.normal(jax.random.key(6), true_sigma.shape)
    cfg = ConformalConfig(num_clusters=1, method="static")
    width = {}
    for name, sigma in (("true", true_sigma), ("constant", jnp.full(target.shape, 2.0))):
        forecast = Forecast(jnp.full(target.shape, 100.0), sigma)
        cal, test = (jax.tree.map(lambda x, s=s: x[s], forecast) for s in (slice(0, 600), slice(600, None)))
        state = CALIBRATE(cal, target[:600], jnp.ones((600, 1, 8), bool), jnp.zeros(8, jnp.int32), cfg=cfg)
        issued = interval(state, test)
        assert abs(contains(issued, target[600:]).mean() - 0.9) < 4 * 0.006
        width[name] = jnp.mean(issued.upper - issued.lower)
    assert width["true"] < 0.95 * width["constant"]


def drifting_series(num_steps: int, num_cells: int) -> np.ndarray:
    """Errors about 100 whose scale swings fourfold and then jumps fourfold for good."""
    rng = np.random.default_rng(0)
    step = np.arange(num_steps)
    scale = np.exp(0.7 * np.sin(step / 100.0)) * np.where(step > num_steps // 2, 4.0, 1.0)
    return 100.0 + scale[:, None] * rng.normal(size=(num_steps, num_cells))


@pytest.mark.parametrize("rolling_steps", [0, 100])
def test_the_error_bound_holds_under_drift_for_every_horizon(rolling_steps):
    # Telescoped: level_T = a + g * sum(target - err), and the level stays in [-h g, 1 + h g] with h-step delay, so
    # |mean err - target| <= (max(a, 1 - a) + h g) / (g T), whatever the labels.
    cfg = ConformalConfig(num_clusters=1, rolling_steps=rolling_steps)
    result, _ = online(drifting_series(1500, 5), 200, 4, cfg)
    for h in range(4):
        errors = result.error[:, 0, h][result.arrived[:, 0, h]]
        bound = (0.9 + (h + 1) * 0.05) / (0.05 * len(errors))
        assert abs(errors.mean() - 0.1) <= bound
        assert result.level[:, 0, h].min() >= -(h + 1) * 0.05 - 1e-5


def test_rolling_scores_leave_fewer_infinite_intervals_after_a_jump_of_scale():
    fixed, _ = online(drifting_series(1500, 5), 200, 1, ConformalConfig(num_clusters=1, rolling_steps=0))
    rolled, _ = online(drifting_series(1500, 5), 200, 1, ConformalConfig(num_clusters=1, rolling_steps=100))
    share = [float(jnp.isinf(r.interval.upper).mean()) for r in (fixed, rolled)]
    assert share[1] < 0.5 * share[0]


def miscoverage(step_rule, num_steps: int = 2000) -> tuple[float, float]:
    """Mean error and last level of a one-cell run with fixed scores under a fourfold shift, for a given step rule."""
    scores = jnp.abs(jax.random.normal(jax.random.key(7), (300,)))
    labels = 4.0 * jnp.abs(jax.random.normal(jax.random.key(8), (num_steps,)))

    def step(level, score):
        error = (score > conformal_radius(scores, level)).astype(jnp.float32)
        return step_rule(level, error), error

    level, errors = jax.lax.scan(step, jnp.float32(0.1), labels)
    return float(errors.mean()), float(level)


def test_the_sign_of_the_appendix_diverges():
    right, _ = miscoverage(lambda level, error: aci_update(level, error, 0.1, 0.05))
    wrong, last = miscoverage(lambda level, error: aci_update(level, error, 0.1, -0.05))
    assert abs(right - 0.1) <= 0.95 / (0.05 * 2000)
    assert wrong > 0.9 and last > 10.0


def test_clipping_the_level_breaks_the_bound():
    clipped, _ = miscoverage(lambda level, error: jnp.clip(aci_update(level, error, 0.1, 0.05), 0.01, 0.99))
    assert clipped > 0.1 + 0.95 / (0.05 * 2000) + 0.1


def test_the_error_of_a_cluster_is_the_share_of_its_cells_missed():
    # One cell of four is far off at every step; radius 10 from the calibration covers the other three.
    cal = np.full((30, 1, 4), 110.0, np.float32)
    state = CALIBRATE(unit_forecast(cal.shape), cal, np.ones(cal.shape, bool), np.zeros(4, np.int32), cfg=ONE_CLUSTER)
    test = np.full((3, 1, 4), 105.0, np.float32)
    test[:, :, 0] = 999.0
    mask = np.ones(test.shape, bool)
    mask[1] = False
    result = RUN(state, unit_forecast(test.shape), test, mask, cfg=ONE_CLUSTER)[1]
    # Origin 0 has no label yet; origin 1 receives that of origin 0: 1 of 4; at origin 2 no cell was observed.
    np.testing.assert_array_equal(result.arrived[:, 0, 0], [False, True, False])
    np.testing.assert_allclose(result.error[1, 0, 0], 0.25)
    np.testing.assert_allclose(result.level[:, 0, 0], [0.1, 0.1 + 0.05 * (0.1 - 0.25), 0.0925], rtol=1e-5)


def test_future_labels_do_not_touch_issued_intervals():
    series = drifting_series(400, 5)
    changed = series.copy()
    changed[300:] += 50.0
    cfg = ConformalConfig(num_clusters=1, rolling_steps=50)
    first, _ = online(series, 100, 4, cfg)
    second, _ = online(changed, 100, 4, cfg)
    # Run origin w is step w + 104, so intervals issued up to w = 195 know steps up to 299 only.
    chex.assert_trees_all_equal(*(jax.tree.map(lambda x: x[:196], r.interval) for r in (first, second)))
    assert not np.array_equal(first.interval.upper[196:], second.interval.upper[196:])


def test_the_ring_holds_the_newest_arrived_scores():
    # Scores are |y - 100| = step number; horizon 2 of origin w is label w + 2.
    series = 100.0 + np.arange(60.0)[:, None]
    cfg = ConformalConfig(num_clusters=1, rolling_steps=5)
    target = ahead(series, 2)
    cal, test = target[:10], target[12:30]
    state = CALIBRATE(unit_forecast(cal.shape), cal, np.ones(cal.shape, bool), np.zeros(1, np.int32), cfg=cfg)
    np.testing.assert_array_equal(np.sort(state.scores[:, 0, 0]), [6, 7, 8, 9, 10])
    state, _ = RUN(state, unit_forecast(test.shape), test, np.ones(test.shape, bool), cfg=cfg)
    # The last origin is step 29: labels 25 .. 29 have arrived, 30 and 31 have not.
    np.testing.assert_array_equal(np.sort(state.scores[:, :, 0], axis=0).T, [[25, 26, 27, 28, 29]] * 2)


def test_static_intervals_never_move():
    result, _ = online(drifting_series(300, 3), 100, 2, ConformalConfig(num_clusters=1, method="static"))
    np.testing.assert_array_equal(result.radius, np.broadcast_to(result.radius[:1], result.radius.shape))


def test_weighed_step_sizes_follow_a_drift_that_static_radii_miss():
    series = drifting_series(1000, 5)
    coverage = {}
    for method in ("dtaci", "static"):
        result, test = online(series, 200, 1, ConformalConfig(num_clusters=1, method=method, rolling_steps=200))
        coverage[method] = float(contains(result.interval, test)[300:].mean())
        if method == "dtaci":
            assert result.level.std() > 0.0
    # About 500 steps of 5 cells; at the jump the rolling scores lag, hence twice the bound of a 0.05 step.
    assert abs(coverage["dtaci"] - 0.9) < 2 * 0.95 / (0.05 * 500)
    assert coverage["static"] < 0.75


def test_an_online_run_is_traced_once():
    traced = jax.jit(chex.assert_max_traces(run_online, n=1), static_argnames="cfg")
    chex.clear_trace_counter()
    series = drifting_series(60, 3)
    target = ahead(series, 2)
    mask = np.ones(target.shape, bool)
    state = CALIBRATE(unit_forecast(target.shape), target, mask, np.zeros(3, np.int32), cfg=ONE_CLUSTER)
    for _ in range(2):
        state, result = traced(state, unit_forecast(target.shape), target, mask, cfg=ONE_CLUSTER)
    chex.assert_shape(result.interval.upper, (58, 2, 3))


def test_a_jitted_run_equals_a_run_that_is_not():
    series = drifting_series(7, 3)
    target = ahead(series, 2)
    mask = np.ones(target.shape, bool)
    state = CALIBRATE(unit_forecast(target.shape), target, mask, np.zeros(3, np.int32), cfg=ONE_CLUSTER)
    jitted = RUN(state, unit_forecast(target.shape), target, mask, cfg=ONE_CLUSTER)[1]
    plain = run_online(state, unit_forecast(target.shape), target, mask, ONE_CLUSTER)[1]
    chex.assert_trees_all_close(jitted, plain, rtol=1e-5)


@pytest.mark.parametrize("wrong", [{"target": 0.0}, {"method": "aic"}, {"num_clusters": 0}, {"step_size": -1.0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError):
        ConformalConfig(**wrong)
