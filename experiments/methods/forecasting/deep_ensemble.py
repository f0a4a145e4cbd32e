"""Deep ensemble: forecasters that differ by their start only, their forecasts taken together as one mixture.

Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
NeurIPS 2017: five members, the mixture reported by its mean and variance; without the adversarial examples, which that
paper finds to matter little. The method `deep_ensemble` has Graph WaveNets as members, `pu_gat_ensemble` has PU-GAT+.
Tuning budget: as its members, five times over: a seed is five trainings.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting import graph_wavenet, neural
from experiments.methods.forecasting.graph_wavenet import GraphWaveNetConfig
from experiments.methods.forecasting.neural import FrontDoors
from experiments.methods.method import Method
from stream_jax.fit import FitResult, TrainConfig
from stream_jax.types import Forecast, ForecastData


@dataclasses.dataclass(frozen=True)
class DeepEnsembleConfig(GraphWaveNetConfig):
    """A member's sizes, and how many there are."""

    members: int = 5


DEFAULT = DeepEnsembleConfig()


class EnsembleParams(NamedTuple):
    """Trained members; one more leading axis S after a fit with several keys."""

    members: Any  # leaves [K, ...]
    number: Array  # [K] from 0 on; its shape tells one ensemble from several

    @property
    def network(self) -> Any:
        """What is trained."""
        return self.members.network


def ensemble_of(member: Any, members: int | None = None, default: Any = None) -> FrontDoors:
    """A forecaster whose seed is several trainings of another.

    Args:
        member: a module with the forecasters' front doors.
        members: how many; None reads it from the config.
    """

    def fit_with_history(
        key: Array,
        data: ForecastData,
        cfg: Any,
        train_cfg: TrainConfig,
        progress: bool = False,
        checkpoint_dir: Path | str | None = None,
    ) -> tuple[EnsembleParams, FitResult]:
        """Trains one ensemble, leaves [K, ...], or one per key when `key` has shape [S], leaves [S, K, ...].

        One ensemble after another, which bounds the memory; the loss curves are those of all members.
        """
        fitted = []
        for number, one in enumerate(jnp.atleast_1d(key)):
            folder = None if checkpoint_dir is None else Path(checkpoint_dir) / f"ensemble-{number}"
            member_keys = jax.random.split(one, members or cfg.members)
            trained, result = member.fit_with_history(member_keys, data, cfg, train_cfg, progress, folder)
            # A seed is all members, and so is its epoch.
            result = result._replace(epoch_seconds=result.epoch_seconds * len(member_keys))
            fitted.append((EnsembleParams(trained, jnp.arange(len(member_keys))), result))
        params, results = zip(*fitted, strict=True)
        result = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *results)
        return (jax.tree.map(lambda *leaves: jnp.stack(leaves), *params) if key.ndim else params[0]), result

    def predict(params: EnsembleParams, data: ForecastData, origins: Array, cfg: Any) -> Forecast:
        """Mean and standard deviation of the mixture: [W, H, N], with a first axis S for several ensembles."""
        shape = params.number.shape  # [K] or [S, K]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(shape) :]), params.members)
        forecasts = member.predict(flat, data, origins, cfg)
        return mixture(*(leaf.reshape(*shape, *leaf.shape[1:]) for leaf in forecasts))

    return FrontDoors(neural.without_history(fit_with_history, default), fit_with_history, predict)


def mixture(mean: Array, sigma: Array) -> Forecast:
    """Moments of an equal mixture of Gaussians [..., K, W, H, N] over its members."""
    centre = mean.mean(axis=-4)
    variance = (sigma**2).mean(axis=-4) + mean.var(axis=-4)
    return Forecast(centre, jnp.sqrt(variance))


fit, fit_with_history, predict = ensemble_of(graph_wavenet, default=DEFAULT)


METHOD = Method("deep_ensemble", DEFAULT)
