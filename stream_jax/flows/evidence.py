"""What earlier steps and neighbours say about a cell: a longer memory of its own, and a share of the step's budget.

Not in the paper, whose test knows one cell and one step, while anomalies last and spread. A cell's own past enters its
score: an excess that goes on is worth more than a new one, by at most as much as the present step says itself, and a
swing to the other side, as when a forecast still carries the excess, is worth less. Neighbours of the same step must
not enter a score: normal cells beside an anomaly would look anomalous. They enter weights: a cell is judged by p / w,
with weights of mean 1 over the tests of a step, none of which looks at the cell's own present residual.

Weights fixed in advance keep the level (Genovese, Roeder and Wasserman, Biometrika 2006). These are not fixed: shocks
that cells share move a cell's weight together with its p-value, and its past is in both. So BY with these weights has
no promise of its own; what it has is the harmonic factor to spare, and a rate that is measured (`results/`, and
simulated in tests/flows/test_evidence.py). Memory 0 and largest 1 are the paper's test, with BY's promise.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array

from stream_jax.flows.context import Neighbours

TRACE = 1e-5


@dataclasses.dataclass(frozen=True)
class EvidenceConfig:
    """How evidence adds up.

    Chosen on the calibration days, with injections, of T-Drive (64 cells), Manhattan, the four twins and the synthetic
    city; ranked among validation days there, and not among the scores that these settings are judged by.
    """

    memory: float = 0.3  # share of a cell's evidence that is left one step later; 0: steps are judged alone
    neighbours: float = 1.0  # of their mean, against the cell's own past
    rate: float = 2.0  # of the log weight, per standard deviation of evidence
    ignored: float = 0.5  # evidence up to here earns no weight
    largest: float = 30.0  # ratio of weights within a step; 1: all weights are 1
    limit: float = 6.0  # no residual counts as more

    def __post_init__(self) -> None:
        if not 0.0 <= self.memory < 1.0 or self.largest < 1.0 or self.limit <= 0.0:
            raise ValueError("memory must lie in [0, 1), largest must be at least 1 and limit positive")
        if min(self.neighbours, self.rate, self.ignored) < 0.0:
            raise ValueError("neighbours, rate and ignored must not be negative")


ALONE = EvidenceConfig(memory=0.0, largest=1.0)


def shown(base: Array, observed: Array, cfg: EvidenceConfig) -> Array:
    """What a cell shows its neighbours and its own later steps, [..., N, D]: nothing where it was not observed."""
    return jnp.where(observed[..., None], jnp.nan_to_num(jnp.clip(base, -cfg.limit, cfg.limit)), 0.0)


def carry(carried: Array, now: Array, cfg: EvidenceConfig) -> Array:
    """What is left of a cell's evidence when the next step comes, [N, D]."""
    return cfg.memory * (carried + now)


def lasting_radius(base: Array, carried: Array) -> Array:
    """|b| + min(max(c . b / |b|, -|b|), |b|) of base vectors b and what was carried c, [N, D] -> [N].

    A trace of |b| is left where it would be 0, which is the score of cells that are not tested.
    """
    radius = jnp.linalg.norm(base, axis=-1)
    along = (carried * base).sum(-1) / jnp.maximum(radius, jnp.finfo(base.dtype).tiny)
    return radius + jnp.clip(along, -(1.0 - TRACE) * radius, radius)


def weights(now: Array, observed: Array, carried: Array, neighbours: Neighbours, cfg: EvidenceConfig) -> Array:
    """Weights of one step, [N] in [1, largest], not yet with mean 1.

    w = min(exp(rate (|e| - ignored)+), largest), e = carried + neighbours' mean; |e| is a root mean square over D.

    Args: now [N, D] from `shown`; observed [N]; carried [N, D] from `carry`, of the steps before.
    """
    heard = observed[neighbours.index] & neighbours.mask  # [N, K]
    total = jnp.where(heard[..., None], now[neighbours.index], 0.0).sum(1)
    around = total / jnp.maximum(heard.sum(1), 1)[:, None]
    evidence = jnp.sqrt(jnp.square(carried + cfg.neighbours * around).mean(-1))
    return jnp.minimum(jnp.exp(cfg.rate * jnp.maximum(evidence - cfg.ignored, 0.0)), cfg.largest)
