"""One actor and one critic for every intersection, and exploration that grows with what is not known.

Section 4.3, "Uncertainty-Guided Exploration". The actor's last layer starts at 0, so the first policy is the default
plan. The paper gives a probability of exploring in the text and Gaussian noise in the appendix, with a sign that makes
normal days exploratory; here uncertainty widens the policy's own standard deviation, so the likelihood that learning
uses is the one that was acted with. The appendix's noise stays as `paper_noise`.
"""

import dataclasses
import math
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import chex
import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.rl.reaction import GAINS, terms
from stream_jax.rl.state import features, with_neighbours
from stream_jax.task import Limits
from stream_jax.types import RLState

COSTS = len(Limits().bounds)  # of the road's own limits


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """Sizes and the exploration's numbers are our choice, the paper gives none."""

    hidden: int = 64
    layers: int = 2
    std: float = 0.2  # of the first policy, in units of the action's range [-1, 1]
    std_bounds: tuple[float, float] = (0.05, 0.5)
    exploration: Literal["inside", "paper_noise"] = "inside"  # "paper_noise" is not in the likelihood: biased ratios
    gain: float = 0.5  # how much wider the policy gets where nothing is known
    bias: float = -2.0  # of the sigmoid that weighs the standardised uncertainties
    identity: bool = False  # a bias of its own for each intersection's mean

    def __post_init__(self) -> None:
        low, high = self.std_bounds
        if min(self.hidden, self.layers) < 1 or not (self.gain >= 0 and 0 < low <= self.std <= high / (1 + self.gain)):
            raise ValueError("hidden and layers must be at least 1, gain >= 0, std in [low, high / (1 + gain)]")


class PolicyParams(NamedTuple):
    """Everything that PPO learns."""

    actor: Any
    critic: Any
    log_std: Array  # [A]


class Uncertainty(NamedTuple):
    """Typical values of forecast sigma, 1 - p and the world model's spread; an infinite sd switches a signal off."""

    mean: Array  # [3]
    sd: Array  # [3]


class Sample(NamedTuple):
    """What the policy proposed and how likely it was to."""

    action: Array  # [I, A] in [-1, 1]
    log_prob: Array  # [I] summed over the components


class _Trunk(nn.Module):
    cfg: PolicyConfig
    outputs: int
    scale: float

    @nn.compact
    def __call__(self, rows: Array) -> Array:
        for _ in range(self.cfg.layers):
            rows = nn.tanh(nn.Dense(self.cfg.hidden, kernel_init=nn.initializers.orthogonal(2.0**0.5))(rows))
        return nn.Dense(self.outputs, kernel_init=nn.initializers.variance_scaling(self.scale, "fan_in", "normal"))(
            rows
        )


class _Actor(nn.Module):
    cfg: PolicyConfig

    @nn.compact
    def __call__(self, rows: Array, terms: Array) -> Array:
        hidden = _Trunk(self.cfg, self.cfg.hidden, 1.0, name="trunk")(rows)
        mean = nn.Dense(terms.shape[-2], kernel_init=nn.initializers.zeros, name="mean")(nn.tanh(hidden))
        mean += terms @ self.param("gains", nn.initializers.zeros, (GAINS,))
        if self.cfg.identity:
            mean += self.param("identity", nn.initializers.zeros, terms.shape[:2])
        return jnp.tanh(mean)


@partial(jax.jit, static_argnames=("cfg", "costs"))
def init(key: Array, state: RLState, adjacency: Array, cfg: PolicyConfig, costs: int = COSTS) -> PolicyParams:
    """A policy whose mean action is exactly 0, the default plan, in every state.

    Args:
        state: any state, for the sizes of what is seen and of the action.
        costs: number of constraints, each of which the critic values beside the reward.
    """
    actor_key, critic_key = jax.random.split(key)
    rows = with_neighbours(features(state), adjacency)
    critic = _critic(cfg, 1 + costs).init(critic_key, rows)
    log_std = jnp.full(state.plan.shape[-1], math.log(cfg.std), jnp.float32)
    return PolicyParams(_Actor(cfg).init(actor_key, rows, terms(state)), critic, log_std)


def mean_action(params: PolicyParams, state: RLState, adjacency: Array, cfg: PolicyConfig) -> Array:
    """[I, A], strictly inside (-1, 1)."""
    rows = with_neighbours(features(state), adjacency)
    return cast(Array, _Actor(cfg).apply(params.actor, rows, terms(state)))


def values(params: PolicyParams, state: RLState, adjacency: Array, cfg: PolicyConfig) -> Array:
    """[I, 1 + C]: expected discounted reward and costs of each intersection's neighbourhood."""
    rows = with_neighbours(features(state), adjacency)
    return cast(Array, _critic(cfg, 1 + num_costs(params)).apply(params.critic, rows))


def num_costs(params: PolicyParams) -> int:
    """How many costs the critic values."""
    layers = params.critic["params"]
    return layers[f"Dense_{len(layers) - 1}"]["bias"].shape[-1] - 1


def uncertainties(state: RLState, world_spread: Array) -> Array:
    """[I, 3]: forecast sigma, 1 - p, and the world model's spread [I]."""
    return jnp.stack([state.sigma.mean(-1), 1.0 - state.p_value, world_spread], axis=-1)


def boost(signals: Array, typical: Uncertainty, cfg: PolicyConfig) -> Array:
    """g(s) [I] in (0, 1), by how much of the gain the policy widens. Args: signals [I, 3]."""
    standardised = (signals - typical.mean) / typical.sd
    return jax.nn.sigmoid(standardised.sum(-1) + cfg.bias)


def std(params: PolicyParams, widening: Array, cfg: PolicyConfig) -> Array:
    """[I, A]: std_theta (1 + gain g) inside its bounds. Args: widening [I], g(s), 0 at evaluation."""
    gain = cfg.gain if cfg.exploration == "inside" else 0.0
    return jnp.clip(jnp.exp(params.log_std) * (1.0 + gain * widening[:, None]), *cfg.std_bounds)


def bounded(params: PolicyParams, cfg: PolicyConfig) -> PolicyParams:
    """The nearest parameters whose widest standard deviation is inside its bounds, where it still has a gradient."""
    low, high = cfg.std_bounds
    return params._replace(log_std=jnp.clip(params.log_std, jnp.log(low), jnp.log(high / (1.0 + cfg.gain))))


def sample(
    key: Array, params: PolicyParams, state: RLState, widening: Array, adjacency: Array, cfg: PolicyConfig
) -> Sample:
    """Draws an action; what leaves [-1, 1] is clipped and has the likelihood of the clipped draw."""
    chex.assert_shape(widening, state.p_value.shape)
    draw_key, noise_key = jax.random.split(key)
    law = _law(params, state, widening, adjacency, cfg)
    action = law.sample(seed=draw_key)
    if cfg.exploration == "paper_noise":
        spread = cfg.gain * state.sigma.mean()
        action = jnp.clip(action + spread * jax.random.normal(noise_key, action.shape), -1.0, 1.0)
    return Sample(action, law.log_prob(action).sum(-1))


def log_prob(
    params: PolicyParams, state: RLState, widening: Array, action: Array, adjacency: Array, cfg: PolicyConfig
) -> Array:
    """[I]: log-likelihood of an action [I, A], with the widening that it was drawn with."""
    return _law(params, state, widening, adjacency, cfg).log_prob(action).sum(-1)


def entropy(params: PolicyParams, widening: Array, cfg: PolicyConfig) -> Array:
    """[I]: of the Gaussian before clipping, summed over the components."""
    spread = std(params, widening, cfg)
    return distrax.Normal(jnp.zeros_like(spread), spread).entropy().sum(-1)


def _critic(cfg: PolicyConfig, outputs: int) -> _Trunk:
    return _Trunk(cfg, outputs, 0.01)


def _law(
    params: PolicyParams, state: RLState, widening: Array, adjacency: Array, cfg: PolicyConfig
) -> distrax.ClippedNormal:
    return distrax.ClippedNormal(mean_action(params, state, adjacency, cfg), std(params, widening, cfg), -1.0, 1.0)
