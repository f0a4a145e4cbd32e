"""Claims about Lipschitz bounds: no search exceeds ours, a short one exceeds the paper's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.rl import bounds, lyapunov, world_model
from stream_jax.rl.lyapunov import LyapunovConfig, LyapunovParams
from stream_jax.rl.spectral import exact_norm
from stream_jax.rl.world_model import WorldParams
from stream_jax.rl.world_network import Scaling, init_network
from tests.rl.small_road import ADJACENCY, INPUTS, INTERSECTIONS, WORLD, random_state

CFG = LyapunovConfig(hidden=(16, 16, 8))


def random_lyapunov(seed: int = 0, bias: float = 1.0) -> LyapunovParams:
    layer_key, bias_key, factor_key = jax.random.split(jax.random.key(seed), 3)
    layers = lyapunov.init(layer_key, CFG).layers
    biased = tuple(layer._replace(bias=bias * jax.random.normal(bias_key, layer.bias.shape)) for layer in layers)
    return LyapunovParams(biased, jax.random.normal(factor_key, (10, 10)))


def random_world() -> WorldParams:
    keys = jax.random.split(jax.random.key(1), 3)
    scale = jnp.exp(0.5 * jax.random.normal(keys[0], (INPUTS,)))
    change = 0.1 * jnp.exp(jax.random.normal(keys[1], (10,)))
    return WorldParams(init_network(keys[2], INPUTS, WORLD), Scaling(jnp.zeros(INPUTS), scale, change), jnp.inf)


def directions(num: int, size: int, seed: int = 2) -> jax.Array:
    draws = jax.random.normal(jax.random.key(seed), (num, size))
    return draws / jnp.linalg.norm(draws, axis=1, keepdims=True)


def largest_slope(params: LyapunovParams, points: jax.Array) -> float:
    """Of the joint L, over points [P, I, 10]."""
    gradient = jax.jit(jax.vmap(jax.grad(lambda x: lyapunov.value(params, x, CFG))))(points)
    return float(np.linalg.norm(np.asarray(gradient, np.float64).reshape(len(points), -1), axis=1).max())


@pytest.mark.parametrize("radius", [1.0, 5.0, 10.0])
@pytest.mark.parametrize("num", [1, INTERSECTIONS])
def test_no_random_search_finds_a_slope_above_the_bound_on_the_ball(radius, num):
    params = random_lyapunov()
    top = np.linalg.eigh(np.asarray(lyapunov.weighting(params, CFG), np.float64))[1][:, -1]
    worst = jnp.zeros((2, num, 10)).at[:, 0].set(jnp.stack([top, -top]))
    points = radius * jnp.concatenate([directions(5000, num * 10).reshape(-1, num, 10), worst])
    slope = largest_slope(params, points)
    bound = bounds.lipschitz_on_ball(params, radius, num, CFG)
    # Along the top eigenvector the quadratic part alone attains 2 eta lambda_max R / I, about a quarter of the bound.
    assert 0.2 * bound < slope <= bound


@pytest.mark.parametrize("radius", [5.0, 10.0])
def test_the_papers_constant_is_exceeded(radius):
    params = random_lyapunov(bias=0.0)
    top = np.linalg.eigh(np.asarray(lyapunov.weighting(params, CFG), np.float64))[1][:, -1]
    point = radius * jnp.asarray(top, jnp.float32)
    # The quadratic part has the slope 2 eta lambda_max R there; the paper counts it as if R were 1.
    assert largest_slope(params, point[None, None]) > 1.3 * bounds.paper_lipschitz(params, point, CFG)
    assert largest_slope(params, point[None, None]) <= bounds.lipschitz_on_ball(params, radius, 1, CFG)


@pytest.mark.parametrize("error", [0.01, 0.3, 3.0])
def test_the_gap_between_two_states_stays_below_its_bound(error):
    params = random_lyapunov(3)
    y = jnp.abs(random_state(jax.random.key(4)).local)
    near = y + error * directions(3000, INTERSECTIONS * 10).reshape(-1, INTERSECTIONS, 10)
    values = jax.jit(jax.vmap(lambda x: lyapunov.value(params, x, CFG)))(near)
    gap = np.abs(np.asarray(values) - float(lyapunov.value(params, y, CFG))).max()
    assert 0.02 * bounds.value_gap(params, y, error, CFG) < gap <= bounds.value_gap(params, y, error, CFG)


def test_noise_raises_the_expected_value_by_no_more_than_its_bound():
    params = random_lyapunov(5)
    mu, sigma = random_state(jax.random.key(6)).local, 0.3 * random_state(jax.random.key(7)).local
    noise = jax.random.normal(jax.random.key(8), (20_000, *mu.shape))
    values = jax.jit(jax.vmap(lambda x: lyapunov.value(params, x, CFG)))(mu + sigma * noise)
    rise = float(values.mean() - lyapunov.value(params, mu, CFG))
    assert 0.0 < rise <= bounds.noise_gap(params, mu, sigma, CFG)
    flat = params._replace(layers=jax.tree.map(jnp.zeros_like, params.layers))
    values = jax.jit(jax.vmap(lambda x: lyapunov.value(flat, x, CFG)))(mu + sigma * noise)
    # Without the network the rise is eta tr(Q Sigma) / I exactly; four standard errors of the simulated mean.
    exact = bounds.noise_gap(flat, mu, sigma, CFG)
    assert abs(float(values.mean() - lyapunov.value(flat, mu, CFG)) - exact) < 4 * float(values.std()) / np.sqrt(20_000)


def test_no_jacobian_of_the_joint_world_model_at_ten_thousand_points_exceeds_its_bound():
    params, state = random_world(), random_state(jax.random.key(9))
    bound = bounds.world_jacobian(params, ADJACENCY, WORLD)
    keys = jax.random.split(jax.random.key(10))
    x = 2.0 * jax.random.normal(keys[0], (10_000, INTERSECTIONS, 10))
    action = jax.random.uniform(keys[1], (10_000, INTERSECTIONS, 9), minval=-1.0, maxval=1.0)

    def mean(local, act):
        prediction = world_model.predict(params, state._replace(local=local), act, ADJACENCY, WORLD)
        return prediction.mean.mean(axis=0).ravel()

    jacobians = jax.jit(lambda *args: jax.lax.map(lambda pair: jax.jacrev(mean, (0, 1))(*pair), args, batch_size=1000))
    by_state, by_action = (np.asarray(j).reshape(10_000, 30, -1) for j in jacobians(x, action))
    assert 1.0 < exact_norm(by_state).max() <= bound.state
    assert 0.02 * bound.action < exact_norm(by_action).max() <= bound.action


def test_two_imagined_means_drift_apart_by_no_more_than_the_power_of_the_bound():
    params, state = random_world(), random_state(jax.random.key(11))
    bound = bounds.world_jacobian(params, ADJACENCY, WORLD).state
    other = state._replace(local=state.local + 0.01)
    step = jax.jit(lambda s: s._replace(local=world_model.mean_next(params, s, s.plan, ADJACENCY, WORLD)))
    start = float(jnp.linalg.norm(other.local - state.local))
    for horizon in range(1, 16):
        state, other = step(state), step(other)
        assert float(jnp.linalg.norm(other.local - state.local)) <= start * bound**horizon + 1e-5
