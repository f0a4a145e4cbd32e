"""RIPCN: its size, its impedances, its components, and that these follow the congestion of the moment on the graph."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.evaluation import forecast_rows
from experiments.methods.forecasting import ripcn, road_impedance
from experiments.methods.forecasting.ripcn import Ripcn, RipcnConfig
from stream_jax.fit import TrainConfig
from tests.methods import tiny_tasks

KEYS = jax.random.split(jax.random.key(0), 2)
SMALL = RipcnConfig(
    history=1, horizon=1, steps_per_day=tiny_tasks.DAY, widths=(8,), blocks=1, middle=0, mean_blocks=1, heads=1,
    components=1, calendar=False,
)  # fmt: skip
TRAINING = TrainConfig(learning_rate=1e-2, batch=32, epochs=20, patience=20)


def test_it_has_the_sizes_of_the_authors_code_on_pems08():
    # LvHaochenBANG/RIPCN, main.py: 170 sensors, 12 steps in, 12 out, widths 32 and 64, 8 heads, 3 components. By hand:
    # impedance: encoder 64 + 1,056, numbers of the steps 384, attention 3 x 8,448 + 8,224, decoder 1,056 + 33
    # a block from c to w: 3 c w + w, 3 w w + w, scales and shifts 2 x 170 w, graph 4 w w + w, and twice c w + w if c is
    # not w: 21,216 (32 to 32), 60,992 (32 to 64), 62,912 (64 to 64), 91,712 (128 to 64), 38,688 (128 to 32), 28,448
    impedance = 64 + 1_056 + 384 + 3 * 8_448 + 8_224 + 1_056 + 33
    inwards = 96 + 2 * 21_216 + 60_992 + 62_912 + 2 * 62_912
    outwards = 91_712 + 38_688 + 2 * 28_448 + 3 * 5_152 + 99
    mean = 64 + 2 * 21_216 + 12 * 32 * 24 + 24
    network, inputs = Ripcn(RipcnConfig(horizon=12), outputs=24), jnp.zeros((2, 12, 170, 1))
    one = jnp.ones(())
    roads = road_impedance.Roads(*(2 * [jnp.eye(170)]), *(2 * [jnp.ones(170)]), (one, one), (one, one))
    shapes = jax.eval_shape(network.init, KEYS[0], inputs, jnp.zeros(2, int), roads)
    count = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes["params"]))
    assert count == impedance + inwards + outwards + mean == 583_004
    outputs = jax.eval_shape(lambda v: network.apply(v, inputs, jnp.zeros(2, int), roads), shapes)
    assert outputs.shape == (2, 170, 2 * 12 + 3 * 12 + 12)


def test_impedance_grows_with_load_and_variation():
    # Cell 0 alternates 10 and 30, cell 1 stands at 20: capacities 30 and 20, variation 10 / 20 and 0. Eq. (4):
    # (1 + 0.15 / 81) 1.5, 1.15 x 1.5 and, for cell 1, 1.15. Twice the capacity and more: (1 + 0.15 x 16).
    flow = np.stack([np.where(np.arange(600) % 2, 30.0, 10.0), np.full(600, 20.0)], axis=1)
    flow[440:] = 777.0  # not of the training part
    roads = road_impedance.read_roads(tiny_tasks.recording(flow, [(0, 1)]), SMALL)
    np.testing.assert_allclose(roads.capacity, [30.0, 20.0])
    np.testing.assert_allclose(roads.variation, [0.5, 0.0], atol=1e-2)
    plain = roads._replace(variation=jnp.array([0.5, 0.0]), typical=(0.0, 1.0))
    found = road_impedance.impedance(jnp.array([[10.0, 20.0], [30.0, 99.0]]), plain, SMALL)
    np.testing.assert_allclose(found, [[1.5 * (1 + 0.15 / 81), 1.15], [1.725, 3.4]], rtol=1e-5)


def test_flow_is_pushed_from_hard_to_easy_roads():
    # 0 -> 1 -> 2 with impedances 3, 1, 2: cell 1 gets 5 from 0, times 3 - 1; cell 2 gets 7 from 1, times 1 - 2.
    roads = road_impedance.read_roads(tiny_tasks.recording(np.ones((600, 3)), [(0, 1), (1, 2)]), SMALL)
    nodes, hard = jnp.array([5.0, 7.0, 9.0]).reshape(3, 1, 1, 1), jnp.array([3.0, 1.0, 2.0]).reshape(3, 1, 1)
    around, pushed = road_impedance.gather(nodes, hard, roads.along)
    np.testing.assert_allclose(around.ravel(), [0.0, 5.0, 7.0])
    np.testing.assert_allclose(pushed.ravel(), [0.0, 10.0, -7.0])
    around, pushed = road_impedance.gather(nodes, hard, roads.against)
    np.testing.assert_allclose(around.ravel(), [7.0, 9.0, 0.0])
    np.testing.assert_allclose(pushed.ravel(), [-14.0, 9.0, 0.0])


def test_components_are_orthogonal_and_the_first_is_kept():
    raw = jax.random.normal(KEYS[0], (3, 10))
    parts, directions = ripcn.orthogonal(raw)
    np.testing.assert_allclose(directions @ directions.T, np.eye(3), atol=1e-5)
    np.testing.assert_array_equal(parts[0], raw[0])


def test_the_loss_of_components_is_least_at_the_principal_ones():
    # Errors with variances 9, 4 and 0.01 along the axes: two components must become (3, 0, 0) and (0, 2, 0). A standard
    # deviation of 4,000 draws is 1.1 % off, a direction 1 / sqrt(4000) times 6 / 5; 0.1 is more than three of either.
    errors = jax.random.normal(KEYS[0], (4000, 3)) * jnp.array([3.0, 2.0, 0.1])

    @jax.jit
    def descend(raw):
        slope = jax.grad(lambda one: ripcn.component_loss(jnp.broadcast_to(one, (4000, 2, 3)), errors).mean())
        return jax.lax.fori_loop(0, 500, lambda _, one: one - 0.3 * slope(one), raw)

    parts, _ = ripcn.orthogonal(descend(jax.random.normal(KEYS[1], (2, 3))))
    np.testing.assert_allclose(jnp.abs(parts), [[3.0, 0.0, 0.0], [0.0, 2.0, 0.0]], atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("joined", "low", "high"), [(True, 0.0, 5.0), (False, 8.5, 12.0)])
def test_its_mean_follows_the_edges_of_the_road_graph(joined, low, high):
    # Cells 4 to 7 show a step later what cells 0 to 3 showed, with a standard deviation of 10. Without edges only the
    # sum over all cells reaches them, through the normalisation: 1 of 7 unknown parts, an error of 9.3.
    sources, followers = np.arange(4), np.arange(4, 8)
    flow = tiny_tasks.copied(tiny_tasks.noise(8), sources, followers)
    data = tiny_tasks.recording(flow, [(0, 4), (1, 5), (2, 6), (3, 7)] if joined else [])
    cfg = dataclasses.replace(SMALL, blocks=0)
    params = ripcn.fit(KEYS[:1], data, cfg, TRAINING)
    forecast = ripcn.predict(params, data, tiny_tasks.TEST, cfg)
    assert low < tiny_tasks.error(forecast.mean, data, followers) < high


@pytest.fixture(scope="module")
def shocked():
    # Roads 0 -> 1 -> 2 and 3 -> 4 -> 5. Cells 0 and 3 are congested in turn; a step after cell 0 was, one shock of
    # standard deviation 15 hits cells 1 and 2 together, after cell 3 cells 4 and 5. Nothing foretells its sign.
    rng = np.random.default_rng(0)
    turn = np.arange(600) % 2
    shock = 15.0 * rng.normal(size=600)
    before = np.roll(turn, 1)
    flow = np.full((600, 6), 50.0) + rng.normal(size=(600, 6))
    flow[:, 0] += np.where(turn == 0, 40.0, -40.0)
    flow[:, 3] += np.where(turn == 1, 40.0, -40.0)
    flow[:, 1:3] += np.where(before == 0, shock, 0.0)[:, None]
    flow[:, 4:6] += np.where(before == 1, shock, 0.0)[:, None]
    data = tiny_tasks.recording(np.maximum(flow, 0.0), [(0, 1), (1, 2), (3, 4), (4, 5)])
    return data, ripcn.fit(KEYS[:1], data, SMALL, TRAINING)


@pytest.mark.slow
def test_components_turn_to_where_congestion_sends_the_errors(shocked):
    # Half of the shocks hit one pair, half the other: a fixed component can hold at most about half of the errors'
    # squares, one that turns with the congestion almost all but what the mean has not learned.
    data, params = shocked
    errors = ripcn.predict_errors(params.forecaster, data, tiny_tasks.TEST, SMALL)
    rest = data.series.values[tiny_tasks.TEST + 1, :, 0] - errors.mean[0, :, 0]  # [W, N]
    component = errors.components[0, :, 0, 0]
    along = (rest * component).sum(axis=1) ** 2 / (component**2).sum(axis=1)
    fixed = jnp.linalg.eigvalsh(rest.T @ rest)[-1]
    total = (rest**2).sum()
    assert float(fixed / total) < 0.6 and float(along.sum() / total) > 0.7


@pytest.mark.slow
def test_sigma_is_what_components_and_noise_give_together(shocked):
    data, params = shocked
    forecast = ripcn.predict(params, data, tiny_tasks.TEST, SMALL)
    mean, noise, components = ripcn.predict_errors(params.forecaster, data, tiny_tasks.TEST, SMALL)
    assert forecast.mean.shape == forecast.sigma.shape == (1, 78, 1, 6) and components.shape == (1, 78, 1, 1, 6)
    np.testing.assert_allclose(forecast.sigma**2, noise**2 + components[:, :, 0] ** 2, rtol=1e-4)
    moved = mean + params.shift[:, None, :, None] * components[:, :, 0]
    np.testing.assert_allclose(forecast.mean, np.maximum(moved, 0.0), rtol=1e-4)
    single = jax.tree.map(lambda leaf: leaf[0], params)
    np.testing.assert_allclose(ripcn.predict(single, data, tiny_tasks.TEST, SMALL).sigma, forecast.sigma[0], rtol=1e-3)


@pytest.mark.slow
def test_only_the_network_is_trained(shocked):
    leaves = jax.tree.leaves(shocked[1].forecaster.network)
    assert forecast_rows.num_parameters(shocked[1]) == sum(leaf[0].size for leaf in leaves)
