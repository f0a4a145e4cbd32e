"""What the reference forecasters share: causal seasonal profiles, windows by origin, residual spreads.

A profile value for step u rests on steps at least `lag` before u. With a lag of the horizon or more it is known at
every origin from which u is forecast. Slots are local, so a change of clock does not shift the day.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.types import Forecast, ForecastData, TrafficSeries

TARGET = 0  # feature forecast: flow
EPS = 1e-6
SIGMA_FLOOR = 0.1  # smallest sigma of a cell, as a share of the city's residual spread at that horizon
PRIOR_STEPS = 4.0  # steps of the city's spread mixed into each cell's


@dataclasses.dataclass(frozen=True)
class WindowConfig:
    """Sizes of a forecasting window."""

    history: int = 12
    horizon: int = 4
    steps_per_day: int = 96

    def __post_init__(self) -> None:
        if self.horizon >= self.steps_per_day:
            raise ValueError("a profile by slot of the day needs a horizon below one day")


class Profile(NamedTuple):
    """Causal mean of the earlier steps of the same kind, and how many (smoothed) observations it rests on."""

    mean: Array  # [L, N]
    count: Array  # [L, N]


def flow_of(series: TrafficSeries) -> tuple[Array, Array]:
    """The forecast feature and its mask as float: [L, N] each; 0 where not observed."""
    observed = series.observed[..., TARGET].astype(jnp.float32)
    return series.values[..., TARGET] * observed, observed


def targets(series: TrafficSeries, origins: Array, horizon: int) -> tuple[Array, Array]:
    """Labels after each origin and whether they were observed: [W, H, N] each; past the end counts as not observed."""
    flow, observed = flow_of(series)
    step = origins[:, None] + 1 + jnp.arange(horizon)  # [W, H]
    inside = (step < flow.shape[0])[:, :, None]
    step = jnp.minimum(step, flow.shape[0] - 1)
    return flow[step], (observed[step] > 0) & inside


def triangle(reach: int | Array, most: int) -> Array:
    """Smoothing weights [2 most + 1] that fall evenly from 1 to 0 over `reach` <= most slots to each side."""
    return jnp.maximum(1.0 - jnp.abs(jnp.arange(-most, most + 1)) / (reach + 1), 0.0)


def seasonal_profile(
    series: TrafficSeries, kind: Array, num_kinds: int, last_step: Array, lag: int | Array, weights: Array
) -> Profile:
    """Mean, at each step u, of the observations of the kind of u among the steps <= min(u - lag, last_step).

    Args:
        series: recording; its slots must advance by one a step.
        kind: [L] int32, for example the slot of the day.
        num_kinds: K; neighbouring kinds are neighbours in time.
        last_step: [] newest step that may be learnt from.
        lag: at least the horizon.
        weights: [odd]; an observation also counts, with these weights, for the kinds around its own.
    """
    flow, observed = flow_of(series)
    num_steps, num_cells = flow.shape
    offsets = jnp.arange(len(weights)) - len(weights) // 2
    shares = weights[:, None]

    def step(tables: tuple[Array, Array], u: Array) -> tuple[tuple[Array, Array], Profile]:
        learnt = u - lag
        share = jnp.where((learnt >= 0) & (learnt <= last_step), shares, 0.0)  # [offsets, 1]
        rows = (kind[learnt] + offsets) % num_kinds
        total = tables[0].at[rows].add(share * flow[learnt])
        count = tables[1].at[rows].add(share * observed[learnt])
        return (total, count), Profile(total[kind[u]] / jnp.maximum(count[kind[u]], EPS), count[kind[u]])

    empty = jnp.zeros((num_kinds, num_cells))
    return jax.lax.scan(step, (empty, empty), jnp.arange(num_steps))[1]


@partial(jax.jit, static_argnames=("cfg", "profile", "most"))
def flow_profiles(
    data: ForecastData, cfg: WindowConfig, profile: str, reach: int | Array, most: int
) -> tuple[Profile, Profile, Profile, Profile]:
    """Profiles by slot of the week, slot of the day on weekdays or weekends, slot of the day, and the plain mean.

    Args:
        profile: "train" (learns from training steps only) or "expanding" (all steps up to the origin).
        reach: slots to each side over which the seasonal ones are smoothed.
        most: largest reach; with the same one, every reach is compiled once.
    """
    series = data.series
    newest = newest_training_step(data, cfg.horizon) if profile == "train" else series.slot.shape[0]
    day = series.slot % cfg.steps_per_day
    is_weekend = series.slot >= 5 * cfg.steps_per_day
    kinds = (
        (series.slot, 7 * cfg.steps_per_day),
        (day + is_weekend * cfg.steps_per_day, 2 * cfg.steps_per_day),
        (day, cfg.steps_per_day),
    )
    lag, weights = cfg.horizon + reach, triangle(reach, most)
    seasonal = [seasonal_profile(series, kind, num, newest, lag, weights) for kind, num in kinds]
    plain = seasonal_profile(series, jnp.zeros_like(day), 1, newest, lag, jnp.ones(1))
    return (*seasonal, plain)


def back_off(fine: Profile, coarse: Profile, strength: float | Array) -> Profile:
    """Posterior mean of the fine profile when the coarse one is worth `strength` observations of it.

    Strength 0 uses the coarse profile only where the fine kind was never seen.
    """
    strength = jnp.where(coarse.count > 0, jnp.maximum(strength, EPS), 0.0)
    count = fine.count + strength
    mean = (fine.count * fine.mean + strength * coarse.mean) / jnp.maximum(count, EPS)
    return Profile(mean, jnp.where(fine.count > 0, fine.count, coarse.count))


def residual_sigma(mean: Array, target: Array, mask: Array) -> Array:
    """Root mean square residual per horizon and cell, drawn a little to the city's and floored: [H, N], > 0."""
    squared = jnp.where(mask, (target - mean) ** 2, 0.0)
    city = jnp.sum(squared, axis=(0, 2)) / jnp.maximum(jnp.sum(mask, axis=(0, 2)), 1)  # [H]
    city = jnp.maximum(city, EPS)[:, None]
    variance = (squared.sum(axis=0) + PRIOR_STEPS * city) / (mask.sum(axis=0) + PRIOR_STEPS)
    return jnp.sqrt(jnp.maximum(variance, SIGMA_FLOOR**2 * city))


def mean_square(mean: Array, target: Array, mask: Array) -> Array:
    """Mean squared error per horizon [H], by which settings are chosen on the validation origins."""
    squared = jnp.where(mask, (target - mean) ** 2, 0.0)
    return squared.sum(axis=(0, 2)) / jnp.maximum(mask.sum(axis=(0, 2)), 1)


def newest_training_step(data: ForecastData, horizon: int) -> Array:
    """Last step that belongs to the training windows."""
    return data.train.max() + horizon


def with_sigma(mean: Array, sigma: Array) -> Forecast:
    """Forecast [W, H, N] with the same sigma [H, N] at every origin."""
    return Forecast(mean=mean, sigma=jnp.broadcast_to(sigma, mean.shape))
