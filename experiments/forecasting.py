"""Fits, calibrates and evaluates forecasters, ours and the references, on every fold of a dataset."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from data.loader import TrafficDataset
from experiments.baselines.forecasting import historical_average, linear_ar, persistence, scaled_profile
from experiments.configs import ExperimentConfig
from stream_jax.conformal import clusters, diagnostics, intervals
from stream_jax.gnn import pu_gat_plus
from stream_jax.gnn.attention import AttentionConfig
from stream_jax.types import ConformalState, Forecast, ForecastData, Interval

REFERENCES = {
    "persistence": (persistence, persistence.PersistenceConfig()),
    "historical_average": (historical_average, historical_average.HistoricalAverageConfig()),
    "scaled_profile": (scaled_profile, scaled_profile.ScaledProfileConfig()),
    "linear_ar": (linear_ar, linear_ar.LinearArConfig()),
}
OURS = "pu_gat_plus"
VARIANTS = {
    "unconstrained": {"attention": AttentionConfig(mode="unconstrained")},
    "gamma_zero": {"attention": AttentionConfig(mode="none")},
    "temperature": {"attention": AttentionConfig(mode="temperature")},
    "single_stream": {"dual_stream": False},
    "mse": {"loss": "mse"},
    "beta_nll": {"loss": "beta_nll"},
    "seasonal_trend": {"trend": "seasonal"},
}
METHODS = (*REFERENCES, OURS, *(f"{OURS}:{name}" for name in VARIANTS))
DEFAULT_METHODS = (*REFERENCES, OURS)


class Outcome(NamedTuple):
    """What one method said about the test part of one fold; seed axis first."""

    forecast: Forecast  # [S, W, H, N]
    interval: Interval  # [S, W, H, N]
    cluster: Array  # [S, N]
    target: Array  # [W, H, N]
    mask: Array  # [W, H, N]
    slot: Array  # [W, H]


class Fitted(NamedTuple):
    """A trained method with its calibration, ready to forecast."""

    params: Any
    config: Any
    conformal: ConformalState  # leaves [S, ...]
    outcome: Outcome


def forecaster_config(method: str, dataset: TrafficDataset, cfg: ExperimentConfig) -> pu_gat_plus.ForecasterConfig:
    """PU-GAT+ as configured, with the change that a variant's name stands for."""
    changes = VARIANTS[method.split(":")[1]] if ":" in method else {}
    profile = dataclasses.replace(cfg.forecaster.profile, steps_per_day=86_400 // dataset.manifest["bin_s"])
    return dataclasses.replace(cfg.forecaster, profile=profile, **changes)


def fit_fold(
    method: str, dataset: TrafficDataset, fold: int, cfg: ExperimentConfig, checkpoint_dir: Path | None, progress: bool
) -> Fitted:
    """Fits a method on train and val, calibrates on calibration, and runs it over test as it would have run live."""
    data = jax.tree.map(jnp.asarray, dataset.forecast_data(fold))
    if method in REFERENCES:
        module, config = REFERENCES[method]
        params = module.fit(jax.random.key(cfg.first_seed), data, config)
        predict = _stacked(module.predict, params, data, config)
    else:
        config = forecaster_config(method, dataset, cfg)
        keys = jax.vmap(jax.random.key)(cfg.first_seed + jnp.arange(cfg.seeds))
        params = pu_gat_plus.fit(keys, data, config, cfg.training, progress, checkpoint_dir)
        predict = lambda origins: pu_gat_plus.predict(params, data, origins, config)  # noqa: E731
    conformal, outcome = conformalise(predict, dataset, data, fold, cfg.conformal)
    return Fitted(params, config, conformal, outcome)


def conformalise(
    predict: Callable[[Array], Forecast],
    dataset: TrafficDataset,
    data: ForecastData,
    fold: int,
    cfg: intervals.ConformalConfig,
) -> tuple[ConformalState, Outcome]:
    """Clusters from val, scores from calibration, intervals over test with labels arriving when they would.

    Args:
        predict: origins [W] -> forecasts with a leading seed axis.
    """
    parts = {name: jnp.asarray(dataset.origins(name, fold)) for name in ("val", "calibration", "test")}
    horizon = dataset.manifest["horizon"]
    labels = {name: labels_at(data, origins, horizon) for name, origins in parts.items()}
    forecasts = {name: predict(origins) for name, origins in parts.items()}
    errors = (labels["val"][0] - forecasts["val"].mean) / forecasts["val"].sigma
    cluster = np.stack(
        [
            clusters.cluster_cells(np.asarray(one), np.asarray(labels["val"][1]), dataset.manifest["steps"], cfg)
            for one in errors
        ]
    )

    @jax.vmap
    def run(cluster: Array, calibration: Forecast, test: Forecast) -> tuple[ConformalState, intervals.OnlineResult]:
        state = intervals.calibrate(calibration, *labels["calibration"], cluster, cfg)
        return intervals.run_online(state, test, *labels["test"], cfg)

    state, online = jax.jit(run)(jnp.asarray(cluster), forecasts["calibration"], forecasts["test"])
    ahead = parts["test"][:, None] + 1 + jnp.arange(horizon)
    outcome = Outcome(forecasts["test"], online.interval, cluster, *labels["test"], data.series.slot[ahead])
    return state, jax.tree.map(np.asarray, outcome)


def labels_at(data: ForecastData, origins: Array, horizon: int) -> tuple[Array, Array]:
    """Flow of the steps after each origin and whether it was observed: [W, H, N] each."""
    ahead = origins[:, None] + 1 + jnp.arange(horizon)
    return data.series.values[ahead, :, 0], data.series.observed[ahead, :, 0]


def metric_rows(outcomes: list[Outcome], cfg: ExperimentConfig, steps_per_day: int) -> list[dict]:
    """Every metric of each seed, over the test parts of all folds taken together, and of each fold."""
    rows = []
    for seed in range(outcomes[0].forecast.mean.shape[0]):
        chosen = [_of_seed(outcome, seed) for outcome in outcomes]
        for name, group in [("all", chosen)] + [(str(k), [one]) for k, one in enumerate(chosen) if len(chosen) > 1]:
            joined = jax.tree.map(lambda *parts: np.concatenate(parts), *(one._replace(cluster=None) for one in group))
            metrics = diagnostics.evaluate(
                jax.random.key(seed),
                joined.forecast,
                joined.interval,
                joined.target,
                joined.mask,
                group[-1].cluster,
                joined.slot,
                cfg.conformal.target,
                steps_per_day,
            )
            metrics |= _worst_cluster(group, metrics)
            rows += [
                {"seed": cfg.first_seed + seed, "fold": name, "metric": key, "value": value}
                for key, value in metrics.items()
            ]
    return rows


def gamma_rows(params: pu_gat_plus.ForecasterParams, cfg: pu_gat_plus.ForecasterConfig, fold: int) -> list[dict]:
    """Learned gamma and delta of every stream, layer and head, by seed."""
    rows = []
    for stream, layers in params.network["params"].items():
        for layer, weights in layers.items() if isinstance(layers, dict) else ():
            if not layer.startswith("layer_") or "gamma" not in weights:
                continue
            raw = np.asarray(weights["gamma"])  # [S, heads]
            gamma = np.logaddexp(0, raw) if cfg.attention.mode == "pairwise" else raw
            for seed, values in enumerate(gamma):
                rows += [
                    {
                        "seed": seed,
                        "fold": str(fold),
                        "metric": f"gamma/{stream}/{layer}/head_{head}",
                        "value": float(value),
                    }
                    for head, value in enumerate(values)
                ]
    return rows


def num_parameters(params: Any) -> int:
    """Trained numbers of one seed."""
    tree = params.network if isinstance(params, pu_gat_plus.ForecasterParams) else None
    return sum(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(tree))


def _stacked(predict: Callable, params: Any, data: ForecastData, config: Any) -> Callable[[Array], Forecast]:
    """A method without randomness as a single seed."""
    return lambda origins: jax.tree.map(lambda leaf: leaf[None], predict(params, data, origins, config))


def _of_seed(outcome: Outcome, seed: int) -> Outcome:
    picked = jax.tree.map(lambda leaf: leaf[seed], (outcome.forecast, outcome.interval, outcome.cluster))
    return Outcome(*picked, outcome.target, outcome.mask, outcome.slot)


def _worst_cluster(group: list[Outcome], metrics: dict) -> dict:
    """Clusters differ between folds, so the worst over all of them is the worst of any fold."""
    if len(group) == 1:
        return {}
    worst = []
    for one in group:
        hit = intervals.contains(one.interval, one.target)
        by_cluster = diagnostics.coverage_by_group(hit, one.mask, one.cluster, int(one.cluster.max()) + 1)
        worst.append(float(np.min(np.where(by_cluster.count > 0, by_cluster.coverage, np.inf))))
    return {"coverage_worst_cluster": min(worst)}
