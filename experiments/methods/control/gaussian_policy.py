"""The actor and critic of the on-policy rivals: a Gaussian whose mean starts at 0 everywhere, the default plan.

Sizes and first spread are those of LyCon-WRL+'s policy; nothing widens it where the city is uncertain, that is ours.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from experiments.methods.control.task import Experience
from stream_jax.rl import ppo
from stream_jax.rl.policy import PolicyConfig, PolicyParams
from stream_jax.rl.ppo import PPOConfig

HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class Perceptron(nn.Module):
    """Hidden layers and a linear head that starts at 0 or nearly."""

    cfg: PolicyConfig
    outputs: int
    head: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, rows: Array) -> Array:
        for _ in range(self.cfg.layers):
            rows = nn.tanh(nn.Dense(self.cfg.hidden, kernel_init=nn.initializers.orthogonal(2.0**0.5))(rows))
        return nn.Dense(self.outputs, kernel_init=self.head, name="head")(rows)


def init(key: Array, observed: Array, actions: int, signals: int, cfg: PolicyConfig) -> PolicyParams:
    """A policy with mean 0 and a critic of as many signals. Args: observed: [..., D], for its size."""
    actor_key, critic_key = jax.random.split(key)
    return PolicyParams(
        actor=_actor(actions, cfg).init(actor_key, observed),
        critic=_critic(signals, cfg).init(critic_key, observed),
        log_std=jnp.full(actions, math.log(cfg.std), jnp.float32),
    )


def mean_action(params: PolicyParams, observed: Array, cfg: PolicyConfig) -> Array:
    """[..., A] inside (-1, 1)."""
    return jnp.tanh(_actor(params.log_std.shape[0], cfg).apply(params.actor, observed))


def values(params: PolicyParams, observed: Array, cfg: PolicyConfig) -> Array:
    """[..., 1 + C] expected discounted reward and costs."""
    return _critic(params.critic["params"]["head"]["bias"].shape[-1], cfg).apply(params.critic, observed)


def sample(key: Array, params: PolicyParams, observed: Array, cfg: PolicyConfig) -> tuple[Array, Array]:
    """A draw [..., A], which may leave [-1, 1], and its log-likelihood [...]."""
    mean, std = mean_action(params, observed, cfg), jnp.exp(params.log_std)
    action = mean + std * jax.random.normal(key, mean.shape)
    return action, _log_density(action, mean, params.log_std)


def log_prob(params: PolicyParams, observed: Array, action: Array, cfg: PolicyConfig) -> Array:
    """[...] summed over the components of the action."""
    return _log_density(action, mean_action(params, observed, cfg), params.log_std)


def entropy(params: PolicyParams) -> Array:
    """[] the same in every state."""
    return (params.log_std + HALF_LOG_TAU + 0.5).sum()


def divergence(old: PolicyParams, new: PolicyParams, observed: Array, cfg: PolicyConfig) -> Array:
    """[...] KL(old | new) at each row, exactly."""
    gap = mean_action(old, observed, cfg) - mean_action(new, observed, cfg)
    ratio = jnp.exp(2.0 * (old.log_std - new.log_std))
    shifted = jnp.square(gap) * jnp.exp(-2.0 * new.log_std)
    return (new.log_std - old.log_std + 0.5 * (ratio + shifted - 1.0)).sum(-1)


def bounded(params: PolicyParams, cfg: PolicyConfig) -> PolicyParams:
    """The nearest parameters whose standard deviation is inside its bounds."""
    low, high = cfg.std_bounds
    return params._replace(log_std=jnp.clip(params.log_std, math.log(low), math.log(high)))


def advantages(params: PolicyParams, seen: Experience, ppo_cfg: PPOConfig, cfg: PolicyConfig) -> tuple[Array, Array]:
    """Generalised advantages and the critic's targets, each [E, T, R, 1 + C]."""
    going_on = jnp.ones(seen.log_prob.shape[1])
    judged = values(params, seen.observed, cfg)
    return jax.vmap(lambda paid, value: ppo.advantages(paid, value, going_on, ppo_cfg))(seen.signals, judged)


def _actor(actions: int, cfg: PolicyConfig) -> Perceptron:
    return Perceptron(cfg, actions)


def _critic(signals: int, cfg: PolicyConfig) -> Perceptron:
    return Perceptron(cfg, signals, nn.initializers.variance_scaling(0.01, "fan_in", "normal"))


def _log_density(action: Array, mean: Array, log_std: Array) -> Array:
    standard = (action - mean) * jnp.exp(-log_std)
    return (-0.5 * jnp.square(standard) - log_std - HALF_LOG_TAU).sum(-1)
