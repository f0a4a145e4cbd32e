"""Laws of the constrained trust-region step, on quadratic problems small enough to solve densely."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from experiments.methods.control.trust_region import conjugate_gradient, constrained_step

SIZE, RADIUS = 6, 0.02


@jax.jit
def stepped(curvature, gain, cost, excess):
    return constrained_step(lambda v: curvature @ v, gain, cost, excess, RADIUS, iterations=2 * SIZE)


@jax.jit
def solution(curvature, target):
    return conjugate_gradient(lambda v: curvature @ v, target, 2 * SIZE)


def problem(seed):
    """A curvature with eigenvalues between 0.5 and about 8, and two gradients."""
    keys = jax.random.split(jax.random.key(seed), 3)
    root = jax.random.normal(keys[0], (SIZE, SIZE))
    return root @ root.T / 2 + 0.5 * jnp.eye(SIZE), *(jax.random.normal(key, (SIZE,)) for key in keys[1:])


def solved(seed, excess):
    curvature, gain, cost = problem(seed)
    return curvature, gain, cost, stepped(curvature, gain, cost, jnp.asarray(excess, jnp.float32))


@pytest.mark.parametrize("seed", range(3))
def test_conjugate_gradient_is_a_dense_solve(seed):
    curvature, target, _ = problem(seed)
    chex.assert_trees_all_close(solution(curvature, target), jnp.linalg.solve(curvature, target), atol=1e-4)


def test_conjugate_gradient_is_the_same_uncompiled():
    curvature, target, _ = problem(0)
    with jax.disable_jit():
        found = conjugate_gradient(lambda v: curvature @ v, target, 2 * SIZE)
    chex.assert_trees_all_close(found, solution(curvature, target), atol=1e-5)


def test_conjugate_gradient_leaves_zero_where_nothing_is_asked():
    chex.assert_trees_all_equal(solution(problem(0)[0], jnp.zeros(SIZE)), jnp.zeros(SIZE))


@pytest.mark.parametrize("excess", [-1.0, -0.1, -0.02, 0.0, 0.02, 0.1])
@pytest.mark.parametrize("seed", range(5))
def test_the_step_keeps_region_and_linearised_limit(seed, excess):
    curvature, _, cost, step = solved(seed, excess)
    assert 0.5 * step.direction @ curvature @ step.direction <= RADIUS * 1.001
    if not step.recovering:
        assert cost @ step.direction + excess <= 1e-4


@pytest.mark.parametrize("excess", [-0.1, -0.02, 0.02, 0.1])
@pytest.mark.parametrize("seed", range(5))
def test_no_allowed_step_gains_more(seed, excess):
    curvature, gain, cost, step = solved(seed, excess)
    assert not step.recovering
    matrix, wanted, charged = (np.asarray(leaf, float) for leaf in (curvature, gain, cost))
    limits = [
        {"type": "ineq", "fun": lambda x: RADIUS - 0.5 * x @ matrix @ x},
        {"type": "ineq", "fun": lambda x: -(charged @ x + excess)},
    ]
    best = scipy.optimize.minimize(lambda x: -wanted @ x, 0.01 * wanted, constraints=limits, tol=1e-10)
    np.testing.assert_allclose(gain @ step.direction, -best.fun, rtol=2e-3, atol=1e-4)


def test_a_limit_that_is_far_away_leaves_the_natural_gradient():
    curvature, gain, _, step = solved(0, -50.0)
    natural = jnp.linalg.solve(curvature, gain)
    expected = jnp.sqrt(2 * RADIUS / (gain @ natural)) * natural
    chex.assert_trees_all_close(step.direction, expected, atol=1e-4)
    assert step.price == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_recovery_lowers_the_cost_as_far_as_the_region_goes(seed):
    curvature, _, cost, step = solved(seed, 5.0)
    assert step.recovering
    # The least of cost' x inside the region is -sqrt(2 delta cost' H^-1 cost).
    lowest = -jnp.sqrt(2 * RADIUS * cost @ jnp.linalg.solve(curvature, cost))
    np.testing.assert_allclose(cost @ step.direction, lowest, rtol=1e-3)
