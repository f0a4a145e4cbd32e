"""What a neural rival is shown and asked: windows of the recording in z-scores and the flows that follow them."""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting.profile import TARGET, WindowConfig, targets
from experiments.methods.forecasting.scale import Scale
from stream_jax.types import TrafficSeries


@dataclasses.dataclass(frozen=True)
class NeuralConfig(WindowConfig):
    """Sizes of a window and how a network is fitted."""

    calendar: bool = True  # show the network the time of day, a number in [0, 1) at each step
    # Flows and forecasts are told relative to the mean flow of each cell's own window, which is shown beside them.
    relative: bool = False
    # "absolute" is the papers'; "quantile" makes mean and sigma the middle and the half width of an interval
    loss: Literal["squared", "absolute", "quantile"] = "squared"
    miscoverage: float = 0.1  # of that interval
    sigma_min: float = 0.01  # in units of the cell's spread


class Shared(NamedTuple):
    """What every batch of a fit sees."""

    values: Array  # [L, N, F] z-scores, 0 where not observed
    series: TrafficSeries
    scale: Scale
    sample: Array  # [M] training origins at which normalisation statistics are measured
    graph: Any  # whatever the network makes of the road graph


def inputs_at(shared: Shared, origins: Array, cfg: NeuralConfig) -> tuple[Array, Array, Any]:
    """What a network is called with at origins [B]; reads no value after them."""
    past = origins[:, None] + jnp.arange(1 - cfg.history, 1)  # [B, T]
    window = shared.values[past]  # [B, T, N, F]
    if cfg.relative:
        level = jnp.broadcast_to(level_at(shared, origins, cfg)[:, None, :, None], (*window.shape[:3], 1))
        flow = jnp.where(shared.series.observed[past][..., TARGET, None], window[..., TARGET, None] - level, 0.0)
        window = jnp.concatenate([window.at[..., TARGET].set(flow[..., 0]), level], axis=-1)
    if cfg.calendar:
        time_of_day = (shared.series.slot[past] % cfg.steps_per_day) / cfg.steps_per_day
        time_of_day = jnp.broadcast_to(time_of_day[..., None, None], (*window.shape[:3], 1))
        window = jnp.concatenate([window, time_of_day], axis=-1)
    return window, shared.series.slot[origins], shared.graph


def level_at(shared: Shared, origins: Array, cfg: NeuralConfig) -> Array:
    """Mean observed flow of each cell's window in z-scores, [B, N]; 0, the mean of all, if nothing was observed."""
    past = origins[:, None] + jnp.arange(1 - cfg.history, 1)  # [B, T]
    known = shared.series.observed[past][..., TARGET]  # [B, T, N]
    return (shared.values[past][..., TARGET] * known).sum(axis=1) / jnp.maximum(known.sum(axis=1), 1)


def labels_at(shared: Shared, origins: Array, cfg: NeuralConfig) -> tuple[Array, Array]:
    """Targets in z-scores and their mask, [B, H, N]."""
    target, mask = targets(shared.series, origins, cfg.horizon)
    return (target - shared.scale.mean[TARGET]) / shared.scale.std[TARGET], mask
