"""E-values have mean at most one under the null."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.conformal.e_values import p_to_e_values, soft_rank_e_values


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_soft_rank_e_value_by_hand(wrap):
    # sharpness 2, scores 0 and log 2: weights 1 and 4. s = log 3: weight 9 -> 3 * 9 / (9 + 1 + 4) = 27 / 14.
    e_value = wrap(soft_rank_e_values)(jnp.log(jnp.array([1.0, 2.0])), jnp.log(jnp.array([3.0])))
    np.testing.assert_allclose(e_value, 27 / 14, rtol=1e-6)
    masked = soft_rank_e_values(
        jnp.log(jnp.array([1.0, 2.0])), jnp.log(jnp.array([3.0])), calibration_mask=jnp.array([True, False])
    )
    np.testing.assert_allclose(masked, 2 * 9 / 10, rtol=1e-6)


def test_soft_rank_e_values_left_out_in_turn_have_mean_exactly_one():
    # sum_i w_i / (sum of all w) = 1, so n + 1 leave-one-out e-values sum to n + 1, even for heavy tails.
    scores = np.random.default_rng(0).standard_t(2.0, 200).astype(np.float32)
    leave_one_out = jax.jit(jax.vmap(lambda s, kept: soft_rank_e_values(scores, s, sd=1.7, calibration_mask=kept)))
    np.testing.assert_allclose(leave_one_out(scores, ~np.eye(200, dtype=bool)).mean(), 1.0, rtol=1e-4)


def test_fresh_null_scores_have_mean_e_value_one():
    z = np.abs(np.random.default_rng(1).normal(size=(400, 550))).astype(np.float32)
    e_values = jax.jit(jax.vmap(soft_rank_e_values))(z[:, :500], z[:, 500:])
    means = np.asarray(e_values).mean(axis=1)  # one per calibration set
    assert abs(means.mean() - 1.0) < 3 * means.std() / np.sqrt(400)


def test_e_value_of_a_huge_score_is_finite_and_of_nan_is_zero():
    e_values = soft_rank_e_values(jnp.zeros(1000), jnp.array([1e6, jnp.nan]))
    # exp(24) against 1000 unit weights: all but 4e-8 of the bound n + 1.
    np.testing.assert_allclose(e_values, [1001.0, 0.0], rtol=1e-5)


def test_calibrated_uniform_p_values_have_mean_one():
    # int_0^1 p^(-1/2) / 2 dp = 1; on midpoints of 10^6 cells the singularity costs 3e-4.
    p_values = (np.arange(1_000_000) + 0.5) / 1_000_000
    np.testing.assert_allclose(np.mean(p_to_e_values(p_values)), 1.0, rtol=1e-3)
