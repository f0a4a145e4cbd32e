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
from typing import Literal

from experiments.methods.forecasting import neural
from experiments.methods.forecasting.stid import Stid, StidConfig
from experiments.methods.method import Method


@dataclasses.dataclass(frozen=True)
class CqrConfig(StidConfig):
    """STID's sizes; `miscoverage` should be the conformal layer's target."""

    loss: Literal["squared", "absolute", "quantile"] = "quantile"


DEFAULT = CqrConfig()


fit, fit_with_history, predict = neural.front_doors(Stid, DEFAULT)


METHOD = Method("cqr", CqrConfig(), neural.VARIANTS)
