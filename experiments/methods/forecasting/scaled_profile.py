"""Scaled profile: the usual flow of the coming slot times how today's last hour compares with its usual flow.

The ratio of a cell is drawn towards the ratio of the whole city, as much as the validation origins say is best: with
few vehicles in the last hour the cell's own ratio is mostly counting noise. Tuned on the validation origins: the
smoothing and back-off of the profile, and per horizon the length of the last period and the strength of the draw.
"""

import dataclasses
import itertools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting.profile import (
    EPS,
    Profile,
    WindowConfig,
    back_off,
    flow_of,
    flow_profiles,
    mean_square,
    residual_sigma,
    targets,
    with_sigma,
)
from experiments.methods.method import Method
from stream_jax.types import Forecast, ForecastData


@dataclasses.dataclass(frozen=True)
class ScaledProfileConfig(WindowConfig):
    """Sizes of a window, which steps the profile may see, and the values tried on the validation origins."""

    profile: str = "expanding"  # or "train"
    reaches: tuple[int, ...] = (0, 1, 2, 4, 6, 8)  # slots to each side over which the profile is smoothed
    day_types: tuple[float, ...] = (0.5, 2.0, 1e6)  # observations that all days are worth beside the day type's own
    periods: tuple[int, ...] = (2, 4, 8, 12)  # steps of today compared with the profile; at most the history
    strengths: tuple[float, ...] = (0.1, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)  # vehicles that the city is worth


class ScaledProfileParams(NamedTuple):
    """Settings chosen on the validation origins, and the spread of the errors."""

    reach: Array  # [] int32 slots
    day_type: Array  # [] observations
    period: Array  # [H] int32 steps
    strength: Array  # [H] vehicles
    sigma: Array  # [H, N]


def fit(key: Array, data: ForecastData, cfg: ScaledProfileConfig) -> ScaledProfileParams:
    """Chooses the settings with the least squared error on the validation origins; the key is not used."""
    del key
    target, mask = targets(data.series, data.val, cfg.horizon)
    period, strength = map(jnp.asarray, zip(*itertools.product(cfg.periods, cfg.strengths), strict=True))
    best_loss, best = jnp.inf, None
    for reach in cfg.reaches:
        profiles = flow_profiles(data, cfg, cfg.profile, reach, max(cfg.reaches))
        for day_type in cfg.day_types:
            profile = _backed_off(profiles, day_type)
            losses = _losses(data, profile, period, strength, cfg)  # [options, H]
            if (loss := losses.min(axis=0).sum()) < best_loss:
                chosen = jnp.argmin(losses, axis=0)  # [H]
                best_loss, best = loss, (profile, reach, day_type, period[chosen], strength[chosen])
    profile, *settings = best
    mean = scaled(data, profile, data.val, *settings[2:], cfg)
    return ScaledProfileParams(*map(jnp.asarray, settings), residual_sigma(mean, target, mask))


def predict(params: ScaledProfileParams, data: ForecastData, origins: Array, cfg: ScaledProfileConfig) -> Forecast:
    """Profile of each coming step times the drawn ratio: [W, H, N]."""
    profiles = flow_profiles(data, cfg, cfg.profile, params.reach, max(cfg.reaches))
    profile = _backed_off(profiles, params.day_type)
    return with_sigma(scaled(data, profile, origins, params.period, params.strength, cfg), params.sigma)


@partial(jax.jit, static_argnames="cfg")
def scaled(
    data: ForecastData,
    profile: Profile,
    origins: Array,
    period: int | Array,
    strength: float | Array,
    cfg: WindowConfig,
) -> Array:
    """Profile times ratio for given settings, one for all horizons or one each: [W, H, N]."""
    period = jnp.broadcast_to(jnp.asarray(period), (cfg.horizon,))
    recent, usual = recent_and_usual(data, profile, origins, period, cfg)
    city = recent.sum(axis=-1, keepdims=True) / jnp.maximum(usual.sum(axis=-1, keepdims=True), EPS)  # [W, H, 1]
    strength = jnp.broadcast_to(jnp.asarray(strength), (cfg.horizon,))[:, None]
    ratio = (recent + strength * city) / (usual + strength)
    return profile.mean[origins[:, None] + 1 + jnp.arange(cfg.horizon)] * ratio


def recent_and_usual(
    data: ForecastData, profile: Profile, origins: Array, period: Array, cfg: WindowConfig
) -> tuple[Array, Array]:
    """Observed flow of the last `period` [P] steps and the profile's flow at the same observations: [W, P, N] each."""
    flow, observed = flow_of(data.series)
    step = origins[:, None] - jnp.arange(cfg.history)  # [W, T], newest first
    is_recent = (jnp.arange(cfg.history) < period[:, None]).astype(jnp.float32)  # [P, T]
    known = observed[step] * (profile.count[step] > 0)
    recent = jnp.einsum("pt,wtn->wpn", is_recent, flow[step] * known)
    return recent, jnp.einsum("pt,wtn->wpn", is_recent, profile.mean[step] * known)


@jax.jit
def _backed_off(profiles: tuple[Profile, Profile, Profile, Profile], day_type: float | Array) -> Profile:
    _, by_type, by_day, plain = profiles
    return back_off(by_type, back_off(by_day, plain, 0.0), day_type)


@partial(jax.jit, static_argnames="cfg")
def _losses(data: ForecastData, profile: Profile, period: Array, strength: Array, cfg: ScaledProfileConfig) -> Array:
    """Squared error per option and horizon on the validation origins."""
    target, mask = targets(data.series, data.val, cfg.horizon)

    def loss(option: tuple[Array, Array]) -> Array:
        return mean_square(scaled(data, profile, data.val, *option, cfg), target, mask)

    return jax.lax.map(loss, (period, strength))


METHOD = Method("scaled_profile", ScaledProfileConfig(), tables={"forecasting": ("scaled_profile",)})
