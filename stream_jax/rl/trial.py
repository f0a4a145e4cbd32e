"""Tries a plan against the default plan over the same hours, before anything is learned.

Before Algorithm 1, Phase 4; the paper starts from random weights. The plan is a set of the reaction's gains that was
chosen on validation hours of one city. On another one it may not fit: it is kept unless the default plan is clearly
better in hours that both have driven, where what the traffic of an hour does is the same for both.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax.rl import objective, replay
from stream_jax.rl.agent import Agent, AgentConfig
from stream_jax.rl.episodes import Episode
from stream_jax.rl.reaction import GREEN_TERMS, GUARD_TERMS

Drive = Callable[[Agent], list[Episode]]
Kept = Callable[[str, Callable[[], np.ndarray]], np.ndarray]  # name, how to get the scores -> [hours]
NAMES = (*(f"green_{name}" for name in GREEN_TERMS), *(f"guard_{name}" for name in GUARD_TERMS))
# Greens of 16 and 32 s instead of 30 and 70, longer where the queue is, and a guard of 97 s instead of 85. Once many
# drivers have waited as long as the guard allows, it leaves ten seconds to every green, and the time lost between them
# keeps the queues there: a guard of 85 s begins that early, and one of 115 s leaves no time to serve a driver before
# 120 s.
FOLLOWING = {"green_left": -0.35, "green_through": -0.35, "green_longer": 0.3, "guard_always": 0.42}


def choose(agent: Agent, drive: Drive, cfg: AgentConfig, kept: Kept) -> tuple[Agent, list[dict]]:
    """The agent with the plan that it begins with, and one row about the trial.

    Args:
        drive: the hours of the trial, the same for every agent.
        kept: reads back what a plan scored, or gets and keeps it.
    """
    following = with_gains(agent, following_gains())
    usual = kept("default", lambda: scores(drive(agent), cfg))
    new = kept("following", lambda: scores(drive(following), cfg))
    gain = new - usual
    error = float(gain.std(ddof=1) / np.sqrt(gain.size))
    is_kept = float(gain.mean()) >= -cfg.trial.doubt * error
    row = {"kind": "trial", "iteration": 0, "gain": float(gain.mean()), "standard_error": error, "is_kept": is_kept}
    return (following if is_kept else agent), [row]


def following_gains() -> Array:
    """[14] the gains of the plan that is tried."""
    return jnp.array([FOLLOWING.get(name, 0.0) for name in NAMES], jnp.float32)


def episodes(cfg: AgentConfig) -> int:
    """How many the trial drives."""
    return 2 * cfg.trial.hours


def settings(cfg: AgentConfig) -> tuple:
    """What the trial depends on besides the road: its plans do not hear the city, nor has the network learned."""
    paid = cfg.reward.served, cfg.reward.queue, cfg.reward.delay
    return FOLLOWING, dataclasses.replace(cfg.trial, doubt=0.0), cfg.goal, paid


def first_settings(cfg: AgentConfig) -> tuple:
    """What the first episodes depend on: agents that are equal in it, key and road share them."""
    driven = cfg.episodes, cfg.first_seed, cfg.hold
    return *settings(cfg), cfg.trial.doubt, cfg.state, cfg.policy, cfg.forecast_horizon, cfg.action, driven


def scores(driven: list[Episode], cfg: AgentConfig) -> np.ndarray:
    """[K] of each hour: mean traffic reward minus the price of coming near the limits, and what broken minutes cost.

    The first broken minute costs most, since safety counts hours: an hour in gridlock must not decide for all others.
    """
    return np.asarray(_scores(replay.stack(driven).x[:, 1:], cfg))


def gains_of(agent: Agent) -> Array:
    """[14] the gains of the agent's reaction."""
    return agent.policy.actor["params"]["gains"]


def with_gains(agent: Agent, gains: Array) -> Agent:
    """The agent with other gains."""
    actor = agent.policy.actor
    changed = {**actor, "params": {**actor["params"], "gains": gains}}
    return agent._replace(policy=agent.policy._replace(actor=changed))


@partial(jax.jit, static_argnames="cfg")
def _scores(x: Array, cfg: AgentConfig) -> Array:
    price, worst = cfg.trial.price, cfg.trial.worst

    def step(x: Array) -> tuple[Array, Array]:
        is_broken = objective.broken(x, cfg.goal).any()
        kept = (objective.traffic(x, cfg.reward) - price * objective.nearness(x, cfg.goal).sum(-1)).mean()
        return jnp.where(is_broken, -price, jnp.maximum(kept, -price)), is_broken

    kept, is_broken = jax.vmap(jax.vmap(step))(x)
    return kept.mean(1) - worst * jnp.log1p(is_broken.sum(1)) / jnp.log1p(x.shape[1])
