"""What the neural rivals share: windows in z-scores, a mean and a sigma from every network, one trainer, front doors.

A rival's network maps windows [B, T, N, C] to [B, N, 2 H] numbers: its published H outputs, which are the mean, and H
more for a sigma of its own, so that all forecasters are compared as distributions. The papers train by absolute error;
tables here rank by squared error and proper scores, so by default the mean is fitted by squared error and sigma by the
Gaussian likelihood of what is left, as in PU-GAT+, and early stopping goes by CRPS, as there. Scales come from the
training part alone; an unobserved entry counts as the mean.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from experiments.methods.forecasting.neural_windows import NeuralConfig, Shared, inputs_at, labels_at, level_at
from experiments.methods.forecasting.profile import EPS, TARGET
from experiments.methods.forecasting.scale import Scale, fit_scale, z_scores
from stream_jax.conformal.diagnostics import crps_gaussian
from stream_jax.fit import Examples, FitResult, TrainConfig, train
from stream_jax.types import Forecast, ForecastData, TrafficSeries

# Flows can be told relative to the mean of each cell's own window. That is not published so, but without it whatever
# learned the levels of ordinary days is lost on days with others.
VARIANTS = {"relative": {"relative": True}}
PREDICT_BATCH = 64
STATISTICS_WINDOWS = 16  # training windows over which normalisation statistics are measured
RAW_ONE = 0.5413  # softplus of this is 1: sigma starts at the cell's spread
STATISTICS = "batch_stats"
DEFAULT_TRAINING = TrainConfig()


class NeuralParams(NamedTuple):
    """Everything predict needs besides the data; every leaf has a leading seed axis after a fit with several keys."""

    network: Any
    statistics: Any  # of normalisation layers; empty for networks without
    scale: Scale


class Head(NamedTuple):
    """How a network's output [B, N, O] is read."""

    moments: Callable  # (output, Scale, cfg) -> mean and sigma [B, H, N] in z-scores
    penalty: Callable | None = None  # (output, target, error [B, H, N], Shared, cfg) -> [B], added to the loss


class Model(NamedTuple):
    """What is fixed while a network is fitted and used; hashable."""

    network: nn.Module
    head: Head
    cfg: NeuralConfig


class FrontDoors(NamedTuple):
    """The functions by which every forecaster is called."""

    fit: Callable  # (key, data[, cfg, train_cfg, progress, checkpoint_dir]) -> params
    fit_with_history: Callable  # (key, data, cfg, train_cfg[, progress, checkpoint_dir]) -> params, FitResult
    predict: Callable  # (params, data, origins, cfg) -> Forecast


def front_doors(
    build: Callable[[Any, int], nn.Module],
    default: NeuralConfig,
    read_graph: Callable[[ForecastData, Any], Any] = lambda data, cfg: None,
    head: Head | None = None,
) -> FrontDoors:
    """A kind of network as a forecaster.

    Args:
        build: (cfg, outputs) -> network, called as network(inputs [B, T, N, C], slot [B], graph) -> [B, N, O] with
            outputs = 2 H = O for the Gaussian head; slot is the origins' slot of the week. Dropout is on where there is
            a "dropout" key, normalisation measures where its statistics are mutable.
        default: settings of a fit that names none.
        read_graph: (data, cfg) -> pytree of arrays, handed to the network.
        head: Gaussian by default.
    """
    head = head or GAUSSIAN

    def fit_with_history(
        key: Array,
        data: ForecastData,
        cfg: NeuralConfig,
        train_cfg: TrainConfig,
        progress: bool = False,
        checkpoint_dir: Path | str | None = None,
    ) -> tuple[NeuralParams, FitResult]:
        """Trains one network, or one per key when `key` has shape [S] (then every leaf gains a leading S axis)."""
        model = Model(build(cfg, 2 * cfg.horizon), head, cfg)
        return _fit(key, data, model, read_graph(data, cfg), train_cfg, progress, checkpoint_dir)

    def predict(params: NeuralParams, data: ForecastData, origins: Array, cfg: NeuralConfig) -> Forecast:
        """Forecasts in physical units from data up to each origin: [W, H, N], with a first axis S for stacked params.

        Args: origins [W] int32, each at least history - 1 and at most L - 1.
        """
        model = Model(build(cfg, 2 * cfg.horizon), head, cfg)
        return read_outputs(params, data, origins, model, read_graph(data, cfg), _physical)

    return FrontDoors(without_history(fit_with_history, default), fit_with_history, predict)


def without_history(fit_with_history: Callable, default: NeuralConfig) -> Callable:
    """The fit of a forecaster whose loss curves are not asked for."""

    def fit(
        key: Array,
        data: ForecastData,
        cfg: NeuralConfig = default,
        train_cfg: TrainConfig = DEFAULT_TRAINING,
        progress: bool = False,
        checkpoint_dir: Path | str | None = None,
    ) -> Any:
        """Trains one forecaster, or one per key when `key` has shape [S]."""
        return fit_with_history(key, data, cfg, train_cfg, progress, checkpoint_dir)[0]

    return fit


def _fit(
    key: Array,
    data: ForecastData,
    model: Model,
    graph: Any,
    train_cfg: TrainConfig,
    progress: bool,
    checkpoint_dir: Path | str | None,
) -> tuple[NeuralParams, FitResult]:
    keys = jnp.atleast_1d(key)
    network, _, cfg = model
    scale = fit_scale(data, cfg)
    sample = data.train[jnp.linspace(0, len(data.train) - 1, STATISTICS_WINDOWS).astype(int)]
    shared = Shared(z_scores(data.series, scale), data.series, scale, sample, graph)
    shapes = jax.eval_shape(partial(inputs_at, cfg=cfg), shared, data.train[:1])
    result = train(
        keys,
        lambda key: network.init(key, *jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))["params"],
        partial(_training_loss, model=model),
        partial(_eval, model=model),
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


def _apply(variables: Any, shared: Shared, origins: Array, model: Model, key: Array | None = None) -> Array:
    """What the network gives at origins [B]: [B, N, O], of which the first H are the mean in z-scores."""
    network, _, cfg = model
    inputs = inputs_at(shared, origins, cfg)
    if key is None:
        output = network.apply(variables, *inputs)
    else:
        output, _ = network.apply(variables, *inputs, rngs={"dropout": key}, mutable=[STATISTICS])
    if cfg.relative:
        output = output.at[..., : cfg.horizon].add(level_at(shared, origins, cfg)[..., None])
    return output


def _gaussian(output: Array, scale: Scale, cfg: NeuralConfig) -> tuple[Array, Array]:
    """Mean and sigma [B, H, N] in z-scores from what a network gave, [B, N, 2 H]."""
    mean, raw = jnp.split(jnp.moveaxis(output, 1, 2), [cfg.horizon], axis=1)
    return mean, scale.spread * (nn.softplus(raw + RAW_ONE) + cfg.sigma_min)


GAUSSIAN = Head(_gaussian)


def _training_loss(key: Array, trained: Any, origins: Array, weight: Array, shared: Shared, model: Model) -> Array:
    """Error of the mean plus likelihood of sigma, or the pinball losses, over observed targets; plus any penalty."""
    _, head, cfg = model
    output = _apply({"params": trained}, shared, origins, model, key)
    mean, sigma = head.moments(output, shared.scale, cfg)
    target, mask = labels_at(shared, origins, cfg)
    error = jnp.where(mask, target - mean, 0.0)
    if cfg.loss == "quantile":
        entry = pinball(error, sigma, cfg.miscoverage) / shared.scale.change
    else:
        relative = error / shared.scale.change  # about 1 in size, as the likelihood is
        entry = 0.5 * relative**2 if cfg.loss == "squared" else jnp.abs(relative)
        entry += 0.5 * (jax.lax.stop_gradient(error) / sigma) ** 2 + jnp.log(sigma)
    entry_weight = mask * weight[:, None, None]
    loss = (entry_weight * entry).sum() / jnp.maximum(entry_weight.sum(), EPS)
    if head.penalty is None:
        return loss
    penalty = head.penalty(output, jnp.where(mask, target, mean), error, shared, cfg)
    return loss + (weight * penalty).sum() / jnp.maximum(weight.sum(), EPS)


def pinball(error: Array, sigma: Array, miscoverage: float) -> Array:
    """Pinball losses of both ends of mean +- z sigma, z the Gaussian quantile, added; error is y - mean."""
    half = norm.ppf(1.0 - miscoverage / 2) * sigma
    low, high = error + half, error - half
    level = miscoverage / 2
    return jnp.maximum(level * low, (level - 1.0) * low) + jnp.maximum((1.0 - level) * high, -level * high)


def _eval(trained: Any, origins: Array, shared: Shared, model: Model) -> Array:
    """What decides when to stop, [B]: the CRPS of each window in z-scores, or its pinball losses."""
    network, head, cfg = model
    statistics = _statistics(trained, shared, network, cfg)
    output = _apply({"params": trained, **statistics}, shared, origins, model)
    mean, sigma = head.moments(output, shared.scale, cfg)
    target, mask = labels_at(shared, origins, cfg)
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
    inputs = inputs_at(shared, shared.sample, cfg)
    return dict(network.apply({"params": trained}, *inputs, mutable=[STATISTICS])[1])


def _physical(output: Array, scale: Scale, model: Model) -> Forecast:
    """Mean and sigma of one window in the recording's units, [H, N]; a flow is never negative."""
    mean, sigma = model.head.moments(output[None], scale, model.cfg)
    mean = jnp.maximum(mean[0] * scale.std[TARGET] + scale.mean[TARGET], 0.0)
    return Forecast(mean, sigma[0] * scale.std[TARGET])


def read_outputs(
    params: NeuralParams, data: ForecastData, origins: Array, model: Model, graph: Any, read: Callable
) -> Any:
    """What `read` makes of the network's output at each origin: leaves [W, ...], [S, W, ...] for stacked parameters.

    Args: read: (output [N, O], Scale, Model) -> pytree.
    """
    chex.assert_rank(origins, 1)
    return _read_outputs(params, data.series, graph, origins, model, read)


@partial(jax.jit, static_argnames=("model", "read"))
def _read_outputs(
    params: NeuralParams, series: TrafficSeries, graph: Any, origins: Array, model: Model, read: Callable
) -> Any:
    stacked = params.scale.std.ndim == 2
    # Seeds of one fit have one scale.
    scale = jax.tree.map(lambda leaf: leaf[0], params.scale) if stacked else params.scale
    shared = Shared(z_scores(series, scale), series, scale, origins[:0], graph)

    def at_origin(variables: Any, origin: Array) -> Any:
        return read(_apply(variables, shared, origin[None], model)[0], scale, model)

    def of_seed(weights: Any, statistics: Any) -> Any:
        at = partial(at_origin, {"params": weights, **statistics})
        return jax.lax.map(at, origins, batch_size=PREDICT_BATCH)

    both = params.network, params.statistics
    # One seed after another: side by side they would need as much memory as they are.
    return jax.lax.map(lambda one: of_seed(*one), both) if stacked else of_seed(*both)
