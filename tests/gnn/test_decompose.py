"""Claims about the causal decomposition and the fusion of its streams."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.gnn.decompose import causal_trend, fuse, seasonal_mean


@pytest.mark.parametrize("maybe_jit", [jax.jit, lambda f: f], ids=["jit", "plain"])
def test_uniform_two_lag_trend_is_the_mean_of_now_and_before(maybe_jit):
    # First step has no earlier one and keeps its value; then (2 + 4) / 2 and (4 + 8) / 2.
    streams = maybe_jit(causal_trend)(jnp.array([2.0, 4.0, 8.0]), jnp.zeros(2))
    chex.assert_trees_all_close(streams.trend, jnp.array([2.0, 3.0, 6.0]), atol=1e-6)
    chex.assert_trees_all_close(streams.residual, jnp.array([0.0, 1.0, 2.0]), atol=1e-6)


def test_softmax_weights_put_lag_zero_first():
    # softmax(log 3, 0) = (3/4, 1/4).
    trend = causal_trend(jnp.array([0.0, 4.0]), jnp.log(jnp.array([3.0, 1.0]))).trend
    np.testing.assert_allclose(trend[1], 3.0, rtol=1e-6)


def test_a_constant_window_has_no_residual_even_at_the_left_edge():
    logits = jax.random.normal(jax.random.key(0), (9,))
    residual = causal_trend(jnp.full((12, 3), 5.0), logits).residual
    chex.assert_trees_all_close(residual, jnp.zeros((12, 3)), atol=1e-5)


def test_trend_does_not_read_later_steps():
    window = jax.random.normal(jax.random.key(0), (12, 4))
    logits = jax.random.normal(jax.random.key(1), (9,))
    before = causal_trend(window, logits)
    after = causal_trend(window.at[7:].add(100.0), logits)
    chex.assert_trees_all_equal(before.trend[:7], after.trend[:7])


def test_fusion_adds_means_and_correlated_variances():
    # 3, 4 with rho = 0: 5. With w_rho large, rho = 0.95: sqrt(9 + 16 + 2 * 0.95 * 12) = sqrt(47.8).
    mean, sigma = fuse(jnp.array(1.0), jnp.array(3.0), jnp.array(2.0), jnp.array(4.0), jnp.array(0.0), 0.0)
    np.testing.assert_allclose((mean, sigma), (3.0, 5.0), rtol=1e-6)
    _, sigma = fuse(jnp.array(1.0), jnp.array(3.0), jnp.array(2.0), jnp.array(4.0), jnp.array(20.0), 0.0)
    np.testing.assert_allclose(sigma, np.sqrt(47.8), rtol=1e-6)


def test_fused_sigma_never_falls_below_its_floor():
    _, sigma = fuse(jnp.array(0.0), jnp.array(0.0), jnp.array(0.0), jnp.array(0.0), jnp.array(-10.0), 0.01)
    np.testing.assert_allclose(sigma, 0.01, rtol=1e-6)


def test_gradients_stay_finite_when_equal_streams_cancel():
    def total(trend_sigma, residual_sigma, w_rho):
        return fuse(jnp.zeros(()), trend_sigma, jnp.zeros(()), residual_sigma, w_rho, 0.01)[1]

    grads = jax.grad(total, (0, 1, 2))(jnp.array(1.0), jnp.array(1.0), jnp.array(-10.0))
    chex.assert_tree_all_finite(grads)
    # sigma^2 = 2 - 1.9 + 1e-4, and d sigma^2 / d s1 = 2 - 1.9 = 0.1.
    np.testing.assert_allclose(grads[0], 0.1 / (2 * np.sqrt(0.1001)), rtol=1e-3)


def test_seasonal_mean_reads_observed_training_steps_only():
    # Slots 0, 1 twice. Training holds steps 0..2; step 1 is missing, so slot 1 falls back to the mean of 2 and 6.
    values = jnp.array([2.0, jnp.nan, 6.0, 50.0]).reshape(4, 1, 1)
    observed = jnp.array([True, False, True, True]).reshape(4, 1, 1)
    in_train = jnp.array([True, True, True, False])
    season = seasonal_mean(values, observed, jnp.array([0, 1, 0, 1]), in_train, 2)
    chex.assert_trees_all_close(season[:, 0, 0], jnp.array([4.0, 4.0]))
