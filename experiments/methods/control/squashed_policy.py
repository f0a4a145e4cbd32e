"""The actor of the rivals that differentiate through their actions: a Gaussian squeezed by tanh into [-1, 1].

Haarnoja et al. (2018), Appendix C. Mean and spread depend on what is observed; the mean starts at 0 everywhere, the
default plan, and the spread at that of LyCon-WRL+'s policy.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.rl.policy import PolicyConfig

HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
LOG_STD = (-5.0, 1.0)  # bounds before squeezing, wide enough for a temperature to find its place
ROUNDING = 1e-6


class Actor(nn.Module):
    """[..., D] -> means and log standard deviations before squeezing, each [..., A]."""

    cfg: PolicyConfig
    actions: int

    @nn.compact
    def __call__(self, rows: Array) -> tuple[Array, Array]:
        for _ in range(self.cfg.layers):
            rows = nn.silu(nn.Dense(self.cfg.hidden)(rows))
        mean, log_std = (
            nn.Dense(self.actions, kernel_init=nn.initializers.zeros, name=name)(rows) for name in ("mean", "log_std")
        )
        return mean, jnp.clip(log_std + math.log(self.cfg.std), *LOG_STD)


def init(key: Array, observed: Array, actions: int, cfg: PolicyConfig) -> Any:
    """An actor with mean 0. Args: observed: [..., D], for its size."""
    return Actor(cfg, actions).init(key, observed)


def mean_action(actor: Any, observed: Array, cfg: PolicyConfig) -> Array:
    """[..., A] the squeezed mean, for acting without exploration."""
    return jnp.tanh(_apply(actor, observed, cfg)[0])


def sample(key: Array, actor: Any, observed: Array, cfg: PolicyConfig) -> tuple[Array, Array]:
    """A draw [..., A] inside (-1, 1) that carries gradients to the actor, and its log-likelihood [...]."""
    mean, log_std = _apply(actor, observed, cfg)
    noise = jax.random.normal(key, mean.shape)
    free = mean + jnp.exp(log_std) * noise
    gaussian = -0.5 * jnp.square(noise) - log_std - HALF_LOG_TAU
    # log(1 - tanh(u)^2), written so that it does not underflow far from 0.
    squeeze = 2.0 * (math.log(2.0) - free - jax.nn.softplus(-2.0 * free))
    return jnp.tanh(free), (gaussian - squeeze).sum(-1)


def log_prob(actor: Any, observed: Array, action: Array, cfg: PolicyConfig) -> Array:
    """[...] of an action inside (-1, 1); at the edge that of the nearest float inside."""
    mean, log_std = _apply(actor, observed, cfg)
    free = jnp.arctanh(jnp.clip(action, -1.0 + ROUNDING, 1.0 - ROUNDING))
    gaussian = -0.5 * jnp.square((free - mean) * jnp.exp(-log_std)) - log_std - HALF_LOG_TAU
    squeeze = 2.0 * (math.log(2.0) - free - jax.nn.softplus(-2.0 * free))
    return (gaussian - squeeze).sum(-1)


def _apply(actor: Any, observed: Array, cfg: PolicyConfig) -> tuple[Array, Array]:
    return Actor(cfg, actor["params"]["mean"]["bias"].shape[-1]).apply(actor, observed)


def act(key: Array, actor: Any, observed: Array, cfg: PolicyConfig, explore: bool) -> tuple[Array, Array]:
    """Action [R, A] and its log-likelihood [R]; the mean without exploration."""
    if explore:
        return sample(key, actor, observed, cfg)
    action = mean_action(actor, observed, cfg)
    return action, log_prob(actor, observed, action, cfg)
