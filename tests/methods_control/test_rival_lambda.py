"""LAMBDA as a rival: pendulum within a limit in few steps, hope and fear over its worlds, and its Lagrangian."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.methods.control import la_mbda, posterior
from experiments.methods.control.la_mbda import LambdaConfig, Prices
from experiments.methods.control.posterior import PosteriorConfig
from experiments.methods.control.task import measure_units, remembered
from stream_jax.rl.policy import PolicyConfig
from stream_jax.rl.ppo import PPOConfig
from tests.methods_control import pendulum

KEY = jax.random.key(0)
LIMIT = 0.08
CFG = LambdaConfig(
    PolicyConfig(hidden=32, std=0.6, std_bounds=(0.1, 1.0), gain=0.0),
    PPOConfig(discount=0.97, trace=0.95, minibatch=128, cost_limit=LIMIT, learning_rate=2e-3, critic_rate=3e-3),
    PosteriorConfig(hidden=32, learning_rate=3e-3, batch=64),
    starts=16,
    passes=13.0,
    world_passes=10.0,
)
SMALL = dataclasses.replace(CFG, world=PosteriorConfig(hidden=16, batch=32), horizon=4, starts=6, world_passes=20.0)


@pytest.fixture(scope="module")
def fitted():
    """A learner that acts by what it sees, whose world has seen eight episodes, those episodes and their units."""
    learner = la_mbda.start(KEY, pendulum.TASK, pendulum.BLANK, SMALL)
    moved = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(KEY, leaf.shape), learner.params)
    learner = learner._replace(params=moved)
    rollouts = driven(KEY, learner)
    fit = jax.jit(lambda key, world: la_mbda.fit_world(key, world, rollouts, 8, pendulum.TASK, SMALL))
    learner = learner._replace(world=fit(KEY, learner.world))
    return learner, rollouts, jax.jit(lambda some: measure_units(pendulum.TASK, some))(rollouts)


@jax.jit
def driven(key, learner):
    return pendulum.drive(key, lambda act_key, state: la_mbda.act(act_key, learner, state, SMALL, True), 8)


@partial(jax.jit, static_argnames="worlds")
def dreamt(fitted, worlds=5):
    """Rollouts in worlds of the posterior, and their returns."""
    learner, rollouts, units = fitted
    networks = jax.vmap(lambda key: posterior.sample(key, learner.world))(jax.random.split(KEY, worlds))
    starts = rollouts.states[0, : SMALL.starts]
    dream = la_mbda.imagine(
        KEY, learner.params.actor, networks, learner.world.scaling, starts, units, pendulum.TASK, SMALL
    )
    return dream, la_mbda.lambda_returns(learner.params.critic, dream, SMALL)


@pytest.mark.slow
def test_the_pendulum_is_swung_up_within_the_limit_on_effort():
    # 8 iterations of 8 episodes of 200 steps are 12 800 steps. Hanging still returns about -1200, a swing-up that
    # always succeeds about -150; without a limit the same budget ends at -137 with an effort of 0.095.
    learner, curve = pendulum.learn(la_mbda, CFG, iterations=8, episodes=8)
    score, effort = pendulum.evaluate(la_mbda, CFG, learner)
    assert score > -300 and effort < LIMIT
    assert curve[:2, 1].max() > 2.0 * LIMIT  # the first policies break the limit


@pytest.mark.slow
def test_rollouts_that_fill_up_the_memory_are_not_learned_from_more_often():
    # 20 passes over two rollouts of 200 steps in batches of 32 are 250 steps, ten snapshots 12 apart at the end of them
    # (round(0.5 * 250 / 10)), whether the memory holds the two once or eight times.
    learner = la_mbda.start(KEY, pendulum.TASK, pendulum.BLANK, SMALL)
    two = jax.tree.map(lambda leaf: leaf[:2], driven(KEY, learner))
    fit = jax.jit(lambda world, memory: la_mbda.fit_world(KEY, world, memory, 2, pendulum.TASK, SMALL))
    for count in (2, 16):
        world = fit(learner.world, remembered([two], count))
        assert {int(leaf) for leaf in jax.tree.leaves(world.optimiser) if leaf.ndim == 0} == {250}


@pytest.mark.slow
def test_hope_and_fear_are_at_least_the_mean_over_the_worlds_and_at_least_the_least(fitted):
    _, returns = dreamt(fitted)
    upper = la_mbda.upper_bounds(returns)
    mean, least = returns.mean((0, 1, 2, 3)), returns.mean((2, 3)).min(axis=0).mean(axis=0)
    assert (upper > mean).all() and (mean > least).all()  # strictly: the worlds differ


def test_one_world_leaves_nothing_to_hope_for(fitted):
    _, returns = dreamt(fitted, worlds=1)
    np.testing.assert_allclose(la_mbda.upper_bounds(returns), returns.mean((0, 1, 2, 3)), rtol=1e-5)


def test_worlds_have_the_posteriors_mean_and_variance(fitted):
    world = fitted[0].world
    draw = jax.jit(jax.vmap(lambda key: jax.flatten_util.ravel_pytree(posterior.sample(key, world))[0]))
    drawn = draw(jax.random.split(KEY, 2000))
    # Half of the variance by coordinate, and half of the unbiased one along the deviations.
    rank = SMALL.world.snapshots
    expected = 0.5 * world.variance + 0.5 * world.variance * rank / (rank - 1)
    standard = (drawn.mean(axis=0) - world.mean) / jnp.sqrt(expected / 2000)
    assert float(jnp.abs(standard).mean()) < 1.0  # 0.8 for a Gaussian
    np.testing.assert_allclose((drawn.var(axis=0) / expected).mean(), 1.0, atol=0.02)


def test_a_dream_stays_finite_where_nothing_was_seen(fitted):
    # Inputs beyond 10 standard deviations look alike, so a step changes the state by no more than at that distance.
    learner, _, _ = fitted
    network = posterior.sample(KEY, learner.world)
    far, farther = (jnp.full((1, 4), size) for size in (1e3, 1e30))
    changes = [posterior.predict(network, learner.world.scaling, some, SMALL.world)[0] for some in (far, farther)]
    np.testing.assert_array_equal(*changes)
    assert np.isfinite(changes[0]).all()


def test_the_world_predicts_better_than_no_change(fitted):
    learner, _, _ = fitted
    fresh = driven(jax.random.key(9), learner)
    before, after = fresh.states[:, :-1, 0], fresh.states[:, 1:, 0]
    inputs = jnp.concatenate([before, fresh.action[:, :, 0]], axis=-1)
    change, _ = posterior.predict(posterior.sample(KEY, learner.world), learner.world.scaling, inputs, SMALL.world)
    assert jnp.square(before + change - after).mean() < 0.05 * jnp.square(before - after).mean()


def test_a_dream_without_costs_to_come_is_worth_its_discounted_signals():
    # Two steps of signals 1 and 2, values 0, discount .97, trace .95: 1 + .97 * .95 * 2 = 2.843 and 2.
    cfg = dataclasses.replace(SMALL, horizon=2)
    learner = la_mbda.start(KEY, pendulum.TASK, pendulum.BLANK, cfg)
    silent = jax.tree.map(jnp.zeros_like, learner.params.critic)
    paid = jnp.array([1.0, 2.0])[None, None, :, None, None] * jnp.ones((1, 1, 1, 1, 2))
    returns = la_mbda.lambda_returns(silent, la_mbda.Dream(jnp.zeros((1, 1, 3, 1, 3)), paid), cfg)
    np.testing.assert_allclose(returns[0, 0, :, 0, 0], [2.843, 2.0], rtol=1e-5)


def test_multipliers_rise_above_the_limit_and_fall_below_and_the_penalty_grows():
    prices = Prices(jnp.array([0.1]), jnp.asarray(0.5))
    up, down = (la_mbda.update_prices(prices, jnp.array([excess]), CFG) for excess in (0.2, -0.1))
    np.testing.assert_allclose([up.multipliers[0], down.multipliers[0]], [0.2, 0.05], rtol=1e-5)
    assert up.penalty > prices.penalty
    floor = la_mbda.update_prices(prices, jnp.array([-9.0]), CFG)
    assert float(floor.multipliers[0]) == 0.0
    ceiling = la_mbda.update_prices(prices, jnp.array([1e9]), CFG)
    assert float(ceiling.multipliers[0]) == CFG.ppo.largest_multiplier


def test_the_charge_is_that_of_the_augmented_lagrangian():
    prices = Prices(jnp.array([0.1]), jnp.asarray(0.5))
    # Above: 0.1 * 0.2 + 0.25 * 0.04 = 0.03. Far below, 0.1 - 0.5 * 1 < 0: -0.01 / (2 * 0.5) = -0.01, without a slope.
    np.testing.assert_allclose(la_mbda.augmented(jnp.array([0.2]), prices), [0.03], rtol=1e-5)
    np.testing.assert_allclose(la_mbda.augmented(jnp.array([-1.0]), prices), [-0.01], rtol=1e-5)
    slope = jax.grad(lambda excess: la_mbda.augmented(excess, prices).sum())
    np.testing.assert_allclose(slope(jnp.array([0.2])), [0.2], rtol=1e-5)  # 0.1 + 0.5 * 0.2
    assert float(slope(jnp.array([-1.0]))[0]) == 0.0


def test_the_critic_learns_from_the_worlds_that_spoke(fitted):
    learner, _, _ = fitted
    dream, returns = dreamt(fitted)
    quietest = returns.mean((2, 3)).argmin(axis=0)[:, 0]  # [B] never speaks for the reward
    changed = returns.at[quietest, jnp.arange(SMALL.starts), :, :, 0].add(-5.0)
    before, after = (la_mbda.critic_loss(learner.params.critic, dream, some, SMALL) for some in (returns, changed))
    np.testing.assert_allclose(before, after, rtol=1e-5)


def test_the_first_policy_is_the_default_plan_everywhere():
    learner = la_mbda.start(KEY, pendulum.TASK, pendulum.BLANK, SMALL)
    observed = jax.random.normal(KEY, (50, 3))
    np.testing.assert_array_equal(la_mbda.act(KEY, learner, observed, SMALL, explore=False)[0], np.zeros((50, 1)))
