"""The squeezed Gaussian is the density that it says it is."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from experiments.methods.control import squashed_policy
from stream_jax.rl.policy import PolicyConfig

KEY = jax.random.key(0)
POLICY = PolicyConfig(hidden=8, layers=1)


def test_a_squeezed_draw_has_the_likelihood_that_it_is_said_to_have():
    actor = squashed_policy.init(KEY, jnp.zeros((1, 3)), 2, POLICY)
    observed = jax.random.normal(KEY, (500, 3))
    action, likelihood = squashed_policy.sample(KEY, actor, observed, POLICY)
    chex.assert_trees_all_close(squashed_policy.log_prob(actor, observed, action, POLICY), likelihood, atol=1e-3)
    # A density: its integral over (-1, 1) is 1, here for one component by the rectangle rule.
    single = squashed_policy.init(KEY, jnp.zeros((1, 3)), 1, POLICY)
    grid = jnp.linspace(-1.0, 1.0, 4001)[1:-1, None]
    density = jnp.exp(squashed_policy.log_prob(single, jnp.zeros((3999, 3)), grid, POLICY))
    np.testing.assert_allclose(density.sum() * 2.0 / 4000, 1.0, atol=1e-3)
