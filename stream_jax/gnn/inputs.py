"""What the forecaster sees at an origin: the window relative to its anchor, and the units of its answer.

Section 4.1 leaves scaling open; the units here come from the training part alone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.gnn.decompose import seasonal_mean
from stream_jax.gnn.network import ForecasterConfig
from stream_jax.gnn.profile import (
    EPS,
    Anchor,
    LevelWeights,
    anchor,
    causal_profile,
    crossed_profile,
    initial_levels,
    noise_scale,
)
from stream_jax.types import ForecastData, TrafficSeries

INPUT_CLIP = 6.0  # standardised inputs beyond this are incidents; their size carries no further information


class Scaler(NamedTuple):
    """Units learned from the training part only; kept with the weights so that a checkpoint stands alone."""

    scale: Array  # [F] standard deviation of each feature, physical units
    unit: Array  # [F] spread of the anchor's error in units of its noise scale
    seasonal: Array  # [steps_per_day, N, F] scaled training mean by time of day


class Prepared(NamedTuple):
    """A recording in scaled units with its causal profile, `horizon` steps longer than the recording."""

    values: Array  # [L, N, F], 0 where not observed
    observed: Array  # [L, N, F] bool
    clock: Array  # [L, 4]
    seasonal: Array  # [L, N, F]
    expected: Array  # [L + H, N, F]
    days: Array  # [L + H, N, F]


class Inputs(NamedTuple):
    """What the network sees at one origin, and the units of its answer."""

    window: Array  # [T, N, F] standardised deviation from the anchor
    season: Array  # [T, N, F] the same of the seasonal mean
    context: Array  # [N, ·] level, shape of the coming hour, calendar
    centre: Array  # [H, N, G] anchor of the targets, scaled units
    spread: Array  # [H, N, G] size of one standardised unit, scaled units


def fit_scaler(data: ForecastData, cfg: ForecasterConfig) -> Scaler:
    """Scales from observed entries of the training part alone."""
    series, in_train = data.series, training_steps(data, cfg)
    weight = series.observed & in_train[:, None, None]
    values = jnp.where(weight, series.values, 0.0)
    count = jnp.maximum(weight.sum((0, 1)), 1)
    mean = values.sum((0, 1)) / count
    deviation = jnp.where(weight, values - mean, 0.0)
    scale = jnp.sqrt((deviation**2).sum((0, 1)) / count)
    scale = jnp.where(scale > 0, scale, 1.0)  # a constant or never observed feature keeps its unit
    per_day = cfg.profile.steps_per_day
    seasonal = seasonal_mean(series.values / scale, series.observed, series.slot % per_day, in_train, per_day)
    scaler = Scaler(scale, jnp.ones_like(scale), seasonal)
    return scaler._replace(unit=_anchor_error(data, scaler, cfg))


def prepare(series: TrafficSeries, scaler: Scaler, cfg: ForecasterConfig) -> Prepared:
    """Scales a recording and lays its causal profile under it."""
    values = jnp.where(series.observed, series.values / scaler.scale, 0.0)
    ahead = ((0, cfg.horizon), (0, 0), (0, 0))
    profile = causal_profile(jnp.pad(values, ahead), jnp.pad(series.observed, ahead), cfg.horizon, cfg.profile)
    seasonal = scaler.seasonal[series.slot % cfg.profile.steps_per_day]
    return Prepared(values, series.observed, series.clock, seasonal, profile.expected, profile.days)


def prepare_training(data: ForecastData, scaler: Scaler, cfg: ForecasterConfig) -> Prepared:
    """The same for the training part, with each day's profile taken from its other days."""
    prepared = prepare(data.series, scaler, cfg)
    inside = training_steps(data, cfg)[:, None, None]
    profile = crossed_profile(jnp.where(inside, prepared.values, 0.0), prepared.observed & inside, cfg.profile)
    return prepared._replace(expected=profile.expected, days=profile.days)


def training_steps(data: ForecastData, cfg: ForecasterConfig) -> Array:
    """Steps inside the training part, [L] bool: from the first window's first step to the last one's last target."""
    steps = jnp.arange(data.series.values.shape[0])
    return (steps >= data.train.min() - cfg.history + 1) & (steps <= data.train.max() + cfg.horizon)


def trust_at(prepared: Prepared, origins: Array, cfg: ForecasterConfig) -> Array:
    """Weight of a window's targets in training, [B, H, N, G]: near 0 where no other day supports their profile."""
    ahead = origins[:, None] + jnp.arange(1, cfg.horizon + 1)
    days = prepared.days[ahead][..., jnp.array(cfg.targets)]
    return (days + 1e-3) / (days + 0.1)


def inputs_at(
    levels: LevelWeights, prepared: Prepared, scaler: Scaler, origin: Array, factor: Array, cfg: ForecasterConfig
) -> Inputs:
    """Everything the network may know at one origin; reads no value after it.

    Args: factor [N, F] multiplies the window; 1 but for the level shifts imagined in training.
    """
    past = origin + jnp.arange(1 - cfg.history, 1)
    ahead = origin + jnp.arange(1, cfg.horizon + 1)
    values, observed, before = prepared.values[past] * factor, prepared.observed[past], prepared.expected[past]
    level = anchor(levels, values, observed, before, prepared.expected[ahead])
    if cfg.invariant:  # the window then shows what level and profile leave open, and nothing else
        level = level._replace(history=level.history * jnp.exp(level.cell))
    unit = scaler.unit * noise_scale(level.history, cfg.profile)  # [T, N, F]
    known = observed & (before > 0)
    window = jnp.where(known, (values - level.history) / unit, 0.0)
    usual = jnp.where(known, prepared.seasonal[past], 0.0)
    present = jnp.where(known, values, 0.0).sum((0, 1)) / jnp.maximum(usual.sum((0, 1)), EPS)  # [F] level of the window
    season = jnp.where(known, (usual * present - level.history) / unit, 0.0)
    targets = jnp.array(cfg.targets)
    centre = level.future[..., targets]
    spread = jax.lax.stop_gradient(scaler.unit[targets] * noise_scale(centre, cfg.profile))
    return Inputs(
        window=jnp.clip(window, -INPUT_CLIP, INPUT_CLIP),
        season=jnp.clip(season, -INPUT_CLIP, INPUT_CLIP),
        context=_context(prepared, level, origin, ahead, targets, cfg),
        centre=centre,
        spread=spread,
    )


def _context(
    prepared: Prepared, level: Anchor, origin: Array, ahead: Array, targets: Array, cfg: ForecasterConfig
) -> Array:
    """Level, shape of the coming hour, trust in the profile and calendar, [N, ·]."""
    cells = level.cell.shape[0]
    log_future = jnp.log(level.future + cfg.profile.floor)  # [H, N, F]
    shape = (log_future - jnp.log(level.history[-1:] + cfg.profile.floor))[..., targets]
    days = prepared.days[ahead[0]][:, targets]
    city = level.city[:, targets].ravel()
    parts = [jnp.moveaxis(shape, 0, 1).reshape(cells, -1), jnp.broadcast_to(city, (cells, city.shape[0]))]
    if not cfg.invariant:
        clock = jnp.broadcast_to(prepared.clock[origin], (cells, 4))
        parts += [log_future[0], level.cell, days / (1.0 + days), clock]
    return jnp.concatenate(parts, -1)


def targets_at(prepared: Prepared, origins: Array, cfg: ForecasterConfig) -> tuple[Array, Array]:
    """Scaled targets and their mask, [B, H, N, G]."""
    ahead = origins[:, None] + jnp.arange(1, cfg.horizon + 1)
    targets = jnp.array(cfg.targets)
    return prepared.values[ahead][..., targets], prepared.observed[ahead][..., targets]


def _anchor_error(data: ForecastData, scaler: Scaler, cfg: ForecasterConfig) -> Array:
    """Root mean square of the anchor's error over the training windows in units of its noise scale, [F]."""
    prepared = prepare_training(data, scaler, cfg)
    levels = initial_levels(cfg.horizon, scaler.scale.shape[0])

    def squares(origin: Array) -> tuple[Array, Array]:
        past = origin + jnp.arange(1 - cfg.history, 1)
        ahead = origin + jnp.arange(1, cfg.horizon + 1)
        window = prepared.values[past], prepared.observed[past], prepared.expected[past]
        expected = anchor(levels, *window, prepared.expected[ahead]).future
        error = (prepared.values[ahead] - expected) / noise_scale(expected, cfg.profile)
        days = prepared.days[ahead]
        mask = prepared.observed[ahead] * (days + 1e-3) / (days + 0.1)
        return (mask * error**2).sum((0, 1)), mask.sum((0, 1))

    total, count = jax.lax.map(squares, data.train)
    unit = jnp.sqrt(total.sum(0) / jnp.maximum(count.sum(0), EPS))
    return jnp.where(unit > 0, unit, 1.0)
