"""Brings forecasts, their uncertainty and anomalies from the cells of the city to the intersections of the road.

Section 4.3, Definition "Spatial Aggregation Mapping", and Appendix "Spatial Aggregation Analysis", corrected
(docs/errata.md): counts are shared out by |cell and area| / |cell|; the covariance is that of what was observed,
D R D with a correlation R that is positive semi-definite; and the aggregated spread is recalibrated where it is used.
"""

import dataclasses
from typing import Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from stream_jax.conformal.order_statistics import conformal_rank
from stream_jax.conformal.p_values import bonferroni_combine, cauchy_combine
from stream_jax.types import CityView

LENGTHS_KM = tuple(0.25 * 2.0 ** (i / 2) for i in range(15))  # candidates of `fit_length`, 0.25 to 32 km
SMALLEST_SD = 1e-6
METRES_PER_KM = 1000.0


@dataclasses.dataclass(frozen=True)
class AggregationConfig:
    """How cells combine; `paper_cut` and `paper` are the paper's own and kept for comparison."""

    # "paper_cut" is the empirical correlation set to 0 beyond `reach`: not positive semi-definite.
    covariance: Literal["kernel", "diagonal", "empirical", "paper_cut"] = "kernel"
    length: float | None = None  # km, of exp(-d / length); None fits it to the residuals
    reach: float = 10.0  # km, where the taper of "empirical" and the cut of "paper_cut" reach 0
    combine: Literal["bonferroni", "cauchy"] = "bonferroni"  # "cauchy" is approximate
    level: float = 0.9  # coverage that the recalibrated mean +- z sigma has at every intersection and horizon

    def __post_init__(self) -> None:
        if self.reach <= 0 or (self.length is not None and self.length <= 0) or not 0 < self.level < 1:
            raise ValueError("length and reach must be positive and level inside (0, 1)")


class Aggregator(NamedTuple):
    """Everything that turns a forecast of the cells into what an intersection sees."""

    weights: Array  # [I, N]
    correlation: Array  # [N, N] of the forecast's errors
    factor: Array  # [I, H] multiplies the aggregated sigma
    usual: Array  # [I] mean flow of the coverage area


DEFAULT = AggregationConfig()


def square_weights(
    cells: Array, cell_size: float, areas: Array, area_size: float, kind: Literal["counts", "paper"] = "counts"
) -> Array:
    """Overlap of square cells with square coverage areas, [I, N].

    Args:
        cells: [N, 2] centres in metres.
        areas: [I, 2] centres in metres.
        kind: "counts" gives |cell and area| / |cell|, the share of a cell's flow; "paper" gives the same over the
            covered part of |area|, which sums to 1 and is right for speeds and densities only.
    """
    chex.assert_shape([cells, areas], (None, 2))
    reach = (cell_size + area_size) / 2.0
    side = reach - jnp.abs(areas[:, None] - cells[None])  # [I, N, 2]
    overlap = jnp.clip(side, 0.0, min(cell_size, area_size)).prod(-1)
    whole = cell_size**2 if kind == "counts" else jnp.maximum(overlap.sum(1, keepdims=True), SMALLEST_SD)
    return overlap / whole


def calibrate(
    weights: Array,
    position: Array,
    validation: tuple[Array, Array],
    calibration: tuple[Array, Array, Array],
    cfg: AggregationConfig = DEFAULT,
) -> Aggregator:
    """Learns the correlation of the errors on one part of the recording and the size of the spread on another.

    Args:
        weights: [I, N].
        position: [N, 2] cell centres in metres.
        validation: forecast mean and observed flow, each [M, H, N]; the correlation is that of the first horizon.
        calibration: forecast mean, sigma and observed flow, each [M, H, N]; another part than `validation`.
    """
    chex.assert_rank([weights, position, *validation, *calibration], [2, 2, 3, 3, 3, 3, 3])
    mean, actual = validation
    spread = correlation(position, (actual - mean)[:, 0], cfg)
    means, sigmas = jax.vmap(lambda m, s: aggregate(weights, spread, m, s))(*calibration[:2])  # [M, I, H]
    flows = jnp.einsum("in,mhn->mih", weights, calibration[2])
    factor = recalibration_factor(means, sigmas, flows, cfg.level)
    return Aggregator(weights, spread, factor, jnp.einsum("in,mhn->mih", weights, actual).mean((0, 2)))


def correlation(position: Array, residuals: Array, cfg: AggregationConfig = DEFAULT) -> Array:
    """Correlation [N, N] of the cells' errors. Args: position [N, 2] metres, residuals [T, N]."""
    distance = distances_km(position)
    if cfg.covariance == "diagonal":
        return jnp.eye(position.shape[0])
    if cfg.covariance == "kernel":
        length = fit_length(distance, residuals) if cfg.length is None else cfg.length
        return jnp.exp(-distance / length)
    measured = empirical_correlation(residuals)
    if cfg.covariance == "paper_cut":
        return jnp.where(distance <= cfg.reach, measured, 0.0)
    return measured * wendland(distance / cfg.reach)


def aggregate(weights: Array, spread: Array, mean: Array, sigma: Array) -> tuple[Array, Array]:
    """Mean and standard deviation [I, H] of the weighted sums. Args: mean, sigma [H, N]; spread [N, N] correlation."""
    chex.assert_equal_shape([mean, sigma])
    scaled = weights[:, None] * sigma[None]  # [I, H, N]
    variance = jnp.einsum("ihn,nm,ihm->ih", scaled, spread, scaled)
    return weights @ mean.T, jnp.sqrt(jnp.maximum(variance, 0.0))


def recalibration_factor(mean: Array, sigma: Array, actual: Array, level: float) -> Array:
    """What sigma must be multiplied by, [I, H], so that mean +- z sigma covers `level` of exchangeable flows.

    z is the normal quantile of (1 + level) / 2, so a calibrated normal forecast keeps a factor near 1.

    Args:
        mean, sigma, actual: [M, I, H]; raises ValueError when M is too small to promise the level.
    """
    count = mean.shape[0]
    rank = int(conformal_rank(count, 1.0 - level))
    if rank > count:
        raise ValueError(f"{count} calibration steps cannot promise a coverage of {level:g}; use a longer part")
    scores = jnp.abs(actual - mean) / jnp.maximum(sigma, SMALLEST_SD)
    return jnp.sort(scores, axis=0)[rank - 1] / norm.ppf((1.0 + level) / 2.0)


def city_view(
    aggregator: Aggregator,
    mean: Array,
    sigma: Array,
    p_value: Array,
    rejected: Array,
    tested: Array | None = None,
    cfg: AggregationConfig = DEFAULT,
) -> CityView:
    """What every intersection sees of the city at one step, in units of its usual flow.

    An intersection that covers no flow sees its usual flow, no spread, p = 1 and no anomaly.

    Args:
        mean, sigma: [H, N].
        p_value, rejected, tested: [N]; cells that were not tested carry no evidence.
    """
    chex.assert_rank([mean, sigma, p_value, rejected], [2, 2, 1, 1])
    flow, spread = aggregate(aggregator.weights, aggregator.correlation, mean, sigma)
    usual = aggregator.usual[:, None]
    covered = usual > SMALLEST_SD
    unit = jnp.maximum(usual, SMALLEST_SD)
    members = aggregator.weights > 0
    combine = bonferroni_combine if cfg.combine == "bonferroni" else cauchy_combine
    counted = jnp.ones_like(rejected, bool) if tested is None else tested
    return CityView(
        mean=jnp.where(covered, flow / unit, 1.0),
        sigma=jnp.where(covered, aggregator.factor * spread / unit, 0.0),
        p_value=combine(p_value, members, tested=tested),
        anomalous=(members & (rejected.astype(bool) & counted)[None]).any(1).astype(jnp.float32),
    )


def fit_length(distance: Array, residuals: Array) -> Array:
    """The length (km) among `LENGTHS_KM` whose exp(-d / length) is nearest the empirical correlations."""
    measured = empirical_correlation(residuals)
    lengths = jnp.asarray(LENGTHS_KM)
    misfit = jax.lax.map(lambda length: jnp.square(jnp.exp(-distance / length) - measured).sum(), lengths)
    return lengths[jnp.argmin(misfit)]


def empirical_correlation(residuals: Array) -> Array:
    """[N, N] from [T, N]; a cell whose error never moves is uncorrelated with the others."""
    centred = residuals - residuals.mean(0)
    unit = centred / jnp.maximum(jnp.sqrt(jnp.square(centred).sum(0)), SMALLEST_SD)
    return jnp.where(jnp.eye(residuals.shape[1], dtype=bool), 1.0, unit.T @ unit)


def wendland(distance: Array) -> Array:
    """(1 - d)^4 (4 d + 1) up to d = 1, then 0: positive definite in up to three dimensions, so a product stays so."""
    return jnp.maximum(1.0 - distance, 0.0) ** 4 * (4.0 * distance + 1.0)


def distances_km(position: Array) -> Array:
    """Euclidean distances [N, N]; along the graph's hops the kernel would not be positive semi-definite."""
    return jnp.linalg.norm(position[:, None] - position[None], axis=-1) / METRES_PER_KM
