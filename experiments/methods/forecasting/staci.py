"""STACI: how far the cells err together, from the road graph and from past errors, and sets that hold them jointly.

Zhang, Wang, Song, Yu, Ding, Zhu, "Topology-Aware Conformal Prediction for Stream Networks", NeurIPS 2025 (arXiv
2503.04981), which the paper's citation can only mean; the other STACI (Feng et al., aleatoric conformal inference,
NeurIPS 2025) knows no graph. Followed: AGCRN as forecaster, the covariance lambda Sigma_G + (1 - lambda) Sigma_n of
Eq. (3) with lambda = 0.6, Sigma_G of the tail-up model with exponential moving averages, Eqs. (4) and (5), its two
numbers fitted by absolute differences, equal flow weights as on their road data, ellipsoids with adaptive levels
(`joint_sets.py`); the covariance is fitted once, as in their offline experiment.

Assumed or different:
- The tail-up model needs a directed tree. On a road graph with circles the moving average itself is computed, over the
  cells upstream along shortest paths, each row scaled to the same variance: positive definite on every graph, and
  exactly Eq. (5) far down a road of even steps.
- A third number, the share of variance that no other cell shares (a nugget, usual in spatial models): counts have noise
  of their own, which a decay alone would have to explain by reaching nowhere.
- Errors are measured in units of the network's sigma, which other rivals have too: the tail-up model wants the same
  variance everywhere, and sets widen where the network is unsure. The sigma of the marginal forecast is the network's
  times the root of the covariance's diagonal.
- Covariance and centre come from the validation origins, radii from the calibration part. The paper takes both from
  the same steps, and then the scores of new steps are not exchangeable with those that set the radius.

Tuning budget: AGCRN's; lambda is the published one.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.sparse.csgraph import shortest_path

from experiments.methods.forecasting import agcrn, joint_sets, neural
from experiments.methods.forecasting.agcrn import AgcrnConfig
from experiments.methods.forecasting.joint_sets import JointSets, Shape
from experiments.methods.forecasting.neural import NeuralParams
from experiments.methods.forecasting.profile import EPS, targets
from experiments.methods.method import Method
from stream_jax.conformal.intervals import ConformalConfig
from stream_jax.fit import FitResult, TrainConfig
from stream_jax.types import Forecast, ForecastData, RoadGraph

RANGES = np.geomspace(0.125, 16.0, 29)  # of the moving average, in edges of typical length
MOST_SHARED = 0.99  # of a cell's variance; the rest keeps the covariance well conditioned


@dataclasses.dataclass(frozen=True)
class StaciConfig(AgcrnConfig):
    """AGCRN's sizes, and how far the graph is believed."""

    topology: float = 0.6  # lambda of Eq. (3): 1 believes the graph alone, 0 the errors alone

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.topology <= 1.0:
            raise ValueError(f"topology must lie in (0, 1], not {self.topology}: errors alone may be too few")


DEFAULT = StaciConfig()


class TailUp(NamedTuple):
    """The fitted numbers of Sigma_G, of every horizon."""

    variance: Array  # [H] in units of the network's sigma
    reach: Array  # [H] km after which the moving average has fallen to 1 / e
    shared: Array  # [H] share of the variance that follows the graph


class StaciParams(NamedTuple):
    """A trained AGCRN and what its errors look like; leaves have a leading seed axis after a fit with several keys."""

    forecaster: NeuralParams
    tail_up: TailUp
    centre: Array  # [H, N] mean error in units of the network's sigma
    covariance: Array  # [H, N, N] in units of the network's sigma squared

    @property
    def network(self) -> Any:
        """What is trained."""
        return self.forecaster.network


def fit_with_history(
    key: Array,
    data: ForecastData,
    cfg: StaciConfig,
    train_cfg: TrainConfig,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> tuple[StaciParams, FitResult]:
    """Trains one forecaster, or one per key when `key` has shape [S], and fits the covariance of its errors."""
    forecaster, result = agcrn.fit_with_history(key, data, cfg, train_cfg, progress, checkpoint_dir)
    forecast = agcrn.predict(forecaster, data, data.val, cfg)
    distance = road_distance(data.graph)
    target, mask = targets(data.series, data.val, cfg.horizon)

    def of_seed(forecast: Forecast) -> tuple[TailUp, Array, Array]:
        error = jnp.where(mask, (target - forecast.mean) / forecast.sigma, 0.0)  # [V, H, N]
        return jax.lax.map(lambda one: error_covariance(*one, distance, cfg.topology), _by_horizon(error, mask))

    fitted = jax.jit(lambda one: jax.lax.map(of_seed, one) if key.ndim else of_seed(one))(forecast)
    return StaciParams(forecaster, *fitted), result


fit = neural.without_history(fit_with_history, DEFAULT)


def predict(params: StaciParams, data: ForecastData, origins: Array, cfg: StaciConfig) -> Forecast:
    """Each cell's own mean and sigma, [W, H, N], with a first axis S for stacked parameters."""
    forecast = agcrn.predict(params.forecaster, data, origins, cfg)
    return forecast._replace(sigma=forecast.sigma * _spread(params)[..., None, :, :])


def joint_shape(params: StaciParams, cells: Array) -> Shape:
    """How the errors of some cells [M] lie together, in units of the sigma that `predict` gives; of one seed."""
    spread = _spread(params)[:, cells]  # [H, M]
    covariance = params.covariance[:, cells][:, :, cells] / (spread[:, :, None] * spread[:, None, :])
    return joint_sets.shape_of(params.centre[:, cells] / spread, covariance)


def predict_jointly(
    params: StaciParams,
    data: ForecastData,
    calibration: Array,
    live: Array,
    cells: Array,
    cfg: StaciConfig,
    conformal: ConformalConfig,
) -> tuple[JointSets, Array]:
    """Sets for some cells [M] over the live origins [W], and the logarithms of their volumes [W, H]; of one seed.

    The publication aims at 2 to 30 cells: the volume of a set in hundreds of dimensions says little.
    """
    shape = joint_shape(params, cells)
    parts = []
    for origins in (calibration, live):
        forecast = jax.tree.map(lambda leaf: leaf[..., cells], predict(params, data, origins, cfg))
        target, mask = targets(data.series, origins, cfg.horizon)
        parts.append((forecast, joint_sets.distances(forecast, target[..., cells], mask[..., cells], shape)))
    sets = joint_sets.run_online(parts[0][1], parts[1][1], conformal)
    return sets, joint_sets.log_volume(sets, parts[1][0], shape)


def road_distance(graph: RoadGraph) -> np.ndarray:
    """Length of the shortest way along the edges from each cell (row) to each other, km: [N, N], inf where none."""
    num_cells = graph.position.shape[0]
    length = np.full((num_cells, num_cells), np.inf)
    length[np.asarray(graph.senders), np.asarray(graph.receivers)] = np.maximum(graph.edge_features[:, 0], EPS)
    np.fill_diagonal(length, 0.0)
    return shortest_path(np.where(np.isfinite(length), length, 0.0))


def tail_up_correlation(distance: Array, reach: float | Array) -> Array:
    """Correlations [N, N] of a moving average over the cells upstream; weights fall to 1 / e within `reach` km."""
    weight = jnp.exp(-distance.T / reach)  # [N, N] of receiver and upstream cell; 0 where there is no way
    weight /= jnp.linalg.norm(weight, axis=1, keepdims=True)
    return weight @ weight.T


def error_covariance(error: Array, mask: Array, distance: np.ndarray, topology: float) -> tuple[TailUp, Array, Array]:
    """The tail-up model of errors [V, N], their mean [N], and the mixture of both covariances, Eq. (3): [N, N].

    Where labels are missing, the rest of the cell's errors counts for more, which keeps the sample covariance valid.
    """
    count = jnp.maximum(mask.sum(axis=0), 1)
    centre = jnp.where(mask, error, 0.0).sum(axis=0) / count
    rest = jnp.where(mask, error - centre, 0.0) / jnp.sqrt(count)
    sample = rest.T @ rest  # [N, N]
    model = fit_tail_up(sample, distance)
    identity = jnp.eye(len(distance))
    graph = model.shared * tail_up_correlation(jnp.asarray(distance, jnp.float32), model.reach)
    graph = model.variance * (graph + (1.0 - model.shared) * identity)
    return model, centre, topology * graph + (1.0 - topology) * sample


def fit_tail_up(sample: Array, distance: np.ndarray) -> TailUp:
    """The variance, range and share with the least absolute differences from a sample covariance [N, N].

    The variance is the cells' median; range and share are judged by the pairs that flow connects, and without any pair
    the cells share nothing.
    """
    others = ~np.eye(len(distance), dtype=bool)
    joined = jnp.asarray((np.isfinite(distance) | np.isfinite(distance.T)) & others)
    nearest = np.where(others, distance, np.inf).min(axis=1)
    nearest = nearest[np.isfinite(nearest)]
    ranges = jnp.asarray(RANGES * (np.median(nearest) if nearest.size else 1.0), jnp.float32)
    variance = jnp.maximum(jnp.median(jnp.diagonal(sample)), EPS)
    relative, distance = sample / variance, jnp.asarray(distance, jnp.float32)

    def judge(reach: Array) -> tuple[Array, Array]:
        correlation = jnp.where(joined, tail_up_correlation(distance, reach), 0.0)
        # |c - s k| = k |c / k - s|: the best s is the median of c / k weighted by k.
        shared = _weighted_median(relative / jnp.maximum(correlation, EPS), correlation)
        shared = jnp.clip(shared, 0.0, MOST_SHARED)
        return jnp.where(joined, jnp.abs(relative - shared * correlation), 0.0).sum(), shared

    loss, shared = jax.lax.map(judge, ranges)
    best = loss.argmin()
    return TailUp(variance, ranges[best], jnp.where(joined.any(), shared[best], 0.0))


def _weighted_median(values: Array, weight: Array) -> Array:
    order = values.ravel().argsort()
    reached = jnp.cumsum(weight.ravel()[order])
    return values.ravel()[order][jnp.searchsorted(reached, 0.5 * reached[-1])]


def _by_horizon(*arrays: Array) -> tuple[Array, ...]:
    return tuple(jnp.moveaxis(one, 1, 0) for one in arrays)


def _spread(params: StaciParams) -> Array:
    """Standard deviation of each cell's errors in units of the network's sigma, [..., H, N]."""
    return jnp.sqrt(jnp.diagonal(params.covariance, axis1=-2, axis2=-1))


METHOD = Method(
    "staci",
    StaciConfig(),
    paper_label={"STACI": "staci"},
    tables=dict.fromkeys(("forecasting", "cross_dataset", "datasets"), ("staci",)),
)
