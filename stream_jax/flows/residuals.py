"""Normalised residuals: at every step, the mean error of all forecasts that were made for that step.

Section 4.2, Eq. (normalized_residual). The H forecasts issued 1 .. H steps before a step give H errors, complete once
the step is over, each divided by its own calibrated sigma. The calibration is one fixed factor per cluster and horizon:
the adaptive radius moves with past errors, and scores of different times could no longer be compared. Their mean is
what is scored, one number per target as in the paper. How the H forecasts differ among themselves was known before the
step; a density over all of them finds the cells where an anomaly has been, not where one is. It stays available as
`leads="all"`, D = horizons x targets.
"""

from functools import partial
from typing import Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.stats import norm

from stream_jax.conformal.intervals import scores_of
from stream_jax.conformal.order_statistics import cluster_radius
from stream_jax.types import Forecast

# Standard deviation of rounding to a whole vehicle, 1 / sqrt(12): no count is foreseen better. The paper's 1e-6 lets
# the residual of an empty cell explode.
SIGMA_FLOOR = 0.29
# Vehicles; a cell in which fewer are expected is not tested. Two passing through an empty cell are as rare as any
# anomaly, and a city has enough empty cells for their scores to be all that calibration knows of the tail.
QUIET = 0.5
# Added to both sums of the city's ratio, so that a few vehicles at night are no outage.
CITY_FLOOR = 50.0
# A city that counts 1.6 times more or less than any forecast of the last hour expected is not anomalous here or there.
OUTAGE_FACTOR = 1.6
SMALLEST_RATIO = 1e-6
Leads = Literal["mean", "all"]


class Residuals(NamedTuple):
    """What was observed against what had been forecast, for one step or, with a leading axis, for many."""

    z: Array  # [..., N, D], D = number of targets, times H with all leads; 0 where not observed
    observed: Array  # [..., N] bool: the value was observed, all H forecasts of it exist and expect some traffic
    unit: Array  # [..., N, D] what one vehicle more would add to z: large in quiet cells; rests on forecasts alone
    city: Array  # [..., H * D] what the whole city counted over what each lead had forecast for it; 1 if nothing


def residual_vectors(
    forecast: Forecast,
    target: Array,
    mask: Array,
    origins: np.ndarray | Array,
    factor: Array | None = None,
    sigma_floor: float | Array = SIGMA_FLOOR,
    leads: Leads = "mean",
) -> tuple[Residuals, np.ndarray]:
    """Rows [R, ...] and steps [R] of all R = W - H + 1 steps with forecasts of every lead: from origins[H - 1] + 1 on.

    Args:
        forecast: [W, H, N] or [W, H, N, G] at consecutive origins.
        target: like the forecast's mean.
        mask: like target, bool.
        origins: [W] concrete; raises ValueError unless consecutive.
        factor: [H, N] or [H, N, G] from `sigma_factor` on another part of the data.
        sigma_floor: smallest divisor in physical units, one or [G].
        leads: the mean error of the H forecasts of a step, or all of them.
    """
    chex.assert_equal_shape([forecast.mean, forecast.sigma, target, mask])
    num_origins, horizon = target.shape[:2]
    chex.assert_shape(origins, (num_origins,))
    if num_origins < horizon or not np.all(np.diff(np.asarray(origins)) == 1):
        raise ValueError(f"need at least {horizon} origins, one step apart")
    # The forecast of lead h + 1 for step t was issued at t - 1 - h; row r is the step after origin H - 1 + r.
    lead = jnp.arange(horizon)
    issued = jnp.arange(num_origins - horizon + 1)[:, None] + horizon - 1 - lead  # [R, H]
    made, value, seen = jax.tree.map(lambda leaf: leaf[issued, lead], (forecast, target, mask))  # [R, H, N] or more
    rows = _rows(made, value, seen, factor, sigma_floor, target.ndim - 3, leads)
    return rows, np.asarray(origins[horizon - 1 :] + 1, np.int32)


def residual_now(
    pending: Forecast,
    value: Array,
    observed: Array,
    factor: Array | None = None,
    sigma_floor: float | Array = SIGMA_FLOOR,
    leads: Leads = "mean",
) -> Residuals:
    """The row of the step that has just been observed, without a leading axis.

    Args:
        pending: [H, H, N] or [H, H, N, G]; row d was issued d + 1 steps ago, with sigma = +inf where none was.
        value: [N] or [N, G] observed values.
        observed: like value, bool.
    """
    lead = jnp.arange(pending.mean.shape[0])
    made = jax.tree.map(lambda leaf: leaf[lead, lead], pending)  # [H, N] or [H, N, G]
    seen = jnp.broadcast_to(observed, made.mean.shape)
    return _rows(made, value, seen, factor, sigma_floor, value.ndim - 1, leads)


def without_outages(rows: Residuals, factor: float = OUTAGE_FACTOR) -> tuple[Residuals, Array]:
    """Steps in which the whole city broke away from its forecasts become not observed: the recorder or the city failed.

    Looks at the city's sums alone, not at any cell's score; the hour after an outage is flagged too, as long as some
    forecast was made inside it. Returns the rows and whether each was flagged, [...] bool.
    """
    broken = (jnp.abs(jnp.log(jnp.maximum(rows.city, SMALLEST_RATIO))) > jnp.log(factor)).any(-1)
    kept = ~broken[..., None]
    screened = rows._replace(z=jnp.where(kept[..., None], rows.z, 0.0), observed=rows.observed & kept)
    return screened, broken


def sigma_factor(
    forecast: Forecast, target: Array, mask: Array, cluster: Array, num_clusters: int, coverage: float = 0.9
) -> Array:
    """How much wider than its sigma a forecast's errors are, by cluster and horizon: q / z with q the conformal radius.

    1 where a cluster has too few labels, or no errors, to tell.

    Args:
        forecast: [W, H, N] or [W, H, N, G] of a part that is neither calibration nor test.
        cluster: [N].

    Returns:
        [H, N] or [H, N, G].
    """
    if target.ndim == 4:
        one = partial(sigma_factor, cluster=cluster, num_clusters=num_clusters, coverage=coverage)
        return jax.vmap(one, -1, -1)(forecast, target, mask)
    level = jnp.full((num_clusters, target.shape[1]), 1.0 - coverage)
    radius = cluster_radius(scores_of(forecast, target, mask).astype(jnp.float32), cluster, level)  # [C, H]
    factor = radius / norm.ppf((1.0 + coverage) / 2.0)
    return jnp.where(jnp.isfinite(factor) & (factor > 0.0), factor, 1.0)[cluster].T


def _rows(
    made: Forecast,
    value: Array,
    seen: Array,
    factor: Array | None,
    sigma_floor: float | Array,
    trailing: int,
    leads: Leads,
) -> Residuals:
    """Args: the forecasts of one step [..., H, N] or, with trailing = 1, [..., H, N, G], and what they were about."""
    known = seen & jnp.isfinite(made.sigma) & jnp.isfinite(value)
    sigma = made.sigma if factor is None else made.sigma * factor
    unit = 1.0 / jnp.maximum(sigma, sigma_floor)
    z = jnp.where(known, value - made.mean, 0.0) * unit
    cells = -1 - trailing
    counted, foreseen = (jnp.where(known, part, 0.0).sum(cells) + CITY_FLOOR for part in (value, made.mean))
    city = (counted / foreseen).reshape(*known.shape[: cells - 1], -1)  # [..., H * G]
    if trailing == 0:
        z, unit, known = z[..., None], unit[..., None], known[..., None]
    z, unit, known = (jnp.moveaxis(part, -3, -2) for part in (z, unit, known))  # [..., N, H, G]
    expected = made.mean.mean(cells - 1)  # [..., N] or [..., N, G]
    busy = expected >= QUIET if trailing == 0 else (expected >= QUIET).all(-1)
    observed = known.all((-2, -1)) & busy
    if leads == "mean":
        z, unit = z.mean(-2), unit.mean(-2)
    else:
        z, unit = (part.reshape(*part.shape[:-2], -1) for part in (z, unit))  # [..., N, H G]
    seen_only = lambda part: jnp.where(observed[..., None], part, 0.0)  # noqa: E731
    return Residuals(seen_only(z), observed, seen_only(unit), city)
