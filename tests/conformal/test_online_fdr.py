"""Online procedures spend as defined, and keep the false-discovery rate of a whole stream."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.conformal.e_values import p_to_e_values
from stream_jax.conformal.online_fdr import e_lond, lord_plus_plus, lord_spending, power_spending, saffron

LEVEL = 0.05
SPENDING = jnp.array([0.5, 0.3, 0.15, 0.05])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_lord_levels_by_hand(wrap):
    # level .1, w0 = .05, g = .5 .3 .15 .05.
    # t=1: .05*.5 = .025, p = .02 rejects. t=2: .05*.3 + .05*.5 = .04, p = .5.
    # t=3: .05*.15 + .05*.3 = .0225, p = .001 rejects. t=4: .05*.05 + .05*.15 + .1*.5 = .06, p = .061.
    run = wrap(lambda p: lord_plus_plus(p, 0.1, spending=SPENDING))
    result = run(jnp.array([0.02, 0.5, 0.001, 0.061]))
    np.testing.assert_allclose(result.level, [0.025, 0.04, 0.0225, 0.06], rtol=1e-5)
    np.testing.assert_array_equal(result.rejected, [True, False, True, False])


def test_saffron_clock_stands_still_on_candidates():
    # level .1, w0 = .05, cutoff 1/2, so levels are half of LORD's formula with the non-candidates counted.
    # t=1: .5*.05*.5 = .0125, p = .4: candidate, no rejection. t=2: the clock stands: .0125, p = .01 rejects.
    # t=3: .5*(.05*.5 + .05*.5) = .025, p = .9: no candidate. t=4: .5*(.05*.3 + .05*.3) = .015.
    result = jax.jit(saffron)(jnp.array([0.4, 0.01, 0.9, 0.014]), 0.1, spending=SPENDING)
    np.testing.assert_allclose(result.level, [0.0125, 0.0125, 0.025, 0.015], rtol=1e-5)
    np.testing.assert_array_equal(result.rejected, [False, True, False, True])


def test_e_lond_levels_by_hand():
    # level .1: alpha_1 = .05 -> needs e >= 20; 25 rejects. alpha_2 = .1*.3*2 = .06 -> 16.7; 10 does not.
    # alpha_3 = .1*.15*2 = .03 -> 33.3; 34 rejects. alpha_4 = .1*.05*3 = .015 -> 66.7; 60 does not.
    result = e_lond(jnp.array([25.0, 10.0, 34.0, 60.0]), 0.1, spending=SPENDING)
    np.testing.assert_allclose(result.level, [0.05, 0.06, 0.03, 0.015], rtol=1e-5)
    np.testing.assert_array_equal(result.rejected, [True, False, True, False])


def test_spending_sequences_sum_to_one_and_decrease():
    for spending in (lord_spending(500), power_spending(500)):
        np.testing.assert_allclose(spending.sum(), 1.0, rtol=1e-5)
        assert jnp.all(jnp.diff(spending[1:]) < 0.0)


def test_streams_of_uniform_p_values_keep_the_false_discovery_rate():
    # All null: the FDR is the share of streams with any rejection.
    num_streams, length = 1500, 150
    p_values = np.random.default_rng(0).random((num_streams, length), np.float32)
    for procedure in (lord_plus_plus, saffron):
        rejected = jax.jit(jax.vmap(lambda p, f=procedure: f(p, LEVEL).rejected))(p_values)
        any_rejected = np.asarray(rejected).any(axis=1)
        assert any_rejected.mean() <= LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / num_streams)
        assert any_rejected.mean() > 0.005  # it does test
    decided = jax.jit(jax.vmap(lambda p: e_lond(p_to_e_values(p), LEVEL).rejected.any()))(p_values)
    assert decided.mean() <= LEVEL


def test_streams_with_anomalies_keep_the_false_discovery_rate_and_find_some():
    num_streams, length = 200, 150
    rng = np.random.default_rng(1)
    is_anomaly = rng.random((num_streams, length)) < 0.2
    p_values = (rng.random((num_streams, length)) * np.where(is_anomaly, 1e-5, 1.0)).astype(np.float32)
    for procedure in (lord_plus_plus, saffron):
        rejected = np.asarray(jax.jit(jax.vmap(lambda p, f=procedure: f(p, LEVEL).rejected))(p_values))
        proportion = np.sum(rejected & ~is_anomaly, axis=1) / np.maximum(rejected.sum(axis=1), 1)
        assert proportion.mean() <= LEVEL + 3 * proportion.std() / np.sqrt(num_streams)
        assert np.mean(rejected[is_anomaly]) > 0.9
