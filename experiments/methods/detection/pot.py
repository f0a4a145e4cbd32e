"""Peaks over threshold: the score that is exceeded with a given small probability, by a Pareto law of the excesses.

Siffer et al., "Anomaly Detection in Streams with Extreme Value Theory" (KDD 2017), as OmniAnomaly uses it: excesses of
the fitting scores over their own high quantile, a generalised Pareto law fitted to them by maximum likelihood
(Grimshaw's one-dimensional form), and its quantile. The defaults are those of OmniAnomaly's public program.
"""

import dataclasses

import numpy as np
from scipy.optimize import minimize_scalar

GRID = 200
SMALLEST_SHAPE = -0.5  # below it maximum likelihood is not regular, and below -1 it has no maximum
FORBIDDEN = 1e6  # deviance of what is not searched; finite, because the search subtracts deviances
NO_SHAPE = 1e-8  # a law this near to the exponential one is computed as it


@dataclasses.dataclass(frozen=True)
class PotConfig:
    """How rare an alarm shall be, and where the tail begins."""

    risk: float = 1e-3  # q: probability that a normal score exceeds the threshold
    tail: float = 0.02  # share of the fitting scores in which the law is fitted

    def __post_init__(self) -> None:
        if not 0.0 < self.risk <= self.tail < 1.0:
            raise ValueError("0 < risk <= tail < 1 must hold")


def pot_threshold(scores: np.ndarray, cfg: PotConfig) -> float:
    """z = t + scale / shape ((risk n / n_t)^-shape - 1) with n_t of the n scores above t; NaN scores are left out."""
    known = np.asarray(scores, np.float64)
    known = known[~np.isnan(known)]
    if known.size == 0:
        raise ValueError("a threshold needs at least one score")
    start = float(np.quantile(known, 1.0 - cfg.tail))
    excess = known[known > start] - start
    if excess.size < 2:
        return start
    shape, scale = fit_generalised_pareto(excess)
    rarer = cfg.risk * known.size / excess.size
    if abs(shape) < NO_SHAPE:
        return start - scale * float(np.log(rarer))
    return start + scale / shape * float(rarer**-shape - 1.0)


def fit_generalised_pareto(excess: np.ndarray) -> tuple[float, float]:
    """Shape and scale of P(Y > y) = (1 + shape y / scale)^(-1 / shape) by maximum likelihood.

    With theta = shape / scale, the best shape is mean(log(1 + theta y)): one number is searched for.
    """
    unit = float(excess.mean())
    y = excess / unit
    low = -1.0 / y.max() * (1.0 - 1e-6)
    grid = np.concatenate([np.linspace(low, 0.0, GRID)[:-1], np.geomspace(1e-4, 1e2, GRID)])
    values = np.array([_deviance(theta, y) for theta in grid])
    best = int(np.argmin(values))
    around = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
    theta = float(minimize_scalar(_deviance, bounds=around, args=(y,), method="bounded").x)
    theta = theta if _deviance(theta, y) < values[best] else float(grid[best])
    # Mean deviance of the exponential law: log(mean) + 1, and the mean is 1 here.
    if _deviance(theta, y) >= 1.0 or abs(theta) < NO_SHAPE:
        return 0.0, unit
    shape = float(np.log1p(theta * y).mean())
    return shape, unit * shape / theta


def _deviance(theta: float, y: np.ndarray) -> float:
    """Mean negative log-likelihood log(scale) + 1 + shape at the best shape for theta."""
    if abs(theta) < NO_SHAPE:
        return 1.0
    shape = float(np.log1p(theta * y).mean())
    if shape < SMALLEST_SHAPE:
        return FORBIDDEN
    return float(np.log(shape / theta)) + 1.0 + shape
