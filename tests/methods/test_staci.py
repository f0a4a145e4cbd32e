"""STACI: the covariance that the road graph implies, sets that hold several cells at once, and what they gain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.evaluation import forecast_rows
from experiments.methods.forecasting import agcrn, joint_sets, staci
from experiments.methods.forecasting.profile import targets
from experiments.methods.forecasting.staci import StaciConfig
from stream_jax.conformal.intervals import ConformalConfig, conformal_radius
from stream_jax.fit import TrainConfig
from stream_jax.types import Forecast
from tests.methods import tiny_tasks

KEYS = jax.random.split(jax.random.key(0), 2)
CELLS, DECAY = 6, 0.9
ROAD = [(n, n + 1) for n in range(CELLS - 1)]
SMALL = StaciConfig(history=1, horizon=2, steps_per_day=tiny_tasks.DAY, layers=1, hidden=4, embedding=2, calendar=False)
TRAINING = TrainConfig(learning_rate=1e-2, batch=64, epochs=4, patience=4)
CALIBRATION, LIVE = jnp.arange(520, 1500), jnp.arange(1500, 2980)


def road_noise(steps: int, cells: int, decay: float, seed: int = 0) -> np.ndarray:
    """Unit-variance noise [steps, cells] that travels down a road: correlation decay^distance, nothing over time."""
    fresh = np.random.default_rng(seed).normal(size=(steps, cells))
    noise = [fresh[:, 0]]
    for n in range(1, cells):
        noise.append(decay * noise[-1] + np.sqrt(1.0 - decay**2) * fresh[:, n])
    return np.stack(noise, axis=1)


@pytest.fixture(scope="module")
def fitted():
    data = tiny_tasks.recording(50.0 + 10.0 * road_noise(3000, CELLS, DECAY), ROAD)
    return data, staci.fit(KEYS, data, SMALL, TRAINING)


@pytest.mark.slow
def test_forecasts_and_sets_have_a_place_for_every_seed_horizon_and_cell(fitted):
    data, params = fitted
    forecast = staci.predict(params, data, tiny_tasks.TEST, SMALL)
    assert forecast.mean.shape == forecast.sigma.shape == (2, 78, 2, CELLS)
    assert params.covariance.shape == (2, 2, CELLS, CELLS) and params.tail_up.reach.shape == (2, 2)
    one = staci.fit(KEYS[0], data, SMALL, TRAINING)
    np.testing.assert_allclose(one.covariance, params.covariance[0], rtol=1e-3, atol=1e-3)
    assert staci.predict(one, data, tiny_tasks.TEST, SMALL).sigma.shape == (78, 2, CELLS)


@pytest.mark.slow
def test_only_the_forecaster_is_trained(fitted):
    # AGCRN on 1 input, 1 layer of 4, 2 numbers a cell: numbers 6 x 2 = 12; gates 2 x (2 x 5 x 8) + 2 x 8 = 176; update
    # 2 x (2 x 5 x 4) + 2 x 4 = 88; output 4 x 4 + 4 = 20.
    assert forecast_rows.num_parameters(fitted[1]) == 12 + 176 + 88 + 20


@pytest.mark.slow
def test_marginal_sigma_is_the_networks_times_the_root_of_the_covariance(fitted):
    data, params = fitted
    ratio = (
        staci.predict(params, data, tiny_tasks.TEST, SMALL).sigma
        / agcrn.predict(params.forecaster, data, tiny_tasks.TEST, SMALL).sigma
    )
    np.testing.assert_allclose(ratio[1, 5, 1] ** 2, jnp.diag(params.covariance[1, 1]), rtol=1e-4)


def test_correlations_fall_exponentially_down_a_road_and_vanish_without_a_way():
    # Far down a road of even steps the moving average gives Eq. (5), exp(-d / reach); 60 steps reach exp(-40).
    road = tiny_tasks.recording(np.zeros((600, 60)), [(n, n + 1) for n in range(59)]).graph
    correlation = staci.tail_up_correlation(jnp.asarray(staci.road_distance(road)), 1.5)
    np.testing.assert_allclose(correlation[57, [57, 58, 59]], np.exp(-np.arange(3) / 1.5), rtol=1e-4)
    # 0 -> 2 <- 1: with q = exp(-1 / reach) the row of cell 2 is (q, q, 1) / sqrt(1 + 2 q^2); 0 and 1 meet nowhere.
    fork = tiny_tasks.recording(np.zeros((600, 3)), [(0, 2), (1, 2)]).graph
    correlation = staci.tail_up_correlation(jnp.asarray(staci.road_distance(fork)), 1.5)
    q = np.exp(-1.0 / 1.5)
    np.testing.assert_allclose(correlation[0], [1.0, 0.0, q / np.sqrt(1.0 + 2.0 * q**2)], rtol=1e-4)


def test_distances_run_along_the_edges_only():
    graph = tiny_tasks.recording(np.zeros((600, 3)), [(0, 1), (1, 2)]).graph
    np.testing.assert_allclose(staci.road_distance(graph), [[0.0, 1.0, 2.0], [np.inf, 0.0, 1.0], [np.inf, np.inf, 0.0]])


def test_the_tail_up_model_is_found_again_in_its_own_covariance():
    # A range on the grid and a share of 0.6 leave no difference at all; float32 sets the tolerance.
    distance = staci.road_distance(tiny_tasks.recording(np.zeros((600, 8)), [(n, n + 1) for n in range(7)]).graph)
    reach = staci.RANGES[15]
    truth = 0.6 * staci.tail_up_correlation(jnp.asarray(distance), reach) + 0.4 * jnp.eye(8)
    found = staci.fit_tail_up(3.0 * truth, distance)
    np.testing.assert_allclose([found.variance, found.reach, found.shared], [3.0, reach, 0.6], rtol=1e-3)


def test_cells_without_a_way_between_them_share_nothing():
    distance = staci.road_distance(tiny_tasks.recording(np.zeros((600, 3))).graph)
    assert float(staci.fit_tail_up(jnp.ones((3, 3)), distance).shared) == 0.0


@pytest.mark.slow
def test_an_ellipsoid_is_smaller_than_the_box_of_marginals_that_covers_as_often(fitted):
    # The box is the best product of marginals: one radius for the largest of the six errors, so it knows the joint
    # coverage too. Of six cells in a row with correlation 0.9 a step, the covariance's determinant is 0.19^5, which
    # takes 4.15 off the logarithm of the ellipsoid's volume; without correlation ellipsoid and box differ by about 0.6.
    # Half of 4.15 leaves room for an imperfect covariance.
    data, params = fitted
    one = jax.tree.map(lambda leaf: leaf[0], params)
    cells, conformal = jnp.arange(CELLS), ConformalConfig(method="static")
    sets, log_volume = staci.predict_jointly(one, data, CALIBRATION, LIVE, cells, SMALL, conformal)

    def largest_error(origins):
        forecast = staci.predict(one, data, origins, SMALL)
        target, _ = targets(data.series, origins, SMALL.horizon)
        return (jnp.abs(target - forecast.mean) / forecast.sigma).max(axis=-1), forecast

    radius = jax.vmap(conformal_radius, (1, None))(largest_error(CALIBRATION)[0], 0.1)  # [H]
    live, forecast = largest_error(LIVE)
    box = CELLS * jnp.log(2.0 * radius) + jnp.log(forecast.sigma).sum(axis=-1)
    # 980 steps set the radius and 1,480 are judged: a standard error of sqrt(0.09 (1/980 + 1/1480)) = 1.2 %.
    np.testing.assert_allclose([sets.covered.mean(), (live <= radius).mean()], 0.9, atol=0.035)
    assert float((box - log_volume).mean()) > 2.0


def test_the_graph_makes_up_for_errors_too_few_to_tell_a_covariance():
    # 20 error vectors of 12 cells; volumes at the radius that holds 90 % of 20,000 fresh ones, ten trials. Errors alone
    # overfit: their ellipsoids are thin where the 20 happened to agree, so the radius must grow.
    cells, trials = 12, 10
    distance = staci.road_distance(
        tiny_tasks.recording(np.zeros((600, cells)), [(n, n + 1) for n in range(cells - 1)]).graph
    )
    fresh = jnp.asarray(road_noise(20_000, cells, 0.7, seed=1)[:, None], jnp.float32)
    few = jnp.asarray(road_noise(20 * trials, cells, 0.7, seed=2).reshape(trials, 20, cells), jnp.float32)
    unit = Forecast(jnp.zeros_like(fresh), jnp.ones_like(fresh))

    def volume(errors, topology):
        _, centre, covariance = staci.error_covariance(errors, jnp.ones(errors.shape, bool), distance, topology)
        shape = joint_sets.shape_of(centre[None], covariance[None])
        radius = jnp.quantile(joint_sets.distances(unit, fresh, jnp.ones(fresh.shape, bool), shape), 0.9)
        sets = joint_sets.JointSets(radius[None, None], None, None)
        return joint_sets.log_volume(sets, jax.tree.map(lambda leaf: leaf[:1], unit), shape)[0, 0]

    mixed, errors_alone = (jax.jit(jax.vmap(lambda one, t=t: volume(one, t)))(few) for t in (0.6, 1e-3))
    assert (mixed < errors_alone).all()


def test_a_distance_counts_errors_in_the_directions_the_covariance_makes_rare():
    # Correlation 0.8: along (1, 1) the variance is 1.8, along (1, -1) it is 0.2. Errors of 1 and 1, or 1 and -1, are at
    # sqrt(2 / 1.8) and sqrt(2 / 0.2); a sigma of 2 halves them. A missing label leaves the distance unknown.
    shape = joint_sets.shape_of(jnp.zeros((1, 2)), jnp.array([[[1.0, 0.8], [0.8, 1.0]]]))
    target = jnp.array([[[3.0, 3.0]], [[3.0, 1.0]], [[3.0, 1.0]]])  # [W, H, M]
    forecast = Forecast(jnp.full((3, 1, 2), 2.0), jnp.array([1.0, 1.0, 2.0])[:, None, None] * jnp.ones((3, 1, 2)))
    found = joint_sets.distances(forecast, target, jnp.ones((3, 1, 2), bool), shape)[:, 0]
    np.testing.assert_allclose(found, [np.sqrt(2 / 1.8), np.sqrt(10.0), np.sqrt(2.5)], rtol=1e-5)
    missing = joint_sets.distances(forecast, target, jnp.array([True, False]) & jnp.ones((3, 1, 2), bool), shape)
    assert np.isinf(missing).all()


def test_the_volume_of_an_ellipse_is_pi_times_its_half_axes():
    # Covariance diag(4, 9), radius 2, sigmas 1 and 5: half axes 2 x 2 x 1 and 2 x 3 x 5.
    shape = joint_sets.shape_of(jnp.zeros((1, 2)), jnp.diag(jnp.array([4.0, 9.0]))[None])
    sets = joint_sets.JointSets(jnp.full((1, 1), 2.0), None, None)
    forecast = Forecast(jnp.zeros((1, 1, 2)), jnp.array([[[1.0, 5.0]]]))
    np.testing.assert_allclose(joint_sets.log_volume(sets, forecast, shape), np.log(np.pi * 4.0 * 30.0), rtol=1e-5)


def test_levels_follow_drift_within_the_bound_that_holds_for_every_sequence():
    # Distances grow steadily to five times their size: split sets lose their coverage; the misses of adaptive ones may
    # differ from the target by (max(a, 1 - a) + h g) / (g T) of the T settled. 3,000 steps, h <= 3, g = 0.05: 0.7 %.
    draws = jnp.abs(jax.random.normal(KEYS[0], (4000, 3))) * jnp.linspace(1.0, 5.0, 4000)[:, None]
    adaptive, split = (ConformalConfig(method=name, rolling_steps=0) for name in ("aci", "static"))
    run = jax.jit(joint_sets.run_online, static_argnames="cfg")
    for h, covered in enumerate(run(draws[:1000], draws[1000:], adaptive).covered.T, start=1):
        settled = covered[: 3000 - h]
        assert abs(float(1.0 - settled.mean()) - 0.1) <= (0.9 + h * 0.05) / (0.05 * (3000 - h))
    assert float(run(draws[:1000], draws[1000:], split).covered.mean()) < 0.7


def test_a_set_knows_nothing_before_its_labels_arrive():
    # The forecast two steps ahead made at origin 5 is settled at origin 7: changing its distance changes radii from
    # there on only.
    draws = jnp.abs(jax.random.normal(KEYS[1], (60, 2)))
    cfg = ConformalConfig(rolling_steps=30)
    changed = draws.at[45, 1].set(50.0)
    before, after = (joint_sets.run_online(one[:40], one[40:], cfg).radius for one in (draws, changed))
    np.testing.assert_array_equal(before[:, 0], after[:, 0])
    np.testing.assert_array_equal(before[:7, 1], after[:7, 1])
    assert float(after[7, 1]) > float(before[7, 1])
