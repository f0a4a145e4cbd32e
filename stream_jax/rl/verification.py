"""What episodes say about the controller that drove them: performance, safety, and the certificate as it turned out.

Section 4.3, "Iterative Verification". The paper verifies before policy and L exist; here both are frozen and the
episodes are those of the controller in question. Safety is the share of episodes without any violating step.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax.rl import certificate, lyapunov, objective, world_model
from stream_jax.rl.agent import Agent, AgentConfig
from stream_jax.rl.certificate import DriftTerms
from stream_jax.rl.episodes import Episode, transitions
from stream_jax.rl.state import physical
from stream_jax.task import Limits, costs, is_safe_episode, violating_steps, violation
from stream_jax.types import Transition

ROUNDING = 1e-5  # actions that differ by less are the same


class Performance(NamedTuple):
    """Means over episodes, from what the road showed."""

    reward: Array  # [] the reward's traffic part, per step and intersection
    traffic: Array  # [] the measured traffic reward, per step
    cost: Array  # [C] mean relative violations, as learning sees them
    safe: Array  # [] share of episodes without a violating step
    violating: Array  # [] violating steps per episode
    certified: Array  # [] share of steps whose executed action satisfied the condition
    intervened: Array  # [] share of steps at which another action was executed than was proposed


def performance(episodes: Episode, cfg: AgentConfig) -> Performance:
    """Args: episodes [E, ...]."""
    after = episodes.x[:, 1:]
    over_steps = lambda function: jax.vmap(jax.vmap(function))(after)  # noqa: E731
    learned = over_steps(lambda x: costs(x, cfg.limits))  # [E, T, 3]
    judged = over_steps(lambda x: costs(x, cfg.goal))
    return Performance(
        reward=over_steps(lambda x: objective.traffic(x, cfg.reward).mean()).mean(),
        traffic=episodes.traffic.mean(),
        cost=objective.saturated(learned, cfg.reward).mean((0, 1)),
        safe=jax.vmap(is_safe_episode)(judged).mean(),
        violating=jax.vmap(violating_steps)(judged).mean(),
        certified=episodes.certificate.certified.mean(),
        intervened=changed(episodes).mean(),
    )


def changed(episodes: Episode) -> Array:
    """[E, T] bool, where the filter changed the proposal; where nothing is feasible it may still let it pass."""
    return (jnp.abs(episodes.plan[:, 1:] - episodes.proposed) > ROUNDING).any((-2, -1))


def merit(measured: Performance) -> np.ndarray:
    """[2] what controllers are chosen by: fewest violating steps, then reward. A few safe episodes are too coarse."""
    return np.array([-measured.violating, measured.reward], np.float32)


def is_better(score: np.ndarray, best: Array | np.ndarray) -> bool:
    """Whether a merit beats the best so far; a controller that fails to act has no costs to show and never does."""
    return bool(np.isfinite(score).all() and tuple(score) > tuple(np.asarray(best)))


def drift_terms(agent: Agent, episodes: Episode, adjacency: Array, cfg: AgentConfig) -> DriftTerms:
    """What the drift bound of an agent needs, leaves [E, T]; the actions are those that were executed."""
    value = partial(lyapunov.value, agent.lyapunov, cfg=cfg.lyapunov)

    def step(seen: Transition) -> DriftTerms:
        x = physical(seen.state)
        mu = world_model.mean_next(agent.world, seen.state, seen.action, adjacency, cfg.world)
        after = value(physical(seen.next_state))
        return DriftTerms(value(x), value(mu), after, agent.margin, violation(x, cfg.limits))

    def one(episode: Episode) -> DriftTerms:
        return jax.lax.map(step, transitions(episode, cfg.limits, cfg.state), batch_size=64)

    return jax.lax.map(one, episodes)


def margin(key: Array, agent: Agent, held_out: Episode, adjacency: Array, cfg: AgentConfig) -> Array:
    """[] margin of the decrease condition from episodes [E, ...] that neither world model nor L has seen."""
    terms = drift_terms(agent, held_out, adjacency, cfg)
    residuals = terms.value_next - terms.value_mean  # [E, T]
    if cfg.margin == "mean":
        return certificate.mean_margin(key, residuals.ravel(), cfg.margin_block)
    maxima = jax.vmap(lambda row: certificate.block_maxima(row, cfg.margin_block))(residuals)
    return certificate.conformal_margin(maxima.ravel(), cfg.margin_alpha)


def verify(agent: Agent, episodes: Episode, adjacency: Array, cfg: AgentConfig) -> dict[str, float | bool | str]:
    """The certificate of a frozen agent on its own fresh episodes [E, ...], as a row for the log. Host only."""
    terms = _drift_terms(agent, episodes, adjacency, cfg)
    bounds = jax.vmap(partial(certificate.drift_bound, cfg=cfg.lyapunov))(terms)
    result = certificate.verdict(bounds, episodes.certificate.certified, cfg.target, cfg.lyapunov)
    within = terms.value_next - terms.value_mean <= terms.margin
    return {
        "verdict": "certified" if result.certified else result.failing,
        "bound": result.bound,
        "bound_upper": result.upper,
        "violation": result.realised,
        "identity_holds": bool(np.all(bounds.holds)),
        "margin": float(agent.margin),
        "margin_coverage": float(within.mean()),
        "decrease_share": float(jax.vmap(partial(certificate.certified_share, cfg=cfg.lyapunov))(terms).mean()),
    }


_drift_terms = jax.jit(drift_terms, static_argnames="cfg")


def summary(measured: Performance, limits: Limits) -> dict[str, float]:
    """As a row for the log, with each cost under the name of its limit."""
    single = {name: float(value) for name, value in measured._asdict().items() if name != "cost"}
    return single | {f"cost_{name}": float(c) for name, c in zip(limits.names, jnp.asarray(measured.cost), strict=True)}
