"""Ellipsoids that hold the flows of several cells at once, their radius following drift.

The sets of Zhang, Wang, Song, Yu, Ding, Zhu, "Topology-Aware Conformal Prediction for Stream Networks", NeurIPS 2025
(arXiv 2503.04981), Eqs. (2), (6), (7): a flow vector belongs to the set if its Mahalanobis distance from the centre is
at most a conformal quantile of earlier distances, at a level that each miss lowers and each hit raises. Labels arrive
when they would: the forecast h steps ahead is settled h origins later. For any sequence of labels and one horizon the
share of misses among the T forecasts settled differs from the target by at most (max(a, 1 - a) + h g) / (g T), a the
target and g the step size, as for the intervals of `stream_jax.conformal.intervals`, whose update this is.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import gammaln

from stream_jax.conformal.intervals import ConformalConfig, aci_update, masked_conformal_radius
from stream_jax.types import Forecast


class Shape(NamedTuple):
    """Where the errors of M cells lie, in units of each forecast's sigma."""

    centre: Array  # [H, M]
    factor: Array  # [H, M, M] lower triangular; factor @ factor.T is the covariance


class JointSets(NamedTuple):
    """What was issued at each of W origins: all space (radius inf) at a level <= 0, nothing (-inf) at a level >= 1."""

    radius: Array  # [W, H] Mahalanobis distance that the set reaches
    level: Array  # [W, H]
    covered: Array  # [W, H] bool; False where the labels are not all known


def shape_of(centre: Array, covariance: Array) -> Shape:
    """Args: centre [H, M]; covariance [H, M, M], positive definite."""
    chex.assert_equal_shape_prefix([centre, covariance], 2)
    return Shape(centre, jnp.linalg.cholesky(covariance))


def distances(forecast: Forecast, target: Array, mask: Array, shape: Shape) -> Array:
    """Mahalanobis distances [W, H] of labels [W, H, M]; +inf where a label is missing."""
    chex.assert_equal_shape([forecast.mean, forecast.sigma, target, mask])
    error = jnp.where(mask, (target - forecast.mean) / forecast.sigma, 0.0) - shape.centre
    white = jax.vmap(lambda factor, one: jax.scipy.linalg.solve_triangular(factor, one.T, lower=True), (0, 1), 2)(
        shape.factor, error
    )  # [M, W, H]
    return jnp.where(mask.all(axis=-1), jnp.sqrt((white**2).sum(axis=0)), jnp.inf)


def run_online(calibration: Array, live: Array, cfg: ConformalConfig) -> JointSets:
    """Sets over W consecutive origins; the level never moves with method "static".

    Args:
        calibration: [V, H] distances of the origins before, all settled by the first live origin; +inf = unknown.
        live: [W, H] distances of what the live forecasts turn out to miss by; row w is read only once it is settled.
    """
    horizon = live.shape[1]
    return jax.vmap(lambda scores, seen, delay: _run_horizon(scores, seen, delay, horizon, cfg), (1, 1, 0), 1)(
        calibration, live, jnp.arange(horizon)
    )


def log_volume(sets: JointSets, forecast: Forecast, shape: Shape) -> Array:
    """Natural logarithm of each set's volume [W, H] in physical units; -inf of an empty set, +inf of all space."""
    size = shape.centre.shape[-1]
    ball = 0.5 * size * jnp.log(jnp.pi) - gammaln(0.5 * size + 1.0)
    determinant = jnp.log(jnp.diagonal(shape.factor, axis1=1, axis2=2)).sum(axis=-1)  # [H]
    radius = jnp.log(jnp.maximum(sets.radius, 0.0))
    return ball + size * radius + determinant + jnp.log(forecast.sigma).sum(axis=-1)


def _run_horizon(calibration: Array, live: Array, delay: Array, horizon: int, cfg: ConformalConfig) -> JointSets:
    """One horizon: calibration [V], live [W]; a forecast issued at origin w is settled at origin w + delay + 1."""
    is_static = cfg.method == "static"
    kept = cfg.rolling_steps if cfg.rolling_steps and not is_static else calibration.shape[0]
    count = min(kept, calibration.shape[0])
    ring = jnp.full(kept, jnp.inf).at[:count].set(calibration[-count:])
    settled = jnp.where(jnp.arange(live.shape[0]) > delay, jnp.roll(live, delay + 1), jnp.inf)

    def step(carry: tuple[Array, Array, Array], at: tuple[Array, Array]) -> tuple[tuple, tuple[Array, Array]]:
        ring, level, issued = carry
        origin, score = at
        known = jnp.isfinite(score)
        missed = (score > issued[delay]).astype(jnp.float32)
        if not is_static:
            level = jnp.where(known, aci_update(level, missed, cfg.target, cfg.step_size), level)
        if cfg.rolling_steps and not is_static:
            ring = ring.at[(count + origin) % kept].set(score)  # the oldest
        radius = masked_conformal_radius(ring, jnp.isfinite(ring), level)
        return (ring, level, jnp.concatenate([radius[None], issued[:-1]])), (radius, level)

    start = (ring, jnp.asarray(cfg.target, jnp.float32), jnp.zeros(horizon))
    _, (radius, level) = jax.lax.scan(step, start, (jnp.arange(live.shape[0]), settled))
    return JointSets(radius, level, jnp.isfinite(live) & (live <= radius))
