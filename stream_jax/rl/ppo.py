"""Proximal policy optimisation with one Lagrange multiplier for each constraint, over real and imagined steps.

Section 4.3 and "Training Details" (clip 0.2); Algorithm 1, "Update via PPO with Lagrangian". The ratio is one
intersection's: its components are drawn together, and its advantage is that of its own neighbourhood. What is
learned from is the action before the filter, with its likelihood: the filter is part of the environment.
"""

import dataclasses
from collections.abc import Hashable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax import Array

from stream_jax.rl import policy
from stream_jax.rl.policy import PolicyConfig, PolicyParams
from stream_jax.types import RLState

SMALLEST_SD = 1e-6


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """The clip is the paper's; the paper gives none of the other numbers."""

    clip: float = 0.2
    discount: float = 0.99
    trace: float = 0.95  # lambda of the generalised advantage
    epochs: int = 10
    minibatch: int = 256  # rows; a control step has one for each intersection
    learning_rate: float = 3e-4
    critic_rate: float = 1e-3  # an advantage is only as good as the values it is measured against
    largest_gradient: float = 0.5  # norm, of actor and critic each: large errors of values must not slow the policy
    # A minibatch on which KL(old | new) is larger moves the critic alone: the clip holds back rows, not the policy, and
    # a few hours of traffic have enough noise to lead it astray. 0: no bound.
    largest_divergence: float = 0.0
    entropy: float = 0.01
    multiplier_rate: float = 0.01  # per policy step and unit of cost above its limit
    largest_multiplier: float = 100.0
    cost_limit: float = 0.05  # mean normalised violation that is tolerated, for each constraint

    def __post_init__(self) -> None:
        if min(self.epochs, self.minibatch) < 1 or not (0 < self.clip < 1 and 0 <= self.discount < 1):
            raise ValueError("epochs and minibatch must be at least 1, clip inside (0, 1), discount in [0, 1)")


class Samples(NamedTuple):
    """Control steps to learn from; advantages are those of the policy that acted."""

    state: RLState  # leaves [M, ...]
    proposed: Array  # [M, I, A]
    widening: Array  # [M, I] the exploration's g(s) that the action was drawn with
    log_prob: Array  # [M, I]
    advantage: Array  # [M, I, 1 + C] of the reward and the costs
    target: Array  # [M, I, 1 + C] for the critic
    weight: Array  # [M] 0 leaves a step out


class Learner(NamedTuple):
    """What an update carries."""

    params: PolicyParams
    optimiser: Any
    multipliers: Array  # [C]


class Losses(NamedTuple):
    """Means over all steps of an update."""

    policy: Array  # []
    value: Array  # []
    entropy: Array  # []
    clipped: Array  # [] share of rows whose ratio left the clip range
    divergence: Array  # [] estimate of KL(old | new)


def start(params: PolicyParams, cfg: PPOConfig) -> Learner:
    """No multiplier has been raised yet."""
    return Learner(params, optimiser(cfg).init(params), jnp.zeros(policy.num_costs(params)))


def advantages(signals: Array, values: Array, going_on: Array, cfg: PPOConfig) -> tuple[Array, Array]:
    """Generalised advantages and the critic's targets, each [T, I, 1 + C].

    The end of a rollout is not the end of traffic: the value of the last state stands for what follows.

    Args:
        signals: [T, I, 1 + C] rewards and costs.
        values: [T + 1, I, 1 + C].
        going_on: [T] 1.0 where the next step of the rollout counts, too; the last entry is ignored.
    """
    surprise = signals + cfg.discount * values[1:] - values[:-1]
    carry_on = going_on.at[-1].set(0.0)

    def back(later: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        now, more = step
        advantage = now + cfg.discount * cfg.trace * more * later
        return advantage, advantage

    _, result = jax.lax.scan(back, jnp.zeros_like(surprise[0]), (surprise, carry_on), reverse=True)
    return result, result + values[:-1]


def update(
    key: Array,
    learner: Learner,
    samples: Samples,
    mean_cost: Array,
    adjacency: Array,
    cfg: PPOConfig,
    policy_cfg: PolicyConfig,
) -> tuple[Learner, Losses]:
    """`epochs` passes over the samples; after every step each multiplier follows its cost.

    Args:
        mean_cost: [C] of the real episodes, against `cost_limit`.
    """
    count, intersections = samples.log_prob.shape
    batch = min(max(1, cfg.minibatch // intersections), count)
    improver = optimiser(cfg)
    loss_fn = partial(loss, adjacency=adjacency, cfg=cfg, policy_cfg=policy_cfg)

    def step(carry: Learner, rows: Array) -> tuple[Learner, Losses]:
        picked = jax.tree.map(lambda leaf: leaf[rows], samples)
        gradient, losses = jax.grad(loss_fn, has_aux=True)(carry.params, picked, carry.multipliers)
        updates, opt_state = improver.update(gradient, carry.optimiser, carry.params)
        updates = near(cast(PolicyParams, updates), losses.divergence, cfg)
        multipliers = update_multipliers(carry.multipliers, mean_cost, cfg)
        params = policy.bounded(cast(PolicyParams, optax.apply_updates(carry.params, updates)), policy_cfg)
        return Learner(params, opt_state, multipliers), losses

    def shuffled(epoch_key: Array) -> Array:  # [batches, batch]; the remainder waits for another epoch
        return jax.random.permutation(epoch_key, count)[: count - count % batch].reshape(-1, batch)

    order = jax.vmap(shuffled)(jax.random.split(key, cfg.epochs)).reshape(-1, batch)
    learner, losses = jax.lax.scan(step, learner, order)
    return learner, jax.tree.map(jnp.mean, losses)


def loss(
    params: PolicyParams,
    samples: Samples,
    multipliers: Array,
    adjacency: Array,
    cfg: PPOConfig,
    policy_cfg: PolicyConfig,
) -> tuple[Array, Losses]:
    """Clipped surrogate of the Lagrangian, minus entropy, plus the critic's squared error; they share no weights."""
    log_ratio = log_ratios(params, samples, adjacency, policy_cfg)
    ratio = jnp.exp(log_ratio)
    surrogate = clipped_surrogate(ratio, combined_advantage(samples, multipliers), cfg.clip)  # [M, I]
    predicted = jax.vmap(lambda state: policy.values(params, state, adjacency, policy_cfg))(samples.state)
    error = jnp.square(predicted - samples.target).sum(-1)
    spread = jax.vmap(lambda widening: policy.entropy(params, widening, policy_cfg))(samples.widening)
    losses = Losses(
        policy=-_mean(surrogate, samples.weight),
        value=_mean(error, samples.weight),
        entropy=_mean(spread, samples.weight),
        clipped=_mean((jnp.abs(ratio - 1.0) > cfg.clip).astype(jnp.float32), samples.weight),
        divergence=_mean(divergence(log_ratio), samples.weight),
    )
    return losses.policy + losses.value - cfg.entropy * losses.entropy, losses


def near(updates: PolicyParams, divergence: Array, cfg: PPOConfig) -> PolicyParams:
    """The updates, without the actor's once it has gone too far from the policy that acted."""
    if cfg.largest_divergence <= 0:
        return updates
    held = jax.tree.map(
        lambda leaf: jnp.where(divergence <= cfg.largest_divergence, leaf, 0.0), (updates.actor, updates.log_std)
    )
    return updates._replace(actor=held[0], log_std=held[1])


def clipped_surrogate(ratio: Array, advantage: Array, clip: float) -> Array:
    """What a new likelihood gains, without reward for leaving the clip range."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def divergence(log_ratio: Array) -> Array:
    """What each row adds to the estimate of KL(old | new), never negative (Schulman's k3)."""
    return jnp.exp(log_ratio) - 1.0 - log_ratio


def log_ratios(params: PolicyParams, samples: Samples, adjacency: Array, policy_cfg: PolicyConfig) -> Array:
    """[M, I] log of the new over the old likelihood of what was proposed; 0 under the policy that acted."""

    def one(state: RLState, widening: Array, proposed: Array) -> Array:
        return policy.log_prob(params, state, widening, proposed, adjacency, policy_cfg)

    return jax.vmap(one)(samples.state, samples.widening, samples.proposed) - samples.log_prob


def combined_advantage(samples: Samples, multipliers: Array) -> Array:
    """[M, I] reward minus priced costs, standardised over the rows that count."""
    prices = jnp.append(1.0, -multipliers) / (1.0 + multipliers.sum())
    advantage = samples.advantage @ prices
    mean = _mean(advantage, samples.weight)
    sd = jnp.sqrt(_mean(jnp.square(advantage - mean), samples.weight))
    return (advantage - mean) / jnp.maximum(sd, SMALLEST_SD)


def update_multipliers(multipliers: Array, mean_cost: Array, cfg: PPOConfig) -> Array:
    """One step of dual ascent: up while a cost exceeds its limit, down afterwards, never negative."""
    raised = multipliers + cfg.multiplier_rate * (mean_cost - cfg.cost_limit)
    return jnp.clip(raised, 0.0, cfg.largest_multiplier)


def optimiser(cfg: PPOConfig) -> optax.GradientTransformation:
    """Adam with clipped gradients, of actor and critic each at its own rate."""

    def clipped_adam(rate: float) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(cfg.largest_gradient), optax.adam(rate, eps=1e-5))

    parts: dict[Hashable, optax.GradientTransformation] = {
        "actor": clipped_adam(cfg.learning_rate),
        "critic": clipped_adam(cfg.critic_rate),
    }
    return optax.multi_transform(parts, PolicyParams._make(("actor", "critic", "actor")))


def _mean(rows: Array, weight: Array) -> Array:
    """Mean of [M, I] over the steps that count; weight [M]."""
    return (rows * weight[:, None]).sum() / jnp.maximum(weight.sum() * rows.shape[1], 1.0)
