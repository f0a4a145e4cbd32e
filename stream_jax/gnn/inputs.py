"""What the forecaster sees at an origin: how the anchor erred lately, and the units of its answer.

Section 4.1 leaves scaling open; the units here come from the training part alone. Windows hold the standardised errors
of the anchor's one-step forecasts: what level and daily pattern explain is gone, what cells can tell is left.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.gnn.decompose import seasonal_mean
from stream_jax.gnn.network import ForecasterConfig
from stream_jax.gnn.profile import EPS, causal_anchors, noise_scale
from stream_jax.types import ForecastData, TrafficSeries

FEW_DAYS = 5.0  # days behind a profile at which its errors count half in training
INPUT_CLIP = 6.0  # standardised inputs beyond this are incidents; their size carries no further information


class Scaler(NamedTuple):
    """Units learned from the training part only; kept with the weights so that a checkpoint stands alone."""

    scale: Array  # [F] standard deviation of each feature, physical units
    unit: Array  # [F] spread of the anchor's error in units of its noise scale
    seasonal: Array  # [steps_per_day, N, F] scaled training mean by time of day


class Prepared(NamedTuple):
    """A recording in scaled units with the anchors issued at every step of it."""

    values: Array  # [L, N, F], 0 where not observed
    observed: Array  # [L, N, F] bool
    clock: Array  # [L, 4]
    seasonal: Array  # [L, N, F]
    future: Array  # [L, H, N, F] anchors
    plain: Array  # [L, H, N, F] the same without any cell's own level and little of its own shape
    days: Array  # [L, N, F] days that stand behind them


class Inputs(NamedTuple):
    """What the network sees at one origin, and the units of its answer."""

    window: Array  # [T, N, F] standardised errors of the anchor one step before
    season: Array  # [T, N, F] the same of the seasonal mean at the window's level
    context: Array  # [N, ·] shape of the coming hour, the cells' own levels and shapes, the city's errors, calendar
    centre: Array  # [H, N, G] anchor of the targets, scaled units
    spread: Array  # [H, N, G] size of one standardised unit, scaled units


def fit_inputs(data: ForecastData, cfg: ForecasterConfig) -> tuple[Scaler, Prepared]:
    """Scales from observed entries of the training part alone, and the recording in them."""
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
    prepared = prepare(series, scaler, cfg)  # does not read the unit
    return scaler._replace(unit=_anchor_error(data, prepared, cfg)), prepared


def prepare(series: TrafficSeries, scaler: Scaler, cfg: ForecasterConfig) -> Prepared:
    """Scales a recording and runs the causal anchors over it."""
    values = jnp.where(series.observed, series.values / scaler.scale, 0.0)
    anchors = causal_anchors(values, series.observed, series.slot, cfg.horizon, cfg.profile)
    seasonal = scaler.seasonal[series.slot % cfg.profile.steps_per_day]
    return Prepared(values, series.observed, series.clock, seasonal, anchors.future, anchors.plain, anchors.days)


def training_steps(data: ForecastData, cfg: ForecasterConfig) -> Array:
    """Steps inside the training part, [L] bool: from the first window's first step to the last one's last target."""
    steps = jnp.arange(data.series.values.shape[0])
    return (steps >= data.train.min() - cfg.history + 1) & (steps <= data.train.max() + cfg.horizon)


def trust_at(prepared: Prepared, origins: Array, cfg: ForecasterConfig) -> Array:
    """Weight of a window's targets in training, [B, 1, N, G]: near 0 on the first day, which has no profile yet."""
    return _trust(prepared.days[origins][:, None][..., jnp.array(cfg.targets)])


def inputs_at(prepared: Prepared, scaler: Scaler, origin: Array, cfg: ForecasterConfig) -> Inputs:
    """Everything the network may know at one origin; reads no value after it."""
    past = origin + jnp.arange(1 - cfg.history, 1)
    targets = jnp.array(cfg.targets)
    values, foreseen = prepared.values[past], prepared.future[jnp.maximum(past - 1, 0), 0]  # [T, N, F]
    known = prepared.observed[past] & (foreseen > 0)
    unit = scaler.unit * noise_scale(foreseen, cfg.profile)
    window = jnp.where(known, (values - foreseen) / unit, 0.0)
    usual = jnp.where(known, prepared.seasonal[past], 0.0)
    level = jnp.where(known, values, 0.0).sum((0, 1)) / jnp.maximum(usual.sum((0, 1)), EPS)  # [F]
    season = jnp.where(known, (usual * level - foreseen) / unit, 0.0)
    centre = prepared.future[origin][..., targets]  # [H, N, G]
    spread = scaler.unit[targets] * noise_scale(centre, cfg.profile)
    own = _clip((prepared.plain[origin][..., targets] - centre) / spread)
    return Inputs(
        window=_clip(window),
        season=_clip(season),
        context=_context(prepared, _clip(window)[..., targets], centre, own, foreseen[-1][..., targets], origin, cfg),
        centre=centre,
        spread=spread,
    )


def _context(
    prepared: Prepared, window: Array, ahead: Array, own: Array, foreseen: Array, origin: Array, cfg: ForecasterConfig
) -> Array:
    """Shape of the coming hour, the anchor's distance from the plain one, size, the city's mean error of each step and,
    if asked for, the calendar, [N, ·].

    Args: window [T, N, G]; ahead, own [H, N, G]; foreseen [N, G].
    """
    cells, floor = foreseen.shape[0], cfg.profile.floor
    shape = jnp.log((ahead + floor) / (foreseen + floor))
    by_cell = jnp.moveaxis(jnp.concatenate([shape, own]), 0, 1).reshape(cells, -1)
    city = jnp.broadcast_to(window.mean(1).ravel(), (cells, cfg.history * foreseen.shape[1]))
    parts = [by_cell, jnp.log(foreseen + floor), city]
    if cfg.calendar:
        parts.append(jnp.broadcast_to(prepared.clock[origin], (cells, 4)))
    return jnp.concatenate(parts, -1)


def targets_at(prepared: Prepared, origins: Array, cfg: ForecasterConfig) -> tuple[Array, Array]:
    """Scaled targets and their mask, [B, H, N, G]."""
    ahead = origins[:, None] + jnp.arange(1, cfg.horizon + 1)
    targets = jnp.array(cfg.targets)
    return prepared.values[ahead][..., targets], prepared.observed[ahead][..., targets]


def _anchor_error(data: ForecastData, prepared: Prepared, cfg: ForecasterConfig) -> Array:
    """Root mean square of the anchor's error over the training windows in units of its noise scale, [F]."""

    def squares(origin: Array) -> tuple[Array, Array]:
        ahead = origin + jnp.arange(1, cfg.horizon + 1)
        expected, days = prepared.future[origin], prepared.days[origin]
        error = (prepared.values[ahead] - expected) / noise_scale(expected, cfg.profile)
        mask = prepared.observed[ahead] * _trust(days)
        return (mask * error**2).sum((0, 1)), mask.sum((0, 1))

    totals, counts = jax.lax.map(squares, data.train, batch_size=64)
    mean = totals.sum(0) / jnp.maximum(counts.sum(0), EPS)
    return jnp.where(mean > 0, jnp.sqrt(mean), 1.0)


def _trust(days: Array) -> Array:
    """How far errors made with so many days behind the profile resemble those of a long recording."""
    return (days + 1e-3) / (days + FEW_DAYS)


def _clip(errors: Array) -> Array:
    return jnp.clip(errors, -INPUT_CLIP, INPUT_CLIP)
