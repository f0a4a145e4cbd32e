"""PPO without constraints: the clipped surrogate of Schulman et al. (2017), the control table's unconstrained rival.

Advantages, surrogate and optimiser are LyCon-WRL+'s own. Its budget is ours without imagination: the same episodes and
as many rounds and passes over them, advantages estimated anew in every round. Not tuned on the road.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from experiments.methods.control import gaussian_policy
from experiments.methods.control.task import Experience, Task, Trajectories, Units, experience
from experiments.methods.method import Method
from stream_jax.rl import ppo
from stream_jax.rl.agent import AgentConfig
from stream_jax.rl.policy import PolicyConfig, PolicyParams
from stream_jax.rl.ppo import PPOConfig

SMALLEST_SD = 1e-6


@dataclasses.dataclass(frozen=True)
class PPORivalConfig:
    """The multipliers of `ppo` are not used."""

    policy: PolicyConfig = PolicyConfig()
    ppo: PPOConfig = PPOConfig()
    rounds: int = 4  # of estimating advantages and passing over the steps


class PPOLearner(NamedTuple):
    """What learning carries from iteration to iteration."""

    params: PolicyParams
    optimiser: Any


class Samples(NamedTuple):
    """Rows to learn from, M of them."""

    observed: Array  # [M, D]
    action: Array  # [M, A]
    log_prob: Array  # [M]
    advantage: Array  # [M, 1 + C]
    target: Array  # [M, 1 + C]


def start(key: Array, task: Task, state: Any, cfg: PPORivalConfig) -> PPOLearner:
    """The default plan, explored around. Args: state: any, for its shapes."""
    params = gaussian_policy.init(key, task.observe(state), task.actions, 1 + task.costs, cfg.policy)
    return PPOLearner(params, ppo.optimiser(cfg.ppo).init(params))


def act(key: Array, learner: PPOLearner, observed: Array, cfg: PPORivalConfig, explore: bool) -> tuple[Array, Array]:
    """Action [R, A] and its log-likelihood [R]; the mean without exploration."""
    if explore:
        return gaussian_policy.sample(key, learner.params, observed, cfg.policy)
    action = gaussian_policy.mean_action(learner.params, observed, cfg.policy)
    return action, gaussian_policy.log_prob(learner.params, observed, action, cfg.policy)


def improve(
    key: Array,
    learner: PPOLearner,
    memory: Trajectories,
    fresh: Trajectories,
    units: Units,
    task: Task,
    cfg: PPORivalConfig,
) -> tuple[PPOLearner, dict[str, Array]]:
    """Learns from the newest rollouts; an on-policy method has no use for older ones."""
    seen = experience(task, units, fresh)

    def one_round(carry: PPOLearner, round_key: Array) -> tuple[PPOLearner, Array]:
        samples = flat_samples(carry.params, seen, cfg.ppo, cfg.policy)
        return passes(round_key, carry, samples, cfg)

    learner, losses = jax.lax.scan(one_round, learner, jax.random.split(key, cfg.rounds))
    return learner, {"loss_policy": losses.mean(), "std": jnp.exp(learner.params.log_std).mean()}


def flat_samples(params: PolicyParams, seen: Experience, ppo_cfg: PPOConfig, cfg: PolicyConfig) -> Samples:
    """Every row of every step with its advantage under the critic."""
    advantage, target = gaussian_policy.advantages(params, seen, ppo_cfg, cfg)
    rows = Samples(seen.observed[:, :-1], seen.action, seen.log_prob, advantage, target)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), rows)


def passes(key: Array, learner: PPOLearner, samples: Samples, cfg: PPORivalConfig) -> tuple[PPOLearner, Array]:
    """`epochs` shuffled passes; returns the policy's loss at each step."""
    improver = ppo.optimiser(cfg.ppo)

    def step(carry: PPOLearner, rows: Array) -> tuple[PPOLearner, Array]:
        picked = jax.tree.map(lambda leaf: leaf[rows], samples)
        gradient, (policy_loss, divergence) = jax.grad(loss, has_aux=True)(carry.params, picked, cfg)
        updates, opt_state = improver.update(gradient, carry.optimiser, carry.params)
        updates = ppo.near(updates, divergence, cfg.ppo)
        params = gaussian_policy.bounded(optax.apply_updates(carry.params, updates), cfg.policy)
        return PPOLearner(params, opt_state), policy_loss

    order = shuffled(key, samples.log_prob.shape[0], cfg.ppo)
    return jax.lax.scan(step, learner, order)


def shuffled(key: Array, count: int, cfg: PPOConfig) -> Array:
    """[epochs batches, batch] rows in the order of learning; the remainder waits for another epoch."""
    batch = min(cfg.minibatch, count)
    one = lambda epoch_key: jax.random.permutation(epoch_key, count)[: count - count % batch]  # noqa: E731
    return jax.vmap(one)(jax.random.split(key, cfg.epochs)).reshape(-1, batch)


def loss(params: PolicyParams, samples: Samples, cfg: PPORivalConfig) -> tuple[Array, tuple[Array, Array]]:
    """Clipped surrogate of the reward, minus entropy, plus the critic's squared error; they share no weights.

    Beside it, the policy's loss and its KL from the policy that acted.
    """
    log_ratio = gaussian_policy.log_prob(params, samples.observed, samples.action, cfg.policy) - samples.log_prob
    ratio = jnp.exp(log_ratio)
    advantage = samples.advantage[:, 0]
    advantage = (advantage - advantage.mean()) / jnp.maximum(advantage.std(), SMALLEST_SD)
    policy_loss = -ppo.clipped_surrogate(ratio, advantage, cfg.ppo.clip).mean()
    error = jnp.square(gaussian_policy.values(params, samples.observed, cfg.policy) - samples.target).sum(-1).mean()
    spread = gaussian_policy.entropy(params)
    return policy_loss + error - cfg.ppo.entropy * spread, (policy_loss, ppo.divergence(log_ratio).mean())


def settings(cfg: AgentConfig) -> PPORivalConfig:
    """Sizes, rates and number of updates as ours."""
    return PPORivalConfig(cfg.policy, cfg.ppo, cfg.rounds)


METHOD = Method(
    "ppo",
    settings,
    variants={"following": {}},  # which begins with the plan that ours begins with
    paper_label={"PPO": "ppo"},
    tables={"rl": ("ppo",)},
)
