"""PCA reconstruction: what the city's usual patterns leave unexplained, with the limit of its squared size.

The subspace method of Lakhina, Crovella and Diot, "Diagnosing Network-Wide Traffic Anomalies" (SIGCOMM 2004): a step is
a vector of all cells, the first principal components are the normal subspace, and the squared prediction error (SPE,
Q-statistic) outside it is compared with the limit of Jackson and Mudholkar (Technometrics 1979) at 99.9 %. They ask
whether a step is anomalous and then which link explains it; here every cell is asked, so the limit is that of the
cell's own share of the error, whose only eigenvalue is its variance. Four components, as they keep; nothing is tuned.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from experiments.methods.detection.windows import cell_scores, flat_series
from experiments.methods.method import Method
from stream_jax.flows.context import FlowData

EPS = 1e-12


@dataclasses.dataclass(frozen=True)
class PcaConfig:
    """Size of the normal subspace, and how rarely a normal cell shall exceed its limit."""

    components: int = 4
    level: float = 1e-3

    def __post_init__(self) -> None:
        if self.components < 0 or not 0.0 < self.level < 1.0:
            raise ValueError("components must not be negative and level must lie inside (0, 1)")


class PcaParams(NamedTuple):
    """The normal subspace and how large errors outside it usually are."""

    mean: Array  # [N D]
    basis: Array  # [N D, components] orthonormal
    variance: Array  # [N D] of the reconstruction error where observed
    threshold: Array  # [] in units of that variance


def fit(key: Array, data: FlowData, cfg: PcaConfig, held_out: float) -> PcaParams:
    """Principal components of all fitting steps; what was not observed counts as its mean. Key and held_out unused."""
    del key, held_out
    values, observed = flat_series(data)
    count = jnp.maximum(observed.sum(0), 1)
    mean = values.sum(0) / count
    centred = jnp.where(observed, values - mean, 0.0)
    _, vectors = jnp.linalg.eigh(centred.T @ centred)  # ascending
    basis = vectors[:, vectors.shape[1] - min(cfg.components, vectors.shape[1]) :]
    error = _errors(centred, basis)
    variance = jnp.where(observed, jnp.square(error), 0.0).sum(0) / count
    return PcaParams(mean, basis, variance, spe_limit(jnp.ones(1), cfg.level))


def scores(params: PcaParams, data: FlowData, cfg: PcaConfig) -> Array:
    """Squared reconstruction error over its usual size: [T, N], NaN where not observed."""
    del cfg
    values, observed = flat_series(data)
    error = _errors(jnp.where(observed, values - params.mean, 0.0), params.basis)
    return cell_scores(jnp.square(error) / jnp.maximum(params.variance, EPS), data) / data.z.shape[-1]


def spe_limit(eigenvalues: Array, level: float) -> Array:
    """The value that sum_k eigenvalue_k u_k^2 of standard normal u exceeds with probability `level`, approximately.

    theta_i = sum of eigenvalue^i, h = 1 - 2 theta_1 theta_3 / (3 theta_2^2), c the normal quantile of 1 - level:
    theta_1 (c sqrt(2 theta_2 h^2) / theta_1 + 1 + theta_2 h (h - 1) / theta_1^2)^(1 / h).

    Args:
        eigenvalues: [K] variances of the components outside the normal subspace.
    """
    first, second, third = (jnp.sum(eigenvalues**power) for power in (1, 2, 3))
    power = 1.0 - 2.0 * first * third / (3.0 * second**2)
    spread = norm.ppf(1.0 - level) * jnp.sqrt(2.0 * second * power**2) / first
    return first * (spread + 1.0 + second * power * (power - 1.0) / first**2) ** (1.0 / power)


def _errors(centred: Array, basis: Array) -> Array:
    return centred - (centred @ basis) @ basis.T


METHOD = Method(
    "pca",
    PcaConfig(),
    variants={"counts": {}},
    tables={"anomaly": ("pca",)},
)
