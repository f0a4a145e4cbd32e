"""What the neural rivals share: windows in z-scores, a mean and a sigma from every network, the one trainer.

A rival's network maps windows [B, T, N, C] to [B, N, 2 H] numbers: its published H outputs, which are the mean, and H
more for a sigma of its own, so that all forecasters are compared as distributions. The papers train by absolute error;
tables here rank by squared error and proper scores, so by default the mean is fitted by squared error and sigma by the
Gaussian likelihood of what is left, as in PU-GAT+, and early stopping goes by CRPS, as there. Scales come from the
training part alone; an unobserved entry counts as the mean.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from experiments.baselines.forecasting.profile import EPS, TARGET, WindowConfig, targets
from stream_jax.conformal.diagnostics import crps_gaussian
from stream_jax.fit import Examples, FitResult, TrainConfig, train
from stream_jax.types import Forecast, ForecastData, RoadGraph, TrafficSeries

PREDICT_BATCH = 64
STATISTICS_WINDOWS = 16  # training windows over which normalisation statistics are measured
SPREAD_FLOOR = 0.05  # smallest spread of a cell, as a share of all cells'
RAW_ONE = 0.5413  # softplus of this is 1: sigma starts at the cell's spread
STATISTICS = "batch_stats"
DEFAULT_TRAINING = TrainConfig()


@dataclasses.dataclass(frozen=True)
class NeuralConfig(WindowConfig):
    """Sizes of a window and how a network is fitted."""

    calendar: bool = True  # show the network the time of day, a number in [0, 1) at each step
    # "absolute" is the papers'; "quantile" makes mean and sigma the middle and the half width of an interval
    loss: Literal["squared", "absolute", "quantile"] = "squared"
    miscoverage: float = 0.1  # of that interval
    sigma_min: float = 0.01  # in units of the cell's spread


class Scale(NamedTuple):
    """Units learned from the training part only."""

    mean: Array  # [F]
    std: Array  # [F]
    spread: Array  # [N] standard deviation of each cell's flow, in units of std
    change: Array  # [] root mean square change of the flow over a forecast, in units of std


class NeuralParams(NamedTuple):
    """Everything predict needs besides the data; every leaf has a leading seed axis after a fit with several keys."""

    network: Any
    statistics: Any  # of normalisation layers; empty for networks without
    scale: Scale


class Shared(NamedTuple):
    """What every batch of a fit sees."""

    values: Array  # [L, N, F] z-scores, 0 where not observed
    series: TrafficSeries
    scale: Scale
    sample: Array  # [M] training origins at which normalisation statistics are measured
    graph: Any  # whatever the network makes of the road graph


def fit_with_history(
    key: Array,
    data: ForecastData,
    network: nn.Module,
    graph: Any,
    cfg: NeuralConfig,
    train_cfg: TrainConfig,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> tuple[NeuralParams, FitResult]:
    """Trains one network, or one per key when `key` has shape [S] (then every leaf gains a leading S axis).

    Args:
        network: called as network(inputs [B, T, N, C], slot [B], graph) -> [B, N, 2 H]; slot is the origins' slot of
            the week. Dropout is on where there is a "dropout" key, normalisation measures where its statistics are
            mutable.
        graph: pytree of arrays, handed to the network.
    """
    keys = jnp.atleast_1d(key)
    scale = fit_scale(data, cfg)
    sample = data.train[jnp.linspace(0, len(data.train) - 1, STATISTICS_WINDOWS).astype(int)]
    shared = Shared(z_scores(data.series, scale), data.series, scale, sample, graph)
    shapes = jax.eval_shape(partial(_inputs, cfg=cfg), shared, data.train[:1])
    result = train(
        keys,
        lambda key: network.init(key, *jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))["params"],
        partial(_training_loss, network=network, cfg=cfg),
        partial(_eval, network=network, cfg=cfg),
        Examples(data.train, data.val, shared),
        train_cfg,
        progress,
        checkpoint_dir,
    )
    measure = jax.vmap(partial(_statistics, network=network, cfg=cfg), in_axes=(0, None))
    statistics = jax.jit(measure)(result.params, shared)
    scales = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (keys.shape[0], *leaf.shape)), scale)
    params = NeuralParams(result.params, statistics, scales)
    return (params if key.ndim else jax.tree.map(lambda leaf: leaf[0], params)), result


def predict(
    params: NeuralParams, data: ForecastData, origins: Array, network: nn.Module, graph: Any, cfg: NeuralConfig
) -> Forecast:
    """Forecasts in physical units from data up to each origin: [W, H, N], with a first axis S for stacked parameters.

    Args: origins [W] int32, each at least history - 1 and at most L - 1.
    """
    chex.assert_rank(origins, 1)
    return _predict(params, data.series, graph, origins, network, cfg)


def adjacency(graph: RoadGraph) -> Array:
    """Weights [N, N] from sender (row) to receiver: exp(-(d / typical d)^2) of each edge's distance, 1 on the diagonal.

    The kernel of DCRNN, which the graph networks were published with, but with the edges' root mean square distance
    instead of their standard deviation: on a grid all edges are about as long.
    """
    distance = graph.edge_features[:, 0]
    is_self = graph.senders == graph.receivers
    square = jnp.sum(jnp.where(is_self, 0.0, distance**2)) / jnp.maximum(jnp.sum(~is_self), 1)
    weight = jnp.where(is_self, 1.0, jnp.exp(-(distance**2) / jnp.maximum(square, EPS)))
    num_nodes = graph.position.shape[0]
    return jnp.zeros((num_nodes, num_nodes)).at[graph.senders, graph.receivers].set(weight)


def fit_scale(data: ForecastData, cfg: NeuralConfig) -> Scale:
    """Means and deviations of what the training part observed; a feature that never varies keeps its unit."""
    series, step = data.series, jnp.arange(data.series.slot.shape[0])
    in_train = (step >= data.train.min() - cfg.history + 1) & (step <= data.train.max() + cfg.horizon)
    weight = series.observed & in_train[:, None, None]
    mean = _mean(series.values, weight, (0, 1))
    std = jnp.sqrt(_mean((series.values - mean) ** 2, weight, (0, 1)))
    std = jnp.where(std > 0, std, 1.0)
    flow, seen = series.values[..., TARGET] / std[TARGET], weight[..., TARGET]
    variance = _mean((flow - _mean(flow, seen, 0)) ** 2, seen, 0)  # [N]
    typical = jnp.where(jnp.any(variance > 0), jnp.sqrt(variance.mean()), 1.0)
    target, mask = targets(series, data.train, cfg.horizon)
    change = target - series.values[data.train][:, None, :, TARGET]
    known = mask & series.observed[data.train][:, None, :, TARGET]
    moved = jnp.sqrt(_mean(change**2, known, (0, 1, 2))) / std[TARGET]
    return Scale(mean, std, jnp.maximum(jnp.sqrt(variance), SPREAD_FLOOR * typical), jnp.where(moved > 0, moved, 1.0))


def z_scores(series: TrafficSeries, scale: Scale) -> Array:
    """The recording in units of the training part, [L, N, F]; 0 where not observed."""
    return jnp.where(series.observed, (series.values - scale.mean) / scale.std, 0.0)


def _mean(values: Array, weight: Array, axes: int | tuple[int, ...]) -> Array:
    return jnp.where(weight, values, 0.0).sum(axes) / jnp.maximum(weight.sum(axes), 1)


def _inputs(shared: Shared, origins: Array, cfg: NeuralConfig) -> tuple[Array, Array, Any]:
    """What a network is called with at origins [B]; reads no value after them."""
    past = origins[:, None] + jnp.arange(1 - cfg.history, 1)  # [B, T]
    window = shared.values[past]  # [B, T, N, F]
    if cfg.calendar:
        time_of_day = (shared.series.slot[past] % cfg.steps_per_day) / cfg.steps_per_day
        time_of_day = jnp.broadcast_to(time_of_day[..., None, None], (*window.shape[:3], 1))
        window = jnp.concatenate([window, time_of_day], axis=-1)
    return window, shared.series.slot[origins], shared.graph


def _head(output: Array, scale: Scale, cfg: NeuralConfig) -> tuple[Array, Array]:
    """Mean and sigma [B, H, N] in z-scores from what a network gave, [B, N, 2 H]."""
    mean, raw = jnp.split(jnp.moveaxis(output, 1, 2), [cfg.horizon], axis=1)
    return mean, scale.spread * (nn.softplus(raw + RAW_ONE) + cfg.sigma_min)


def _labels(shared: Shared, origins: Array, cfg: NeuralConfig) -> tuple[Array, Array]:
    """Targets in z-scores and their mask, [B, H, N]."""
    target, mask = targets(shared.series, origins, cfg.horizon)
    return (target - shared.scale.mean[TARGET]) / shared.scale.std[TARGET], mask


def _training_loss(
    key: Array, trained: Any, origins: Array, weight: Array, shared: Shared, network: nn.Module, cfg: NeuralConfig
) -> Array:
    """Error of the mean plus likelihood of sigma, or the pinball losses, over the observed targets."""
    output, _ = network.apply(
        {"params": trained}, *_inputs(shared, origins, cfg), rngs={"dropout": key}, mutable=[STATISTICS]
    )
    mean, sigma = _head(output, shared.scale, cfg)
    target, mask = _labels(shared, origins, cfg)
    error = jnp.where(mask, target - mean, 0.0)
    if cfg.loss == "quantile":
        entry = pinball(error, sigma, cfg.miscoverage) / shared.scale.change
    else:
        relative = error / shared.scale.change  # about 1 in size, as the likelihood is
        entry = 0.5 * relative**2 if cfg.loss == "squared" else jnp.abs(relative)
        entry += 0.5 * (jax.lax.stop_gradient(error) / sigma) ** 2 + jnp.log(sigma)
    entry_weight = mask * weight[:, None, None]
    return (entry_weight * entry).sum() / jnp.maximum(entry_weight.sum(), EPS)


def pinball(error: Array, sigma: Array, miscoverage: float) -> Array:
    """Pinball losses of both ends of mean +- z sigma, z the Gaussian quantile, added; error is y - mean."""
    half = norm.ppf(1.0 - miscoverage / 2) * sigma
    low, high = error + half, error - half
    level = miscoverage / 2
    return jnp.maximum(level * low, (level - 1.0) * low) + jnp.maximum((1.0 - level) * high, -level * high)


def _eval(trained: Any, origins: Array, shared: Shared, network: nn.Module, cfg: NeuralConfig) -> Array:
    """What decides when to stop, [B]: the CRPS of each window in z-scores, or its pinball losses."""
    statistics = _statistics(trained, shared, network, cfg)
    output = network.apply({"params": trained, **statistics}, *_inputs(shared, origins, cfg))
    mean, sigma = _head(output, shared.scale, cfg)
    target, mask = _labels(shared, origins, cfg)
    error = jnp.where(mask, target - mean, 0.0)
    if cfg.loss == "quantile":
        entry = pinball(error, sigma, cfg.miscoverage)
    else:
        entry = crps_gaussian(Forecast(jnp.zeros_like(error), sigma), error)
    return (mask * entry).sum((1, 2)) / jnp.maximum(mask.sum((1, 2)), 1)


def _statistics(trained: Any, shared: Shared, network: nn.Module, cfg: NeuralConfig) -> Any:
    """Normalisation statistics of these very weights over a sample of training windows.

    Running averages would belong to weights of the past, and the weights that are kept may be averages themselves.
    """
    inputs = _inputs(shared, shared.sample, cfg)
    return dict(network.apply({"params": trained}, *inputs, mutable=[STATISTICS])[1])


@partial(jax.jit, static_argnames=("network", "cfg"))
def _predict(
    params: NeuralParams, series: TrafficSeries, graph: Any, origins: Array, network: nn.Module, cfg: NeuralConfig
) -> Forecast:
    stacked = params.scale.std.ndim == 2
    # Seeds of one fit have one scale.
    scale = jax.tree.map(lambda leaf: leaf[0], params.scale) if stacked else params.scale
    shared = Shared(z_scores(series, scale), series, scale, origins[:0], graph)

    def at_origin(variables: Any, origin: Array) -> Forecast:
        mean, sigma = _head(network.apply(variables, *_inputs(shared, origin[None], cfg)), scale, cfg)
        mean = jnp.maximum(mean[0] * scale.std[TARGET] + scale.mean[TARGET], 0.0)
        return Forecast(mean, sigma[0] * scale.std[TARGET])

    def of_seed(weights: Any, statistics: Any) -> Forecast:
        forecast = partial(at_origin, {"params": weights, **statistics})
        return jax.lax.map(forecast, origins, batch_size=PREDICT_BATCH)

    both = params.network, params.statistics
    # One seed after another: side by side they would need as much memory as they are.
    return jax.lax.map(lambda one: of_seed(*one), both) if stacked else of_seed(*both)
