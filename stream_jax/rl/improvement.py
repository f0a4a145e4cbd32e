"""The compiled part of an iteration: real and imagined rollouts become samples, and PPO learns from them, in rounds.

Section 4.3 and "Training Details" (15-step imagination); Algorithm 1, Phase 4. Imagined rollouts start at states that
the road really had and end where the world model's members disagree more than they do on held-out data.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.rl import agent as agents
from stream_jax.rl import lyapunov, objective, policy, ppo, world_model
from stream_jax.rl.agent import Agent, AgentConfig
from stream_jax.rl.episodes import Episode, states
from stream_jax.rl.policy import PolicyParams, Uncertainty
from stream_jax.rl.ppo import Learner, Losses, Samples
from stream_jax.rl.state import physical
from stream_jax.task import violation
from stream_jax.types import RLState

SMALLEST_SD = 1e-6


class Rollout(NamedTuple):
    """T steps, on the road or imagined."""

    states: RLState  # leaves [T + 1, ...]
    proposed: Array  # [T, I, A]
    executed: Array  # [T, I, A]
    log_prob: Array  # [T, I]
    widening: Array  # [T, I]
    alive: Array  # [T] bool


class DecreaseData(NamedTuple):
    """Steps from which L is learned."""

    x: Array  # [M, I, 10]
    x_next: Array  # [M, I, 10]
    violation: Array  # [M] d_C(x)
    mu: Array  # [M, I, 10] the world model's mean
    weight: Array  # [M]


class LearnReport(NamedTuple):
    """Means over the rounds of an iteration."""

    losses: Losses
    alive: Array  # [] share of imagined steps that counted
    imagined_reward: Array  # [] mean over intersections, in the reward's own unit


def learn(
    key: Array,
    learner: Learner,
    agent: Agent,
    real: Rollout,
    starts: RLState,
    mean_cost: Array,
    reward_unit: Array,
    adjacency: Array,
    cfg: AgentConfig,
) -> tuple[Learner, LearnReport]:
    """Improves the policy on the same real rollouts and on fresh imagined ones in every round.

    Args:
        agent: supplies world model, L and typical uncertainties; its policy is the learner's.
        real: leaves [E, ...], rollouts of the policy that the learner starts from.
        starts: leaves [rounds, R, ...], where imagination begins; R may be 0.
        mean_cost: [C] of the real rollouts.
        reward_unit: [2] mean and standard deviation of an intersection's reward.
    """
    to_samples = partial(samples, agent=agent, reward_unit=reward_unit, adjacency=adjacency, cfg=cfg)

    def one_round(carry: Learner, inputs: tuple[Array, RLState]) -> tuple[Learner, LearnReport]:
        imagine_key, update_key = jax.random.split(inputs[0])
        gathered, report = _flat(jax.vmap(partial(to_samples, carry.params))(real)), (jnp.zeros(()), jnp.zeros(()))
        if inputs[1].local.shape[0]:
            dreamt = imagine(imagine_key, agent._replace(policy=carry.params), inputs[1], adjacency, cfg)
            extra = _flat(jax.vmap(partial(to_samples, carry.params))(dreamt))
            gathered = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), gathered, extra)
            report = dreamt.alive.mean(), _mean_reward(dreamt, cfg)
        carry, losses = ppo.update(update_key, carry, gathered, mean_cost, adjacency, cfg.ppo, cfg.policy)
        return carry, LearnReport(losses, *report)

    keys = jax.random.split(key, cfg.rounds)
    learner, reports = jax.lax.scan(one_round, learner, (keys, starts))
    return learner, jax.tree.map(jnp.mean, reports)


def real_rollouts(agent: Agent, episodes: Episode, adjacency: Array, cfg: AgentConfig) -> Rollout:
    """Collected episodes [E, ...] with the exploration that the agent which collected them had."""

    def one(episode: Episode) -> Rollout:
        seen = states(episode, cfg.state)
        before = jax.tree.map(lambda leaf: leaf[:-1], seen)
        wide = jax.vmap(lambda state: agents.widening(agent, state, adjacency, cfg))(before)
        alive = jnp.ones(episode.log_prob.shape[0], bool)
        return Rollout(seen, episode.proposed, episode.plan[1:], episode.log_prob, wide, alive)

    return jax.vmap(one)(episodes)


def imagine(key: Array, agent: Agent, starts: RLState, adjacency: Array, cfg: AgentConfig) -> Rollout:
    """One rollout inside the world model from each start, leaves [R, ...]."""

    def act_fn(act_key: Array, state: RLState) -> tuple[Array, tuple[Array, Array, Array]]:
        wide = agents.widening(agent, state, adjacency, cfg)
        drawn = policy.sample(act_key, agent.policy, state, wide, adjacency, cfg.policy)
        action = drawn.action
        if cfg.filter_imagined:
            action, _ = agents.filtered(agent, state, action, state.plan, adjacency, cfg)
        return action, (drawn.action, drawn.log_prob, wide)

    def one(start_key: Array, start: RLState) -> Rollout:
        dream = world_model.imagine(start_key, agent.world, act_fn, start, adjacency, cfg.world)
        steps = dream.transitions
        seen = jax.tree.map(lambda all_but, last: jnp.concatenate([all_but, last[-1:]]), steps.state, steps.next_state)
        proposed, log_prob, wide = steps.aux
        return Rollout(seen, proposed, steps.action, log_prob, wide, dream.alive)

    return jax.vmap(one)(jax.random.split(key, starts.local.shape[0]), starts)


def decrease_data(agent: Agent, rollouts: Rollout, adjacency: Array, cfg: AgentConfig) -> DecreaseData:
    """The steps of rollouts [E, ...], with the world model's prediction for each."""

    def one(step: tuple[RLState, Array, Array, Array]) -> DecreaseData:
        state, action, x_next, weight = step
        mu = world_model.mean_next(agent.world, state, action, adjacency, cfg.world)
        return DecreaseData(physical(state), x_next, violation(physical(state), cfg.limits), mu, weight)

    before = jax.tree.map(lambda leaf: leaf[:, :-1], rollouts.states)
    after = physical(rollouts.states)[:, 1:]
    steps = _flat((before, rollouts.executed, after, rollouts.alive.astype(jnp.float32)))
    return jax.lax.map(one, steps, batch_size=128)


def samples(
    params: PolicyParams, rollout: Rollout, agent: Agent, reward_unit: Array, adjacency: Array, cfg: AgentConfig
) -> Samples:
    """One rollout's steps with the advantages that the critic sees in them, leaves [T, ...]."""
    before = jax.tree.map(lambda leaf: leaf[:-1], rollout.states)
    rewards = (local_rewards(rollout, agent, cfg) - reward_unit[0]) / reward_unit[1]
    signals = jax.vmap(lambda r, x: objective.credited(r, x, adjacency, cfg.limits, cfg.reward))(
        rewards, physical(rollout.states)[1:]
    )
    values = jax.vmap(lambda state: policy.values(params, state, adjacency, cfg.policy))(rollout.states)
    alive = rollout.alive.astype(jnp.float32)
    advantage, target = ppo.advantages(signals, values, jnp.append(alive[1:], 0.0), cfg.ppo)
    return Samples(before, rollout.proposed, rollout.widening, rollout.log_prob, advantage, target, alive)


def local_rewards(rollout: Rollout, agent: Agent, cfg: AgentConfig) -> Array:
    """[T, I] every intersection's reward, in the reward's own unit."""
    before, after = (jax.tree.map(lambda leaf, c=c: leaf[c], rollout.states) for c in (slice(-1), slice(1, None)))
    excess = jnp.zeros(rollout.alive.shape)
    if cfg.reward.soft_lyapunov > 0:
        x = physical(rollout.states)
        value = jax.vmap(lambda x: lyapunov.value(agent.lyapunov, x, cfg.lyapunov))(x)
        violated = jax.vmap(lambda x: violation(x, cfg.limits))(x[:-1])
        excess = jnp.maximum(lyapunov.shortfall(value[:-1], value[1:], 0.0, violated, cfg.lyapunov), 0.0)
    sigma_unit = jnp.stack([agent.typical.mean[0], agent.typical.sd[0]])
    reward = partial(objective.local_rewards, sigma_unit=sigma_unit, limits=cfg.limits, cfg=cfg.reward)
    return jax.vmap(reward)(before, after, rollout.proposed - rollout.executed, excess)


def reward_units(rollouts: Rollout, agent: Agent, cfg: AgentConfig) -> Array:
    """[2] mean and standard deviation of the rewards of rollouts [E, ...]."""
    rewards = jax.vmap(lambda rollout: local_rewards(rollout, agent, cfg))(rollouts)
    return jnp.stack([rewards.mean(), jnp.maximum(rewards.std(), SMALLEST_SD)])


def typical_uncertainty(agent: Agent, seen: RLState, adjacency: Array, cfg: AgentConfig) -> Uncertainty:
    """Mean and standard deviation of the exploration's signals over states [M, ...]; a constant one is switched off."""
    found = jax.lax.map(lambda state: agents.signals(agent, state, adjacency, cfg), seen, batch_size=64)  # [M, I, 3]
    sd = found.std((0, 1))
    return Uncertainty(found.mean((0, 1)), jnp.where(sd < SMALLEST_SD, jnp.inf, sd))


def _mean_reward(rollouts: Rollout, cfg: AgentConfig) -> Array:
    """Mean traffic reward over the imagined steps that counted."""
    rewards = jax.vmap(jax.vmap(lambda x: objective.traffic(x, cfg.reward).mean()))(physical(rollouts.states)[:, 1:])
    return (rewards * rollouts.alive).sum() / jnp.maximum(rollouts.alive.sum(), 1)


def _flat(stacked: Any) -> Any:
    """[E, T, ...] -> [E T, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), stacked)
