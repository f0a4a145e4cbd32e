"""The policy starts at the default plan, explores more where less is known, and knows its own likelihood."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from stream_jax.rl import policy
from stream_jax.rl.policy import PolicyConfig, Uncertainty
from stream_jax.rl.state import StateConfig, make_state
from tests.rl.toy_road import ADJACENCY, view

CFG = PolicyConfig(hidden=8)
X = jax.random.uniform(jax.random.key(0), (4, 10))
STATE = make_state(X, view(), jnp.zeros((4, 9)), jnp.zeros(5), StateConfig())
PARAMS = policy.init(jax.random.key(1), STATE, ADJACENCY, CFG)
TYPICAL = Uncertainty(jnp.array([0.1, 0.5, 0.2]), jnp.array([0.1, 0.5, 0.1]))


def trained(params):
    """Parameters that no longer answer 0."""
    leaves, tree = jax.tree.flatten(params.actor)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    moved = [leaf + 0.3 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return params._replace(actor=jax.tree.unflatten(tree, moved))


def test_the_first_policy_is_exactly_the_default_plan_in_any_state():
    for key in jax.random.split(jax.random.key(3), 5):
        state = STATE._replace(local=10.0 * jax.random.normal(key, X.shape))
        np.testing.assert_array_equal(policy.mean_action(PARAMS, state, ADJACENCY, CFG), np.zeros((4, 9)))
    assert float(jnp.abs(policy.mean_action(trained(PARAMS), STATE, ADJACENCY, CFG)).max()) > 0.1


def test_one_network_serves_all_intersections():
    # Renaming the intersections renames the answers: 0 <-> 3 is a symmetry of the square.
    order = jnp.array([3, 1, 2, 0])
    renamed = jax.tree.map(lambda leaf: leaf[order] if leaf.shape[:1] == (4,) else leaf, STATE)
    params = trained(PARAMS)
    np.testing.assert_allclose(
        policy.mean_action(params, renamed, ADJACENCY, CFG),
        policy.mean_action(params, STATE, ADJACENCY, CFG)[order],
        rtol=1e-5,
    )
    own = PolicyConfig(hidden=8, identity=True)
    assert policy.init(jax.random.key(1), STATE, ADJACENCY, own).actor["params"]["identity"].shape == (4, 9)


class TestLikelihood(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_log_prob_is_the_clipped_normals(self):
        # Mean 0, std .2 (1 + .5 * .4) = .24: density inside, tail mass at the bounds, summed over components.
        log_prob = self.variant(lambda *args: policy.log_prob(PARAMS, STATE, *args, ADJACENCY, CFG))
        action = jnp.tile(jnp.array([0.0, 0.1, -0.3, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0]), (4, 1))
        law = stats.norm(0.0, 0.24)
        expected = law.logpdf([0.0, 0.1, -0.3, 0.0, 0.0, 0.0, 0.0]).sum() + 2 * law.logsf(1.0)
        np.testing.assert_allclose(log_prob(jnp.full(4, 0.4), action), np.full(4, expected), rtol=1e-4)

    @chex.variants(with_jit=True, without_jit=True)
    def test_a_sample_comes_with_its_own_likelihood(self):
        params = trained(PARAMS)
        widening = jnp.array([0.0, 0.2, 0.5, 1.0])
        draw = self.variant(lambda key: policy.sample(key, params, STATE, widening, ADJACENCY, CFG))(jax.random.key(4))
        again = policy.log_prob(params, STATE, widening, draw.action, ADJACENCY, CFG)
        np.testing.assert_allclose(draw.log_prob, again, rtol=1e-5)
        assert float(jnp.abs(draw.action).max()) <= 1.0


def test_exploration_widens_with_every_uncertainty_and_is_off_at_evaluation():
    calm = policy.boost(jnp.tile(TYPICAL.mean, (4, 1)), TYPICAL, CFG)
    np.testing.assert_allclose(calm, jax.nn.sigmoid(-2.0), rtol=1e-6)  # every signal at its typical value
    for signal in range(3):
        alarmed = jnp.tile(TYPICAL.mean, (4, 1)).at[0, signal].add(1.0)
        widened = policy.boost(alarmed, TYPICAL, CFG)
        assert widened[0] > widened[1] == calm[1]
    np.testing.assert_allclose(policy.std(PARAMS, jnp.zeros(4), CFG), 0.2, rtol=1e-6)
    np.testing.assert_allclose(policy.std(PARAMS, jnp.ones(4), CFG), 0.3, rtol=1e-6)  # .2 (1 + .5)
    blind = Uncertainty(jnp.zeros(3), jnp.full(3, jnp.inf))  # before anything was seen
    np.testing.assert_allclose(policy.boost(jnp.ones((4, 3)), blind, CFG), jax.nn.sigmoid(-2.0), rtol=1e-6)


def test_a_small_p_value_is_an_uncertainty_and_a_large_one_is_not():
    state = STATE._replace(p_value=jnp.array([0.01, 1.0, 1.0, 1.0]))
    signals = policy.uncertainties(state, jnp.zeros(4))
    np.testing.assert_allclose(signals[:, 1], [0.99, 0.0, 0.0, 0.0], atol=1e-6)


def test_the_standard_deviation_keeps_a_gradient_at_its_bounds():
    far = PARAMS._replace(log_std=jnp.full(9, 5.0))
    for widening in (0.0, 1.0):
        inside = policy.bounded(far, CFG)
        slope = jax.grad(lambda p, w=widening: policy.entropy(p, jnp.full(4, w), CFG).sum())(inside).log_std
        np.testing.assert_allclose(slope, 4.0, rtol=1e-5)  # d log std / d log std = 1 for each of 4 intersections
        assert float(policy.std(inside, jnp.full(4, widening), CFG).max()) <= 0.5 + 1e-6


def test_the_papers_noise_is_not_in_the_likelihood():
    # Spread .5 * .1 = .05 of noise on std .2: draws are wider than their own likelihood says.
    noisy = PolicyConfig(hidden=8, exploration="paper_noise", gain=2.0, std=0.15)
    state = STATE._replace(sigma=jnp.full((4, 2), 0.1))
    params = policy.init(jax.random.key(1), state, ADJACENCY, noisy)
    keys = jax.random.split(jax.random.key(5), 2000)
    draws = jax.vmap(lambda key: policy.sample(key, params, state, jnp.ones(4), ADJACENCY, noisy).action)(keys)
    claimed = float(policy.std(params, jnp.ones(4), noisy)[0, 0])
    # sqrt(.15^2 + .2^2) = .25, less a little clipped at 4 sd; 72000 draws leave .25 / sqrt(144000) = .0007.
    assert claimed == pytest.approx(0.15, rel=1e-5)
    assert float(draws.std()) == pytest.approx(0.25, abs=0.003)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="std in"):
        PolicyConfig(std=0.4)  # .4 (1 + .5) = .6 > .5
