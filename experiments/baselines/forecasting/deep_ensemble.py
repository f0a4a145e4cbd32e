"""Deep ensemble: Graph WaveNets that differ by their start only, their forecasts taken together as one mixture.

Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
NeurIPS 2017: five members, the mixture reported by its mean and variance; without the adversarial examples, which that
paper finds to matter little. Tuning budget: as Graph WaveNet, five times over: a seed is five trainings.
"""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import Array

from experiments.baselines.forecasting import graph_wavenet, neural
from experiments.baselines.forecasting.graph_wavenet import GraphWaveNetConfig
from experiments.baselines.forecasting.neural import NeuralParams
from stream_jax.fit import FitResult, TrainConfig
from stream_jax.types import Forecast, ForecastData


@dataclasses.dataclass(frozen=True)
class DeepEnsembleConfig(GraphWaveNetConfig):
    """A member's sizes, and how many there are."""

    members: int = 5


DEFAULT = DeepEnsembleConfig()


def fit_with_history(
    key: Array,
    data: ForecastData,
    cfg: DeepEnsembleConfig,
    train_cfg: TrainConfig,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> tuple[NeuralParams, FitResult]:
    """Trains one ensemble, leaves [K, ...], or one per key when `key` has shape [S], leaves [S, K, ...].

    One ensemble after another, which bounds the memory; the loss curves are those of all members.
    """
    fitted = []
    for number, one in enumerate(jnp.atleast_1d(key)):
        folder = None if checkpoint_dir is None else Path(checkpoint_dir) / f"ensemble-{number}"
        member_keys = jax.random.split(one, cfg.members)
        fitted.append(graph_wavenet.fit_with_history(member_keys, data, cfg, train_cfg, progress, folder))
    params, results = zip(*fitted, strict=True)
    result = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *results)
    return (jax.tree.map(lambda *leaves: jnp.stack(leaves), *params) if key.ndim else params[0]), result


fit = neural.without_history(fit_with_history, DEFAULT)


def predict(params: NeuralParams, data: ForecastData, origins: Array, cfg: DeepEnsembleConfig) -> Forecast:
    """Mean and standard deviation of the mixture: [W, H, N], with a first axis S for several ensembles."""
    shape = params.scale.change.shape  # [K] or [S, K]
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(shape) :]), params)
    members = graph_wavenet.predict(flat, data, origins, cfg)
    return mixture(*(leaf.reshape(*shape, *leaf.shape[1:]) for leaf in members))


def mixture(mean: Array, sigma: Array) -> Forecast:
    """Moments of an equal mixture of Gaussians [..., K, W, H, N] over its members."""
    centre = mean.mean(axis=-4)
    variance = (sigma**2).mean(axis=-4) + mean.var(axis=-4)
    return Forecast(centre, jnp.sqrt(variance))
