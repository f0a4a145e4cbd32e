"""CPO: a trust-region step that keeps the linearised cost below its limit (Achiam et al., 2017).

One step for every batch of fresh episodes, as the method asks for, and as many passes of its critic over them as ours
makes. Its one constraint is, at every step, the cost that is farthest above its limit. Not tuned on the road; the
region's size there is that of the pendulum on which a test shows it.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from experiments.methods.control import gaussian_policy
from experiments.methods.control.ppo import Samples, flat_samples, shuffled
from experiments.methods.control.task import Task, Trajectories, Units, experience, mean_cost
from experiments.methods.control.trust_region import Step, constrained_step
from experiments.methods.method import Method
from stream_jax.rl.agent import AgentConfig
from stream_jax.rl.policy import PolicyConfig, PolicyParams
from stream_jax.rl.ppo import PPOConfig

SMALLEST_SD = 1e-6


@dataclasses.dataclass(frozen=True)
class CPOConfig:
    """Of `ppo` discount, trace, passes, critic's rate and cost limit count; the region's numbers are the paper's."""

    policy: PolicyConfig = PolicyConfig()
    ppo: PPOConfig = PPOConfig()
    rounds: int = 4  # times `ppo.epochs`: the critic's passes
    radius: float = 0.01  # largest mean KL(old | new)
    damping: float = 0.01  # added to the curvature, which rows may not show in every direction
    conjugate_iterations: int = 10
    backtracks: int = 10
    shrink: float = 0.8


class CPOLearner(NamedTuple):
    """What learning carries from iteration to iteration."""

    params: PolicyParams
    critic_optimiser: Any


class Surrogates(NamedTuple):
    """What a policy is expected to change, per step, by the advantages of the one that acted."""

    reward: Array  # []
    cost: Array  # []
    divergence: Array  # [] mean KL(old | new)


def start(key: Array, task: Task, state: Any, cfg: CPOConfig) -> CPOLearner:
    """The default plan, explored around. Args: state: any, for its shapes."""
    params = gaussian_policy.init(key, task.observe(state), task.actions, 1 + task.costs, cfg.policy)
    return CPOLearner(params, _critic_optimiser(cfg).init(params.critic))


def act(key: Array, learner: CPOLearner, observed: Array, cfg: CPOConfig, explore: bool) -> tuple[Array, Array]:
    """Action [R, A] and its log-likelihood [R]; the mean without exploration."""
    if explore:
        return gaussian_policy.sample(key, learner.params, observed, cfg.policy)
    action = gaussian_policy.mean_action(learner.params, observed, cfg.policy)
    return action, gaussian_policy.log_prob(learner.params, observed, action, cfg.policy)


def improve(
    key: Array, learner: CPOLearner, memory: Trajectories, fresh: Trajectories, units: Units, task: Task, cfg: CPOConfig
) -> tuple[CPOLearner, dict[str, Array]]:
    """Fits the critic to the newest rollouts, then takes one step; older rollouts are of no use to it."""
    seen = experience(task, units, fresh)

    def one_round(carry: CPOLearner, round_key: Array) -> tuple[CPOLearner, None]:
        return fit_critic(round_key, carry, flat_samples(carry.params, seen, cfg.ppo, cfg.policy), cfg), None

    # The critic learns first: the step is taken on advantages of the policy that acted, as well as they are known.
    learner, _ = jax.lax.scan(one_round, learner, jax.random.split(key, cfg.rounds))
    samples = flat_samples(learner.params, seen, cfg.ppo, cfg.policy)
    excess = mean_cost(task, fresh) - cfg.ppo.cost_limit  # [C]
    samples = constrained(samples, excess.argmax(), task.reach)
    params, step, reached = policy_step(learner.params, samples, excess.max(), cfg)
    row = {"recovering": step.recovering, "price": step.price, "divergence": reached.divergence}
    return learner._replace(params=params), row | {"std": jnp.exp(params.log_std).mean()}


def constrained(samples: Samples, which: Array, reach: float) -> Samples:
    """The rows with advantages [M, 2] of the reward and of one cost, in the unit of the task's cost."""
    reward, cost = samples.advantage[:, 0], reach * jnp.take(samples.advantage, 1 + which, axis=1)
    return samples._replace(advantage=jnp.stack([reward, cost], axis=-1))


def policy_step(
    params: PolicyParams, samples: Samples, excess: Array, cfg: CPOConfig
) -> tuple[PolicyParams, Step, Surrogates]:
    """The policy after the constrained step and its line search, and what the surrogates say about it."""
    flat, rebuild = ravel_pytree((params.actor, params.log_std))

    def moved(offset: Array) -> PolicyParams:
        actor, log_std = rebuild(flat + offset)
        return params._replace(actor=actor, log_std=log_std)

    def judged(offset: Array) -> Surrogates:
        return surrogates(params, moved(offset), samples, cfg)

    still = jnp.zeros_like(flat)
    slope = jax.grad(lambda offset: judged(offset).divergence)

    def product(vector: Array) -> Array:
        return jax.jvp(slope, (still,), (vector,))[1] + cfg.damping * vector

    gain, cost = (jax.grad(lambda offset, k=k: judged(offset)[k])(still) for k in (0, 1))
    step = constrained_step(product, gain, cost, excess, cfg.radius, cfg.conjugate_iterations)
    offset = line_search(judged, step, excess, cfg)
    new = gaussian_policy.bounded(moved(offset), cfg.policy)
    return new, step, judged(offset)


def line_search(judged: Any, step: Step, excess: Array, cfg: CPOConfig) -> Array:
    """The longest of the shrunken steps that keeps region and limit and improves the reward; none is a step of 0.

    While recovering only the cost has to go down.
    """
    still = judged(jnp.zeros_like(step.direction))

    def accepted(share: Array) -> Array:
        new = judged(share * step.direction)
        in_region = new.divergence <= cfg.radius
        is_better = step.recovering | (new.reward >= still.reward)
        is_allowed = new.cost - still.cost <= jnp.maximum(-excess, 0.0)
        return in_region & is_better & is_allowed & jnp.isfinite(new.reward)

    shares = cfg.shrink ** jnp.arange(cfg.backtracks)
    passed = jax.lax.map(accepted, shares)
    return jnp.where(passed.any(), shares[jnp.argmax(passed)], 0.0) * jnp.nan_to_num(step.direction)


def surrogates(old: PolicyParams, new: PolicyParams, samples: Samples, cfg: CPOConfig) -> Surrogates:
    """Means over the rows; the reward's advantage is standardised, the cost's keeps its unit."""
    ratio = jnp.exp(gaussian_policy.log_prob(new, samples.observed, samples.action, cfg.policy) - samples.log_prob)
    reward, cost = samples.advantage.T
    reward = (reward - reward.mean()) / jnp.maximum(reward.std(), SMALLEST_SD)
    divergence = gaussian_policy.divergence(old, new, samples.observed, cfg.policy).mean()
    return Surrogates((ratio * reward).mean(), (ratio * (cost - cost.mean())).mean(), divergence)


def fit_critic(key: Array, learner: CPOLearner, samples: Samples, cfg: CPOConfig) -> CPOLearner:
    """`epochs` shuffled passes of squared error."""
    improver = _critic_optimiser(cfg)

    def error(critic: Any, rows: Array) -> Array:
        judged = gaussian_policy.values(learner.params._replace(critic=critic), samples.observed[rows], cfg.policy)
        return jnp.square(judged - samples.target[rows]).sum(-1).mean()

    def step(carry: tuple[Any, Any], rows: Array) -> tuple[tuple[Any, Any], None]:
        critic, optimiser = carry
        updates, optimiser = improver.update(jax.grad(error)(critic, rows), optimiser, critic)
        return (optax.apply_updates(critic, updates), optimiser), None

    order = shuffled(key, samples.log_prob.shape[0], cfg.ppo)
    (critic, optimiser), _ = jax.lax.scan(step, (learner.params.critic, learner.critic_optimiser), order)
    return CPOLearner(learner.params._replace(critic=critic), optimiser)


def _critic_optimiser(cfg: CPOConfig) -> optax.GradientTransformation:
    clip = optax.clip_by_global_norm(cfg.ppo.largest_gradient)
    return optax.chain(clip, optax.adam(cfg.ppo.critic_rate, eps=1e-5))


def settings(cfg: AgentConfig) -> CPOConfig:
    """Sizes as ours. One step an iteration, and few of these: the paper's 0.01 would hardly leave the default plan."""
    return CPOConfig(cfg.policy, cfg.ppo, cfg.rounds, radius=0.03)


METHOD = Method(
    "cpo",
    settings,
    variants={"following": {}},  # which begins with the plan that ours begins with
    paper_label={"CPO": "cpo"},
    tables={"rl": ("cpo",)},
)
