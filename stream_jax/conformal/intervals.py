"""Split and adaptive conformal intervals per cluster of cells and horizon: calibrate, interval, update.

Implements Sec. "Spatially-Adaptive Conformal Calibration" and Eq. (aci) with the sign of the main text. The appendix
has it reversed, which is positive feedback: each miss would make the next miss likelier. What holds, for any sequence
of labels and with no mixing assumption: over the T errors that a (cluster, horizon) has received, their mean differs
from the target by at most (max(a, 1 - a) + h g) / (g T), with a the first level, g the step size and h the horizon,
because the level is never clipped, a level <= 0 issues the whole line and a level >= 1 the empty set. That is coverage
averaged over the cells of a cluster, not of every cell.
"""

import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from stream_jax.conformal.experts import init_experts, update_experts
from stream_jax.conformal.order_statistics import (
    cluster_mean,
    cluster_p_value,
    cluster_radius,
    conformal_rank,
    radius_at_rank,
)
from stream_jax.types import ConformalState, Forecast, Interval

METHODS = ("aci", "dtaci", "static")
# Counts repeat, so labels tie with the radius exactly; widening by a few float32 ulp keeps rounding from losing them.
EDGE_SLACK = 2.0**-21


@dataclasses.dataclass(frozen=True)
class ConformalConfig:
    """How intervals are calibrated, and how they follow drift."""

    target: float = 0.1  # miscoverage
    num_clusters: int = 15
    min_cluster: int = 5  # smaller clusters join the nearest; not given in the paper
    short_clusters: int = 5  # clusters for a recording shorter than short_steps; not given in the paper
    short_steps: int = 300
    step_size: float = 0.05
    rolling_steps: int = 672  # label steps that scores are kept for (7 days); 0 keeps the calibration scores for ever
    method: str = "aci"  # "aci", "dtaci" (step sizes weighed online), "static" (nothing moves: split conformal)
    seed: int = 0  # of the k-means restarts

    def __post_init__(self) -> None:
        if not 0.0 < self.target < 1.0:
            raise ValueError(f"target miscoverage must lie in (0, 1), not {self.target}")
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {METHODS}, not {self.method!r}")
        if self.step_size < 0.0 or self.rolling_steps < 0:
            raise ValueError("step_size and rolling_steps must not be negative")
        if min(self.num_clusters, self.short_clusters, self.min_cluster) < 1:
            raise ValueError("num_clusters, short_clusters and min_cluster must be at least 1")


class OnlineResult(NamedTuple):
    """What an online run issued at each of W origins and what it learnt there."""

    interval: Interval  # [W, H, N]
    level: Array  # [W, C, H] levels behind the issued intervals
    radius: Array  # [W, C, H]
    error: Array  # [W, C, H] share of the cluster's cells missed by the interval whose label arrived at this origin
    arrived: Array  # [W, C, H] bool, whether any such label arrived; without one the level did not move


def conformal_radius(scores: ArrayLike, alpha: float | Array) -> Array:
    """Smallest radius with coverage at least 1 - alpha for exchangeable scores.

    +inf (the whole line) with too few scores to promise that, or for alpha <= 0; -inf (the empty set) for alpha >= 1.
    """
    scores = jnp.asarray(scores)
    chex.assert_rank(scores, 1)
    return masked_conformal_radius(scores, jnp.ones(scores.shape, bool), alpha)


def masked_conformal_radius(scores: ArrayLike, mask: ArrayLike, alpha: float | Array) -> Array:
    """Conformal radius of the scores where the mask is True: for padded or rolling score sets."""
    chex.assert_equal_shape([scores, mask])
    ordered = jnp.sort(jnp.where(mask, scores, jnp.inf))
    count = jnp.sum(mask, dtype=jnp.int32)
    rank = conformal_rank(count, alpha)
    # A set without scores still needs one entry to index; the rank then exceeds the count and the entry is not used.
    padded = jnp.append(ordered, jnp.inf)
    return radius_at_rank(padded[jnp.clip(rank - 1, 0, ordered.shape[0])], rank, count)


def aci_update(
    level: float | Array, error: float | Array, target: float | Array, step_size: float | Array
) -> float | Array:
    """Level after an error in [0, 1]: a miss lowers it, which widens the next interval. Never clip the result."""
    return level + step_size * (target - error)


def scores_of(forecast: Forecast, target: Array, mask: Array) -> Array:
    """Conformity scores |y - mean| / sigma, +inf where the label is missing."""
    return jnp.where(mask, jnp.abs(target - forecast.mean) / forecast.sigma, jnp.inf)


def calibrate(forecast: Forecast, target: Array, mask: Array, cluster: Array, cfg: ConformalConfig) -> ConformalState:
    """State that the scores of a calibration split give: radii at the target level, nothing pending.

    Args:
        forecast: [W, H, N] over the split's consecutive origins.
        target: [W, H, N]; all these labels must have arrived by the first origin of the online run, so the caller
            leaves at least H steps between.
        mask: [W, H, N] bool.
        cluster: [N] from another split (`clusters.cluster_cells`).
        cfg: the rest.
    """
    chex.assert_rank(target, 3)
    chex.assert_equal_shape([forecast.mean, forecast.sigma, target, mask])
    num_steps, horizon, num_cells = target.shape
    chex.assert_shape(cluster, (num_cells,))
    kept = cfg.rolling_steps if cfg.rolling_steps and cfg.method != "static" else num_steps
    arrived = scores_of(forecast, target, mask)[-kept:]  # [min(W, R), H, N]
    missing = jnp.full((kept - arrived.shape[0], horizon, num_cells), jnp.inf, jnp.float32)
    scores = jnp.concatenate([missing, arrived.astype(jnp.float32)])
    level = jnp.full((cfg.num_clusters, horizon), cfg.target, jnp.float32)
    expert_level, expert_weight = init_experts(cfg.target, cfg.num_clusters, horizon)
    num_experts = expert_level.shape[0] if cfg.method == "dtaci" else 0
    empty = jnp.zeros((horizon, horizon, num_cells), jnp.float32)
    return ConformalState(
        cluster=cluster,
        scores=scores,
        cursor=jnp.zeros((), jnp.int32),
        level=level,
        radius=cluster_radius(scores, cluster, level),
        expert_level=expert_level[:num_experts],
        expert_weight=expert_weight[:num_experts],
        pending_forecast=Forecast(mean=empty, sigma=jnp.full_like(empty, jnp.inf)),
        pending_interval=Interval(lower=empty, upper=empty),
    )


def interval(state: ConformalState, forecast: Forecast) -> Interval:
    """Interval of a forecast [..., H, N] at the current radii, cut at 0 because flows cannot be negative."""
    return interval_at(state.radius[state.cluster].T, forecast)


def interval_at(radius: Array, forecast: Forecast) -> Interval:
    """mean ± radius * sigma, cut at 0; a radius of +inf gives [0, inf), of -inf a set that nothing is in."""
    half = radius * forecast.sigma
    slack = EDGE_SLACK * (jnp.abs(forecast.mean) + jnp.where(jnp.isfinite(half), half, 0.0))
    lower = jnp.maximum(forecast.mean - half - slack, 0.0)
    return Interval(lower=lower, upper=jnp.maximum(forecast.mean + half + slack, 0.0))


def contains(issued: Interval, target: Array) -> Array:
    """Whether each label lies in its interval."""
    return (target >= issued.lower) & (target <= issued.upper)


def update(
    state: ConformalState, forecast: Forecast, label: Array, mask: Array, cfg: ConformalConfig
) -> tuple[ConformalState, OnlineResult]:
    """One origin: settles what the newly observed step decides, then issues intervals for the next H steps.

    The label of this step closes the h-step forecast that was issued h origins ago, for each h; those scores join the
    ring and those errors move the levels before the new intervals are drawn.

    Args:
        state: carried.
        forecast: [H, N] made at this origin.
        label: [N] values observed at this origin.
        mask: [N] bool, where they were observed.
        cfg: as calibrated with.
    """
    chex.assert_equal_shape([forecast.mean, forecast.sigma, state.scores[0]])
    chex.assert_equal_shape([label, mask, state.cluster])
    state, error, arrived = _settle(state, label, mask, cfg)
    issued = interval(state, forecast)
    state = state._replace(
        pending_forecast=jax.tree.map(_push, state.pending_forecast, forecast),
        pending_interval=jax.tree.map(_push, state.pending_interval, issued),
    )
    return state, OnlineResult(issued, state.level, state.radius, error, arrived)


def run_online(
    state: ConformalState, forecast: Forecast, target: Array, mask: Array, cfg: ConformalConfig
) -> tuple[ConformalState, OnlineResult]:
    """Runs `update` over W consecutive origins in one scan.

    Args:
        state: from `calibrate`, or from the run over the origins just before.
        forecast: [W, H, N].
        target: [W, H, N], target[w, h] observed h + 1 steps after origin w. Only target[:, 0] is read, each a step
            after its origin; labels later than the last origin decide nothing.
        mask: [W, H, N] bool.
        cfg: as calibrated with.
    """
    chex.assert_equal_shape([forecast.mean, forecast.sigma, target, mask])
    # The label of origin w is target[w - 1, 0]; that of the first origin is not in the run.
    label = jnp.roll(target[:, 0], 1, axis=0)  # [W, N]
    observed = jnp.roll(mask[:, 0], 1, axis=0).at[0].set(False)

    def step(carry: ConformalState, at_origin: tuple[Forecast, Array, Array]) -> tuple[ConformalState, OnlineResult]:
        return update(carry, *at_origin, cfg)

    return jax.lax.scan(step, state, (forecast, label, observed))


def _settle(
    state: ConformalState, label: Array, mask: Array, cfg: ConformalConfig
) -> tuple[ConformalState, Array, Array]:
    """Takes in the label of this step; returns the error [C, H] of the intervals that it closes, and where one was."""
    num_clusters, horizon = state.level.shape
    delay = jnp.arange(horizon)  # horizon index d was issued d + 1 origins ago, so row d of what is pending
    closed, issued = jax.tree.map(lambda rows: rows[delay, delay], (state.pending_forecast, state.pending_interval))
    observed = mask & jnp.isfinite(closed.sigma)  # [H, N]
    missed = 1.0 - contains(issued, label)
    error, arrived = cluster_mean(missed, observed, state.cluster, num_clusters)
    if cfg.method == "static":
        return state, error, arrived

    new_scores = scores_of(closed, label, observed)
    if cfg.method == "dtaci":
        p_value = cluster_p_value(state.scores, state.cluster, new_scores, num_clusters)
        expert_level, expert_weight = update_experts(
            state.expert_level, state.expert_weight, p_value, observed, state.cluster, cfg.target
        )
        state = state._replace(expert_level=expert_level, expert_weight=expert_weight)
        level = jnp.sum(expert_level * expert_weight, axis=0)
    else:
        level = jnp.where(arrived, aci_update(state.level, error, cfg.target, cfg.step_size), state.level)
    if cfg.rolling_steps:
        cursor = (state.cursor + 1) % state.scores.shape[0]
        state = state._replace(scores=state.scores.at[state.cursor].set(new_scores), cursor=cursor)
    radius = cluster_radius(state.scores, state.cluster, level, near=state.radius)
    return state._replace(level=level, radius=radius), error, arrived


def _push(rows: Array, newest: Array) -> Array:
    return jnp.concatenate([newest[None], rows[:-1]])
