"""Fits, calibrates and evaluates forecasters, ours and the references, on every fold of a dataset."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from data.loader import TrafficDataset
from experiments.methods import catalogue
from experiments.methods.forecasting.stid import StidConfig
from experiments.presets import ExperimentConfig
from stream_jax.conformal import bootstrap, clusters, diagnostics, intervals
from stream_jax.fit import FitResult, TrainConfig
from stream_jax.gnn import pu_gat_plus
from stream_jax.types import ConformalState, Forecast, ForecastData, Interval

OURS = "pu_gat_plus"
ENSEMBLE_OF_OURS = "pu_gat_ensemble"
RECORDS = catalogue.records(catalogue.FORECASTERS)
MODULES = {name: catalogue.module_of(place) for name, place in catalogue.FORECASTERS.items()}
METHODS = catalogue.names(catalogue.FORECASTERS)
REFERENCES = {
    name: (module, RECORDS[name].config)
    for name, module in MODULES.items()
    if not hasattr(module, "fit_with_history")  # computed, not trained
}
# Trained as PU-GAT+ is: the same seeds, data, settings and stopping.
RIVALS = {
    name: (MODULES[base], dataclasses.replace(one.config, **one.variants.get(name.partition(":")[2], {})))
    for base, one in RECORDS.items()
    if base not in (*REFERENCES, OURS, ENSEMBLE_OF_OURS)
    for name in one.names
}
VARIANTS = RECORDS[OURS].variants
DEFAULT_METHODS = (*REFERENCES, OURS)
DAYS_OF_WEEK = 7
BLOCK = 24  # steps of a bootstrap block: six hours


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
    history: FitResult | None  # None for what is not trained in epochs


def forecaster_config(method: str, dataset: TrafficDataset, cfg: ExperimentConfig) -> Any:
    """PU-GAT+ as configured with the change that a variant's name stands for, or a rival with the dataset's windows."""
    if method in RIVALS:
        history, horizon = dataset.manifest["window"], dataset.manifest["horizon"]
        changes = {"miscoverage": cfg.conformal.target} if method.split(":")[0] == "cqr" else {}
        changes["steps_per_day"] = 86_400 // dataset.manifest["bin_s"]
        start, end = dataset.part("train", 0)
        if isinstance(RIVALS[method][1], StidConfig) and end - start < DAYS_OF_WEEK * changes["steps_per_day"]:
            changes["day_of_week"] = 0  # identities of days that no training window shows would be noise
        sizes = getattr(cfg.rivals, method, RIVALS[method][1])
        return dataclasses.replace(sizes, history=history, horizon=horizon, **changes)
    changes = VARIANTS[method.split(":")[1]] if ":" in method else {}
    profile = dataclasses.replace(cfg.forecaster.profile, steps_per_day=86_400 // dataset.manifest["bin_s"])
    return dataclasses.replace(cfg.forecaster, profile=profile, **changes)


def training_of(method: str, cfg: ExperimentConfig, windows: int) -> TrainConfig:
    """How a method is trained on so many windows: PU-GAT+ as configured, and a rival, which begins with nothing,
    until it has made `rival_steps` steps, but for no fewer epochs than PU-GAT+ and no more than its limit.
    """
    if method not in RIVALS:
        return cfg.training
    full = cfg.rival_training
    epochs = max(-(-cfg.rival_steps * min(full.batch, windows) // windows), cfg.training.epochs)
    return dataclasses.replace(full, epochs=min(epochs, full.epochs))


def fit_fold(
    method: str, dataset: TrafficDataset, fold: int, cfg: ExperimentConfig, checkpoint_dir: Path | None, progress: bool
) -> Fitted:
    """Fits a method on train and val, calibrates on calibration, and runs it over test as it would have run live."""
    data = jax.tree.map(jnp.asarray, dataset.forecast_data(fold))
    history = None
    if method in REFERENCES:
        module, config = REFERENCES[method]
        params = module.fit(jax.random.key(cfg.first_seed), data, config)
        predict = _stacked(module.predict, params, data, config)
    else:
        module = MODULES[method.split(":")[0]]
        config = forecaster_config(method, dataset, cfg)
        keys = jax.vmap(jax.random.key)(cfg.first_seed + jnp.arange(cfg.seeds))
        training = training_of(method, cfg, len(data.train))
        params, history = module.fit_with_history(keys, data, config, training, progress, checkpoint_dir)
        predict = lambda origins: module.predict(params, data, origins, config)  # noqa: E731
    conformal, outcome = conformalise(predict, dataset, data, fold, cfg.conformal)
    return Fitted(params, config, conformal, outcome, history)


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
    labels = {name: pu_gat_plus.labels_at(data.series, origins, horizon) for name, origins in parts.items()}
    forecasts = _split(predict(jnp.concatenate(list(parts.values()))), parts)
    errors = (labels["val"][0] - forecasts["val"].mean) / forecasts["val"].sigma
    cluster = np.stack(
        [
            clusters.cluster_cells(np.asarray(one), np.asarray(labels["val"][1]), dataset.manifest["steps"], cfg)
            for one in errors
        ]
    )
    named = [(forecasts[name], labels[name]) for name in ("calibration", "test")]
    state, online = _run_online(jnp.asarray(cluster), *named, cfg)
    ahead = parts["test"][:, None] + 1 + jnp.arange(horizon)
    outcome = Outcome(forecasts["test"], online.interval, cluster, *labels["test"], data.series.slot[ahead])
    return state, jax.tree.map(np.asarray, outcome)


@partial(jax.jit, static_argnames="cfg")
def _run_online(
    cluster: Array, calibration: tuple[Forecast, Any], test: tuple[Forecast, Any], cfg: intervals.ConformalConfig
) -> tuple[ConformalState, intervals.OnlineResult]:
    """Calibrates and runs every seed; forecasts [S, W, H, N] with their labels and masks [W, H, N]."""

    def run(cluster: Array, before: Forecast, live: Forecast) -> tuple[ConformalState, intervals.OnlineResult]:
        state = intervals.calibrate(before, *calibration[1], cluster, cfg)
        return intervals.run_online(state, live, *test[1], cfg)

    return jax.vmap(run)(cluster, calibration[0], test[0])


def _split(forecast: Forecast, parts: dict[str, Array]) -> dict[str, Forecast]:
    """Forecasts of several parts' origins, made in one call that compiles once, by part."""
    ends = np.cumsum([len(origins) for origins in parts.values()])
    pieces = [jnp.split(leaf, ends[:-1], axis=1) for leaf in forecast]
    return {name: Forecast(mean, sigma) for name, mean, sigma in zip(parts, *pieces, strict=True)}


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
            metrics |= _worst_cluster(group) | _horizon_intervals(joined)
            rows += [
                {"seed": cfg.first_seed + seed, "fold": name, "metric": key, "value": value}
                for key, value in metrics.items()
            ]
    return rows


def _stacked(predict: Callable, params: Any, data: ForecastData, config: Any) -> Callable[[Array], Forecast]:
    """A method without randomness as a single seed."""
    return lambda origins: jax.tree.map(lambda leaf: leaf[None], predict(params, data, origins, config))


def _horizon_intervals(joined: Outcome) -> dict[str, float]:
    """Block-bootstrap interval of the coverage at each horizon."""
    hit = intervals.contains(joined.interval, joined.target)
    found = {}
    for h in range(hit.shape[1]):
        sums = bootstrap.mean_sums(hit[:, h : h + 1], joined.mask[:, h : h + 1])
        bounds = bootstrap.block_bootstrap(jax.random.key(h), sums, bootstrap.ratio_of_totals, BLOCK)
        found |= {f"coverage_h{h + 1}_lower": float(bounds.lower), f"coverage_h{h + 1}_upper": float(bounds.upper)}
    return found


def _of_seed(outcome: Outcome, seed: int) -> Outcome:
    picked = jax.tree.map(lambda leaf: leaf[seed], (outcome.forecast, outcome.interval, outcome.cluster))
    return Outcome(*picked, outcome.target, outcome.mask, outcome.slot)


def _worst_cluster(group: list[Outcome]) -> dict:
    """Clusters differ between folds, so the worst over all of them is the worst of any fold."""
    if len(group) == 1:
        return {}
    worst = []
    for one in group:
        hit = intervals.contains(one.interval, one.target)
        by_cluster = diagnostics.coverage_by_group(hit, one.mask, one.cluster, int(one.cluster.max()) + 1)
        worst.append(float(np.min(np.where(by_cluster.count > 0, by_cluster.coverage, np.inf))))
    return {"coverage_worst_cluster": min(worst)}
