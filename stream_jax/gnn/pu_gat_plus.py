"""PU-GAT+: forecasts every cell for the next hour with a standard deviation of its own.

Section 4.1 and the appendix "Training Details" (Eq. het_nll). The network corrects the profile of `profile.py` and
starts from zero correction, so training can only move away from a sound forecast where validation data agree.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import chex
import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.conformal.diagnostics import crps_gaussian
from stream_jax.fit import Examples, FitResult, TrainConfig, train
from stream_jax.gnn.attention import Neighbours, neighbour_table
from stream_jax.gnn.inputs import (
    Inputs,
    Prepared,
    Scaler,
    fit_inputs,
    inputs_at,
    prepare,
    targets_at,
    trust_at,
)
from stream_jax.gnn.network import ForecasterConfig, Network, NetworkOutput, gaussian_nll
from stream_jax.gnn.profile import EPS
from stream_jax.types import Forecast, ForecastData, TrafficSeries

PREDICT_BATCH = 64
DEFAULT = ForecasterConfig()
DEFAULT_TRAINING = TrainConfig()


class ForecasterParams(NamedTuple):
    """Everything predict needs besides the data; every leaf has a leading seed axis after a fit with several keys."""

    network: Any
    scaler: Scaler


def fit(
    key: Array,
    data: ForecastData,
    cfg: ForecasterConfig = DEFAULT,
    train_cfg: TrainConfig = DEFAULT_TRAINING,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> ForecasterParams:
    """Trains one forecaster, or one per key when `key` has shape [S] (then every leaf gains a leading S axis)."""
    params, _ = fit_with_history(key, data, cfg, train_cfg, progress, checkpoint_dir)
    return params


def fit_with_history(
    key: Array,
    data: ForecastData,
    cfg: ForecasterConfig,
    train_cfg: TrainConfig,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> tuple[ForecasterParams, FitResult]:
    """The same as `fit`, with the loss curves."""
    check_data(data, cfg)
    keys = jnp.atleast_1d(key)
    scaler, prepared = jax.jit(fit_inputs, static_argnums=1)(data, cfg)
    shared = (prepared, scaler, neighbour_table(data.graph))
    examples = Examples(data.train, data.val, shared)
    init_fn = partial(init_params, shared=shared, origin=data.train[:1], cfg=cfg)
    result = train(
        keys,
        init_fn,
        partial(training_loss, cfg=cfg),
        partial(_eval, cfg=cfg),
        examples,
        train_cfg,
        progress,
        checkpoint_dir,
    )
    scalers = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (keys.shape[0], *leaf.shape)), scaler)
    params = ForecasterParams(result.params, scalers)
    return (params if key.ndim else jax.tree.map(lambda leaf: leaf[0], params)), result


def predict(params: ForecasterParams, data: ForecastData, origins: Array, cfg: ForecasterConfig) -> Forecast:
    """Forecasts in physical units from data up to each origin.

    Args: origins [W] int32, each at least history - 1 and at most L - 1.
    Returns: [W, H, N], with a last axis G for several targets and a first axis S for stacked parameters.
    """
    chex.assert_rank(origins, 1)
    return _predict(params, data.series, neighbour_table(data.graph), origins, cfg)


def untrained(params: ForecasterParams, data: ForecastData, cfg: ForecasterConfig) -> ForecasterParams:
    """The forecaster before its training, for one seed: its answers rest on nothing but the past of each origin.

    What it says of the train part is fair, where the trained network has seen what it is asked about.
    """
    return _untrained(params, data.series, neighbour_table(data.graph), cfg)


def labels_at(series: TrafficSeries, origins: Array, horizon: int, target: int = 0) -> tuple[Array, Array]:
    """What a feature came to in the steps after each origin, and whether it was observed: [W, H, N] each."""
    ahead = origins[:, None] + 1 + jnp.arange(horizon)
    return series.values[ahead, :, target], series.observed[ahead, :, target]


def check_data(data: ForecastData, cfg: ForecasterConfig) -> None:
    """Raises ValueError when windows would leave the recording or targets do not exist."""
    length, _, features = data.series.values.shape
    for name, origins in (("train", data.train), ("val", data.val)):
        if origins.shape[0] == 0:
            raise ValueError(f"there are no {name} origins")
        if int(origins.min()) < cfg.history - 1 or int(origins.max()) > length - 1 - cfg.horizon:
            raise ValueError(f"a {name} window leaves the recording of {length} steps")
    if not all(0 <= target < features for target in cfg.targets):
        raise ValueError(f"targets {cfg.targets} are not all among the {features} features")


def _apply(
    network: Any, shared: tuple[Prepared, Scaler, Neighbours], origins: Array, cfg: ForecasterConfig, key: Array | None
) -> tuple[NetworkOutput, Inputs]:
    """Runs the network on a batch of origins; a key switches dropout on."""
    inputs = _batch_inputs(shared, origins, cfg)
    rngs = None if key is None else {"dropout": key}
    arguments = (*_node_major(inputs), shared[2], key is not None)
    return cast(NetworkOutput, Network(cfg).apply(network, *arguments, rngs=rngs)), inputs


def init_params(
    key: Array, shared: tuple[Prepared, Scaler, Neighbours], origin: Array, cfg: ForecasterConfig
) -> dict[str, Any]:
    """A random network with zero correction; origin [1] only gives shapes."""
    return dict(Network(cfg).init(key, *_node_major(_batch_inputs(shared, origin, cfg)), shared[2], False))


def _batch_inputs(shared: tuple, origins: Array, cfg: ForecasterConfig) -> Inputs:
    return jax.vmap(partial(inputs_at, shared[0], shared[1], cfg=cfg))(origins)


def _node_major(inputs: Inputs) -> tuple[Array, Array, Array]:
    """Window and season [T, N, B, F], context [N, B, ·]."""
    return jnp.moveaxis(inputs.window, 0, 2), jnp.moveaxis(inputs.season, 0, 2), jnp.moveaxis(inputs.context, 0, 1)


def _standard(output: Array, cfg: ForecasterConfig) -> Array:
    """[N, B, H * G] to [B, H, N, G]."""
    split = output.reshape(*output.shape[:2], cfg.horizon, len(cfg.targets))
    return split.transpose(1, 2, 0, 3)


def training_loss(
    key: Array, trained: Any, origins: Array, weight: Array, shared: tuple, cfg: ForecasterConfig
) -> Array:
    """Eq. (het_nll) over the observed targets of the weighted windows, plus the hidden sigmas' likelihood."""
    output, inputs = _apply(trained, shared, origins, cfg, key)
    target, mask = targets_at(shared[0], origins, cfg)
    mean, sigma = _standard(output.mean, cfg), _standard(output.sigma, cfg)
    error = jnp.where(mask, (target - inputs.centre) / inputs.spread - mean, 0.0)  # [B, H, N, G]
    entry_weight = mask * weight[:, None, None, None] * trust_at(shared[0], origins, cfg)
    if cfg.loss == "mse":
        return (entry_weight * 0.5 * error**2).sum() / jnp.maximum(entry_weight.sum(), EPS)
    if cfg.loss == "faithful":
        size = inputs.spread ** (2.0 * cfg.beta)
        square = 0.5 * error**2 * size * entry_weight.sum() / jnp.maximum((entry_weight * size).sum(), EPS)
        entry = square + gaussian_nll(jax.lax.stop_gradient(error), sigma, cfg.regulariser)
    else:
        entry = gaussian_nll(error, sigma, cfg.regulariser)
    if cfg.loss == "beta_nll":  # in scaled units, so that busy cells count as they do in the squared error
        entry *= jax.lax.stop_gradient(sigma * inputs.spread) ** (2.0 * cfg.beta)
    loss = (entry_weight * entry).sum() / jnp.maximum(entry_weight.sum(), EPS)
    return loss + cfg.auxiliary * _hidden_loss(output.hidden_sigma, error, entry_weight)


def _hidden_loss(hidden_sigma: Array, error: Array, entry_weight: Array) -> Array:
    """Likelihood of each cell's root mean square error under every hidden sigma; the mean forecast is left alone."""
    count = entry_weight.sum((1, 3)).T  # [N, B]
    square = jax.lax.stop_gradient((entry_weight * error**2).sum((1, 3)).T / jnp.maximum(count, EPS))
    hidden = jnp.maximum(hidden_sigma, 1e-3)
    likelihood = gaussian_nll(jnp.sqrt(square), hidden, 0.0)  # [layers, N, B]
    return (count * likelihood).sum() / jnp.maximum(count.sum() * hidden.shape[0], EPS)


def _eval(trained: Any, origins: Array, shared: tuple, cfg: ForecasterConfig) -> Array:
    """What decides when to stop, without dropout, [B]: CRPS of each window in scaled units, or its squared error.

    CRPS is a proper score like the likelihood, but a few incidents do not decide it.
    """
    output, inputs = _apply(trained, shared, origins, cfg, None)
    target, mask = targets_at(shared[0], origins, cfg)
    mean, sigma = _standard(output.mean, cfg), _standard(output.sigma, cfg)
    error = jnp.where(mask, target - inputs.centre - inputs.spread * mean, 0.0)
    entry = 0.5 * error**2
    if cfg.loss != "mse":
        entry = crps_gaussian(Forecast(jnp.zeros_like(error), inputs.spread * sigma), error)
    return (mask * entry).sum((1, 2, 3)) / jnp.maximum(mask.sum((1, 2, 3)), 1)


@partial(jax.jit, static_argnames="cfg")
def _untrained(
    params: ForecasterParams, series: TrafficSeries, neighbours: Neighbours, cfg: ForecasterConfig
) -> ForecasterParams:
    shared = (prepare(series, params.scaler, cfg), params.scaler, neighbours)
    return params._replace(network=init_params(jax.random.key(0), shared, jnp.array([cfg.history - 1]), cfg))


@partial(jax.jit, static_argnames="cfg")
def _predict(
    params: ForecasterParams, series: TrafficSeries, neighbours: Neighbours, origins: Array, cfg: ForecasterConfig
) -> Forecast:
    stacked = params.scaler.scale.ndim == 2
    # Seeds of one fit have one scaler, so the anchors, which are long to run, are run once.
    scaler = jax.tree.map(lambda leaf: leaf[0], params.scaler) if stacked else params.scaler
    prepared = prepare(series, scaler, cfg)

    def of_seed(network: Any) -> Forecast:
        one = ForecasterParams(network, scaler)
        forecast = partial(forecast_at, one, (prepared, scaler, neighbours), cfg=cfg)
        return jax.lax.map(forecast, origins, batch_size=PREDICT_BATCH)

    return jax.vmap(of_seed)(params.network) if stacked else of_seed(params.network)


def forecast_at(
    params: ForecasterParams, shared: tuple[Prepared, Scaler, Neighbours], origin: int | Array, cfg: ForecasterConfig
) -> Forecast:
    """The forecast of one origin, [H, N] or [H, N, G]; reads no row but the origin's and `history` before it."""
    scale = params.scaler.scale[jnp.array(cfg.targets)]
    output, inputs = _apply(params.network, shared, jnp.asarray(origin)[None], cfg, None)
    mean, sigma = _standard(output.mean, cfg)[0], _standard(output.sigma, cfg)[0]
    # Every feature of the data contract is non-negative.
    mean = jnp.maximum(inputs.centre[0] + inputs.spread[0] * mean, 0.0)
    forecast = Forecast(mean * scale, inputs.spread[0] * sigma * scale)
    return forecast if len(cfg.targets) > 1 else jax.tree.map(lambda leaf: leaf[..., 0], forecast)
