"""Claims about spectral norms: power iteration errs low, exact values bound every Jacobian."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.rl.spectral import (
    ACTIVATIONS,
    Layer,
    exact_norm,
    hardened,
    init_layers,
    lipschitz,
    mlp,
    normalised,
    power_norm,
)


def gaussians(num: int = 20, size: int = 128) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (num, size, size))


@pytest.mark.parametrize("iterations, at_most", [(1, 0.95), (5, 0.99), (20, 1.0)])
def test_power_iteration_underestimates_and_less_so_with_more_iterations(iterations, at_most):
    weights = gaussians()
    estimate = jax.jit(jax.vmap(lambda weight: power_norm(weight, iterations)))(weights)
    ratio = np.asarray(estimate) / exact_norm(weights)
    assert ratio.max() <= 1.0 + 1e-6
    assert ratio.mean() < at_most


def test_a_bound_from_one_power_iteration_is_exceeded_and_the_exact_norm_is_not():
    weight = gaussians(1)[0]
    _, _, right = np.linalg.svd(np.asarray(weight, np.float64))
    stretched = np.linalg.norm(np.asarray(weight, np.float64) @ right[0])
    assert stretched > 1.02 * float(power_norm(weight, 1))
    assert stretched <= exact_norm(weight) * (1 + 1e-12)


def test_gradient_of_the_estimate_is_the_outer_product_of_the_singular_vectors():
    # A wide gap (3 against 1) makes twenty iterations exact to float32.
    left, right = (np.linalg.qr(np.random.default_rng(seed).normal(size=(4, 4)))[0] for seed in (0, 1))
    weight = jnp.asarray(left @ np.diag([3.0, 1.0, 0.5, 0.1]) @ right.T, jnp.float32)
    gradient = jax.jit(jax.grad(lambda matrix: power_norm(matrix, 20)))(weight)
    np.testing.assert_allclose(gradient, np.outer(left[:, 0], right[:, 0]), atol=1e-5)


def test_hardened_layers_have_exact_norms_of_at_most_the_coefficient_and_small_ones_are_left_alone():
    layers = (Layer(gaussians(3, 32), jnp.ones((3, 32))), Layer(1e-3 * gaussians(3, 32), jnp.zeros((3, 32))))
    hard = hardened(layers, 0.5)
    assert exact_norm(hard[0].weight).shape == (3,)
    assert (exact_norm(hard[0].weight) <= 0.5).all()
    np.testing.assert_allclose(exact_norm(hard[0].weight), 0.5, rtol=2e-6)
    chex.assert_trees_all_equal(hard[1], layers[1])
    chex.assert_trees_all_equal(hard[0].bias, layers[0].bias)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_training_scales_large_weights_down_to_the_estimated_norm(wrap):
    layers = (Layer(4.0 * jnp.eye(3), jnp.zeros(3)), Layer(0.25 * jnp.eye(3), jnp.zeros(3)))
    held = wrap(lambda tree: normalised(tree, 0.5, 3))(layers)
    # All directions of a multiple of the identity are alike, so the estimate is exact: 4 -> 0.5, 0.25 stays.
    np.testing.assert_allclose(held[0].weight, 0.5 * np.eye(3), atol=1e-6)
    np.testing.assert_allclose(held[1].weight, 0.25 * np.eye(3), atol=1e-6)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_stated_slopes_are_the_largest(name):
    function, slope = ACTIVATIONS[name]
    slopes = jax.jit(jax.vmap(jax.grad(function)))(jnp.linspace(-20.0, 20.0, 40_001))
    assert slope - 1e-3 < np.abs(slopes).max() <= slope + 1e-6


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_no_jacobian_at_ten_thousand_points_exceeds_the_bound(activation):
    layers = init_layers(jax.random.key(1), (6, 16, 16, 4))
    layers = tuple(layer._replace(bias=jax.random.normal(jax.random.key(2), layer.bias.shape)) for layer in layers)
    points = 3.0 * jax.random.normal(jax.random.key(3), (10_000, 6))
    jacobians = jax.jit(jax.vmap(jax.jacrev(lambda x: mlp(layers, x, activation))))(points)
    largest = exact_norm(jacobians).max()
    bound = lipschitz(layers, activation)
    assert 0.05 * bound < largest <= bound


def test_a_linear_chain_of_scaled_rotations_attains_the_bound():
    # Norms 2, 3 and 0.5: the product 3 is attained where nothing is lost to the activation (relu, positive side).
    layers = tuple(Layer(scale * jnp.eye(4), jnp.zeros(4)) for scale in (2.0, 3.0, 0.5))
    np.testing.assert_allclose(lipschitz(layers, "relu"), 3.0, rtol=1e-12)
    np.testing.assert_allclose(mlp(layers, jnp.ones(4), "relu"), 3.0 * np.ones(4), rtol=1e-6)
