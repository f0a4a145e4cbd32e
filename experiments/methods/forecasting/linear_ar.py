"""Linear autoregression: one ridge regression per horizon, shared by all cells.

A cell's flows are divided by its usual flow, so that one set of coefficients serves busy and quiet cells, and rows are
weighed by that flow, because the variance of a count grows with its mean. The regression corrects the scaled profile,
to which a large penalty returns it; its inputs are how the history differed from its profile, the profile of the
coming step, the scaled profile at other strengths, and the calendar. With a few days of data, regressing the flow
itself on history, profile and calendar extrapolates far outside what it has seen. Tuned on the validation origins:
the penalty of each horizon.
"""

import dataclasses
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
    newest_training_step,
    residual_sigma,
    targets,
    with_sigma,
)
from experiments.methods.forecasting.scaled_profile import scaled
from experiments.methods.method import Method
from stream_jax.types import Forecast, ForecastData

DAY_TYPE_STRENGTH = 1.0
MIN_SCALE = 1.0  # vehicles per step


@dataclasses.dataclass(frozen=True)
class LinearArConfig(WindowConfig):
    """Sizes of a window, which steps the profile may see, and the values tried on the validation origins."""

    profile: str = "expanding"  # or "train"
    reach: int = 4  # slots to each side over which the profile is smoothed
    period: int = 4  # steps of today that the scaled profile compares
    strength: float = 300.0  # of the scaled profile that is corrected
    other_strengths: tuple[float, ...] = (10.0, 50.0, 3000.0)  # of the scaled profiles among the inputs
    penalties: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # in units of each input's mean square


class LinearArParams(NamedTuple):
    """Coefficients, the cells' usual flows, and the spread of the errors."""

    weight: Array  # [H, P]
    scale: Array  # [N] vehicles per step
    penalty: Array  # [H] chosen
    sigma: Array  # [H, N]


class Rows(NamedTuple):
    """Regression rows of one origin, in units of the cells' usual flows."""

    inputs: Array  # [H, N, P]
    base: Array  # [H, N] scaled profile, which the regression corrects


@partial(jax.jit, static_argnames="cfg")
def fit(key: Array, data: ForecastData, cfg: LinearArConfig) -> LinearArParams:
    """Solves the regressions for every penalty and keeps the best of each horizon; the key is not used."""
    del key
    flow, observed = flow_of(data.series)
    is_train = (jnp.arange(flow.shape[0]) <= newest_training_step(data, cfg.horizon))[:, None]
    scale = jnp.sum(flow * is_train, axis=0) / jnp.maximum(jnp.sum(observed * is_train, axis=0), 1.0)
    scale = jnp.maximum(scale, MIN_SCALE)
    profile = _profile(data, cfg)
    gram, cross = _moments(data, profile, scale, cfg)

    target, mask = targets(data.series, data.val, cfg.horizon)
    penalties = jnp.asarray(cfg.penalties)
    weights = jax.vmap(_solve, in_axes=(None, None, 0))(gram, cross, penalties)  # [penalties, H, P]

    def loss(weight: Array) -> Array:
        return mean_square(_apply(weight, scale, data, profile, data.val, cfg), target, mask)

    best = jnp.argmin(jax.lax.map(loss, weights), axis=0)  # [H]
    weight = weights[best, jnp.arange(cfg.horizon)]
    mean = _apply(weight, scale, data, profile, data.val, cfg)
    return LinearArParams(weight, scale, penalties[best], residual_sigma(mean, target, mask))


@partial(jax.jit, static_argnames="cfg")
def predict(params: LinearArParams, data: ForecastData, origins: Array, cfg: LinearArConfig) -> Forecast:
    """Corrected scaled profile, not below 0: [W, H, N]."""
    mean = _apply(params.weight, params.scale, data, _profile(data, cfg), origins, cfg)
    return with_sigma(mean, params.sigma)


def _profile(data: ForecastData, cfg: LinearArConfig) -> Profile:
    _, by_type, by_day, plain = flow_profiles(data, cfg, cfg.profile, cfg.reach, cfg.reach)
    return back_off(by_type, back_off(by_day, plain, 0.0), DAY_TYPE_STRENGTH)


def _rows(data: ForecastData, profile: Profile, scale: Array, origin: Array, cfg: LinearArConfig) -> Rows:
    """Inputs of every horizon and cell at one origin; an unobserved step counts as its profile."""
    flow, observed = flow_of(data.series)
    past = origin - jnp.arange(cfg.history)  # [T]
    coming = origin + 1 + jnp.arange(cfg.horizon)  # [H]
    usual = profile.mean[coming] / scale  # [H, N]
    excess = jnp.where(observed[past] > 0, flow[past] - profile.mean[past], 0.0) / scale  # [T, N]
    base, *others = [
        scaled(data, profile, origin[None], cfg.period, strength, cfg)[0] / scale
        for strength in (cfg.strength, *cfg.other_strengths)
    ]
    time_of_day = data.series.clock[coming, :2]  # [H, 2]
    rise = usual - profile.mean[origin] / scale
    own = [usual, rise, base, *(other - base for other in others), *(base * c[:, None] for c in time_of_day.T)]
    shared = jnp.broadcast_to(excess.T, (cfg.horizon, *excess.T.shape))  # [H, N, T]
    return Rows(jnp.concatenate([shared, jnp.stack(own, axis=-1)], axis=-1), base)


def _moments(data: ForecastData, profile: Profile, scale: Array, cfg: LinearArConfig) -> tuple[Array, Array]:
    """Mean weighted products of the training rows: inputs with inputs [H, P, P], and with the correction [H, P].

    Rows whose slot of the day has no past yet are left out where others exist.
    """
    target, mask = targets(data.series, data.train, cfg.horizon)  # [W, H, N]
    coming = data.train[:, None] + 1 + jnp.arange(cfg.horizon)
    is_usual = coming >= data.train[0] + cfg.steps_per_day  # [W, H]
    is_usual = jnp.where(is_usual.any(), is_usual, True)
    row_weight = mask * is_usual[..., None] * (scale / scale.mean())

    def add(sums: tuple[Array, Array], at_origin: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
        origin, label, weight = at_origin
        rows = _rows(data, profile, scale, origin, cfg)
        weighed = rows.inputs * weight[..., None]
        gram = jnp.einsum("hnp,hnq->hpq", weighed, rows.inputs)
        cross = jnp.einsum("hnp,hn->hp", weighed, label - rows.base)
        return (sums[0] + gram, sums[1] + cross), None

    num_inputs = _rows(data, profile, scale, data.train[0], cfg).inputs.shape[-1]
    empty = jnp.zeros((cfg.horizon, num_inputs, num_inputs)), jnp.zeros((cfg.horizon, num_inputs))
    gram, cross = jax.lax.scan(add, empty, (data.train, target / scale, row_weight))[0]
    total = jnp.maximum(row_weight.sum(axis=(0, 2)), 1.0)  # [H]
    return gram / total[:, None, None], cross / total[:, None]


def _solve(gram: Array, cross: Array, penalty: Array) -> Array:
    """Ridge coefficients [H, P], each penalised in units of its input's mean square."""
    size = jnp.sqrt(jnp.maximum(jnp.diagonal(gram, axis1=1, axis2=2), EPS))  # [H, P]
    standardised = gram / (size[:, :, None] * size[:, None, :]) + penalty * jnp.eye(size.shape[1])
    return jnp.linalg.solve(standardised, (cross / size)[..., None])[..., 0] / size


def _apply(
    weight: Array, scale: Array, data: ForecastData, profile: Profile, origins: Array, cfg: LinearArConfig
) -> Array:
    def at_origin(origin: Array) -> Array:
        rows = _rows(data, profile, scale, origin, cfg)
        correction = jnp.einsum("hnp,hp->hn", rows.inputs, weight)
        return jnp.maximum(rows.base + correction, 0.0) * scale

    return jax.lax.map(at_origin, origins)


METHOD = Method("linear_ar", LinearArConfig(), tables={"forecasting": ("linear_ar",)})
