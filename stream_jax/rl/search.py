"""Finds the gains of the reaction by driving the same episodes twice, with changes of them and with their opposites.

Before Algorithm 1, Phase 4; the paper starts from random weights. What a plan does is small beside what the traffic of
an hour does, and an advantage has to tell the two apart. Two drives of one episode share its traffic, so that their
difference is the plan's: an evolution strategy with antithetic pairs, in fourteen dimensions. A part of every change is
the intersection's own, and each is judged by its own neighbourhood, so that an episode tells more than one thing.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax.rl import objective, policy, replay
from stream_jax.rl.agent import Agent, AgentConfig, SearchConfig, act
from stream_jax.rl.episodes import Episode
from stream_jax.rl.reaction import GREEN_TERMS, GUARD_TERMS
from stream_jax.rl.safety import SafetyConfig
from stream_jax.rl.state import make_state

Kept = Callable[[int, Callable[[], np.ndarray]], np.ndarray]  # generation, how to get its scores -> [2, pairs, I]
LARGE = 0.8  # quantile of the differences from which they all count the same
NAMES = (*(f"green_{name}" for name in GREEN_TERMS), *(f"guard_{name}" for name in GUARD_TERMS))


def find_gains(
    key: Array, agent: Agent, collect: Any, adjacency: Array, cfg: AgentConfig, kept: Kept
) -> tuple[Agent, list[dict]]:
    """The agent with better gains, and one row per generation.

    Args:
        collect: as in `lycon_wrl_plus.fit`; gives the same episodes for the same seed.
        kept: reads a generation's scores back, or gets and keeps them.
    """
    plan, rows = cfg.search, []
    for generation in range(plan.generations):
        draws = changes(jax.random.fold_in(key, generation), adjacency.shape[0], plan)
        first = plan.first_seed + generation * plan.pairs

        def both(agent: Agent = agent, draws: Array = draws, first: int = first) -> np.ndarray:
            steps = [_varied(agent, sign * plan.spread * draws, first, adjacency, cfg) for sign in (1.0, -1.0)]
            return np.stack([scores(collect(step, plan.pairs, first), adjacency, cfg) for step in steps])

        found = kept(generation, both)  # [2, pairs, I]
        agent = with_gains(agent, gains_of(agent) + plan.rate * ascent(found[0] - found[1], draws, plan.spread))
        named = {name: float(gain) for name, gain in zip(NAMES, gains_of(agent), strict=True)}
        rows.append({"kind": "search", "iteration": generation, "score": float(found.mean())} | named)
    return agent, rows


def changes(key: Array, intersections: int, cfg: SearchConfig) -> Array:
    """[K, I, G] of unit variance, of which `cfg.common` is the same for all intersections of an episode."""
    own_key, common_key = jax.random.split(key)
    own = jax.random.normal(own_key, (cfg.pairs, intersections, len(NAMES)))
    everyone = jax.random.normal(common_key, (cfg.pairs, 1, len(NAMES)))
    return jnp.sqrt(1.0 - cfg.common) * own + jnp.sqrt(cfg.common) * everyone


def settings(cfg: AgentConfig) -> tuple:
    """What is driven up to the first iteration depends on this: agents that are equal in it, key and road share it."""
    paid = cfg.reward.served, cfg.reward.queue, cfg.reward.delay
    driven = cfg.episodes, cfg.first_seed, cfg.hold, cfg.validation_episodes, cfg.validation_seed
    return NAMES, cfg.search, cfg.state, cfg.policy, cfg.limits, cfg.forecast_horizon, paid, driven


def ascent(difference: Array, draws: Array, spread: float) -> Array:
    """[G] the step that the pairs' differences [K, I] ask for along their draws [K, I, G].

    Hours that a plan can decide have the same say, since safety counts hours: one that tips over into gridlock must not
    decide alone, and one that is lost or won under any plan differs less than most and has less to say. Of an hour's
    differences the largest fifth are all taken to be of one size.
    """
    size = jnp.quantile(jnp.abs(difference), LARGE, axis=1, keepdims=True)
    vote = jnp.clip(difference / jnp.maximum(jnp.maximum(size, jnp.median(size)), 1e-9), -1.0, 1.0)
    return spread * jnp.einsum("ki,kig->g", vote, draws) / jnp.maximum(jnp.abs(vote).sum(), 1e-9)


def scores(episodes: list[Episode], adjacency: Array, cfg: AgentConfig) -> np.ndarray:
    """[K, I] mean traffic reward of each neighbourhood minus the price of its part in coming near the limits.

    Where a limit is broken, nothing else counts: a road that is lost must not teach how to lose it faster.
    """
    return np.asarray(_scores(replay.stack(episodes).x[:, 1:], adjacency, cfg))


def gains_of(agent: Agent) -> Array:
    """[14] the gains of the agent's reaction."""
    return agent.policy.actor["params"]["gains"]


def with_gains(agent: Agent, gains: Array) -> Agent:
    """The agent with other gains."""
    actor = agent.policy.actor
    changed = {**actor, "params": {**actor["params"], "gains": gains}}
    return agent._replace(policy=agent.policy._replace(actor=changed))


def _varied(agent: Agent, offsets: Array, first: int, adjacency: Array, cfg: AgentConfig) -> Any:
    """A policy step in which the episode of seed `first + k` is driven with the changes k of the gains [K, I, G]."""
    unfiltered = dataclasses.replace(cfg, safety=SafetyConfig(mode="none"))

    def step(seeds: np.ndarray, _: Any, x: Array, view: Any, plan: Array, clock: Array) -> Any:
        mine = offsets[(np.asarray(seeds) - first) % len(offsets)]
        return jax.tree.map(np.asarray, _drive(mine, agent, (x, view, plan, clock), adjacency, unfiltered))

    return step


@partial(jax.jit, static_argnames="cfg")
def _drive(offsets: Array, agent: Agent, seen: tuple, adjacency: Array, cfg: AgentConfig) -> Any:
    def one(offset: Array, x: Array, view: Any, plan: Array, clock: Array) -> Any:
        state = make_state(x, view, plan, clock, cfg.state)
        usual = act(jax.random.key(0), agent, state, plan, adjacency, cfg, explore=False)

        def with_change(change: Array) -> Array:
            varied = with_gains(agent, gains_of(agent) + change)
            return policy.mean_action(varied.policy, state, adjacency, cfg.policy)

        everywhere = jax.vmap(with_change)(offset)  # [I, I, 9], of which each intersection takes its own
        mine = jnp.einsum("iia->ia", everywhere)
        return usual._replace(action=mine, proposed=mine)

    return jax.vmap(one)(offsets, *seen)


@partial(jax.jit, static_argnames="cfg")
def _scores(x: Array, adjacency: Array, cfg: AgentConfig) -> Array:
    def step(x: Array) -> Array:  # [I]
        queue, wait, served = objective.broken(x, cfg.limits)
        kept = objective.traffic(x, cfg.reward) - cfg.search.price * objective.nearness(x, cfg.limits).sum(-1)
        return objective.share(jnp.where(queue | wait | served, -cfg.search.worst, kept), adjacency)

    return jax.vmap(jax.vmap(step))(x).mean(1)
