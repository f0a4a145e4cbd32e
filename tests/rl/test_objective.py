"""What a step is worth: in units, telescoping, the same for real and imagined, and credited where it was caused."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.rl.objective import (
    RewardConfig,
    anomaly_reward,
    broken,
    credited,
    local_costs,
    local_rewards,
    nearness,
    potential,
    share,
    traffic,
)
from stream_jax.rl.state import StateConfig, make_state
from stream_jax.task import Limits, costs
from tests.rl.toy_road import ADJACENCY, view

CFG = RewardConfig()
SHARP = RewardConfig(cost_sharpness=4.0)
LIMITS = Limits(queue=10.0)
UNIT = jnp.array([0.1, 1.0])


def state(x, p_value=1.0):
    return make_state(x, view()._replace(p_value=jnp.full(4, p_value)), jnp.zeros((4, 9)), jnp.zeros(5), StateConfig())


parts_of = jax.jit(local_costs, static_argnums=(1, 2))


class TestTraffic(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_reward_of_a_known_state(self):
        # 8 phases of 2 vehicles = 1.6 units, wait 60 s = .5, a fifth not served: .8 - .5 * 1.6 - .5 * .5 = -.25.
        x = jnp.full((4, 10), 0.2).at[:, 8].set(0.5)
        np.testing.assert_allclose(self.variant(lambda x: traffic(x, CFG))(x), np.full(4, -0.25), rtol=1e-5)


def test_the_discounted_anomaly_term_telescopes():
    # sum gamma^t (gamma Phi_{t+1} - Phi_t) = gamma^T Phi_T - Phi_0, whatever happens between.
    p_values = jnp.array([0.5, 0.003, 0.08, 0.02, 0.9, 0.05])
    seen = [state(jnp.zeros((4, 10)), p) for p in p_values]
    steps = [anomaly_reward(before, after, CFG) for before, after in itertools.pairwise(seen)]
    total = sum(CFG.discount**t * float(reward[0]) for t, reward in enumerate(steps))
    # Phi is 1 above p = .1 and p / .1 below: Phi_0 = 1, Phi_5 = .5.
    assert total == pytest.approx(0.99**5 * 0.5 - 1.0, abs=1e-6)
    np.testing.assert_allclose(potential(seen[1]), 0.03, rtol=1e-5)


def test_under_the_null_the_papers_term_is_noise_and_ours_is_not():
    p_values = jax.random.uniform(jax.random.key(0), (2, 4000), minval=1e-6)
    pairs = [state(jnp.zeros((4, 10)))._replace(p_value=p) for p in p_values]
    paper = anomaly_reward(*pairs, RewardConfig(anomaly_term="paper"))
    # Difference of two uniforms: sd sqrt(1 / 6) = .408. Ours moves only in the tenth below .1: var of min(p, .1) / .1
    # is E - mean^2 = (.9 + .1 / 3) - .95^2 = .0308, twice: sd .248.
    assert float(paper.std()) == pytest.approx(0.408, abs=0.015)
    assert float(anomaly_reward(*pairs, CFG).std()) == pytest.approx(0.248, abs=0.02)


def test_every_term_can_be_left_out_and_has_its_weight():
    before, after = state(jnp.zeros((4, 10)), 0.05), state(jnp.zeros((4, 10)), 1.0)
    moved, nothing = jnp.full((4, 9), 0.1), RewardConfig(served=0.0, anomaly=0.0, uncertainty=0.0, correction=0.0)

    def reward(excess=0.0, **kept):
        cfg = RewardConfig(**({"served": 0.0, "anomaly": 0.0, "uncertainty": 0.0, "correction": 0.0} | kept))
        return float(local_rewards(before, after, moved, jnp.array(excess), jnp.array([0.0, 0.2]), LIMITS, cfg)[0])

    assert reward() == 0.0 == float(local_rewards(before, after, moved, 0.0, UNIT, LIMITS, nothing)[0])
    assert reward(anomaly=0.1) == pytest.approx(0.1 * (0.99 - 0.5), rel=1e-5)
    assert reward(uncertainty=0.05) == pytest.approx(-0.05 * 0.5, rel=1e-5)  # (.1 - 0) / .2
    assert reward(correction=0.01) == pytest.approx(-0.01 * 9 * 0.01, rel=1e-5)
    assert reward(excess=0.3, soft_lyapunov=1.0) == pytest.approx(-0.3, rel=1e-6)
    crowded = state(jnp.zeros((4, 10)).at[0, 8].set(1.5))  # 180 s: half over its limit
    charged = local_rewards(
        before, crowded, moved, 0.0, UNIT, LIMITS, RewardConfig(delay=0.0, anomaly=0, violation=2.0)
    )
    free = local_rewards(before, crowded, moved, 0.0, UNIT, LIMITS, RewardConfig(delay=0.0, anomaly=0))
    np.testing.assert_allclose(charged - free, -1.0, rtol=1e-5)


def test_parts_of_a_cost_make_up_the_networks_cost():
    x = jax.random.uniform(jax.random.key(1), (4, 10)) * jnp.array([0.5] * 8 + [1.6, 0.9])
    network = costs(x, LIMITS)
    assert float(network.min()) > 0  # all three limits are broken here
    np.testing.assert_allclose(parts_of(x, LIMITS, CFG).mean(0), network, rtol=1e-5)
    np.testing.assert_allclose(parts_of(x, LIMITS, SHARP).mean(0), np.tanh(4.0 * network), rtol=1e-5)
    np.testing.assert_array_equal(parts_of(0.01 * x, LIMITS, SHARP), np.zeros((4, 3)))


def test_nobody_is_paid_for_a_limit_that_somebody_else_breaks():
    # One full intersection and three nearly empty ones: 44 vehicles on average 11, a tenth over the limit.
    x = jnp.zeros((4, 10)).at[0, 0].set(4.1).at[1:, 0].set(0.1)
    parts = parts_of(x, LIMITS, SHARP)
    assert float(parts.min()) >= 0.0
    np.testing.assert_allclose(parts[:, 0], 4.0 * np.tanh(0.4) * np.array([41, 1, 1, 1]) / 44, rtol=1e-4)
    emptier = parts_of(x.at[0, 0].set(3.9), LIMITS, SHARP)
    assert float(emptier.sum()) < float(parts.sum()) and float(emptier[0, 0]) < float(parts[0, 0])


def test_charges_have_slopes_where_two_wait_equally_long_and_where_nobody_does():
    slope = jax.jit(jax.grad(lambda x: local_costs(x, LIMITS, SHARP).sum()))
    tied = jnp.zeros((4, 10)).at[:2, 8].set(1.1)
    assert np.isfinite(slope(tied)).all() and float(slope(tied)[:, 8].sum()) > 0
    assert np.isfinite(slope(jnp.zeros((4, 10)))).all()


def test_credit_stays_in_the_neighbourhood():
    # A square: 0 is next to 1 and 2, not to 3; three intersections is the largest neighbourhood.
    np.testing.assert_allclose(share(jnp.array([3.0, 0.0, 0.0, 0.0]), ADJACENCY), [1.0, 1.0, 1.0, 0.0])
    x = jnp.zeros((4, 10)).at[0, 8].set(2.0)  # 240 s: the wait is 1 over its limit
    local = credited(jnp.array([3.0, 0, 0, 0]), x, ADJACENCY, LIMITS, CFG)
    np.testing.assert_allclose(local[:, 0], [1.0, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(local[:, 2], [4 / 3, 4 / 3, 4 / 3, 0.0], rtol=1e-6)  # four intersections' mean is 1
    whole = credited(jnp.array([3.0, 0, 0, 0]), x, ADJACENCY, LIMITS, RewardConfig(neighbourhood=False))
    np.testing.assert_allclose(whole, np.tile([0.75, 0.0, 1.0, 0.0], (4, 1)), rtol=1e-6)


def test_a_full_network_breaks_its_limit_everywhere_and_a_long_wait_where_it_is():
    x = jnp.zeros((4, 10)).at[1, 8].set(121.0 / 120.0).at[2, 9].set(0.9)  # 121 s at one; 77.5 % served, below 80 %
    queue, wait, served = broken(x, LIMITS).T
    assert not queue.any() and wait.tolist() == [False, True, False, False] and served.all()
    queue, wait, served = broken(x.at[2, 9].set(0.0).at[0, 0].set(4.1), LIMITS).T  # 41 vehicles at one of four
    assert queue.all() and not served.any()


def test_nearness_is_one_at_a_limit_little_far_from_it_and_belongs_to_those_who_wait():
    queues = jnp.zeros((4, 10)).at[:, :8].set(jnp.array([0.5, 1.5, 1.0, 1.0])[:, None] / 8.0)  # 5, 15, 10, 10 vehicles
    found = nearness(queues.at[0, 8].set(1.0).at[1, 8].set(0.5).at[2, 8].set(9.0), LIMITS)
    np.testing.assert_allclose(found[:, 0], [0.5, 1.5, 1.0, 1.0], rtol=1e-5)  # the mean, 10, is the limit
    np.testing.assert_allclose(found[:, 1], [1.0, 0.5**8, 1.0, 0.0], rtol=1e-5)  # 120 s, 60 s, beyond, none
    np.testing.assert_allclose(nearness(0.5 * queues, LIMITS)[:, 0], 0.5**8 * found[:, 0], rtol=1e-5)
    unserved = jnp.zeros((4, 10)).at[:, 9].set(jnp.array([0.0, 0.4, 0.2, 0.2]))  # on average a fifth, the limit
    np.testing.assert_allclose(nearness(unserved, LIMITS)[:, 2], [0.0, 2.0, 1.0, 1.0], rtol=1e-5)
