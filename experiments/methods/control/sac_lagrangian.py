"""SAC-Lagrangian: soft actor-critic with a learned temperature and a multiplier for each cost.

Haarnoja et al. (2018) with the multipliers of Ha et al. (2020) and Ray et al. (2019): the actor maximises the smaller
of two reward critics minus priced cost critics, and each price follows its measured cost, one step of dual ascent for
each time that it is measured. It may use every episode that was collected, and takes as many gradient steps of as many
rows as ours takes on real and imagined steps. Not tuned on the road.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import Array

from experiments.methods.control import road_task, squashed_policy
from experiments.methods.control.task import Experience, Task, Trajectories, Units, executed, experience, mean_cost
from experiments.methods.method import Method
from stream_jax.rl import ppo
from stream_jax.rl.agent import AgentConfig
from stream_jax.rl.policy import PolicyConfig
from stream_jax.rl.ppo import PPOConfig


@dataclasses.dataclass(frozen=True)
class SACConfig:
    """Of `ppo` discount, minibatch, cost limit and the largest multiplier count."""

    policy: PolicyConfig = PolicyConfig()
    ppo: PPOConfig = PPOConfig()
    passes: float = 48.0  # gradient steps for every fresh row, times the minibatch
    learning_rate: float = 3e-4
    critic_rate: float = 1e-3
    temperature_rate: float = 1e-3
    temperature: float = 0.1  # the first
    # By how much the targets follow the critics at a step. The usual 0.005 needs 200 steps for each step that values
    # look ahead, thousands in all: more than there are between two changes of a price.
    follow: float = 0.02
    target_entropy: float = -1.0  # for each component of the action, nats
    price_step: float = 1.0  # of a multiplier at an iteration, for each unit that its cost is above the limit

    def __post_init__(self) -> None:
        if not (min(self.passes, self.temperature, self.price_step) > 0 and 0 < self.follow <= 1):
            raise ValueError("passes, temperature and price_step must be positive and follow inside (0, 1]")


class Rows(NamedTuple):
    """A batch of single steps of single rows."""

    observed: Array  # [M, D]
    action: Array  # [M, A]
    signals: Array  # [M, 1 + C]
    following: Array  # [M, D]


class Critics(NamedTuple):
    """Two of the reward and one of all costs."""

    reward: Any  # leaves [2, ...]
    cost: Any


class SACParams(NamedTuple):
    """Everything that gradients move."""

    actor: Any
    critics: Critics
    log_temperature: Array  # []


class SACLearner(NamedTuple):
    """What learning carries from iteration to iteration."""

    params: SACParams
    targets: Critics
    optimiser: Any
    multipliers: Array  # [C]


class _Value(nn.Module):
    cfg: PolicyConfig
    outputs: int

    @nn.compact
    def __call__(self, observed: Array, action: Array) -> Array:
        rows = jnp.concatenate([observed, action], axis=-1)
        for _ in range(self.cfg.layers):
            rows = nn.silu(nn.Dense(self.cfg.hidden)(rows))
        return nn.Dense(self.outputs, name="head")(rows)


def start(key: Array, task: Task, state: Any, cfg: SACConfig) -> SACLearner:
    """The default plan, explored around. Args: state: any, for its shapes."""
    actor_key, reward_key, cost_key = jax.random.split(key, 3)
    observed = task.observe(state)
    example = observed, jnp.zeros((*observed.shape[:-1], task.actions))
    critics = Critics(
        reward=jax.vmap(lambda one: _Value(cfg.policy, 1).init(one, *example))(jax.random.split(reward_key)),
        cost=_Value(cfg.policy, task.costs).init(cost_key, *example),
    )
    actor = squashed_policy.init(actor_key, observed, task.actions, cfg.policy)
    params = SACParams(actor, critics, jnp.asarray(math.log(cfg.temperature), jnp.float32))
    return SACLearner(params, critics, _optimiser(cfg).init(params), jnp.zeros(task.costs))


def act(key: Array, learner: SACLearner, observed: Array, cfg: SACConfig, explore: bool) -> tuple[Array, Array]:
    """Action [R, A] and its log-likelihood [R]; the mean without exploration."""
    return squashed_policy.act(key, learner.params.actor, observed, cfg.policy, explore)


def improve(
    key: Array, learner: SACLearner, memory: Trajectories, fresh: Trajectories, units: Units, task: Task, cfg: SACConfig
) -> tuple[SACLearner, dict[str, Array]]:
    """A step of the multipliers by the newest costs, then gradient steps on rows drawn from all that is remembered."""
    seen = experience(task, units, memory)
    learner = learner._replace(multipliers=repriced(learner.multipliers, mean_cost(task, fresh), cfg))
    steps = max(1, round(cfg.passes * math.prod(fresh.log_prob.shape) / cfg.ppo.minibatch))

    def step(carry: SACLearner, step_key: Array) -> tuple[SACLearner, Array]:
        draw_key, update_key = jax.random.split(step_key)
        return update(update_key, carry, draw(draw_key, seen, cfg.ppo.minibatch), cfg)

    learner, entropy = jax.lax.scan(step, learner, jax.random.split(key, steps))
    prices = {f"multiplier_{index}": value for index, value in enumerate(learner.multipliers)}
    return learner, prices | {"entropy": entropy.mean(), "temperature": jnp.exp(learner.params.log_temperature)}


def repriced(multipliers: Array, cost: Array, cfg: SACConfig) -> Array:
    """Up while a cost exceeds its limit, down below it, never negative. Args: cost: [C] measured, per step."""
    return ppo.update_multipliers(multipliers, cost, dataclasses.replace(cfg.ppo, multiplier_rate=cfg.price_step))


def update(key: Array, learner: SACLearner, rows: Rows, cfg: SACConfig) -> tuple[SACLearner, Array]:
    """One gradient step of everything but the prices, and the actor's entropy before it."""
    critic_key, actor_key = jax.random.split(key)
    params = learner.params
    target = critic_target(critic_key, learner, rows, cfg)
    critic_slope = jax.grad(critic_loss)(params.critics, rows, target, cfg)
    judge = lambda action: judged(params.critics, rows.observed, action, learner.multipliers, cfg)  # noqa: E731
    actor_slope, entropy = jax.grad(actor_loss, has_aux=True)(
        params.actor, actor_key, rows.observed, judge, jnp.exp(params.log_temperature), cfg
    )
    wanted = cfg.target_entropy * rows.action.shape[-1]
    heat_slope = jax.grad(temperature_loss)(params.log_temperature, entropy, wanted)
    slopes = SACParams(actor_slope, critic_slope, heat_slope)
    updates, optimiser = _optimiser(cfg).update(slopes, learner.optimiser, params)
    params = optax.apply_updates(params, updates)
    targets = optax.incremental_update(params.critics, learner.targets, cfg.follow)
    return SACLearner(params, targets, optimiser, learner.multipliers), entropy


def critic_target(key: Array, learner: SACLearner, rows: Rows, cfg: SACConfig) -> Array:
    """[M, 1 + C] reward with the entropy that follows it, and costs, one step ahead under the present actor."""
    action, likelihood = squashed_policy.sample(key, learner.params.actor, rows.following, cfg.policy)
    reward, cost = values(learner.targets, rows.following, action, cfg)
    soft = reward.min(axis=0) - jnp.exp(learner.params.log_temperature) * likelihood
    return rows.signals + cfg.ppo.discount * jnp.concatenate([soft[:, None], cost], axis=-1)


def critic_loss(critics: Critics, rows: Rows, target: Array, cfg: SACConfig) -> Array:
    """Squared errors of all critics."""
    reward, cost = values(critics, rows.observed, rows.action, cfg)
    return jnp.square(reward - target[:, 0]).mean(-1).sum() + jnp.square(cost - target[:, 1:]).sum(-1).mean()


def values(critics: Critics, observed: Array, action: Array, cfg: SACConfig) -> tuple[Array, Array]:
    """The two values of the reward [2, M] and those of the costs [M, C]."""
    reward = jax.vmap(lambda one: _Value(cfg.policy, 1).apply(one, observed, action)[..., 0])(critics.reward)
    costs = critics.cost["params"]["head"]["bias"].shape[-1]
    return reward, _Value(cfg.policy, costs).apply(critics.cost, observed, action)


def judged(critics: Critics, observed: Array, action: Array, multipliers: Array, cfg: SACConfig) -> Array:
    """[M] the smaller value of the reward minus priced costs."""
    reward, cost = values(critics, observed, action, cfg)
    return reward.min(axis=0) - cost @ multipliers


def actor_loss(
    actor: Any, key: Array, observed: Array, judge: Any, temperature: Array, cfg: SACConfig
) -> tuple[Array, Array]:
    """Temperature times log-likelihood minus the judged value, and the entropy. Args: judge: action [M, A] -> [M]."""
    action, likelihood = squashed_policy.sample(key, actor, observed, cfg.policy)
    return (temperature * likelihood - judge(action)).mean(), -likelihood.mean()


def temperature_loss(log_temperature: Array, entropy: Array, wanted: float) -> Array:
    """Falls with the temperature while the entropy is above what is wanted, rises while it is below."""
    return log_temperature * jax.lax.stop_gradient(entropy - wanted)


def draw(key: Array, seen: Experience, count: int) -> Rows:
    """Steps of single rows, uniformly over everything remembered."""
    episodes, steps, rows = seen.log_prob.shape
    keys = jax.random.split(key, 3)
    e, t, r = (jax.random.randint(k, (count,), 0, n) for k, n in zip(keys, (episodes, steps, rows), strict=True))
    now, later = seen.observed[e, t, r], seen.observed[e, t + 1, r]
    return Rows(now, executed(seen.action[e, t, r]), seen.signals[e, t, r], later)


def _optimiser(cfg: SACConfig) -> optax.GradientTransformation:
    rates = {"actor": cfg.learning_rate, "critics": cfg.critic_rate, "log_temperature": cfg.temperature_rate}
    labels = SACParams(*SACParams._fields)
    return optax.multi_transform({name: optax.adam(rate) for name, rate in rates.items()}, labels)


def settings(cfg: AgentConfig) -> SACConfig:
    """Sizes, rates and passes over the data as ours."""
    return SACConfig(cfg.policy, cfg.ppo, road_task.passes(cfg), cfg.ppo.learning_rate, cfg.ppo.critic_rate)


METHOD = Method(
    "sac_lagrangian",
    settings,
    variants={"following": {}},  # which begins with the plan that ours begins with
    paper_label={"SAC-Lagrangian": "sac_lagrangian"},
    tables={"rl": ("sac_lagrangian",)},
)
