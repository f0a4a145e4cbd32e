"""LAMBDA: learns in imagination under a posterior over worlds, optimistic about reward and pessimistic about cost.

As et al. (2022), Algorithm 1: from every start one rollout in each sampled world; the world of the largest return
speaks for the reward, that of the largest cost for each cost; gradients flow through the worlds into the actor, and an
augmented Lagrangian holds the costs. It sees the episodes that ours sees and takes as many gradient steps. What happens
at an intersection counts there alone: gradients find its causes through the world, and the mean over intersections is
what the limits are about. Without the authors' latent state and delayed critic, and not tuned on the road.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from experiments.methods.control import posterior, road_task, squashed_policy
from experiments.methods.control.gaussian_policy import Perceptron
from experiments.methods.control.posterior import PosteriorConfig, World
from experiments.methods.control.task import Task, Trajectories, Units, executed, signals
from experiments.methods.method import Method
from stream_jax.rl import ppo
from stream_jax.rl.agent import AgentConfig
from stream_jax.rl.policy import PolicyConfig
from stream_jax.rl.ppo import PPOConfig


@dataclasses.dataclass(frozen=True)
class LambdaConfig:
    """Of `ppo` discount, trace, minibatch, rates, largest gradient and multiplier, and cost limit count."""

    policy: PolicyConfig = PolicyConfig()
    ppo: PPOConfig = PPOConfig()
    world: PosteriorConfig = PosteriorConfig()
    worlds: int = 5  # drawn from the posterior, the paper's number
    horizon: int = 15  # steps of imagination, the paper's number
    starts: int = 4  # states to imagine from at a gradient step
    passes: float = 48.0  # gradient steps for every fresh row, times the minibatch
    world_passes: float = 40.0  # of the world model over everything that is remembered so far
    penalty: float = 0.05  # mu, the first
    penalty_growth: float = 1e-3  # at every gradient step
    largest_penalty: float = 10.0

    def __post_init__(self) -> None:
        if min(self.worlds, self.horizon, self.starts) < 1 or not (self.penalty > 0 and self.penalty_growth >= 0):
            raise ValueError("worlds, horizon and starts must be at least 1, penalty positive, its growth >= 0")


class Prices(NamedTuple):
    """Of the augmented Lagrangian."""

    multipliers: Array  # [C] lambda
    penalty: Array  # [] mu


class LambdaParams(NamedTuple):
    """What gradients move besides the world."""

    actor: Any
    critic: Any


class LambdaLearner(NamedTuple):
    """What learning carries from iteration to iteration."""

    params: LambdaParams
    optimiser: Any
    world: World
    prices: Prices
    collected: Array  # [] int32, rollouts so far


class Dream(NamedTuple):
    """Rollouts of H steps from B starts in each of K worlds."""

    observed: Array  # [K, B, H + 1, R, D]
    signals: Array  # [K, B, H, R, 1 + C]


def start(key: Array, task: Task, state: Any, cfg: LambdaConfig) -> LambdaLearner:
    """The default plan, explored around. Args: state: any, for its shapes."""
    actor_key, critic_key, world_key = jax.random.split(key, 3)
    observed = task.observe(state)
    actor = squashed_policy.init(actor_key, observed, task.actions, cfg.policy)
    params = LambdaParams(actor, Perceptron(cfg.policy, 1 + task.costs).init(critic_key, observed))
    still = jnp.zeros((*observed.shape[:-1], task.actions))
    world = posterior.init(world_key, task.inputs(state, still), task.predicted(state).shape[-1], cfg.world)
    prices = Prices(jnp.zeros(task.costs), jnp.asarray(cfg.penalty))
    return LambdaLearner(params, _optimiser(cfg).init(params), world, prices, jnp.zeros((), jnp.int32))


def act(key: Array, learner: LambdaLearner, observed: Array, cfg: LambdaConfig, explore: bool) -> tuple[Array, Array]:
    """Action [R, A] and its log-likelihood [R]; the mean without exploration."""
    return squashed_policy.act(key, learner.params.actor, observed, cfg.policy, explore)


def improve(
    key: Array,
    learner: LambdaLearner,
    memory: Trajectories,
    fresh: Trajectories,
    units: Units,
    task: Task,
    cfg: LambdaConfig,
) -> tuple[LambdaLearner, dict[str, Array]]:
    """Fits the posterior to all that is remembered, then learns in worlds drawn from it."""
    fit_key, learn_key = jax.random.split(key)
    collected = learner.collected + fresh.log_prob.shape[0]
    world = fit_world(fit_key, learner.world, memory, collected, task, cfg)
    learner = learner._replace(world=world, collected=collected)
    steps = max(1, round(cfg.passes * math.prod(fresh.log_prob.shape) / cfg.ppo.minibatch))
    seen = jax.tree.map(lambda leaf: leaf[:, :-1].reshape(-1, *leaf.shape[2:]), memory.states)

    def step(carry: LambdaLearner, step_key: Array) -> tuple[LambdaLearner, Array]:
        start_key, update_key = jax.random.split(step_key)
        rows = jax.random.randint(start_key, (cfg.starts,), 0, jax.tree.leaves(seen)[0].shape[0])
        return update(update_key, carry, jax.tree.map(lambda leaf: leaf[rows], seen), units, task, cfg)

    learner, cost = jax.lax.scan(step, learner, jax.random.split(learn_key, steps))
    prices = {f"multiplier_{index}": value for index, value in enumerate(learner.prices.multipliers)}
    return learner, prices | {"penalty": learner.prices.penalty, "pessimistic_cost": cost.sum(-1).mean()}


def fit_world(
    key: Array, world: World, memory: Trajectories, collected: Array | int, task: Task, cfg: LambdaConfig
) -> World:
    """The posterior after everything that is remembered, which may hold `collected` rollouts several times."""
    flat = lambda tree: jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)  # noqa: E731
    before = flat(jax.tree.map(lambda leaf: leaf[:, :-1], memory.states))
    after = flat(jax.tree.map(lambda leaf: leaf[:, 1:], memory.states))
    inputs = jax.vmap(task.inputs)(before, executed(flat(memory.action)))
    change = jax.vmap(task.predicted)(after) - jax.vmap(task.predicted)(before)
    capacity, length = memory.log_prob.shape[:2]
    steps = jnp.round(cfg.world_passes * jnp.minimum(collected, capacity) * length / cfg.world.batch).astype(jnp.int32)
    return posterior.fit(key, world, inputs, change, steps, cfg.world)


def update(
    key: Array, learner: LambdaLearner, starts: Any, units: Units, task: Task, cfg: LambdaConfig
) -> tuple[LambdaLearner, Array]:
    """One gradient step of actor, critic and prices, and the pessimistic costs [C] that moved them."""
    world_key, dream_key = jax.random.split(key)
    networks = jax.vmap(lambda one: posterior.sample(one, learner.world))(jax.random.split(world_key, cfg.worlds))

    def actor_loss(actor: Any) -> tuple[Array, tuple[Dream, Array, Array]]:
        dream = imagine(dream_key, actor, networks, learner.world.scaling, starts, units, task, cfg)
        returns = lambda_returns(learner.params.critic, dream, cfg)
        upper = upper_bounds(returns)  # [1 + C]
        reward, cost = (1.0 - cfg.ppo.discount) * upper[0], (1.0 - cfg.ppo.discount) * upper[1:]
        return -reward + augmented(cost - cfg.ppo.cost_limit, learner.prices).sum(), (dream, returns, cost)

    actor_slope, (dream, returns, cost) = jax.grad(actor_loss, has_aux=True)(learner.params.actor)
    critic_slope = jax.grad(critic_loss)(learner.params.critic, dream, jax.lax.stop_gradient(returns), cfg)
    slopes = LambdaParams(actor_slope, critic_slope)
    updates, optimiser = _optimiser(cfg).update(slopes, learner.optimiser, learner.params)
    params = optax.apply_updates(learner.params, updates)
    prices = update_prices(learner.prices, cost - cfg.ppo.cost_limit, cfg)
    return learner._replace(params=params, optimiser=optimiser, prices=prices), cost


def imagine(
    key: Array,
    actor: Any,
    networks: Any,
    scaling: posterior.Scaling,
    starts: Any,
    units: Units,
    task: Task,
    cfg: LambdaConfig,
) -> Dream:
    """Rollouts in all worlds with the same draws in each, so that they differ by the worlds alone."""

    def one(network: Any, start_key: Array, state: Any) -> Dream:
        def step(now: Any, step_key: Array) -> tuple[Any, tuple[Array, Array]]:
            act_key, noise_key = jax.random.split(step_key)
            action, _ = squashed_policy.sample(act_key, actor, task.observe(now), cfg.policy)
            mean, sigma = posterior.predict(network, scaling, task.inputs(now, action), cfg.world)
            present = task.predicted(now)
            following = task.advance(now, action, present + mean + sigma * jax.random.normal(noise_key, mean.shape))
            return following, (task.observe(following), signals(task.own, task, units, now, action, following))

        _, (later, paid) = jax.lax.scan(step, state, jax.random.split(start_key, cfg.horizon))
        return Dream(jnp.concatenate([task.observe(state)[None], later]), paid)

    keys = jax.random.split(key, cfg.starts)
    return jax.vmap(lambda network: jax.vmap(lambda k, state: one(network, k, state))(keys, starts))(networks)


def lambda_returns(critic: Any, dream: Dream, cfg: LambdaConfig) -> Array:
    """[K, B, H, R, 1 + C] discounted reward and costs from each imagined step on, the critic's value at the end."""
    values = _values(critic, dream.observed, cfg)
    going_on = jnp.ones(cfg.horizon)
    return jax.vmap(jax.vmap(lambda paid, value: ppo.advantages(paid, value, going_on, cfg.ppo)[1]))(
        dream.signals, values
    )


def upper_bounds(returns: Array) -> Array:
    """[1 + C] mean over starts of the largest return among the worlds: hope for the reward, fear for the costs."""
    ranked = returns.mean(axis=(2, 3))  # [K, B, 1 + C]
    # By index: the gradient of `max` asks which entry equals it, and in compiled code none may, being rounded anew.
    best = ranked.argmax(axis=0, keepdims=True)
    return jnp.take_along_axis(ranked, best, axis=0)[0].mean(axis=0)


def critic_loss(critic: Any, dream: Dream, returns: Array, cfg: LambdaConfig) -> Array:
    """Squared error on the rollouts of the worlds that spoke for each signal."""
    ranked = returns.mean(axis=(2, 3))  # [K, B, 1 + C]
    spoke = (ranked >= ranked.max(axis=0)).astype(jnp.float32)
    error = jnp.square(_values(critic, dream.observed[:, :, :-1], cfg) - returns).mean(axis=(2, 3))
    return ((error * spoke).sum(axis=0) / spoke.sum(axis=0)).sum(-1).mean()


def augmented(excess: Array, prices: Prices) -> Array:
    """[C] the augmented Lagrangian's charge for costs above their limits."""
    price, penalty = prices
    charged = price * excess + 0.5 * penalty * jnp.square(excess)
    return jnp.where(price + penalty * excess > 0, charged, -0.5 * jnp.square(price) / penalty)


def update_prices(prices: Prices, excess: Array, cfg: LambdaConfig) -> Prices:
    """Multipliers up while a cost is above its limit and down below, never negative; the penalty only grows."""
    multipliers = jnp.clip(prices.multipliers + prices.penalty * excess, 0.0, cfg.ppo.largest_multiplier)
    return Prices(multipliers, jnp.minimum(prices.penalty * (1.0 + cfg.penalty_growth), cfg.largest_penalty))


def _values(critic: Any, observed: Array, cfg: LambdaConfig) -> Array:
    return Perceptron(cfg.policy, critic["params"]["head"]["bias"].shape[-1]).apply(critic, observed)


def _optimiser(cfg: LambdaConfig) -> optax.GradientTransformation:
    def clipped_adam(rate: float) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(cfg.ppo.largest_gradient), optax.adam(rate, eps=1e-5))

    parts = {"actor": clipped_adam(cfg.ppo.learning_rate), "critic": clipped_adam(cfg.ppo.critic_rate)}
    return optax.multi_transform(parts, LambdaParams("actor", "critic"))


def settings(cfg: AgentConfig) -> LambdaConfig:
    """Sizes, rates and passes over the data as ours, and prices that rise as fast."""
    training = cfg.world_training
    return LambdaConfig(
        cfg.policy,
        cfg.ppo,
        PosteriorConfig(cfg.world.hidden, cfg.world.layers, training.learning_rate, training.batch),
        worlds=cfg.world.members,
        horizon=cfg.world.horizon,
        passes=road_task.passes(cfg),
        world_passes=training.epochs,
        penalty=cfg.ppo.multiplier_rate,
        penalty_growth=1e-5,
    )


METHOD = Method(
    "la_mbda",
    settings,
    variants={"following": {}},  # which begins with the plan that ours begins with
    paper_label={"LAMBDA": "la_mbda"},
    tables={"rl": ("la_mbda",)},
)
