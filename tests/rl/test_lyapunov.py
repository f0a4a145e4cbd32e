"""Claims about the Lyapunov function: where it is 0, how it grows, what it does not see, and that it can be learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.fit import TrainConfig
from stream_jax.rl import lyapunov
from stream_jax.rl.lyapunov import LyapunovConfig, LyapunovParams
from stream_jax.rl.spectral import exact_norm
from stream_jax.rl.state import physical
from tests.rl.small_road import INTERSECTIONS, random_state

CFG = LyapunovConfig(hidden=(16, 16, 8), held_out_block=5)
both = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])


def random_params(seed: int = 0) -> LyapunovParams:
    key, bias_key, factor_key = jax.random.split(jax.random.key(seed), 3)
    layers = tuple(
        layer._replace(bias=0.5 * jax.random.normal(bias_key, layer.bias.shape))
        for layer in lyapunov.init(key, CFG).layers
    )
    return LyapunovParams(layers, jax.random.normal(factor_key, (10, 10)))


@both
def test_without_a_network_it_is_the_mean_square_times_eta(wrap):
    params = lyapunov.init(jax.random.key(0), CFG)
    flat = params._replace(layers=jax.tree.map(jnp.zeros_like, params.layers))
    x = jnp.zeros((2, 10)).at[0, 0].set(3.0).at[1, 5].set(1.0)
    # Q = I: 0.1 (9 + 1) / 2 intersections = 0.5.
    np.testing.assert_allclose(wrap(lambda rows: lyapunov.value(flat, rows, CFG))(x), 0.5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_zero_on_the_empty_road_and_above_its_quadratic_floor_elsewhere(seed):
    params = random_params(seed)
    smallest = np.linalg.eigvalsh(np.asarray(lyapunov.weighting(params, CFG), np.float64))[0]
    x = 2.0 * jax.random.normal(jax.random.key(9), (500, INTERSECTIONS, 10))
    values = jax.jit(jax.vmap(lambda rows: lyapunov.value(params, rows, CFG)))(x)
    floor = CFG.eta * smallest * (np.asarray(x) ** 2).sum(axis=(1, 2)) / INTERSECTIONS
    assert smallest > 0
    assert lyapunov.value(params, jnp.zeros((INTERSECTIONS, 10)), CFG) <= 1e-12
    assert (np.asarray(values) >= floor * (1 - 1e-5)).all()


def test_its_curvature_at_the_empty_road_is_at_least_that_of_the_quadratic():
    params = random_params()
    smallest = np.linalg.eigvalsh(np.asarray(lyapunov.weighting(params, CFG), np.float64))[0]
    flat = jax.jit(jax.hessian(lambda v: lyapunov.value(params, v.reshape(INTERSECTIONS, 10), CFG)))
    eigenvalues = np.linalg.eigvalsh(np.asarray(flat(jnp.zeros(INTERSECTIONS * 10)), np.float64))
    # f - f(0) vanishes there, so the network adds 2 J'J, which is positive semidefinite. float32 rounding: 1e-6.
    assert eigenvalues[0] >= 2 * CFG.eta * smallest / INTERSECTIONS - 1e-6


def test_the_weighting_has_trace_d_and_cannot_be_scaled():
    params = random_params()
    weighting = lyapunov.weighting(params, CFG)
    np.testing.assert_allclose(jnp.trace(weighting), 10.0, rtol=1e-5)
    larger = lyapunov.weighting(params._replace(factor=10.0 * params.factor), CFG)
    # Only the 1e-3 on the diagonal feels the scale, relative to a trace of about 100.
    np.testing.assert_allclose(larger, weighting, atol=2e-3)


def test_it_sees_neither_clock_nor_forecast_nor_alarms_nor_plan():
    params = random_params()
    state, other = random_state(jax.random.key(1)), random_state(jax.random.key(2))
    changed = other._replace(local=state.local, clock=jnp.array([1.0, 0.0, -1.0, 0.0, 0.5]))
    values = [lyapunov.value(params, physical(s), CFG) for s in (state, changed)]
    assert values[0] == values[1]


def test_a_grid_of_copies_has_the_value_of_one():
    params = random_params()
    x = random_state(jax.random.key(3)).local[:1]
    copies = jnp.tile(x, (7, 1))
    np.testing.assert_allclose(lyapunov.value(params, copies, CFG), lyapunov.value(params, x, CFG), rtol=1e-5)


@both
def test_shortfall_is_what_is_missing_of_the_decrease(wrap):
    # 0.9 + 0.05 - 1.0 + 0.1 * 2 - 0.01 = 0.14.
    short = wrap(lambda *args: lyapunov.shortfall(*args, CFG))(1.0, 0.9, 0.05, 2.0)
    np.testing.assert_allclose(short, 0.14, rtol=1e-5)


def learning_data():
    """The first queue grows by a tenth and is harmless; the second halves, and is what violates."""
    x = jax.random.uniform(jax.random.key(4), (150, INTERSECTIONS, 10))
    after = x.at[..., 0].multiply(1.1).at[..., 1].multiply(0.5)
    return x, after, x[..., 1].mean(axis=1)


def hinge(params, x, x_next, violated):
    batch = lyapunov._Batch(x, jnp.stack([x_next, x_next], 1), violated, jnp.ones(len(x)))
    return float(jax.jit(lambda held: lyapunov._hinge(held, batch, CFG))(params).mean())


@pytest.mark.slow
def test_learning_lowers_the_hinge_on_steps_not_learned_from_and_keeps_the_norms():
    x, x_next, violated = learning_data()
    key, training = jax.random.key(5), TrainConfig(learning_rate=1e-2, batch=30, epochs=6, patience=6)
    start = lyapunov.init(jax.random.split(key)[0], CFG)
    params = lyapunov.fit(key, x[:120], x_next[:120], violated[:120], x_next[:120], CFG, training)
    fresh = (x[120:], x_next[120:], violated[120:])
    assert hinge(params, *fresh) < 0.7 * hinge(start, *fresh)
    assert max(exact_norm(layer.weight) for layer in params.layers) <= CFG.coefficient


def test_a_transition_counts_by_what_followed_and_what_was_predicted_and_not_at_all_at_weight_zero():
    params = lyapunov.init(jax.random.key(0), CFG)
    flat = params._replace(layers=jax.tree.map(jnp.zeros_like, params.layers))
    x = jnp.ones((2, 1, 10))
    # L(x) = 1, L(2 x) = 4, d_C = 1: followed by 2 x it falls short by 4 - 1 + 0.1 - 0.01 = 3.09; predicted at 0, not.
    after = jnp.stack([2.0 * x, 0.0 * x], axis=1)
    batch = lyapunov._Batch(x, after, jnp.ones(2), jnp.array([1.0, 0.0]))
    np.testing.assert_allclose(lyapunov._hinge(flat, batch, CFG), [3.09 / 2, 0.0], rtol=1e-5)


def test_a_decrease_rate_of_zero_is_refused():
    with pytest.raises(ValueError, match="kappa"):
        LyapunovConfig(kappa=0.0)
