"""SAC-Lagrangian as a rival: pendulum within a limit, the temperature finds its entropy, prices follow costs."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.methods.control import sac_lagrangian as sac
from experiments.methods.control import squashed_policy
from experiments.methods.control.sac_lagrangian import SACConfig
from experiments.methods.control.task import Units
from stream_jax.rl.policy import PolicyConfig
from stream_jax.rl.ppo import PPOConfig
from tests.methods_control import pendulum

KEY = jax.random.key(0)
LIMIT = 0.1
POLICY = PolicyConfig(hidden=32, std=0.6, std_bounds=(0.1, 1.0), gain=0.0)
CFG = SACConfig(
    POLICY,
    PPOConfig(discount=0.97, minibatch=128, cost_limit=LIMIT),
    passes=64.0,
    learning_rate=1e-3,
    critic_rate=2e-3,
    follow=0.03,
)
SMALL = dataclasses.replace(CFG, policy=PolicyConfig(hidden=8, layers=1))


def rows(key, count=64):
    keys = jax.random.split(key, 4)
    observed, following = (jax.random.normal(k, (count, 3)) for k in keys[:2])
    return sac.Rows(observed, jnp.tanh(jax.random.normal(keys[2], (count, 1))), jnp.ones((count, 2)), following)


@pytest.mark.slow
def test_the_pendulum_is_swung_up_within_the_limit_on_effort():
    # 10 iterations of 5 episodes of 200 steps are 10 000 steps, with 500 gradient steps after each thousand.
    learner, curve = pendulum.learn(sac, CFG, iterations=10, episodes=5)
    score, effort = pendulum.evaluate(sac, CFG, learner)
    # Hanging still returns about -1200, a swing-up that always succeeds about -150.
    assert score > -300 and effort < LIMIT
    # While exploring, the first policies break the limit, and without a price the last ones would spend 0.28. An
    # episode's effort has a standard deviation of about 0.05: that of the mean of 20 is 0.011.
    assert curve[:3, 1].max() > 2.0 * LIMIT
    assert curve[-4:, 1].mean() < 1.25 * LIMIT


def test_the_temperature_leads_the_entropy_to_its_target():
    # Under a value of -4 a^2 the best spread has variance temperature / 8 or so: each temperature has its entropy.
    cfg = dataclasses.replace(SMALL, learning_rate=3e-3, temperature_rate=1e-2, temperature=1.0)
    observed, wanted = jnp.zeros((256, 3)), -0.5
    actor, heat = squashed_policy.init(KEY, observed, 1, cfg.policy), jnp.zeros(())
    moving = optax.adam(cfg.learning_rate), optax.adam(cfg.temperature_rate)

    def step(carry, key):
        actor, heat, states = carry
        judge = lambda action: -4.0 * jnp.square(action).sum(-1)  # noqa: E731
        slope, entropy = jax.grad(sac.actor_loss, has_aux=True)(actor, key, observed, judge, jnp.exp(heat), cfg)
        cooling = jax.grad(sac.temperature_loss)(heat, entropy, wanted)
        updates, first = moving[0].update(slope, states[0])
        change, second = moving[1].update(cooling, states[1])
        return (optax.apply_updates(actor, updates), heat + change, (first, second)), entropy

    states = moving[0].init(actor), moving[1].init(heat)
    (_, heat, _), entropy = jax.lax.scan(step, (actor, heat, states), jax.random.split(KEY, 3000))
    # 256 draws have an entropy with a standard error of about 0.05; the mean of 500 steps much less.
    np.testing.assert_allclose(entropy[-500:].mean(), wanted, atol=0.05)
    assert abs(float(entropy[0]) - wanted) > 0.3 and float(heat) < -0.3


def test_prices_rise_while_a_cost_is_above_its_limit_and_fall_below():
    cfg = dataclasses.replace(SMALL, price_step=0.05)
    step = lambda prices, cost: sac.repriced(prices, jnp.array([cost]), cfg)  # noqa: E731
    raised = step(step(jnp.zeros(1), 0.5), 0.5)
    # Two steps of 0.05 times 0.5 - 0.1, then one of 0.05 times -0.1.
    np.testing.assert_allclose(raised, [0.04], rtol=1e-4)
    np.testing.assert_allclose(step(raised, 0.0), [0.035], rtol=1e-4)
    assert float(step(jnp.zeros(1), 0.0)[0]) == 0.0


def test_a_cost_that_was_measured_once_moves_its_price_once():
    # However many gradient steps follow, here 64 times 200 rows by 128: one step of the excess over 0.1.
    learner = sac.start(KEY, pendulum.TASK, pendulum.BLANK, SMALL)
    rollouts = pendulum.drive(KEY, lambda key, state: (jnp.full((1, 1), 0.8), jnp.zeros(1)), 1)
    units = Units(jnp.zeros(()), jnp.ones(()))
    improve = jax.jit(lambda *inputs: sac.improve(*inputs, pendulum.TASK, SMALL))
    found, _ = improve(KEY, learner, rollouts, rollouts, units)
    np.testing.assert_allclose(found.multipliers, [0.8**2 - LIMIT], rtol=1e-4)


def test_the_actor_follows_the_reward_until_costs_have_a_price():
    learner = sac.start(KEY, pendulum.TASK, pendulum.BLANK, SMALL)
    some = rows(KEY)
    critics = learner.params.critics
    reward, cost = sac.values(critics, some.observed, some.action, SMALL)
    free, dear = (sac.judged(critics, some.observed, some.action, jnp.array([price]), SMALL) for price in (0.0, 3.0))
    np.testing.assert_allclose(free, reward.min(axis=0), atol=1e-6)
    np.testing.assert_allclose(dear, reward.min(axis=0) - 3.0 * cost[:, 0], atol=1e-6)


def test_the_target_is_signal_plus_discounted_soft_value():
    learner = sac.start(KEY, pendulum.TASK, pendulum.BLANK, SMALL)
    some = rows(KEY)
    target = sac.critic_target(KEY, learner, some, SMALL)
    action, likelihood = squashed_policy.sample(KEY, learner.params.actor, some.following, SMALL.policy)
    reward, cost = sac.values(learner.targets, some.following, action, SMALL)
    np.testing.assert_allclose(target[:, 0], 1.0 + 0.97 * (reward.min(axis=0) - 0.1 * likelihood), atol=1e-5)
    np.testing.assert_allclose(target[:, 1], 1.0 + 0.97 * cost[:, 0], atol=1e-5)


def test_the_first_policy_is_the_default_plan_everywhere():
    learner = sac.start(KEY, pendulum.TASK, pendulum.BLANK, SMALL)
    observed = jax.random.normal(KEY, (50, 3))
    chex.assert_trees_all_equal(sac.act(KEY, learner, observed, SMALL, explore=False)[0], jnp.zeros((50, 1)))
