"""Historical average: the mean of the earlier flows in the same slot of the week, or of the day, or at all.

A slot of the week that was never seen falls back to its slot of the day, and that to the cell's mean. Has nothing to
tune but where it may learn from: the training steps, or all steps before the origin.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting.profile import (
    WindowConfig,
    back_off,
    flow_profiles,
    residual_sigma,
    targets,
    with_sigma,
)
from experiments.methods.method import Method
from stream_jax.types import Forecast, ForecastData


@dataclasses.dataclass(frozen=True)
class HistoricalAverageConfig(WindowConfig):
    """Sizes of a window, and which steps the average may see."""

    profile: str = "expanding"  # or "train"


class HistoricalAverageParams(NamedTuple):
    """Spread of the errors."""

    sigma: Array  # [H, N]


def fit(key: Array, data: ForecastData, cfg: HistoricalAverageConfig) -> HistoricalAverageParams:
    """Measures residual spreads on the validation origins; the key is not used."""
    del key
    mean = _average(data, data.val, cfg)
    return HistoricalAverageParams(residual_sigma(mean, *targets(data.series, data.val, cfg.horizon)))


def predict(
    params: HistoricalAverageParams, data: ForecastData, origins: Array, cfg: HistoricalAverageConfig
) -> Forecast:
    """Average of the slot of each coming step: [W, H, N]."""
    return with_sigma(_average(data, origins, cfg), params.sigma)


def _average(data: ForecastData, origins: Array, cfg: HistoricalAverageConfig) -> Array:
    by_week, _, by_day, plain = flow_profiles(data, cfg, cfg.profile, reach=0, most=0)
    average = back_off(by_week, back_off(by_day, plain, 0.0), 0.0).mean  # [L, N]
    return average[origins[:, None] + 1 + jnp.arange(cfg.horizon)]


METHOD = Method("historical_average", HistoricalAverageConfig(), tables={"forecasting": ("historical_average",)})
