"""Claims about the reference forecasters that PU-GAT+ has to beat."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.methods.forecasting import historical_average, linear_ar, persistence, profile, scaled_profile
from stream_jax.types import ForecastData, RoadGraph, TrafficSeries

DAY = 8  # steps; a week has 56 slots
SIZES = {"history": 4, "horizon": 2, "steps_per_day": DAY}
METHODS = {
    "persistence": (persistence, persistence.PersistenceConfig(**SIZES)),
    "historical_average": (historical_average, historical_average.HistoricalAverageConfig(**SIZES)),
    "scaled_profile": (
        scaled_profile,
        scaled_profile.ScaledProfileConfig(
            **SIZES, reaches=(0, 1), day_types=(0.5, 1e6), periods=(2, 4), strengths=(0.1, 30.0, 1000.0)
        ),
    ),
    "linear_ar": (linear_ar, linear_ar.LinearArConfig(**SIZES, reach=0)),
}
KEY = jax.random.key(0)
TEST = jnp.arange(180, 238)


def recording(flow: np.ndarray, observed: np.ndarray | None = None) -> ForecastData:
    """A recording of flows [L, N] from a Monday on, with training, validation and later origins."""
    num_steps, num_cells = flow.shape
    observed = np.ones(flow.shape, bool) if observed is None else observed
    slot = np.arange(num_steps) % (7 * DAY)
    angle = 2.0 * np.pi * np.stack([slot % DAY / DAY, slot / (7 * DAY)], axis=1)
    clock = np.stack([np.sin(angle[:, 0]), np.cos(angle[:, 0]), np.sin(angle[:, 1]), np.cos(angle[:, 1])], axis=1)
    series = TrafficSeries(
        values=jnp.asarray((flow * observed)[..., None], jnp.float32),
        observed=jnp.asarray(observed[..., None]),
        clock=jnp.asarray(clock, jnp.float32),
        slot=jnp.asarray(slot, jnp.int32),
    )
    cells = jnp.arange(num_cells)
    graph = RoadGraph(cells, cells, jnp.zeros((num_cells, 3)), jnp.zeros((num_cells, 2)))
    return ForecastData(series, graph, train=jnp.arange(3, 120), val=jnp.arange(124, 176))


def rmse(name: str, data: ForecastData) -> np.ndarray:
    """Root mean square error per horizon on the later origins."""
    method, cfg = METHODS[name]
    forecast = method.predict(method.fit(KEY, data, cfg), data, TEST, cfg)
    return np.sqrt(profile.mean_square(forecast.mean, *profile.targets(data.series, TEST, cfg.horizon)))


def usual_day(num_steps: int, num_cells: int) -> np.ndarray:
    """A daily curve between 0.5 and 1.5 times each cell's level of 20 to 60 vehicles."""
    curve = 1.0 + 0.5 * np.sin(2.0 * np.pi * np.arange(num_steps) / DAY)
    return curve[:, None] * np.linspace(20.0, 60.0, num_cells)


@pytest.fixture(scope="module")
def levels_by_day() -> ForecastData:
    """The usual day times a level that is drawn anew each day for the whole city, and Poisson noise."""
    rng = np.random.default_rng(0)
    level = np.repeat(rng.uniform(0.4, 1.6, size=30), DAY)
    return recording(rng.poisson(usual_day(240, 12) * level[:, None]).astype(np.float32))


def test_persistence_repeats_the_newest_observation():
    flow = np.tile(np.arange(240.0)[:, None], (1, 2))
    observed = np.ones(flow.shape, bool)
    observed[199:201, 0] = False  # cell 0 was last seen at 198
    observed[197:201, 1] = False  # cell 1 was not seen in the whole history: mean of the training steps 0 .. 121
    data = recording(flow, observed)
    method, cfg = METHODS["persistence"]
    forecast = method.predict(method.fit(KEY, data, cfg), data, jnp.array([200]), cfg)
    np.testing.assert_allclose(forecast.mean[0], [[198.0, 60.5]] * 2)


def test_the_historical_average_is_the_mean_of_the_same_slots_of_the_week():
    # Flow = week number + slot: slot 3 of week 4 (step 227) has seen weeks 0 .. 3, mean 1.5 + 3; trained up to step
    # 121 it has seen weeks 0, 1 and, since 2 * 56 + 3 = 115, week 2.
    step = np.arange(240)
    data = recording((step // 56 + step % 56)[:, None].astype(np.float32))
    for seen, expected in (("expanding", 4.5), ("train", 4.0)):
        cfg = historical_average.HistoricalAverageConfig(**SIZES, profile=seen)
        params = historical_average.fit(KEY, data, cfg)
        forecast = historical_average.predict(params, data, jnp.array([226]), cfg)
        np.testing.assert_allclose(forecast.mean[0, 0, 0], expected, rtol=1e-5)


def test_an_unseen_slot_of_the_week_falls_back_to_the_slot_of_the_day():
    # In the first week no slot of the week repeats. Flow = day: on day 3 (step 24) days 0, 1, 2 are known, mean 1.
    data = recording((np.arange(240) // DAY)[:, None].astype(np.float32))
    method, cfg = METHODS["historical_average"]
    forecast = method.predict(method.fit(KEY, data, cfg), data, jnp.array([23]), cfg)
    np.testing.assert_allclose(forecast.mean[0, :, 0], 1.0, rtol=1e-5)


def test_back_off_weighs_the_coarse_profile_as_so_many_observations():
    fine = profile.Profile(jnp.array([10.0, 0.0]), jnp.array([3.0, 0.0]))
    coarse = profile.Profile(jnp.array([2.0, 2.0]), jnp.array([9.0, 9.0]))
    # (3 * 10 + 1 * 2) / 4 = 8; never seen: the coarse mean.
    np.testing.assert_allclose(profile.back_off(fine, coarse, 1.0).mean, [8.0, 2.0], rtol=1e-5)


def test_the_scaled_profile_follows_todays_level(levels_by_day):
    # The level is known after a few steps of a day from the 12 cells together, but not from the calendar, and
    # persistence does not know the daily curve.
    scaled = rmse("scaled_profile", levels_by_day)
    assert (scaled < 0.8 * rmse("historical_average", levels_by_day)).all()
    assert (scaled < 0.8 * rmse("persistence", levels_by_day)).all()


def test_a_noisy_ratio_is_drawn_to_the_city_and_a_sure_one_is_not():
    # One step of history at 30 vehicles where 10 are usual; the city stands at 1 (30 + 10 + 0 over 40 usual).
    flow = np.tile(np.array([10.0, 10.0, 20.0]), (240, 1))
    flow[200] = [30.0, 10.0, 0.0]
    data = recording(flow)
    usual = profile.Profile(jnp.asarray(np.tile([10.0, 10.0, 20.0], (240, 1))), jnp.ones((240, 3)))
    cfg = METHODS["scaled_profile"][1]
    # Strength 10: (30 + 10 * 1) / (10 + 10) = 2 times the usual 10; strength ~0: 3 times; huge: the city's 1.
    for strength, expected in ((10.0, 20.0), (1e-6, 30.0), (1e9, 10.0)):
        mean = scaled_profile.scaled(data, usual, jnp.array([200]), 1, strength, cfg)
        np.testing.assert_allclose(mean[0, 0, 0], expected, rtol=1e-4)


def test_the_regression_learns_how_deviations_fade():
    # Deviations follow AR(0.8) with innovations of sd 3 and stationary sd 5: the best error is 3 at one step and
    # 3 * sqrt(1 + 0.64) = 3.84 at two. 58 x 12 test labels: a standard error of 3 %; 15 % leaves room for learning
    # from 117 steps. Each cell deviates on its own, so the scaled profile, which keeps a deviation whole, does worse.
    rng = np.random.default_rng(1)
    deviation = np.zeros((240, 12))
    for t in range(1, 240):
        deviation[t] = 0.8 * deviation[t - 1] + 3.0 * rng.normal(size=12)
    data = recording(np.maximum(usual_day(240, 12) + 40.0 + deviation, 0.0))
    error = rmse("linear_ar", data)
    assert (error < 1.15 * np.array([3.0, 3.84])).all()
    assert (error < rmse("scaled_profile", data)).all()


@pytest.mark.parametrize("name", METHODS)
def test_forecasts_read_nothing_after_their_origin(name, levels_by_day):
    method, cfg = METHODS[name]
    params = method.fit(KEY, levels_by_day, cfg)
    series = levels_by_day.series
    changed = series._replace(values=series.values.at[201:].set(777.0), observed=series.observed.at[210:].set(False))
    origins = jnp.arange(180, 201)
    before = method.predict(params, levels_by_day, origins, cfg)
    after = method.predict(params, levels_by_day._replace(series=changed), origins, cfg)
    np.testing.assert_array_equal(before.mean, after.mean)
    assert before.mean.shape == before.sigma.shape == (21, 2, 12)
    assert (before.sigma > 0.0).all() and (before.mean >= 0.0).all()


@pytest.mark.parametrize("name", METHODS)
def test_fitting_reads_nothing_after_the_validation_targets(name, levels_by_day):
    method, cfg = METHODS[name]
    changed = levels_by_day.series._replace(values=levels_by_day.series.values.at[178:].set(777.0))
    first, second = (method.fit(KEY, data, cfg) for data in (levels_by_day, levels_by_day._replace(series=changed)))
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_sigma_is_the_residual_spread_with_a_little_of_the_citys():
    # Cell 0 errs by 2, cell 1 by 4 at each of 12 steps: city mean square 10; (12 * 4 + 4 * 10) / 16 = 5.5, and
    # (12 * 16 + 4 * 10) / 16 = 14.5.
    target = jnp.tile(jnp.array([2.0, 4.0]), (12, 1, 1))
    sigma = profile.residual_sigma(jnp.zeros(target.shape), target, jnp.ones(target.shape, bool))
    np.testing.assert_allclose(sigma[0], np.sqrt([5.5, 14.5]), rtol=1e-5)
