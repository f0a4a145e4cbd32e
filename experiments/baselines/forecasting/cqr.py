"""Conformalised quantile regression: a network learns the two ends of an interval, the conformal layer moves them.

Romano, Patterson, Candès, "Conformalized Quantile Regression", NeurIPS 2019, made adaptive by the project's ACI layer.
The network is STID with the pinball losses of the ends at alpha / 2 and 1 - alpha / 2 instead of a likelihood; it gives
the middle and the half width, so the ends never cross. The forecast's mean is that middle and its sigma the half width
over the Gaussian quantile. The layer's score |y - middle| / sigma is then, up to a constant factor and shift,
max(low - y, y - high) / half width: the score that Sesia and Candès (Stat, 2020) call CQR-r, with which an interval
grows in proportion to its width, where the first paper's grows by the same amount everywhere. The middle of an interval
is no mean: squared errors of skewed flows are worse for it. Tuning budget: as STID, and stopping by the pinball losses.
"""

import dataclasses
from pathlib import Path
from typing import Literal

from jax import Array

from experiments.baselines.forecasting import neural, stid
from experiments.baselines.forecasting.neural import NeuralParams
from experiments.baselines.forecasting.stid import StidConfig
from stream_jax.fit import FitResult, TrainConfig
from stream_jax.types import Forecast, ForecastData


@dataclasses.dataclass(frozen=True)
class CqrConfig(StidConfig):
    """STID's sizes; `miscoverage` should be the conformal layer's target."""

    loss: Literal["squared", "absolute", "quantile"] = "quantile"


DEFAULT = CqrConfig()


def fit(
    key: Array,
    data: ForecastData,
    cfg: CqrConfig = DEFAULT,
    train_cfg: TrainConfig = neural.DEFAULT_TRAINING,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> NeuralParams:
    """Trains one network, or one per key when `key` has shape [S]."""
    return fit_with_history(key, data, cfg, train_cfg, progress, checkpoint_dir)[0]


def fit_with_history(
    key: Array,
    data: ForecastData,
    cfg: CqrConfig,
    train_cfg: TrainConfig,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> tuple[NeuralParams, FitResult]:
    """The same as `fit`, with the loss curves."""
    return stid.fit_with_history(key, data, cfg, train_cfg, progress, checkpoint_dir)


def predict(params: NeuralParams, data: ForecastData, origins: Array, cfg: CqrConfig) -> Forecast:
    """Middle and half width over the Gaussian quantile, [W, H, N], with a first axis S for stacked parameters."""
    return stid.predict(params, data, origins, cfg)
