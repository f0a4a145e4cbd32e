"""Persistence: every coming step equals the newest observation; has nothing to tune."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting.profile import (
    WindowConfig,
    flow_of,
    newest_training_step,
    residual_sigma,
    targets,
    with_sigma,
)
from experiments.methods.method import Method
from stream_jax.types import Forecast, ForecastData


@dataclasses.dataclass(frozen=True)
class PersistenceConfig(WindowConfig):
    """Sizes of a window only."""


class PersistenceParams(NamedTuple):
    """What stands in for an unobserved history, and the spread of the errors."""

    fallback: Array  # [N] mean training flow
    sigma: Array  # [H, N]


def fit(key: Array, data: ForecastData, cfg: PersistenceConfig) -> PersistenceParams:
    """Measures residual spreads on the validation origins; the key is not used."""
    del key
    flow, observed = flow_of(data.series)
    is_train = (jnp.arange(flow.shape[0]) <= newest_training_step(data, cfg.horizon))[:, None]
    fallback = jnp.sum(flow * is_train, axis=0) / jnp.maximum(jnp.sum(observed * is_train, axis=0), 1.0)
    mean = _newest(fallback, data, data.val, cfg)
    return PersistenceParams(fallback, residual_sigma(mean, *targets(data.series, data.val, cfg.horizon)))


def predict(params: PersistenceParams, data: ForecastData, origins: Array, cfg: PersistenceConfig) -> Forecast:
    """Newest observation of each cell's history, repeated over the horizon: [W, H, N]."""
    return with_sigma(_newest(params.fallback, data, origins, cfg), params.sigma)


def _newest(fallback: Array, data: ForecastData, origins: Array, cfg: PersistenceConfig) -> Array:
    flow, observed = flow_of(data.series)
    step = origins[:, None] - jnp.arange(cfg.history)  # [W, T], newest first
    seen = observed[step] > 0  # [W, T, N]
    first_seen = jnp.argmax(seen, axis=1)[:, None]  # [W, 1, N]
    newest = jnp.take_along_axis(flow[step], first_seen, axis=1)[:, 0]  # [W, N]
    mean = jnp.where(seen.any(axis=1), newest, fallback)
    return jnp.repeat(mean[:, None], cfg.horizon, axis=1)


METHOD = Method("persistence", PersistenceConfig(), tables={"forecasting": ("persistence",)})
