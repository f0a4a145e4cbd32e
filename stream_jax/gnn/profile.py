"""What a cell's traffic would be if the day went on as days do: causal daily profiles times the present level.

The paper (Section 4.1) only names daily and weekly patterns. City flow is close to a Poisson count around such a
pattern, and its level moves by half over holidays, so the forecaster learns a correction to this anchor, in units of
the anchor's square root, in which counting noise has the same size everywhere.

How long to remember a day, and how far to believe a cell's own level, cannot be tuned on ordinary days for the days
that are not: several memories run side by side as experts and are weighed online by their errors of the last hours
(exponential weights, as in prediction with expert advice). Everything issued at a step rests on nothing after it.
"""

import dataclasses
import itertools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class ProfileConfig:
    """The experts and how they are weighed; none of it is in the paper, and none was tuned on a test part."""

    steps_per_day: int = 96
    smoothing: int = 4  # triangular kernel over this many slots on both sides
    week_memory: float = 0.8  # weight of a week relative to the week after it
    prior: float = 1.0  # in days: weight of the city's shape scaled to the cell
    floor: float = 0.05  # added under the square root, in units of the feature's standard deviation
    # Profiles: weight of a day relative to the day after it, and of the same weekday beyond its share among days.
    days: tuple[tuple[float, float], ...] = ((0.3, 2.0), (0.6, 2.0), (0.9, 2.0), (0.9, 20.0))
    cell_memories: tuple[float, ...] = (0.8, 0.95, 0.985)  # per step: how slowly a cell's ratio to the city forgets
    cell_priors: tuple[float, ...] = (0.25, 2.0)  # evidence before a cell leaves the city's ratio, scaled units
    city_memory: float = 0.3  # per step: how slowly the city's ratio to its profile forgets
    weight_memory: float = 0.95  # per step: how slowly an expert's errors are forgotten
    sharpness: float = 20.0  # of the experts' weights, per unit of mean squared standardised error


class Profile(NamedTuple):
    """Expected values in scaled units, and how many remembered days stand behind them."""

    expected: Array  # [L, N, F]; 0 where nothing is known yet
    days: Array  # [L, N, F] remembered days, week lags included


class Anchors(NamedTuple):
    """The weighed forecast of all experts, issued at every step of a recording."""

    future: Array  # [L, H, N, F] scaled units: the next H steps, as seen from each step
    weight: Array  # [L, E, F] the experts' weights behind it
    days: Array  # [L, N, F] days that stand behind the first profile


class Levels(NamedTuple):
    """What the scan carries from step to step, for one feature; P profiles, C cell memories, E experts."""

    city: Array  # [2, P] decayed city sums: observed, expected
    cell: Array  # [2, P, C, N] decayed cell sums: observed, expected at the city's level
    pending: Array  # [H, E, H, N] forecasts of the last H steps, newest first
    loss: Array  # [E] decayed squared standardised errors
    count: Array  # [] decayed number of errors


def causal_anchors(values: Array, observed: Array, horizon: int, cfg: ProfileConfig) -> Anchors:
    """Runs all experts over a recording.

    Args: values [L, N, F] scaled, 0 where not observed; observed [L, N, F] bool.
    """
    ahead = ((0, horizon), (0, 0), (0, 0))
    padded = jnp.pad(values, ahead), jnp.pad(observed, ahead)
    profiles = [causal_profile(*padded, horizon, memory, week, cfg) for memory, week in cfg.days]
    expected = jnp.stack([profile.expected for profile in profiles], axis=1)  # [L + H, P, N, F]
    over_features = jax.vmap(partial(_run, horizon=horizon, cfg=cfg), in_axes=-1, out_axes=-1)
    future, weight = over_features(values, observed, expected)
    return Anchors(future, weight, profiles[0].days[: values.shape[0]])


def causal_profile(
    values: Array, observed: Array, horizon: int, day_memory: float, week_weight: float, cfg: ProfileConfig
) -> Profile:
    """Smoothed same-time-of-day mean over earlier days, shrunk towards the city's shape.

    The profile of a step rests on steps at least `horizon` before it, hence on nothing after any forecast's origin.
    """
    weight = observed.astype(values.dtype)
    total, count = (_remembered(part, day_memory, week_weight, cfg) for part in (values, weight))  # [L, N, F]
    return shrink(total, count, _running(values, horizon), _running(weight, horizon), cfg)


def shrink(total: Array, count: Array, past_total: Array, past_count: Array, cfg: ProfileConfig) -> Profile:
    """A remembered day with `prior` days of the city's shape at the cell's mean added; [·, N, F] all.

    Args: total, count: sums over the remembered days; past_total, past_count: over everything that may be known.
    """
    city_mean = _ratio(past_total.sum(1), past_count.sum(1))[:, None]  # [L, 1, F]
    cell_mean = (past_total + city_mean) / (past_count + 1.0)  # one step's worth of the city, so a new cell is defined
    city_shape = (total.mean(1, keepdims=True) + EPS * city_mean) / (count.mean(1, keepdims=True) + EPS)
    prior = jnp.where(city_mean > 0, cell_mean * city_shape / jnp.maximum(city_mean, EPS), 0.0)
    return Profile((total + cfg.prior * prior) / (count + cfg.prior), count)


def noise_scale(expected: Array, cfg: ProfileConfig) -> Array:
    """Square root of the anchor: the size of counting noise up to a constant."""
    return jnp.sqrt(expected + cfg.floor)


def _run(values: Array, observed: Array, expected: Array, horizon: int, cfg: ProfileConfig) -> tuple[Array, Array]:
    """One feature. Args: values, observed [L, N]; expected [L + H, P, N]. Returns [L, H, N] and [L, E]."""
    length, cells = values.shape

    def step(levels: Levels, at: Array) -> tuple[Levels, tuple[Array, Array]]:
        coming = jax.lax.dynamic_slice_in_dim(expected, at + 1, horizon)  # [H, P, N]
        return advance(levels, values[at], observed[at], expected[at], coming, cfg)

    _, (future, weight) = jax.lax.scan(step, start_levels(cells, horizon, cfg), jnp.arange(length))
    return future, weight


def start_levels(cells: int, horizon: int, cfg: ProfileConfig) -> Levels:
    """Nothing seen yet, for one feature."""
    num_profiles, num_memories = len(cfg.days), len(cfg.cell_memories)
    num_experts = num_profiles * num_memories * len(cfg.cell_priors)
    return Levels(
        jnp.zeros((2, num_profiles)),
        jnp.zeros((2, num_profiles, num_memories, cells)),
        jnp.zeros((horizon, num_experts, horizon, cells)),
        jnp.zeros(num_experts),
        jnp.zeros(()),
    )


def advance(
    levels: Levels, value: Array, observed: Array, expected: Array, coming: Array, cfg: ProfileConfig
) -> tuple[Levels, tuple[Array, Array]]:
    """One step of one feature: the levels after it, the anchors of the next H steps [H, N] and the weights [E].

    Args: value, observed [N]; expected [P, N] profiles of this step; coming [H, P, N] of the next ones.
    """
    seen = observed & (expected > 0)  # [P, N]
    levels = _settle(levels, value, observed, cfg)
    levels = _follow(levels, value * seen, expected * seen, cfg)
    issued = _issue(levels, coming, cfg)
    weight = jax.nn.softmax(-cfg.sharpness * levels.loss / jnp.maximum(levels.count, 1.0))
    pending = jnp.concatenate([issued[None], levels.pending[:-1]])
    return levels._replace(pending=pending), (jnp.einsum("e,ehn->hn", weight, issued), weight)


def _settle(levels: Levels, value: Array, observed: Array, cfg: ProfileConfig) -> Levels:
    """Charges every expert with its errors about this step: the forecast of lead d + 1 was issued d + 1 steps ago."""
    lead = jnp.arange(levels.pending.shape[0])
    made = levels.pending[lead, :, lead]  # [H, E, N]
    scale = noise_scale(made.mean(1, keepdims=True), cfg)
    known = observed & (made.mean(1, keepdims=True) > 0)
    square = jnp.where(known, ((value - made) / scale) ** 2, 0.0)
    return levels._replace(
        loss=cfg.weight_memory * levels.loss + square.sum((0, 2)),
        count=cfg.weight_memory * levels.count + known.sum(),
    )


def _follow(levels: Levels, value: Array, usual: Array, cfg: ProfileConfig) -> Levels:
    """Moves the city's and the cells' levels. Args: value, usual [P, N], 0 where not observed."""
    city_now = jnp.stack([value.sum(-1), usual.sum(-1)])  # [2, P]
    ratio = _ratio_or_one(*city_now)[:, None]  # [P, 1]
    cell_now = jnp.stack([value, usual * ratio])[:, :, None]  # [2, P, 1, N]
    memory = jnp.array(cfg.cell_memories)[:, None]
    return levels._replace(city=cfg.city_memory * levels.city + city_now, cell=memory * levels.cell + cell_now)


def _issue(levels: Levels, coming: Array, cfg: ProfileConfig) -> Array:
    """Profile x city x cell level of every expert, [E, H, N]. Args: coming [H, P, N]."""
    city = _ratio_or_one(*levels.city)[None, :, None]  # [1, P, 1]
    prior = jnp.array(cfg.cell_priors)[:, None]
    observed, expected = levels.cell[:, :, :, None]  # [P, C, 1, N] each
    cell = (observed + prior) / (expected + prior)  # [P, C, K, N]
    scaled = jnp.moveaxis(coming * city, 0, 1)[:, None, None]  # [P, 1, 1, H, N]
    return (scaled * cell[:, :, :, None]).reshape(-1, *scaled.shape[-2:])


def expert_names(cfg: ProfileConfig) -> list[str]:
    """One name per expert, in the order of the weights."""
    parts = itertools.product(cfg.days, cfg.cell_memories, cfg.cell_priors)
    return [f"day {day}, week {week}, cell {memory}, prior {prior}" for (day, week), memory, prior in parts]


def _remembered(values: Array, day_memory: float, week_weight: float, cfg: ProfileConfig) -> Array:
    """Decaying sum over earlier days and, again, over earlier weeks, at the same time of day; [L, N, F]."""
    smooth = _smooth(values, cfg.smoothing)
    days = _lagged_sum(smooth, cfg.steps_per_day, day_memory)
    return days + week_weight * _lagged_sum(smooth, 7 * cfg.steps_per_day, cfg.week_memory)


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
