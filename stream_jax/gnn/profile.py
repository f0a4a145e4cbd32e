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
from functools import partial, reduce
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
    # More profiles: weight of a day relative to the day after it, and of days of the same kind (working or weekend).
    kind: tuple[float, float] = (0.98, 5.0)
    kind_priors: tuple[float, ...] = (1.0, 20.0)  # their `prior`; with few vehicles a cell's own shape is mostly noise
    cell_memories: tuple[float, ...] = (0.5, 0.8, 0.95, 0.985)  # per step: how slowly a cell's ratio forgets
    cell_priors: tuple[float, ...] = (0.25, 4.0, 32.0)  # evidence before a cell leaves the city's ratio, scaled units
    city_drift: float = 0.025  # per step: how far the city's level wanders, which with counting noise sets its memory
    city_memory: float | None = None  # per step: the same memory for every city, as in older checkpoints
    weight_memory: float = 0.95  # per step: how slowly an expert's errors are forgotten
    sharpness: float = 200.0  # of the experts' weights, per unit of mean squared standardised error

    @property
    def num_profiles(self) -> int:
        """Profiles by day and week, then those by kind of day, of which the last is the plain one."""
        return len(self.days) + len(self.kind_priors)


class Profile(NamedTuple):
    """Expected values in scaled units, and how many remembered days stand behind them."""

    expected: Array  # [L, N, F]; 0 where nothing is known yet
    days: Array  # [L, N, F] remembered days, week lags included


class Anchors(NamedTuple):
    """The weighed forecast of all experts, issued at every step of a recording."""

    future: Array  # [L, H, N, F] scaled units: the next H steps, as seen from each step
    plain: Array  # [L, H, N, F] the last profile by kind of day at the city's level: no cell's own level
    weight: Array  # [L, E, F] the experts' weights behind the forecast
    days: Array  # [L, N, F] days that stand behind the plain profile


class Levels(NamedTuple):
    """What the scan carries from step to step, for one feature; P profiles, C cell memories, E experts."""

    city: Array  # [2, P] the city's ratio to its profiles, and the expected sum that it rests on
    cell: Array  # [2, P, C, N] decayed cell sums: observed, expected at the city's level
    pending: Array  # [H, E, N] what the experts multiplied their profiles by at the last H steps, newest first
    loss: Array  # [E] decayed squared standardised errors
    count: Array  # [] decayed number of errors


def causal_anchors(values: Array, observed: Array, slot: Array, horizon: int, cfg: ProfileConfig) -> Anchors:
    """Runs all experts over a recording.

    Args: values [L, N, F] scaled, 0 where not observed; observed [L, N, F] bool; slot [L] of the week.
    """
    ahead = ((0, horizon), (0, 0), (0, 0))
    padded = jnp.pad(values, ahead), jnp.pad(observed, ahead)
    weekend = is_weekend(jnp.concatenate([slot, slot[-1] + jnp.arange(1, horizon + 1)]), cfg)
    profiles = [causal_profile(*padded, None, horizon, memory, week, cfg) for memory, week in cfg.days]
    profiles += [causal_profile(*padded, weekend, horizon, *cfg.kind, cfg, prior) for prior in cfg.kind_priors]
    expected = jnp.stack([profile.expected for profile in profiles], axis=1)  # [L + H, P, N, F]
    over_features = jax.vmap(partial(_run, horizon=horizon, cfg=cfg), in_axes=-1, out_axes=-1)
    days = profiles[-1].days[: values.shape[0]] / (1.0 + cfg.kind[1])
    return Anchors(*over_features(values, observed, expected), days=days)


def is_weekend(slot: Array, cfg: ProfileConfig) -> Array:
    """Whether a slot of the week, Monday 00:00 being 0, lies on a Saturday or Sunday; slots may run past the week."""
    return (slot // cfg.steps_per_day) % 7 >= 5


def causal_profile(
    values: Array,
    observed: Array,
    weekend: Array | None,
    horizon: int,
    day_memory: float,
    extra_weight: float,
    cfg: ProfileConfig,
    prior: float | None = None,
) -> Profile:
    """Smoothed same-time-of-day mean over earlier days, shrunk towards the city's shape.

    The profile of a step rests on steps at least `horizon` before it, hence on nothing after any forecast's origin.

    Args:
        weekend: [L] gives the extra weight to days of the same kind; None gives it to the same weekday.
        prior: days that the city's shape is worth, the config's unless given.
    """
    weight = observed.astype(values.dtype)
    total, count = (_remembered(part, weekend, day_memory, extra_weight, cfg) for part in (values, weight))  # [L, N, F]
    prior = cfg.prior if prior is None else prior
    return shrink(total, count, _running(values, horizon), _running(weight, horizon), prior)


def shrink(total: Array, count: Array, past_total: Array, past_count: Array, weight: float | Array) -> Profile:
    """A remembered day with `weight` days of the city's shape at the cell's mean added; [·, N, F] all.

    Args: total, count: sums over the remembered days; past_total, past_count: over everything that may be known.
    """
    city_mean = _ratio(past_total.sum(1), past_count.sum(1))[:, None]  # [L, 1, F]
    cell_mean = (past_total + city_mean) / (past_count + 1.0)  # one step's worth of the city, so a new cell is defined
    city_shape = (total.mean(1, keepdims=True) + EPS * city_mean) / (count.mean(1, keepdims=True) + EPS)
    prior = jnp.where(city_mean > 0, cell_mean * city_shape / jnp.maximum(city_mean, EPS), 0.0)
    return Profile((total + weight * prior) / (count + weight), count)


def noise_scale(expected: Array, cfg: ProfileConfig) -> Array:
    """Square root of the anchor: the size of counting noise up to a constant."""
    return jnp.sqrt(expected + cfg.floor)


def _run(values: Array, observed: Array, expected: Array, horizon: int, cfg: ProfileConfig) -> tuple[Array, ...]:
    """One feature. Args: values, observed [L, N]; expected [L + H, P, N]. Returns [L, H, N] twice and [L, E]."""
    length, cells = values.shape

    def step(levels: Levels, at: Array) -> tuple[Levels, tuple[Array, Array, Array]]:
        coming = jax.lax.dynamic_slice_in_dim(expected, at + 1, horizon)  # [H, P, N]
        return advance(levels, values[at], observed[at], expected[at], coming, cfg)

    return jax.lax.scan(step, start_levels(cells, horizon, cfg), jnp.arange(length))[1]


def start_levels(cells: int, horizon: int, cfg: ProfileConfig) -> Levels:
    """Nothing seen yet, for one feature."""
    num_profiles, num_memories = cfg.num_profiles, len(cfg.cell_memories)
    num_experts = num_profiles * num_memories * len(cfg.cell_priors)
    return Levels(
        jnp.stack([jnp.ones(num_profiles), jnp.zeros(num_profiles)]),
        jnp.zeros((2, num_profiles, num_memories, cells)),
        jnp.zeros((horizon, num_experts, cells)),
        jnp.zeros(num_experts),
        jnp.zeros(()),
    )


def advance(
    levels: Levels, value: Array, observed: Array, expected: Array, coming: Array, cfg: ProfileConfig
) -> tuple[Levels, tuple[Array, Array, Array]]:
    """One step of one feature: the levels after it; anchors and plain anchors of the next H steps [H, N]; weights [E].

    Args: value, observed [N]; expected [P, N] profiles of this step; coming [H, P, N] of the next ones.
    """
    seen = observed & (expected > 0)  # [P, N]
    levels = _settle(levels, value, observed, expected, cfg)
    levels = _follow(levels, value * seen, expected * seen, cfg)
    factors = _factors(levels, cfg)
    weight = jax.nn.softmax(-cfg.sharpness * levels.loss / jnp.maximum(levels.count, 1.0))
    pending = jnp.concatenate([factors[None], levels.pending[:-1]])
    by_profile = (weight[:, None] * factors).reshape(coming.shape[1], -1, coming.shape[2]).sum(1)  # [P, N]
    plain = coming[:, -1] * levels.city[0, -1]
    return levels._replace(pending=pending), ((coming * by_profile).sum(1), plain, weight)


def _settle(levels: Levels, value: Array, observed: Array, expected: Array, cfg: ProfileConfig) -> Levels:
    """Charges every expert with its errors about this step: the forecast of lead d + 1 was issued d + 1 steps ago.

    All of them rested on the profiles of this step, `expected` [P, N], which are settled before any is issued.
    """
    made = levels.pending * jnp.repeat(expected, levels.pending.shape[1] // expected.shape[0], axis=0)  # [H, E, N]
    scale = noise_scale(made.mean(1, keepdims=True), cfg)
    known = observed & (made.mean(1, keepdims=True) > 0)
    square = jnp.where(known, ((value - made) / scale) ** 2, 0.0)
    return levels._replace(
        loss=cfg.weight_memory * levels.loss + square.sum((0, 2)),
        count=cfg.weight_memory * levels.count + known.sum(),
    )


def _follow(levels: Levels, value: Array, usual: Array, cfg: ProfileConfig) -> Levels:
    """Moves the city's and the cells' levels. Args: value, usual [P, N], 0 where not observed."""
    # The best expert's squared error over its forecast: counting noise, and what it errs about the level.
    dispersion = jnp.where(levels.count > 0, levels.loss.min() / jnp.where(levels.count > 0, levels.count, 1.0), 1.0)
    city = follow_city(levels.city, value.sum(-1), usual.sum(-1), dispersion, cfg)
    ratio = city[0] if cfg.city_memory is None else 1.0 + _ratio(value.sum(-1) - usual.sum(-1), usual.sum(-1))
    cell_now = jnp.stack([value, usual * ratio[:, None]])[:, :, None]  # [2, P, 1, N]
    memory = jnp.array(cfg.cell_memories)[:, None]
    return levels._replace(city=city, cell=memory * levels.cell + cell_now)


def follow_city(city: Array, value: Array, usual: Array, dispersion: Array, cfg: ProfileConfig) -> Array:
    """A Kalman filter of a level that wanders, seen through counts whose variance is `dispersion` times the usual.

    In information form: a sum of `usual` tells the ratio with variance dispersion / usual. So a city with few vehicles
    remembers its level for hours, and one with many for minutes. With `city_memory` evidence decays by it instead.
    Args: city [2, P]; value, usual [P]. Returns [2, P].
    """
    ratio, evidence = city
    if cfg.city_memory is None:
        kept = evidence / (1.0 + evidence * cfg.city_drift**2 / jnp.maximum(dispersion, EPS))
    else:
        kept = cfg.city_memory * evidence
    evidence = kept + usual
    return jnp.stack([ratio + _ratio(value - ratio * usual, evidence), evidence])


def _factors(levels: Levels, cfg: ProfileConfig) -> Array:
    """City x cell level of every expert, [E, N]: its forecast is its profile times this."""
    city = levels.city[0][:, None, None, None]  # [P, 1, 1, 1]
    prior = jnp.array(cfg.cell_priors)[:, None]
    observed, expected = levels.cell[:, :, :, None]  # [P, C, 1, N] each
    cell = (observed + prior) / (expected + prior)  # [P, C, K, N]
    return (city * cell).reshape(-1, cell.shape[-1])


def expert_names(cfg: ProfileConfig) -> list[str]:
    """One name per expert, in the order of the weights."""
    profiles = [f"day {day}, week {week}" for day, week in cfg.days]
    profiles += [f"day {cfg.kind[0]}, kind {cfg.kind[1]}, shape {prior}" for prior in cfg.kind_priors]
    parts = itertools.product(profiles, cfg.cell_memories, cfg.cell_priors)
    return [f"{profile}, cell {memory}, prior {prior}" for profile, memory, prior in parts]


def _remembered(
    values: Array, weekend: Array | None, day_memory: float, extra_weight: float, cfg: ProfileConfig
) -> Array:
    """Decaying sum over earlier days and, again, over the same weekday or kind of day, at the same time of day."""
    smooth, per_day = _smooth(values, cfg.smoothing), cfg.steps_per_day
    days = _lagged_sum(smooth, per_day, day_memory)
    if weekend is None:
        return days + extra_weight * _lagged_sum(smooth, 7 * per_day, cfg.week_memory)
    weekend = weekend[:, None, None]
    kinds = (_lagged_sum(jnp.where(same, smooth, 0.0), per_day, day_memory) for same in (weekend, ~weekend))
    return days + extra_weight * jnp.where(weekend, *kinds)


def _smooth(values: Array, width: int) -> Array:
    """Triangular kernel of unit mass over time; weight is lost at the ends for values and counts alike."""
    length = values.shape[0]
    padded = jnp.pad(values, ((width, width), *((0, 0),) * (values.ndim - 1)))
    parts = ((width + 1.0 - abs(k)) * padded[width + k : width + k + length] for k in range(-width, width + 1))
    return reduce(jnp.add, parts) / (width + 1.0) ** 2


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
