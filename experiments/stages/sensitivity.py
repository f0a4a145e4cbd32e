"""The paper's sensitivity tables: saved forecasts and scores evaluated again with one setting changed, or small refits.

Rows go to `<out>/results/<dataset>/sensitivity.jsonl`: `setting` is a row of the paper's table, `metric` a column.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console

from data import loader
from data.errors import DataError
from experiments.cli.options import RunOptions
from experiments.evaluation import results
from experiments.presets import ExperimentConfig, experiment_config
from experiments.stages import detection, forecasting, sensitivity_detect
from experiments.tables import ours, paper
from experiments.tables import render as tables
from stream_jax import store
from stream_jax.gnn import pu_gat_plus
from stream_jax.types import Forecast, ForecastData


class Trained(NamedTuple):
    """The forecast stage's forecaster of one fold."""

    fold: int
    data: ForecastData
    predict: Callable[[Array], Forecast]


def table(args: RunOptions, out: Path, console: Console) -> Path:
    """Measures what the table still needs, then prints it; returns the rows file."""
    dataset = loader.load(out / "data", verify=True)
    rows_file = out / "results" / dataset.manifest["dataset"] / "sensitivity.jsonl"
    if args.table in MEASURED:
        rows = MEASURED[args.table](dataset, experiment_config(args), out, console)
        common = {
            "dataset": dataset.manifest["dataset"],
            "data": dataset.manifest["data"],
            "data_hash": dataset.manifest["content_hash"],
            "preset": args.preset,
            "stage": "sensitivity",
            "method": args.table,
            "device": jax.devices()[0].device_kind,
        }
        results.write_rows(rows_file, (common | row for row in rows))
    text = tables.paper_table(args.table, ours.load(out / "results"), dataset.manifest["dataset"])
    console.print(text, soft_wrap=True, markup=False, highlight=False)
    return rows_file


def aci(dataset: loader.TrafficDataset, cfg: ExperimentConfig, out: Path, console: Console) -> list[dict]:
    """Coverage, width and unrest of the intervals for each step size, on the forecasts that are there."""
    trained, rows = load_trained(dataset, cfg, out), []
    for step in paper.TABLES["aci"].rows:
        conformal = dataclasses.replace(cfg.conformal, method="aci", step_size=float(step))
        outcomes = recalibrated(dataset, dataclasses.replace(cfg, conformal=conformal), trained)
        rows += _metric_rows(step, outcomes, cfg, dataset, {"coverage": "coverage", "RIW": "riw"})
        rows += _seed_rows(step, "oscillation", unrest(outcomes))
    return rows


def clusters(dataset: loader.TrafficDataset, cfg: ExperimentConfig, out: Path, console: Console) -> list[dict]:
    """Coverage, efficiency and the smallest cluster for each number of clusters asked for."""
    trained, rows = load_trained(dataset, cfg, out), []
    for count in paper.TABLES["clusters"].rows:
        conformal = dataclasses.replace(cfg.conformal, num_clusters=int(count), short_clusters=int(count))
        outcomes = recalibrated(dataset, dataclasses.replace(cfg, conformal=conformal), trained)
        rows += _metric_rows(count, outcomes, cfg, dataset, {"coverage": "coverage", "efficiency": "efficiency"})
        rows += _seed_rows(count, "smallest cluster", smallest_cluster(outcomes))
    return rows


def delta(dataset: loader.TrafficDataset, cfg: ExperimentConfig, out: Path, console: Console) -> list[dict]:
    """NRMSE and coverage an hour ahead with the self-loop's bias held fixed or learned; one refit each, resumable."""
    rows = []
    for setting in paper.TABLES["delta"].rows:
        bias = None if setting == "learned" else float(setting)
        attention = dataclasses.replace(cfg.forecaster.attention, self_bias=bias)
        changed = dataclasses.replace(cfg, forecaster=dataclasses.replace(cfg.forecaster, attention=attention))
        outcomes = []
        for fold in cfg.folds(dataset.num_folds):
            console.print(f"  delta {setting}, fold {fold + 1} of {dataset.num_folds} ...")
            training = out / "sensitivity" / f"delta-{setting}-fold{fold}-{_mark(changed, dataset)}"
            fitted = forecasting.fit_fold(forecasting.OURS, dataset, fold, changed, training, console.is_terminal)
            outcomes.append(fitted.outcome)
        rows += _metric_rows(setting, outcomes, cfg, dataset, {"NRMSE": "nrmse_h4", "coverage": "coverage_h4"})
    return rows


def load_trained(dataset: loader.TrafficDataset, cfg: ExperimentConfig, out: Path) -> list[Trained]:
    """What the forecast stage trained, each part of a fold predicted at most once."""
    found = []
    for fold in cfg.folds(dataset.num_folds):
        data = jax.tree.map(jnp.asarray, dataset.forecast_data(fold))
        try:
            upstream = detection.load_upstream(out / "forecast", dataset, fold)
        except ValueError as error:
            raise DataError(str(error)) from None
        found.append(Trained(fold, data, _remembered(upstream.params, data, upstream.config)))
    return found


def recalibrated(
    dataset: loader.TrafficDataset, cfg: ExperimentConfig, trained: list[Trained]
) -> list[forecasting.Outcome]:
    """The same forecasts with intervals of another configuration, fold by fold."""
    return [forecasting.conformalise(one.predict, dataset, one.data, one.fold, cfg.conformal)[1] for one in trained]


def unrest(outcomes: list[forecasting.Outcome]) -> np.ndarray:
    """Mean change of a finite interval's width from one origin to the next, over the mean width. [S]"""
    moved, width = [], []
    for one in outcomes:
        wide = np.asarray(one.interval.upper, np.float64) - one.interval.lower  # [S, W, H, N]
        wide = np.where(np.isfinite(wide), wide, np.nan)
        moved.append(np.abs(np.diff(wide, axis=1)).reshape(len(wide), -1))
        width.append(wide.reshape(len(wide), -1))
    return np.nanmean(np.concatenate(moved, axis=1), axis=1) / np.nanmean(np.concatenate(width, axis=1), axis=1)


def smallest_cluster(outcomes: list[forecasting.Outcome]) -> np.ndarray:
    """Cells in the smallest cluster of any fold. [S]"""
    sizes = [[np.unique(seed, return_counts=True)[1].min() for seed in one.cluster] for one in outcomes]
    return np.min(sizes, axis=0)


def _remembered(params: object, data: ForecastData, config: object) -> Callable[[Array], Forecast]:
    known: dict[bytes, Forecast] = {}

    def predict(origins: Array) -> Forecast:
        key = np.asarray(origins).tobytes()
        if key not in known:
            known[key] = pu_gat_plus.predict(params, data, origins, config)
        return known[key]

    return predict


def _metric_rows(
    setting: str,
    outcomes: list[forecasting.Outcome],
    cfg: ExperimentConfig,
    dataset: loader.TrafficDataset,
    columns: dict[str, str],
) -> list[dict]:
    found = forecasting.metric_rows(outcomes, cfg, loader.DAY_S // dataset.manifest["bin_s"])
    return [
        {"setting": setting, "metric": column, "seed": row["seed"], "value": row["value"]}
        for column, metric in columns.items()
        for row in found
        if (row["metric"], row["fold"]) == (metric, "all")
    ]


def _seed_rows(setting: str, metric: str, values: np.ndarray) -> list[dict]:
    return [{"setting": setting, "metric": metric, "seed": k, "value": float(v)} for k, v in enumerate(values)]


def _mark(cfg: ExperimentConfig, dataset: loader.TrafficDataset) -> str:
    return store.key("sensitivity", cfg, dataset.manifest["content_hash"])


MEASURED = {
    "aci": aci,
    "clusters": clusters,
    "delta": delta,
    "trimming": sensitivity_detect.trimming,
    "dependence": sensitivity_detect.dependence,
}
