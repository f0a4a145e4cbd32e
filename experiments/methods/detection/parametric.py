"""Parametric p-values: the tail probability of a residual under a Gaussian or a Student law fitted to residuals.

The paper's baseline of its appendix "Conformalized vs. Parametric P-Values". Location, scale and degrees of freedom
come from the fitting part by maximum likelihood, which is more than the paper's fixed laws are given (those are the
arms `gaussian` and `student_t` of our own rows). Nothing is held out and nothing else is tuned.
"""

import dataclasses
from typing import Literal, NamedTuple

import numpy as np
from jax import Array
from scipy import stats

from experiments.methods.method import Method
from stream_jax.flows.context import FlowData


@dataclasses.dataclass(frozen=True)
class ParametricConfig:
    """Which law residuals are believed to follow."""

    law: Literal["gaussian", "student_t"] = "gaussian"


class ParametricParams(NamedTuple):
    """The fitted law; a Gaussian one has infinitely many degrees of freedom."""

    location: float
    scale: float
    degrees_of_freedom: float


def fit(key: Array, data: FlowData, cfg: ParametricConfig, held_out: float) -> ParametricParams:
    """Maximum likelihood over all observed cell-steps of the first target; key and held_out are not used."""
    del key, held_out
    residual = _first_target(data)[np.asarray(data.observed)]
    if cfg.law == "gaussian":
        return ParametricParams(float(residual.mean()), float(residual.std()), float("inf"))
    degrees, location, scale = stats.t.fit(residual)
    return ParametricParams(float(location), float(scale), float(degrees))


def scores(params: ParametricParams, data: FlowData, cfg: ParametricConfig) -> np.ndarray:
    """Distance from the law's middle in units of its scale: [T, N], NaN where not observed."""
    del cfg
    distance = np.abs(_first_target(data) - params.location) / params.scale
    return np.where(np.asarray(data.observed), distance, np.nan).astype(np.float32)


def tail_probability(params: ParametricParams, score: np.ndarray) -> np.ndarray:
    """Two-sided probability of a score at least as large; NaN stays NaN."""
    return 2.0 * stats.t.sf(np.asarray(score, np.float64), params.degrees_of_freedom)


def _first_target(data: FlowData) -> np.ndarray:
    return np.asarray(data.z[..., 0], np.float64)


GAUSSIAN = Method("gaussian_fitted", ParametricConfig("gaussian"))
STUDENT_T = Method("student_t_fitted", ParametricConfig("student_t"))
