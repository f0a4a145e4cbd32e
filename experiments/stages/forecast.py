"""Stage `forecast`: train, calibrate and evaluate, fold by fold and method by method; finished pieces are kept."""

import dataclasses
import json
import math
import time
from pathlib import Path

import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from data import loader
from data.errors import DataError
from data.spark_etl import shards
from experiments.cli.options import RunOptions
from experiments.evaluation import forecast_rows, results
from experiments.methods.forecasting import boosted_trees
from experiments.presets import ExperimentConfig, experiment_config
from experiments.report import forecast_figures
from experiments.stages import forecasting
from stream_jax import store
from stream_jax.checkpoint import ForecasterCheckpoint, save_forecaster
from stream_jax.types import Forecast, Interval

SHOWN = ("nrmse", "mae", "coverage", "riw", "efficiency", "winkler", "crps")


def forecast(args: RunOptions, out: Path, console: Console) -> Path:
    """Runs the stage on `<out>/data`; returns the results file."""
    dataset = loader.load(out / "data", verify=True)
    cfg = experiment_config(args)
    folder, rows_file = out / "forecast", out / "results" / dataset.manifest["dataset"] / "forecast.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(cfg), indent=1))
    outcomes, learned = {}, {}
    for method in args.methods or forecasting.DEFAULT_METHODS:
        outcomes[method], extra = run_method(method, dataset, cfg, folder, console)
        learned[method] = [row for row in extra if row["metric"].startswith("gamma/")]
        rows = forecasting.metric_rows(outcomes[method], cfg, 86_400 // dataset.manifest["bin_s"]) + extra
        results.write_rows(rows_file, (_common(dataset, args.preset, method) | row for row in rows))
    rows = forecast_rows.comparison_rows(outcomes, cfg.conformal.target)
    if rows:
        results.write_rows(rows_file, (_common(dataset, args.preset, "comparison") | row for row in rows))
    forecast_figures.draw_all(folder, dataset, outcomes, learned, cfg)
    print_table(rows_file, dataset, args.preset, console)
    console.print(f"rows: {rows_file}   figures and checkpoint: {folder}", markup=False)
    return rows_file


def run_method(
    method: str, dataset: loader.TrafficDataset, cfg: ExperimentConfig, folder: Path, console: Console
) -> tuple[list[forecasting.Outcome], list[dict]]:
    """Outcomes of all folds, read back where they were already computed for the same data and config."""
    outcomes, extra = [], []
    for fold in cfg.folds(dataset.num_folds):
        key = _key(method, dataset, cfg, fold)
        stem = f"{method.replace(':', '-')}-fold{fold}"
        saved, notes = folder / f"{stem}-{key}.npz", folder / f"{stem}-{key}.json"
        if not notes.exists():
            console.print(f"  {method}, fold {fold + 1} of {dataset.num_folds} ...")
            start = time.perf_counter()
            is_trained = method not in forecasting.REFERENCES
            training = folder / _training_folder(method, dataset, cfg, fold) if is_trained else None
            fitted = forecasting.fit_fold(method, dataset, fold, cfg, training, console.is_terminal)
            rows = [_row("fit_seconds", time.perf_counter() - start, fold)]
            if is_trained:
                rows.append(_row("parameters", forecast_rows.num_parameters(fitted.params), fold))
            if fitted.history is not None:
                rows.append(_row("epochs", float(fitted.history.epochs.mean()), fold))
                seconds = float(fitted.history.epoch_seconds.mean())
                rows += [_row("seconds_per_epoch", seconds, fold)] if math.isfinite(seconds) else []
            if method == "staci":
                rows += forecast_rows.joint_rows(fitted.params, dataset, fold, fitted.config, cfg.conformal)
            if method.split(":")[0] == forecasting.OURS:
                rows += forecast_rows.gamma_rows(fitted.params, fitted.config, fold)
                content = dataset.manifest["content_hash"]
                _save_checkpoint(folder / "checkpoint" / f"{stem}", fitted, content)
            _save_outcome(saved, fitted.outcome)
            store.write_text(notes, json.dumps(rows))  # last: its presence says that the fold is complete
        outcomes.append(_load_outcome(saved))
        extra += json.loads(notes.read_text())
    return outcomes, extra


def print_table(rows_file: Path, dataset: loader.TrafficDataset, preset: str, console: Console) -> None:
    """Means over seeds, with half a 95 % interval where there are several."""
    kind = dataset.manifest["data"]
    table = Table(
        title=f"{dataset.manifest['dataset']} ({kind}): 1 to {dataset.manifest['horizon']} steps ahead, test",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", no_wrap=True)
    for name in SHOWN:
        table.add_column(name, justify="right")
    rows = results.frame(rows_file)
    mark = dataset.manifest["content_hash"]
    rows = rows[
        (rows.preset == preset) & (rows.fold == "all") & (rows.data_hash == mark) & (rows.method != "comparison")
    ]
    values = rows.assign(value=rows["value"].astype(float)).groupby(["method", "metric"], sort=False)["value"].agg(list)
    for method in rows["method"].unique():
        found = [values.get((method, name), []) for name in SHOWN]
        spread = [f" ±{results.half_width(some):.3f}" if len(some) > 1 else "" for some in found]
        cells = [f"{np.mean(some):.3f}{half}" if some else "" for some, half in zip(found, spread, strict=True)]
        table.add_row(method, *cells)
    floors = set(rows[rows.metric == "noise_floor"]["value"].astype(float))
    console.print(table)
    if floors:
        console.print(f"counting-noise floor of NRMSE, sqrt(mean flow) / mean flow: {max(floors):.3f}")


def _save_checkpoint(folder: Path, fitted: forecasting.Fitted, data_hash: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_forecaster(folder, ForecasterCheckpoint(fitted.params, fitted.conformal, fitted.config, data_hash))


def _save_outcome(path: Path, outcome: forecasting.Outcome) -> None:
    flat = {f"forecast_{name}": value for name, value in outcome.forecast._asdict().items()}
    flat |= {f"interval_{name}": value for name, value in outcome.interval._asdict().items()}
    flat |= {name: getattr(outcome, name) for name in ("cluster", "target", "mask", "slot")}
    shards.write_arrays(path, **flat)


def _load_outcome(path: Path) -> forecasting.Outcome:
    arrays = shards.read_arrays(path)
    forecast = Forecast(arrays["forecast_mean"], arrays["forecast_sigma"])
    interval = Interval(arrays["interval_lower"], arrays["interval_upper"])
    return forecasting.Outcome(forecast, interval, *(arrays[name] for name in ("cluster", "target", "mask", "slot")))


def _key(method: str, dataset: loader.TrafficDataset, cfg: ExperimentConfig, fold: int) -> str:
    everything = dataclasses.asdict(cfg)
    used = {name: everything[name] for name in ("training", "conformal", "seeds", "first_seed")}
    if method in forecasting.RIVALS:
        windows = len(dataset.origins("train", fold))
        used["training"] = dataclasses.asdict(forecasting.training_of(method, cfg, windows))
    if method not in forecasting.REFERENCES:
        used["forecaster"] = dataclasses.asdict(forecasting.forecaster_config(method, dataset, cfg))
    else:
        used = {"conformal": used["conformal"], "reference": dataclasses.asdict(forecasting.REFERENCES[method][1])}
    return store.key("forecast", used, method, fold, dataset.manifest["content_hash"])


def _training_folder(method: str, dataset: loader.TrafficDataset, cfg: ExperimentConfig, fold: int) -> str:
    """Checkpoints of a training under way; STACI's forecaster is AGCRN, trained once for both."""
    trained = "agcrn" if method == "staci" else method
    return f"{trained.replace(':', '-')}-fold{fold}-{_key(trained, dataset, cfg, fold)}-training"


def _common(dataset: loader.TrafficDataset, preset: str, method: str) -> dict:
    return {
        "dataset": dataset.manifest["dataset"],
        "data": dataset.manifest["data"],
        "data_hash": dataset.manifest["content_hash"],
        "cells": dataset.manifest["cells"],
        "preset": preset,
        "stage": "forecast",
        "method": method,
        "device": jax.devices()[0].device_kind,
    }


def _row(metric: str, value: float, fold: int) -> dict:
    return {"seed": None, "fold": str(fold), "metric": metric, "value": value}


def check_methods(names: list[str] | None) -> None:
    """Refuses a method that nobody has written."""
    unknown = sorted(set(names or ()) - set(forecasting.METHODS))
    if unknown:
        raise DataError(f"There is no forecaster {', '.join(unknown)}; there are {', '.join(forecasting.METHODS)}.")
    if "catboost" in (names or ()):
        boosted_trees.check_installed()
