"""Real and imagined rollouts become samples by one rule, and steps past the model's knowledge count for nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from stream_jax.rl import agent as agents
from stream_jax.rl import improvement, ppo, world_model
from stream_jax.rl.lyapunov import shortfall, value
from stream_jax.task import violation
from tests.rl.toy_road import ADJACENCY
from tests.rl.toy_settings import CFG

AGENT = agents.init(jax.random.key(0), ADJACENCY, CFG)
STARTS = jax.tree.map(
    lambda leaf: jnp.broadcast_to(leaf, (3, *leaf.shape)),
    agents.blank_state(4, CFG)._replace(local=jax.random.uniform(jax.random.key(1), (4, 10))),
)
UNIT = jnp.array([0.0, 1.0])
imagine = jax.jit(improvement.imagine, static_argnames="cfg")
samples = jax.jit(
    lambda rollout, agent, cfg: improvement.samples(agent.policy, rollout, agent, UNIT, ADJACENCY, cfg),
    static_argnames="cfg",
)
DREAM = imagine(jax.random.key(2), AGENT, STARTS, ADJACENCY, cfg=CFG)


def first(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


def test_an_imagined_rollout_starts_where_it_was_told_and_goes_on_from_itself():
    np.testing.assert_array_equal(DREAM.states.local[:, 0], STARTS.local)
    np.testing.assert_array_equal(DREAM.states.plan[:, 1:], DREAM.executed)  # the action in force is the last one
    assert DREAM.states.local.shape == (3, CFG.world.horizon + 1, 4, 10)
    assert bool(DREAM.alive.all())  # no limit has been learned


def test_the_likelihood_of_imagined_actions_is_that_of_the_policy_that_drew_them():
    rows = samples(first(DREAM), AGENT, CFG)
    ratio = jnp.exp(ppo.log_ratios(AGENT.policy, rows, ADJACENCY, CFG.policy))
    np.testing.assert_allclose(ratio, 1.0, atol=1e-5)


def test_steps_beyond_the_models_knowledge_have_no_weight_and_no_influence():
    # The limit is met by the first step and exceeded by a later one: everything from there on is left out.
    limited = AGENT._replace(world=AGENT.world._replace(disagreement_limit=jnp.array(0.0)))
    assert not bool(imagine(jax.random.key(2), limited, STARTS, ADJACENCY, cfg=CFG).alive.any())
    rollout = first(DREAM)
    cut = rollout._replace(alive=jnp.arange(CFG.world.horizon) < 3)
    spoiled = cut._replace(states=cut.states._replace(local=cut.states.local.at[4:].add(100.0)))
    kept, disturbed = samples(cut, AGENT, CFG), samples(spoiled, AGENT, CFG)
    np.testing.assert_array_equal(kept.weight, [1, 1, 1, 0, 0, 0])
    np.testing.assert_allclose(kept.advantage[:3], disturbed.advantage[:3], rtol=1e-5)
    assert float(jnp.abs(kept.advantage[3:] - disturbed.advantage[3:]).max()) > 1.0


def test_the_soft_lyapunov_penalty_is_the_unmet_decrease():
    soft = dataclasses.replace(CFG, reward=dataclasses.replace(CFG.reward, soft_lyapunov=0.1))
    rollout = first(DREAM)
    penalty = improvement.local_rewards(rollout, AGENT, CFG) - improvement.local_rewards(rollout, AGENT, soft)
    now, after = (value(AGENT.lyapunov, x, CFG.lyapunov) for x in rollout.states.local[:2])
    broken = violation(rollout.states.local[0], CFG.limits)  # half of the arrivals is not served
    expected = 0.1 * max(float(shortfall(now, after, 0.0, broken, CFG.lyapunov)), 0.0)
    assert expected > 0
    np.testing.assert_allclose(penalty[0], expected, rtol=1e-3)


def test_a_signal_that_never_moves_does_not_steer_exploration():
    typical = improvement.typical_uncertainty(AGENT, STARTS, ADJACENCY, CFG)
    assert bool(jnp.isinf(typical.sd[:2]).all())  # sigma and p are constant here
    assert 0 < float(typical.sd[2]) < np.inf  # the untrained members disagree


def test_decrease_data_are_the_steps_with_what_was_predicted_for_them():
    cut = DREAM._replace(alive=DREAM.alive.at[2, 4:].set(False))
    data = improvement.decrease_data(AGENT, cut, ADJACENCY, CFG)
    steps = CFG.world.horizon
    np.testing.assert_array_equal(data.x_next[0], data.x[1])  # steps follow each other
    np.testing.assert_array_equal(data.weight, np.append(np.ones(3 * steps - 2), np.zeros(2)))
    expected = world_model.mean_next(
        AGENT.world, first(first(DREAM.states)), DREAM.executed[0, 0], ADJACENCY, CFG.world
    )
    np.testing.assert_allclose(data.mu[0], expected, atol=1e-5)
