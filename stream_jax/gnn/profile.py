"""What a cell's traffic would be if the day went on as days do: a causal daily profile times the present level.

The paper (Section 4.1) only names daily and weekly patterns. City flow is close to a Poisson count around such a
pattern, and its level moves by half over holidays, so the forecaster learns a correction to this anchor, in units of
the anchor's square root, in which counting noise has the same size everywhere.

Everything at step u rests on steps no later than u - horizon, hence on nothing after the origin of any forecast of u.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

EPS = 1e-6
SCALAR_GAIN = 10.0  # lets the few level scalars move as far as they need at the networks' learning rate


@dataclasses.dataclass(frozen=True)
class ProfileConfig:
    """Memory and smoothing of the daily profile; none of it is in the paper."""

    steps_per_day: int = 96
    smoothing: int = 4  # triangular kernel over this many slots on both sides
    day_memory: float = 0.5  # weight of a day relative to the day after it
    week_memory: float = 0.8  # the same from week to week
    week_weight: float = 2.0  # how much the same weekday counts beyond its share among days
    prior: float = 1.0  # in days: weight of the city's shape scaled to the cell
    floor: float = 0.05  # added under the square root, in units of the feature's standard deviation


class Profile(NamedTuple):
    """Expected values in scaled units, and how many remembered days stand behind them."""

    expected: Array  # [L, N, F]; 0 where nothing is known yet
    days: Array  # [L, N, F] remembered days, week lags included


class LevelWeights(NamedTuple):
    """Learned scalars of the present level, each 0 at its default."""

    city_memory: Array  # [F] how fast the city's ratio to its profile forgets
    cell_memory: Array  # [F] how fast a cell's ratio to the city forgets
    cell_prior: Array  # [F] evidence a cell needs before it leaves the city's ratio
    cell_power: Array  # [H, F] how much of the cell's ratio lasts until each horizon


class Anchor(NamedTuple):
    """Profile times level around one origin, in scaled units."""

    history: Array  # [T, N, F] at the city's present level
    future: Array  # [H, N, F] at the city's and the cell's present level
    city: Array  # [T, F] log ratio of city to profile, relative to the present one
    cell: Array  # [N, F] log ratio of cell to city


def causal_profile(values: Array, observed: Array, horizon: int, cfg: ProfileConfig) -> Profile:
    """Smoothed same-time-of-day mean over earlier days, shrunk towards the city's shape.

    Args: values [L, N, F] scaled, 0 where not observed; observed [L, N, F] bool.
    """
    weight = observed.astype(values.dtype)
    total, count = _remembered(values, cfg), _remembered(weight, cfg)  # [L, N, F]
    return _shrunk(total, count, _running(values, horizon), _running(weight, horizon), cfg)


def crossed_profile(values: Array, observed: Array, cfg: ProfileConfig) -> Profile:
    """The same mean over all other days, later ones too, but never the step's own day.

    For training windows only: the first days of a recording have no earlier ones, and what a network learns from
    their poor causal profile is wrong for every later day.
    """
    weight = observed.astype(values.dtype)
    both = [_remembered(part, cfg) + _remembered(part[::-1], cfg)[::-1] for part in (values, weight)]
    whole = [jnp.broadcast_to(part.sum(0), part.shape) for part in (values, weight)]
    return _shrunk(*both, *whole, cfg)


def initial_levels(horizon: int, features: int) -> LevelWeights:
    """The defaults: zeros."""
    return LevelWeights(*(jnp.zeros(features),) * 3, jnp.zeros((horizon, features)))


def anchor(levels: LevelWeights, values: Array, observed: Array, past: Array, future: Array) -> Anchor:
    """Scales the profile to the level of the window.

    Args: values, observed, past [T, N, F]: the window and its profile; future [H, N, F]: profile of the horizon.
    """
    weight = (observed & (past > 0)).astype(values.dtype)
    values, past_known = values * weight, past * weight
    age = jnp.arange(values.shape[0] - 1, -1, -1.0)[:, None]  # [T, 1] steps before the origin
    city_memory = jax.nn.sigmoid(-1.5 + SCALAR_GAIN * levels.city_memory) ** age  # 0.18 per step at the default
    cell_memory = jax.nn.sigmoid(1.5 + SCALAR_GAIN * levels.cell_memory) ** age  # 0.82 per step
    cell_prior = jnp.exp(SCALAR_GAIN * levels.cell_prior)
    city_values, city_past = values.sum(1), past_known.sum(1)  # [T, F]
    step_ratio = _ratio_or_one(city_values, city_past)
    city = _ratio_or_one((city_memory * city_values).sum(0), (city_memory * city_past).sum(0))  # [F]
    evidence = (cell_memory[:, None] * values).sum(0)  # [N, F]
    expected = (cell_memory[:, None] * past_known * step_ratio[:, None]).sum(0)
    cell = jnp.log((evidence + cell_prior) / (expected + cell_prior))
    power = 1.0 + SCALAR_GAIN * levels.cell_power[:, None]
    return Anchor(
        history=past * city,
        future=future * city * jnp.exp(power * cell),
        city=jnp.log(jnp.maximum(step_ratio, EPS)) - jnp.log(jnp.maximum(city, EPS)),
        cell=cell,
    )


def noise_scale(expected: Array, cfg: ProfileConfig) -> Array:
    """Square root of the anchor: the size of counting noise up to a constant."""
    return jnp.sqrt(expected + cfg.floor)


def _shrunk(total: Array, count: Array, past_total: Array, past_count: Array, cfg: ProfileConfig) -> Profile:
    """Mean over remembered days with one prior day: the cell's mean times the city's daily shape."""
    city_mean = _ratio(past_total.sum(1), past_count.sum(1))[:, None]  # [L, 1, F]
    cell_mean = (past_total + city_mean) / (past_count + 1.0)  # one step's worth of the city, so a new cell is defined
    city_days = count.mean(1, keepdims=True)
    city_shape = (total.mean(1, keepdims=True) + EPS * city_mean) / (city_days + EPS)
    prior = jnp.where(city_mean > 0, cell_mean * city_shape / jnp.maximum(city_mean, EPS), 0.0)
    return Profile((total + cfg.prior * prior) / (count + cfg.prior), count)


def _remembered(values: Array, cfg: ProfileConfig) -> Array:
    """Decaying sum over earlier days and, again, over earlier weeks, at the same time of day; [L, N, F]."""
    smooth = _smooth(values, cfg.smoothing)
    days = _lagged_sum(smooth, cfg.steps_per_day, cfg.day_memory)
    weeks = _lagged_sum(smooth, 7 * cfg.steps_per_day, cfg.week_memory)
    return days + cfg.week_weight * weeks


def _smooth(values: Array, width: int) -> Array:
    """Triangular kernel of unit mass over time; weight is lost at the ends for values and counts alike."""
    length = values.shape[0]
    padded = jnp.pad(values, ((width, width), *((0, 0),) * (values.ndim - 1)))
    parts = ((width + 1.0 - abs(k)) * padded[width + k : width + k + length] for k in range(-width, width + 1))
    return sum(parts) / (width + 1.0) ** 2


def _lagged_sum(values: Array, lag: int, memory: float) -> Array:
    """s[u] = memory (s[u - lag] + values[u - lag]), zero before the first lag."""
    length = values.shape[0]
    periods = -(-length // lag)
    padded = jnp.pad(values, ((0, periods * lag - length), *((0, 0),) * (values.ndim - 1)))
    stacked = padded.reshape(periods, lag, *values.shape[1:])

    def step(carry: Array, value: Array) -> tuple[Array, Array]:
        return memory * (carry + value), carry

    _, sums = jax.lax.scan(step, jnp.zeros_like(stacked[0]), stacked)
    return sums.reshape(periods * lag, *values.shape[1:])[:length]


def _running(values: Array, horizon: int) -> Array:
    """Sum of everything up to `horizon` steps before, [L, ...]."""
    total = jnp.cumsum(values, axis=0)
    return jnp.concatenate([jnp.zeros_like(total[:horizon]), total[: total.shape[0] - horizon]])


def _ratio(numerator: Array, denominator: Array) -> Array:
    return jnp.where(denominator > 0, numerator / jnp.where(denominator > 0, denominator, 1.0), 0.0)


def _ratio_or_one(numerator: Array, denominator: Array) -> Array:
    return jnp.where(denominator > 0, numerator / jnp.where(denominator > 0, denominator, 1.0), 1.0)
