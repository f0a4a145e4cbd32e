"""PPO starts at ratio 1, follows advantages, prices constraints, and never learns from what was cut off."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.rl import policy, ppo
from stream_jax.rl.policy import PolicyConfig
from stream_jax.rl.ppo import PPOConfig, Samples
from stream_jax.rl.state import StateConfig, make_state
from tests.rl.toy_road import ADJACENCY, view

POLICY = PolicyConfig(hidden=8)
CFG = PPOConfig(epochs=2, minibatch=32, learning_rate=3e-3)
COUNT = 48
STATES = jax.vmap(lambda x: make_state(x, view(), jnp.zeros((4, 9)), jnp.zeros(5), StateConfig()))(
    jax.random.uniform(jax.random.key(0), (COUNT, 4, 10))
)
START = policy.init(jax.random.key(1), jax.tree.map(lambda leaf: leaf[0], STATES), ADJACENCY, POLICY)
update = jax.jit(ppo.update, static_argnames=("cfg", "policy_cfg"))


def samples(advantage_of, params=START):
    """Steps drawn by the policy, each with a widening of its own; advantages [M, I, 4] from the actions."""
    widening = jax.random.uniform(jax.random.key(2), (COUNT, 4))
    draw = jax.vmap(lambda key, state, wide: policy.sample(key, params, state, wide, ADJACENCY, POLICY))
    drawn = draw(jax.random.split(jax.random.key(3), COUNT), STATES, widening)
    advantage = advantage_of(drawn.action)
    return Samples(STATES, drawn.action, widening, drawn.log_prob, advantage, advantage, jnp.ones(COUNT))


def by_component(signal, component):
    """An advantage of one signal that wants more of one component of the action."""
    return lambda action: jnp.zeros((COUNT, 4, 4)).at[..., signal].set(action[..., component])


def test_the_ratio_is_one_before_the_first_step_with_exploration_in_it():
    batch = samples(by_component(0, 0))
    likelihood = jax.jit(
        jax.vmap(lambda *row: policy.log_prob(START, *row, ADJACENCY, POLICY)),
    )(batch.state, batch.widening, batch.proposed)
    # The same function of the same numbers: to the bit. Against the likelihood noted when sampling: to rounding.
    same = jax.jit(lambda rows: ppo.log_ratios(START, rows, ADJACENCY, POLICY))(batch._replace(log_prob=likelihood))
    np.testing.assert_array_equal(jnp.exp(same), np.ones((COUNT, 4)))
    noted = ppo.log_ratios(START, batch, ADJACENCY, POLICY)
    np.testing.assert_allclose(jnp.exp(noted), 1.0, atol=1e-5)
    _, losses = ppo.loss(START, batch, jnp.zeros(3), ADJACENCY, CFG, POLICY)
    assert float(losses.clipped) == 0.0
    # With another widening than the one acted with, the ratio would not be 1: it belongs to the likelihood.
    assert (
        float(jnp.abs(ppo.log_ratios(START, batch._replace(widening=0 * batch.widening), ADJACENCY, POLICY)).max())
        > 0.1
    )


@pytest.mark.parametrize("jitted", [True, False])
def test_advantages_are_worked_out_backwards_and_stop_where_a_rollout_was_cut(jitted):
    # gamma .5, lambda .5, values 0: A_t = r_t + .25 A_{t+1} while the rollout goes on.
    cfg = PPOConfig(discount=0.5, trace=0.5)
    signals = jnp.array([1.0, 2.0, 4.0])[:, None, None]
    work = lambda *args: ppo.advantages(*args, cfg)  # noqa: E731
    work = jax.jit(work) if jitted else work
    whole, _ = work(signals, jnp.zeros((4, 1, 1)), jnp.ones(3))
    np.testing.assert_allclose(whole[:, 0, 0], [1.75, 3.0, 4.0])
    cut, _ = work(signals, jnp.zeros((4, 1, 1)), jnp.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(cut[:, 0, 0], [1.5, 2.0, 4.0])
    # Values stand for what follows: delta_2 = 4 + .5 * 8 - 6 = 2; the target is the advantage plus the value.
    advantage, target = work(signals, jnp.array([0.0, 0.0, 6.0, 8.0])[:, None, None], jnp.ones(3))
    np.testing.assert_allclose(advantage[2, 0, 0], 2.0)
    np.testing.assert_allclose(target[2, 0, 0], 8.0)


def mean_move(learner):
    act = jax.vmap(lambda state: policy.mean_action(learner.params, state, ADJACENCY, POLICY))
    return act(STATES).mean((0, 1))  # [9]


def test_the_policy_moves_towards_what_is_rewarded_and_away_from_what_is_priced():
    learner = ppo.start(START, CFG)
    towards, losses = update(
        jax.random.key(4), learner, samples(by_component(0, 3)), jnp.zeros(3), ADJACENCY, CFG, POLICY
    )
    move = mean_move(towards)
    assert float(move[3]) > 0.02 and float(move[3]) == float(move.max())
    priced = learner._replace(multipliers=jnp.array([0.0, 5.0, 0.0]))
    # Cost 2 sits in signal 2 of the four; its multiplier is the second of three.
    away, _ = update(jax.random.key(4), priced, samples(by_component(2, 3)), jnp.zeros(3), ADJACENCY, CFG, POLICY)
    assert float(mean_move(away)[3]) < -0.02
    assert float(losses.divergence) >= 0.0


@pytest.mark.slow
def test_steps_with_weight_zero_teach_nothing():
    batch = samples(by_component(0, 3))
    poison = batch._replace(
        advantage=batch.advantage.at[COUNT // 2 :].set(1e3), target=batch.target.at[COUNT // 2 :].set(1e3)
    )
    half = jnp.arange(COUNT) < COUNT // 2
    gradients = [
        jax.grad(lambda p, b=b: ppo.loss(p, b, jnp.zeros(3), ADJACENCY, CFG, POLICY)[0])(START)
        for b in (
            poison._replace(weight=half.astype(jnp.float32)),
            jax.tree.map(lambda leaf: leaf[: COUNT // 2], batch),
        )
    ]
    chex.assert_trees_all_close(*gradients, rtol=1e-4, atol=1e-6)


def test_a_multiplier_rises_while_its_cost_exceeds_the_limit_and_falls_after():
    learner, batch = ppo.start(START, CFG), samples(by_component(0, 0))
    seen = []
    for cost in (0.3, 0.3, 0.0, 0.0):
        costs = jnp.array([0.0, cost, 0.05])  # the third is exactly at its limit
        learner, _ = update(jax.random.key(5), learner, batch, costs, ADJACENCY, CFG, POLICY)
        seen.append(np.asarray(learner.multipliers))
    steps = CFG.epochs * (COUNT // 8)  # 32 rows are 8 control steps of 4 intersections
    np.testing.assert_allclose(seen[0], [0.0, 0.01 * 0.25 * steps, 0.0], rtol=1e-4, atol=1e-6)
    assert seen[1][1] > seen[0][1] and seen[2][1] < seen[1][1] and seen[3][1] < seen[2][1]
    assert float(ppo.update_multipliers(jnp.full(3, 99.999), jnp.ones(3), CFG).max()) == 100.0


@pytest.mark.slow
def test_seeds_learn_together_as_they_would_alone_in_one_trace():
    def learn(key, learner, batch):
        return ppo.update(key, learner, batch, jnp.ones(3), ADJACENCY, CFG, POLICY)[0]

    counted = jax.jit(jax.vmap(chex.assert_max_traces(learn, n=1)))
    keys = jax.random.split(jax.random.key(6), 2)
    batches = jax.tree.map(lambda *leaves: jnp.stack(leaves), samples(by_component(0, 1)), samples(by_component(0, 2)))
    learners = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), ppo.start(START, CFG))
    together = counted(keys, learners, batches)
    counted(keys, together, batches)
    for seed, component in enumerate((1, 2)):
        batch = samples(by_component(0, component))
        alone, _ = update(keys[seed], ppo.start(START, CFG), batch, jnp.ones(3), ADJACENCY, CFG, POLICY)
        # A batched product may add in another order; 12 Adam steps of size 3e-3 carry the roundings on.
        chex.assert_trees_all_close(
            alone.params, jax.tree.map(lambda leaf, s=seed: leaf[s], together).params, atol=2e-4
        )


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="clip inside"):
        PPOConfig(clip=0.0)


def test_the_policy_stays_near_the_one_that_acted_while_the_critic_goes_on():
    batch, bound = samples(by_component(0, 0)), 0.005

    def learned(largest):
        cfg = dataclasses.replace(CFG, epochs=30, largest_divergence=largest)
        params = update(jax.random.key(4), ppo.start(START, cfg), batch, jnp.zeros(3), ADJACENCY, cfg, POLICY)[0].params
        return params, float(ppo.divergence(ppo.log_ratios(params, batch, ADJACENCY, POLICY)).mean())

    (free, far), (held, near) = learned(0.0), learned(bound)
    # One step of Adam at 3e-3 leads from below the bound to beyond it, hence four times the bound.
    assert far > 20 * bound and 0.2 * bound < near < 4 * bound
    chex.assert_trees_all_close(free.critic, held.critic, atol=1e-6)
