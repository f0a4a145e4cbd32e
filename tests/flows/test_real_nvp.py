"""The flow is a bijection with the density that it claims, starts as the identity, and behaves far from the data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.flows.real_nvp import ConditionalFlow, coupling_masks, standard_normal_log_density

NUM_CONTEXT = 3


@functools.cache
def disturbed_flow(dim):
    """A flow far from the identity: every weight of a fresh one moved by a random amount."""
    flow = ConditionalFlow(dim, num_layers=4, hidden=8)
    init_key, move_key = jax.random.split(jax.random.key(0))
    params = jax.jit(flow.init)(init_key, jnp.zeros(dim), jnp.zeros(NUM_CONTEXT))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(move_key, len(leaves))
    moved = [leaf + 0.2 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return flow, jax.tree.unflatten(tree, moved)


def points(dim, count=64):
    z_key, context_key = jax.random.split(jax.random.key(1))
    return 2.0 * jax.random.normal(z_key, (count, dim)), jax.random.normal(context_key, (count, NUM_CONTEXT))


@pytest.mark.parametrize("dim", [1, 4])
def test_log_det_is_that_of_the_numerical_jacobian(dim):
    flow, params = disturbed_flow(dim)
    z, context = points(dim)
    jacobian = jax.jacfwd(lambda z, context: flow.apply(params, z, context), has_aux=True)  # log-det comes along
    slopes, log_det = jax.jit(jax.vmap(jacobian))(z, context)
    sign, expected = np.linalg.slogdet(slopes)
    assert float(jnp.std(log_det)) > 0.1, "the flow should not be trivial"
    np.testing.assert_array_equal(sign, 1.0)
    np.testing.assert_allclose(log_det, expected, atol=2e-5)


def test_compiled_and_not_compiled_agree():
    flow, params = disturbed_flow(4)
    z, context = points(4)
    for eager, compiled in zip(flow.apply(params, z, context), jax.jit(flow.apply)(params, z, context), strict=True):
        np.testing.assert_allclose(eager, compiled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [1, 4])
def test_inverse_undoes_forward(dim):
    flow, params = disturbed_flow(dim)
    z, context = points(dim)

    @jax.jit
    def there_and_back(z):
        base, log_det = flow.apply(params, z, context)
        back, back_log_det = flow.apply(params, base, context, method="inverse")
        return back, log_det + back_log_det, base

    back, net_log_det, base = there_and_back(z)
    assert float(jnp.abs(base - z).max()) > 0.1
    np.testing.assert_allclose(back, z, atol=1e-5)
    np.testing.assert_allclose(net_log_det, 0.0, atol=1e-5)


@pytest.mark.parametrize(("dim", "limit", "spacing"), [(1, 30.0, 0.005), (2, 15.0, 0.05)])
def test_density_given_a_context_integrates_to_one(dim, limit, spacing):
    flow, params = disturbed_flow(dim)
    context = jax.random.normal(jax.random.key(2), (NUM_CONTEXT,))
    axis = jnp.arange(-limit, limit, spacing)
    grid = jnp.stack(jnp.meshgrid(*[axis] * dim), axis=-1).reshape(-1, dim)

    @jax.jit
    def density(z):
        base, log_det = flow.apply(params, z, jnp.broadcast_to(context, (z.shape[0], NUM_CONTEXT)))
        return jnp.exp(standard_normal_log_density(base) + log_det)

    # Midpoint sums of a smooth density that is 0 at the border; a context that leaks z would give another constant.
    assert float(density(grid).sum() * spacing**dim) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("dim", [1, 4])
def test_a_fresh_flow_is_the_identity(dim):
    flow = ConditionalFlow(dim)
    z, context = points(dim)
    base, log_det = jax.jit(lambda key: flow.apply(flow.init(key, z, context), z, context))(jax.random.key(0))
    np.testing.assert_allclose(base, z, atol=1e-5)
    np.testing.assert_allclose(log_det, 0.0, atol=1e-5)


def test_six_layers_cut_four_coordinates_in_all_three_ways():
    masks = coupling_masks(4, 6)
    # By bit 0: {0, 2} | {1, 3}; by bit 1: {0, 1} | {2, 3}; by the parity of both: {0, 3} | {1, 2}.
    assert [sorted(np.flatnonzero(mask)) for mask in masks[::2]] == [[0, 2], [0, 1], [0, 3]]
    np.testing.assert_array_equal(masks[1::2], ~masks[::2])


@pytest.mark.parametrize("dim", [2, 3, 5, 12])
def test_every_layer_moves_something_and_keeps_something(dim):
    masks = coupling_masks(dim, 7)
    assert masks.shape == (7, dim)
    assert masks.any(axis=1).all() and (~masks).any(axis=1).all()


@pytest.mark.parametrize("dim", [1, 4])
def test_a_residual_ten_times_as_absurd_has_a_radius_about_ten_times_as_long(dim):
    # Beyond the conditioners' limit every layer is affine with a fixed scale and a bounded shift.
    flow, params = disturbed_flow(dim)
    direction, context = points(dim, count=16)
    direction = jnp.where(jnp.abs(direction) < 0.5, 1.0, direction)  # no coordinate stays inside the limit
    apply = jax.jit(flow.apply)
    radius = [np.linalg.norm(apply(params, size * direction, context)[0], axis=-1) for size in (1e3, 1e4)]
    np.testing.assert_allclose(radius[1] / radius[0], 10.0, rtol=0.1)
