"""The forecaster one observation at a time: the same forecasts as `pu_gat_plus.predict`, from a state of fixed size.

Section 4.1. A recording's anchors at a step need all that came before it; here what they need is carried: decaying sums
for every time of day and of the week, running totals, the present levels, and the last windows. A step costs the same
after a year as after a day.
"""

from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax.gnn.attention import Neighbours
from stream_jax.gnn.inputs import Prepared
from stream_jax.gnn.network import ForecasterConfig
from stream_jax.gnn.profile import Levels, ProfileConfig, advance, is_weekend, shrink, start_levels
from stream_jax.gnn.pu_gat_plus import ForecasterParams, forecast_at
from stream_jax.types import Forecast, ForecastData, TrafficSeries


class StreamState(NamedTuple):
    """All that forecasting remembers of the past; P profiles, and pairs are sums of scaled values and of weights."""

    step: Array  # [] int32, steps observed so far
    raw: Array  # [2 smoothing + 1, 2, N, F] the last pairs, oldest first
    total: Array  # [2, N, F] over all steps
    day: Array  # [steps_per_day, 2, days + 1, N, F] decaying sums over earlier days, the last for the kinds of day
    week: Array  # [7 steps_per_day, 2, N, F] decaying sums over earlier weeks
    kind: Array  # [steps_per_day, 2, 2, N, F] decaying sums over earlier working days, and over weekends
    coming: Array  # [H, P, N, F] profiles of the next H steps
    levels: Levels  # every leaf with a leading F
    recent: Prepared  # the last history + 1 steps; its days, which only training asks for, stay 0


def empty(params: ForecasterParams, cfg: ForecasterConfig) -> StreamState:
    """Before the first observation; raises ValueError where a profile would have to wait for its own future."""
    profile, horizon = cfg.profile, cfg.horizon
    if profile.steps_per_day < horizon + profile.smoothing:
        raise ValueError(
            f"{profile.steps_per_day} steps per day are too few to smooth over {profile.smoothing} of them "
            f"and forecast {horizon}"
        )
    cells, features = params.scaler.seasonal.shape[1:]
    pair, num_profiles = (2, cells, features), profile.num_profiles
    levels = start_levels(cells, horizon, profile)
    rows = (cfg.history + 1, cells, features)
    return StreamState(
        step=jnp.zeros((), jnp.int32),
        raw=jnp.zeros((2 * profile.smoothing + 1, *pair)),
        total=jnp.zeros(pair),
        day=jnp.zeros((profile.steps_per_day, 2, len(profile.days) + 1, cells, features)),
        week=jnp.zeros((7 * profile.steps_per_day, *pair)),
        kind=jnp.zeros((profile.steps_per_day, 2, *pair)),
        coming=jnp.zeros((horizon, num_profiles, cells, features)),
        levels=jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (features, *leaf.shape)), levels),
        recent=Prepared(
            values=jnp.zeros(rows),
            observed=jnp.zeros(rows, bool),
            clock=jnp.zeros((rows[0], 4)),
            seasonal=jnp.zeros(rows),
            future=jnp.zeros((rows[0], horizon, cells, features)),
            plain=jnp.zeros((rows[0], horizon, cells, features)),
            days=jnp.zeros(rows),
        ),
    )


def start(params: ForecasterParams, data: ForecastData, origin: int | Array, cfg: ForecasterConfig) -> StreamState:
    """The state after steps 0 .. origin of a recording, by observing them one after the other."""
    chex.assert_rank(params.scaler.scale, 1)
    return _observe_until(params, data.series, empty(params, cfg), jnp.asarray(origin, jnp.int32) + 1, cfg)


def observe(
    params: ForecasterParams,
    state: StreamState,
    values: Array,
    observed: Array,
    clock: Array,
    slot: Array,
    cfg: ForecasterConfig,
) -> StreamState:
    """The state after one more step of the recording.

    Args:
        params: the fitted forecaster.
        state: from `start` or the step before.
        values: [N, F] in physical units; any number where not observed.
        observed: [N, F] bool.
        clock: [4] as in `TrafficSeries`.
        slot: [] step of the week, as in `TrafficSeries`.
        cfg: as fitted with.
    """
    chex.assert_equal_shape([values, observed, state.recent.values[0]])
    chex.assert_shape([clock, slot], [(4,), ()])
    scaled = jnp.where(observed, values / params.scaler.scale, 0.0)
    state, expected = _remember(state, jnp.stack([scaled, observed.astype(scaled.dtype)]), slot, cfg)
    now, coming = state.coming[0], _push(state.coming, expected)
    step = jax.vmap(partial(advance, cfg=cfg.profile), (0, -1, -1, -1, -1), (0, -1))
    levels, (future, plain, _) = step(state.levels, scaled, observed, now, coming)
    seasonal = params.scaler.seasonal[slot % cfg.profile.steps_per_day]
    row = Prepared(scaled, observed, clock, seasonal, future, plain, state.recent.days[0])
    return state._replace(
        step=state.step + 1, coming=coming, levels=levels, recent=jax.tree.map(_push, state.recent, row)
    )


def forecast(params: ForecasterParams, state: StreamState, neighbours: Neighbours, cfg: ForecasterConfig) -> Forecast:
    """The forecast [H, N] or [H, N, G] from the last step observed; sound once `history` steps have been."""
    return forecast_at(params, (state.recent, params.scaler, neighbours), cfg.history, cfg)


@partial(jax.jit, static_argnames="cfg")
def _observe_until(
    params: ForecasterParams, series: TrafficSeries, state: StreamState, until: Array, cfg: ForecasterConfig
) -> StreamState:
    """Steps 0 .. until - 1 of a recording, one after the other."""

    def step(at: Array, carried: StreamState) -> StreamState:
        row = jax.tree.map(lambda leaf: leaf[at], series)
        return observe(params, carried, *row, cfg=cfg)

    return jax.lax.fori_loop(0, until, step, state)


def _remember(state: StreamState, pair: Array, slot: Array, cfg: ForecasterConfig) -> tuple[StreamState, Array]:
    """Takes in one pair [2, N, F]; returns the profiles [P, N, F] of the step `horizon` ahead.

    The sum of a time slot is s[u] = memory (s[u - lag] + smooth[u - lag]). The smooth value of a step is known
    `smoothing` steps later, still before s[u] is asked for; it is added to its slot then.
    """
    profile = cfg.profile
    raw, total = _push(state.raw, pair), state.total + pair
    smooth = jnp.tensordot(_triangle(profile), raw, axes=1)  # [2, N, F] of the step in the middle
    middle, ahead = state.step - profile.smoothing, state.step + cfg.horizon
    by_day = (*profile.days, (profile.kind[0], 0.0))
    memories, week_weights = (jnp.array(part, jnp.float32)[:, None, None] for part in zip(*by_day, strict=True))
    weekend = is_weekend(slot - profile.smoothing, profile)  # of the step in the middle
    is_kind = jnp.stack([~weekend, weekend])[:, None, None, None]
    day = _decay_into(state.day, middle, smooth[:, None], memories)
    week = _decay_into(state.week, middle, smooth, profile.week_memory)
    kind = _decay_into(state.kind, middle, is_kind * smooth, profile.kind[0])
    sums = day[ahead % day.shape[0]] + week_weights * week[ahead % week.shape[0]][:, None]  # [2, ·, N, F]
    same_kind = kind[ahead % kind.shape[0], is_weekend(slot + cfg.horizon, profile).astype(int)]  # [2, N, F]
    sums = sums.at[:, -1].add(profile.kind[1] * same_kind)
    sums = jnp.concatenate([sums[:, :-1], jnp.repeat(sums[:, -1:], len(profile.kind_priors), axis=1)], axis=1)
    priors = jnp.array([profile.prior] * len(profile.days) + list(profile.kind_priors))[:, None, None]  # [P, 1, 1]
    expected = shrink(sums[0], sums[1], total[:1], total[1:], priors).expected
    return state._replace(raw=raw, total=total, day=day, week=week, kind=kind), expected


def _decay_into(ring: Array, at: Array, value: Array, memory: float | Array) -> Array:
    """ring[at] <- memory (ring[at] + value), and nothing while `at` is before the recording."""
    slot = at % ring.shape[0]
    row = ring[slot]
    return ring.at[slot].set(jnp.where(at >= 0, memory * (row + value), row))


def _triangle(cfg: ProfileConfig) -> np.ndarray:
    """Kernel of unit mass, [2 smoothing + 1]."""
    width = cfg.smoothing
    return np.asarray((width + 1.0 - abs(np.arange(-width, width + 1))) / (width + 1.0) ** 2, np.float32)


def _push(rows: Array, newest: Array) -> Array:
    """Rows oldest first, the oldest dropped."""
    return jnp.concatenate([rows[1:], newest[None]])
