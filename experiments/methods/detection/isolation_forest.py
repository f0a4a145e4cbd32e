"""Isolation forest: a cell-step is anomalous if few random cuts separate it from the others.

Liu, Ting and Zhou, "Isolation Forest" (ICDM 2008), by scikit-learn, with the paper's 100 trees of 256 samples. A point
is a cell-step: its own value and the mean of its neighbours' values at the same step. `contamination="auto"` is the
paper's rule: a score above 0.5 is an anomaly. Nothing is tuned; the whole fitting part is learned from.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from sklearn.ensemble import IsolationForest

from experiments.methods.method import Method
from stream_jax.flows.context import FlowData


@dataclasses.dataclass(frozen=True)
class IsolationForestConfig:
    """The paper's sizes."""

    trees: int = 100
    samples: int = 256  # of each tree; fewer where there are fewer points


class IsolationForestParams(NamedTuple):
    """The fitted forest."""

    forest: IsolationForest
    threshold: float


def fit(key: Array, data: FlowData, cfg: IsolationForestConfig, held_out: float) -> IsolationForestParams:
    """Grows the forest on all observed cell-steps; nothing is held out."""
    del held_out
    points = _points(data)[np.asarray(data.observed)]
    seed = int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max))
    samples = min(cfg.samples, len(points))
    forest = IsolationForest(n_estimators=cfg.trees, max_samples=samples, contamination="auto", random_state=seed)
    forest.fit(points)
    return IsolationForestParams(forest, -float(forest.offset_))


def scores(params: IsolationForestParams, data: FlowData, cfg: IsolationForestConfig) -> np.ndarray:
    """2^(-path length / usual path length) in (0, 1): [T, N], NaN where not observed."""
    del cfg
    observed = np.asarray(data.observed)
    found = np.full(observed.shape, np.nan, np.float32)
    found[observed] = -params.forest.score_samples(_points(data)[observed])
    return found


def _points(data: FlowData) -> np.ndarray:
    """[T, N, 2 D]: own values, then the mean over observed neighbours, 0 without any."""
    observed = np.asarray(data.observed)[..., None]
    own = np.where(observed, np.asarray(data.z), 0.0)
    index, mask = np.asarray(data.neighbours.index), np.asarray(data.neighbours.mask)[..., None]
    total = (own[:, index] * mask).sum(2)
    count = (observed[:, index] & mask).sum(2)
    return np.concatenate([own, total / np.maximum(count, 1)], axis=-1)


METHOD = Method(
    "isolation_forest",
    IsolationForestConfig(),
    variants={"counts": {}},
    paper_label={"Isolation Forest": "isolation_forest"},
    tables={"anomaly": ("isolation_forest",)},
)
