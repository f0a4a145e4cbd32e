"""PU-GAT+: forecasts every cell for the next hour with a standard deviation of its own.

Section 4.1 and the appendix "Training Details" (Eq. het_nll). The network corrects the profile of `profile.py` and
starts from zero correction, so training can only move away from a sound forecast where validation data agree.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.fit import Examples, FitResult, TrainConfig, train
from stream_jax.gnn.attention import Neighbours, neighbour_table
from stream_jax.gnn.decompose import seasonal_mean
from stream_jax.gnn.network import ForecasterConfig, Network, NetworkOutput
from stream_jax.gnn.profile import (
    Anchor,
    LevelWeights,
    anchor,
    causal_profile,
    initial_levels,
    noise_scale,
)
from stream_jax.types import Forecast, ForecastData, TrafficSeries

INPUT_CLIP = 6.0  # standardised inputs beyond this are incidents; their size carries no further information
PREDICT_BATCH = 64
DEFAULT = ForecasterConfig()
DEFAULT_TRAINING = TrainConfig()


class Scaler(NamedTuple):
    """Units learned from the training part only; kept with the weights so that a checkpoint stands alone."""

    scale: Array  # [F] standard deviation of each feature, physical units
    unit: Array  # [F] spread of the anchor's error in units of its noise scale
    seasonal: Array  # [steps_per_day, N, F] scaled training mean by time of day


class ForecasterParams(NamedTuple):
    """Everything predict needs besides the data; every leaf has a leading seed axis after a fit with several keys."""

    network: Any
    levels: LevelWeights
    scaler: Scaler


class Prepared(NamedTuple):
    """A recording in scaled units with its causal profile, `horizon` steps longer than the recording."""

    values: Array  # [L, N, F], 0 where not observed
    observed: Array  # [L, N, F] bool
    clock: Array  # [L, 4]
    seasonal: Array  # [L, N, F]
    expected: Array  # [L + H, N, F]
    days: Array  # [L + H, N, F]


class Inputs(NamedTuple):
    """What the network sees at one origin, and the units of its answer."""

    window: Array  # [T, N, F] standardised deviation from the anchor
    season: Array  # [T, N, F] the same of the seasonal mean
    context: Array  # [N, ·] level, shape of the coming hour, calendar
    centre: Array  # [H, N, G] anchor of the targets, scaled units
    spread: Array  # [H, N, G] size of one standardised unit, scaled units


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
    scaler = jax.jit(fit_scaler, static_argnums=1)(data, cfg)
    prepared = jax.jit(prepare, static_argnums=2)(data.series, scaler, cfg)
    shared = (prepared, scaler, neighbour_table(data.graph))
    examples = Examples(data.train, data.val, shared)
    init_fn = partial(_init, shared=shared, origin=data.train[:1], cfg=cfg)
    result = train(
        keys, init_fn, partial(_loss, cfg=cfg), partial(_eval, cfg=cfg), examples, train_cfg, progress, checkpoint_dir
    )
    scalers = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (keys.shape[0], *leaf.shape)), scaler)
    params = ForecasterParams(result.params["network"], result.params["levels"], scalers)
    return (params if key.ndim else jax.tree.map(lambda leaf: leaf[0], params)), result


def predict(params: ForecasterParams, data: ForecastData, origins: Array, cfg: ForecasterConfig) -> Forecast:
    """Forecasts in physical units from data up to each origin.

    Args: origins [W] int32, each at least history - 1 and at most L - 1.
    Returns: [W, H, N], with a last axis G for several targets and a first axis S for stacked parameters.
    """
    chex.assert_rank(origins, 1)
    forecast = partial(_predict, cfg=cfg)
    if params.scaler.scale.ndim == 2:
        forecast = jax.vmap(forecast, (0, None, None, None))
    return jax.jit(forecast)(params, data.series, neighbour_table(data.graph), origins)


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


def fit_scaler(data: ForecastData, cfg: ForecasterConfig) -> Scaler:
    """Scales from observed entries of the training part alone."""
    series, steps = data.series, jnp.arange(data.series.values.shape[0])
    in_train = (steps >= data.train.min() - cfg.history + 1) & (steps <= data.train.max() + cfg.horizon)
    weight = series.observed & in_train[:, None, None]
    values = jnp.where(weight, series.values, 0.0)
    count = jnp.maximum(weight.sum((0, 1)), 1)
    mean = values.sum((0, 1)) / count
    deviation = jnp.where(weight, values - mean, 0.0)
    scale = jnp.sqrt((deviation**2).sum((0, 1)) / count)
    scale = jnp.where(scale > 0, scale, 1.0)  # a constant or never observed feature keeps its unit
    per_day = cfg.profile.steps_per_day
    seasonal = seasonal_mean(series.values / scale, series.observed, series.slot % per_day, in_train, per_day)
    scaler = Scaler(scale, jnp.ones_like(scale), seasonal)
    return scaler._replace(unit=_anchor_error(data, scaler, cfg))


def prepare(series: TrafficSeries, scaler: Scaler, cfg: ForecasterConfig) -> Prepared:
    """Scales a recording and lays its causal profile under it."""
    values = jnp.where(series.observed, series.values / scaler.scale, 0.0)
    ahead = ((0, cfg.horizon), (0, 0), (0, 0))
    profile = causal_profile(jnp.pad(values, ahead), jnp.pad(series.observed, ahead), cfg.horizon, cfg.profile)
    seasonal = scaler.seasonal[series.slot % cfg.profile.steps_per_day]
    return Prepared(values, series.observed, series.clock, seasonal, profile.expected, profile.days)


def inputs_at(levels: LevelWeights, prepared: Prepared, scaler: Scaler, origin: Array, cfg: ForecasterConfig) -> Inputs:
    """Everything the network may know at one origin; reads no value after it."""
    past = origin + jnp.arange(1 - cfg.history, 1)
    ahead = origin + jnp.arange(1, cfg.horizon + 1)
    values, observed, before = prepared.values[past], prepared.observed[past], prepared.expected[past]
    level = anchor(levels, values, observed, before, prepared.expected[ahead])
    unit = scaler.unit * noise_scale(level.history, cfg.profile)  # [T, N, F]
    known = observed & (before > 0)
    window = jnp.where(known, (values - level.history) / unit, 0.0)
    city = jnp.exp(level.city[-1])  # keeps the seasonal mean at the level of its window
    season = jnp.where(known, (prepared.seasonal[past] * city - level.history) / unit, 0.0)
    targets = jnp.array(cfg.targets)
    centre = level.future[..., targets]
    spread = jax.lax.stop_gradient(scaler.unit[targets] * noise_scale(centre, cfg.profile))
    return Inputs(
        window=jnp.clip(window, -INPUT_CLIP, INPUT_CLIP),
        season=jnp.clip(season, -INPUT_CLIP, INPUT_CLIP),
        context=_context(prepared, level, origin, ahead, targets, cfg),
        centre=centre,
        spread=spread,
    )


def _context(
    prepared: Prepared, level: Anchor, origin: Array, ahead: Array, targets: Array, cfg: ForecasterConfig
) -> Array:
    """Level, shape of the coming hour, trust in the profile and calendar, [N, ·]."""
    cells = level.cell.shape[0]
    log_future = jnp.log(level.future + cfg.profile.floor)  # [H, N, F]
    shape = (log_future - jnp.log(level.history[-1:] + cfg.profile.floor))[..., targets]
    days = prepared.days[ahead[0]][:, targets]
    shared = jnp.concatenate([level.city[:, targets].ravel(), prepared.clock[origin]])
    parts = [
        jnp.moveaxis(shape, 0, 1).reshape(cells, -1),
        log_future[0],
        level.cell,
        days / (1.0 + days),
        jnp.broadcast_to(shared, (cells, shared.shape[0])),
    ]
    return jnp.concatenate(parts, -1)


def _anchor_error(data: ForecastData, scaler: Scaler, cfg: ForecasterConfig) -> Array:
    """Root mean square of the anchor's error over the training windows in units of its noise scale, [F]."""
    prepared = prepare(data.series, scaler, cfg)
    levels = initial_levels(cfg.horizon, scaler.scale.shape[0])

    def squares(origin: Array) -> tuple[Array, Array]:
        past = origin + jnp.arange(1 - cfg.history, 1)
        ahead = origin + jnp.arange(1, cfg.horizon + 1)
        window = prepared.values[past], prepared.observed[past], prepared.expected[past]
        expected = anchor(levels, *window, prepared.expected[ahead]).future
        error = (prepared.values[ahead] - expected) / noise_scale(expected, cfg.profile)
        mask = prepared.observed[ahead]
        return jnp.where(mask, error**2, 0.0).sum((0, 1)), mask.sum((0, 1))

    total, count = jax.lax.map(squares, data.train)
    unit = jnp.sqrt(total.sum(0) / jnp.maximum(count.sum(0), 1))
    return jnp.where(unit > 0, unit, 1.0)


def _apply(
    trained: Any, shared: tuple[Prepared, Scaler, Neighbours], origins: Array, cfg: ForecasterConfig, key: Array | None
) -> tuple[NetworkOutput, Inputs]:
    """Runs the network on a batch of origins, nodes first; a key switches dropout on."""
    prepared, scaler, neighbours = shared
    inputs = jax.vmap(partial(inputs_at, trained["levels"], prepared, scaler, cfg=cfg))(origins)
    window, season = (jnp.moveaxis(part, 0, 2) for part in (inputs.window, inputs.season))  # [T, N, B, F]
    context = jnp.moveaxis(inputs.context, 0, 1)  # [N, B, ·]
    rngs = None if key is None else {"dropout": key}
    output = Network(cfg).apply(trained["network"], window, season, context, neighbours, key is not None, rngs=rngs)
    return output, inputs


def _init(key: Array, shared: tuple[Prepared, Scaler, Neighbours], origin: Array, cfg: ForecasterConfig) -> Any:
    prepared, scaler, neighbours = shared
    levels = initial_levels(cfg.horizon, scaler.scale.shape[0])
    inputs = jax.vmap(partial(inputs_at, levels, prepared, scaler, cfg=cfg))(origin)
    window, season = (jnp.moveaxis(part, 0, 2) for part in (inputs.window, inputs.season))
    network = Network(cfg).init(key, window, season, jnp.moveaxis(inputs.context, 0, 1), neighbours, False)
    return {"network": network, "levels": levels}


def _targets(prepared: Prepared, origins: Array, cfg: ForecasterConfig) -> tuple[Array, Array]:
    """Scaled targets and their mask, [B, H, N, G]."""
    ahead = origins[:, None] + jnp.arange(1, cfg.horizon + 1)
    targets = jnp.array(cfg.targets)
    return prepared.values[ahead][..., targets], prepared.observed[ahead][..., targets]


def _standard(output: Array, cfg: ForecasterConfig) -> Array:
    """[N, B, H * G] to [B, H, N, G]."""
    split = output.reshape(*output.shape[:2], cfg.horizon, len(cfg.targets))
    return split.transpose(1, 2, 0, 3)


def _loss(key: Array, trained: Any, origins: Array, weight: Array, shared: tuple, cfg: ForecasterConfig) -> Array:
    """Eq. (het_nll) over the observed targets of the weighted windows, plus the hidden sigmas' likelihood."""
    output, inputs = _apply(trained, shared, origins, cfg, key)
    target, mask = _targets(shared[0], origins, cfg)
    mean, sigma = _standard(output.mean, cfg), _standard(output.sigma, cfg)
    error = jnp.where(mask, (target - inputs.centre) / inputs.spread - mean, 0.0)  # [B, H, N, G]
    entry_weight = mask * weight[:, None, None, None]
    if cfg.loss == "mse":
        return (entry_weight * 0.5 * error**2).sum() / jnp.maximum(entry_weight.sum(), 1.0)
    likelihood = 0.5 * (error / sigma) ** 2 + jnp.log(sigma)
    if cfg.loss == "beta_nll":
        physical = jax.lax.stop_gradient(sigma * inputs.spread) ** (2.0 * cfg.beta)
        likelihood *= physical / jnp.maximum((entry_weight * physical).sum() / jnp.maximum(entry_weight.sum(), 1), 1e-6)
    entry = likelihood + cfg.regulariser * jnp.log(sigma) ** 2
    loss = (entry_weight * entry).sum() / jnp.maximum(entry_weight.sum(), 1.0)
    return loss + cfg.auxiliary * _hidden_loss(output.hidden_sigma, error, entry_weight)


def _hidden_loss(hidden_sigma: Array, error: Array, entry_weight: Array) -> Array:
    """Likelihood of each cell's root mean square error under every hidden sigma; the mean forecast is left alone."""
    count = entry_weight.sum((1, 3)).T  # [N, B]
    square = jax.lax.stop_gradient((entry_weight * error**2).sum((1, 3)).T / jnp.maximum(count, 1.0))
    hidden = jnp.maximum(hidden_sigma, 1e-3)
    likelihood = 0.5 * square / hidden**2 + jnp.log(hidden)  # [layers, N, B]
    return (count * likelihood).sum() / jnp.maximum(count.sum() * hidden.shape[0], 1.0)


def _eval(trained: Any, origins: Array, shared: tuple, cfg: ForecasterConfig) -> Array:
    """Loss of each window without dropout and regulariser, [B]: likelihood in scaled units, or squared error."""
    output, inputs = _apply(trained, shared, origins, cfg, None)
    target, mask = _targets(shared[0], origins, cfg)
    mean, sigma = _standard(output.mean, cfg), _standard(output.sigma, cfg)
    error = jnp.where(mask, (target - inputs.centre) / inputs.spread - mean, 0.0)
    entry = 0.5 * error**2
    if cfg.loss != "mse":
        entry = entry / sigma**2 + jnp.log(sigma * inputs.spread)
    return (mask * entry).sum((1, 2, 3)) / jnp.maximum(mask.sum((1, 2, 3)), 1)


def _predict(
    params: ForecasterParams, series: TrafficSeries, neighbours: Neighbours, origins: Array, cfg: ForecasterConfig
) -> Forecast:
    shared = (prepare(series, params.scaler, cfg), params.scaler, neighbours)
    trained = {"network": params.network, "levels": params.levels}
    scale = params.scaler.scale[jnp.array(cfg.targets)]

    def one(origin: Array) -> Forecast:
        output, inputs = _apply(trained, shared, origin[None], cfg, None)
        mean, sigma = _standard(output.mean, cfg)[0], _standard(output.sigma, cfg)[0]
        # Every feature of the data contract is non-negative.
        mean = jnp.maximum(inputs.centre[0] + inputs.spread[0] * mean, 0.0)
        forecast = Forecast(mean * scale, inputs.spread[0] * sigma * scale)
        return forecast if len(cfg.targets) > 1 else jax.tree.map(lambda leaf: leaf[..., 0], forecast)

    return jax.lax.map(one, origins, batch_size=PREDICT_BATCH)
