"""Stage `detect`: residuals -> flow -> p-values -> rejections on calibration and test parts that do not overlap."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from data import loader
from data.spark_etl import shards
from experiments.cli.options import RunOptions
from experiments.evaluation import decisions, detector_rows, incident_rows, results
from experiments.evaluation.decisions import HEADLINE
from experiments.presets import ExperimentConfig, experiment_config
from experiments.report import detect_figures
from experiments.stages import detection, detectors
from experiments.stages.detection import Place
from stream_jax.checkpoint import DetectorCheckpoint, save_detector
from stream_jax.conformal import dependence, fdr, fdr_metrics


def detect(args: RunOptions, out: Path, console: Console) -> Path:
    """Runs the stage on the forecasters of `<out>/forecast`; returns the results file."""
    dataset = loader.load(out / "data", verify=True)
    cfg, names = experiment_config(args), detectors.check_detectors(args.detectors)
    folder, rows_file = out / "detect", out / "results" / dataset.manifest["dataset"] / "detect.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    scenarios = ["clean", "injected", "contaminated"] + (["incidents"] if dataset.manifest["events"] else [])
    rows, theirs, first_seed = [], [], None
    for seed in range(cfg.seeds):
        by_fold = {
            fold: score_fold(detection.place_of(dataset, fold, seed, cfg, out, console), scenarios)
            for fold in cfg.folds(dataset.num_folds)
        }
        scored = {name: [one[name] for one in by_fold.values()] for name in scenarios}
        rows += seed_rows(scored, dataset, seed)
        theirs += compared_rows(names, by_fold, dataset, seed, cfg, out, console)
        first_seed = first_seed or scored
    common = {
        "dataset": dataset.manifest["dataset"],
        "data": dataset.manifest["data"],
        "data_hash": dataset.manifest["content_hash"],
        "cells": dataset.manifest["cells"],
        "preset": args.preset,
        "stage": "detect",
        "method": "crfn_by",
        "device": jax.devices()[0].device_kind,
    }
    results.write_rows(rows_file, (common | row for row in rows + theirs))
    warn_of_size(first_seed["clean"], dataset, console)
    detect_figures.draw_all(folder, dataset, first_seed, rows)
    print_table(rows, dataset, console)
    if names:
        detector_rows.print_summary(rows + theirs, dataset, console)
    console.print(f"rows: {rows_file}   figures: {folder}", markup=False)
    return rows_file


def score_fold(place: Place, scenarios: list[str]) -> dict[str, detection.Scored]:
    """Scores of all scenarios, `clean` among them; the flow and its calibration are left for stage control.

    Whatever was already computed for the same forecaster and config is read back.
    """
    stem = f"fold{place.fold}-seed{place.seed}"
    saved = {name: place.folder / f"{stem}-{name}-{detection.score_key(place)}.npz" for name in scenarios}
    finished = detection.load_finished(place)
    if finished is None or not all(path.exists() for path in saved.values()):
        place.console.print(f"  flow, fold {place.fold + 1} of {place.dataset.num_folds}, seed {place.seed} ...")
        upstream = detection.read_upstream(place)
        flow = finished.params if finished else detection.train_flow(place, upstream)
        for name, path in saved.items():
            scored = detection.score(place, upstream, flow, name)
            shards.write_arrays(path, **{field: np.asarray(value) for field, value in scored._asdict().items()})
        calibration = detection.calibration_of(detection.Scored(**shards.read_arrays(saved["clean"])), place.cfg.flow)
        content = place.dataset.manifest["content_hash"]
        kept = DetectorCheckpoint(flow, upstream.factor.network, calibration, place.cfg.flow, content)
        save_detector(detection.detector_folder(place), kept)  # last: its presence says that the fold is complete
    return {name: detection.Scored(**shards.read_arrays(path)) for name, path in saved.items()}


def compared_rows(
    names: list[str],
    ours: dict[int, dict[str, detection.Scored]],
    dataset: loader.TrafficDataset,
    seed: int,
    cfg: ExperimentConfig,
    out: Path,
    console: Console,
) -> list[dict]:
    """Rows of the rivals, on the folds (first key) and scenarios that we were scored on."""
    places = [detection.place_of(dataset, fold, seed, cfg, out, console) for fold in (ours if names else ())]
    theirs = [detectors.score_fold(names, place, ours[place.fold]) for place in places]
    rows = []
    for name in names:
        scenarios = next(iter(ours.values()))
        own = {one: [scored[one] for scored in ours.values()] for one in scenarios}
        rival = {one: [found[name][one] for found in theirs] for one in scenarios}
        rows += detector_rows.rival_rows(name, own, rival, dataset, seed)
    return rows


def seed_rows(scored: dict[str, list[detection.Scored]], dataset: loader.TrafficDataset, seed: int) -> list[dict]:
    """Everything that is reported of one seed."""
    rows = []
    for scenario in scored.keys() - {"clean"}:
        rows += decisions.quality_rows(scenario, scored[scenario], seed)
        rows += kind_rows(scenario, scored[scenario], dataset, seed)
    rows += null_rows(scored["clean"], dataset, seed)
    if "incidents" in scored:
        rows += event_rows(scored["incidents"], dataset, seed)
    return sorted(rows, key=lambda row: (row["scenario"], row["arm"], row.get("level") or 0, row["metric"]))


def null_rows(folds: list[detection.Scored], dataset: loader.TrafficDataset, seed: int) -> list[dict]:
    """Dependence of the calibration scores and uniformity of p-values on the clean test part."""
    p = np.concatenate([decisions.evidence(one, "full") for one in folds])
    is_null = np.concatenate([~np.isnan(one.test) for one in folds])
    calibration = np.concatenate([one.calibration for one in folds])
    report = dependence.dependence_report(
        jax.random.key(seed),
        jnp.asarray(np.nan_to_num(calibration)),
        jnp.asarray(p),
        jnp.asarray(dataset.graph.senders),
        jnp.asarray(dataset.graph.receivers),
        observed=jnp.asarray(~np.isnan(calibration)),
        is_null=jnp.asarray(is_null),
    )
    ranks = np.concatenate([decisions.own_ranks(one.calibration) for one in folds])
    block = dependence.block_uniformity_test(jax.random.key(seed), ranks, np.where(is_null, p, np.nan))
    measured = {
        name: getattr(report, name)
        for name in ("num_steps", "num_scores", "morans_i", "lag1_autocorrelation", "within_step_correlation")
    }
    measured |= {f"null_{name}": getattr(report.null_uniformity, name) for name in ("kolmogorov", "excess")}
    measured |= {f"null_block_{name}": value for name, value in block._asdict().items()}
    measured["tested_share"] = float(np.mean(np.concatenate([~np.isnan(one.test)[one.judged] for one in folds])))
    measured["outage_steps"] = int(sum(one.outage.sum() for one in folds))
    measured["calibration_outage_steps"] = int(sum(one.calibration_outage.sum() for one in folds))
    common = {"seed": seed, "scenario": "clean", "arm": "full"}
    rows = [common | {"metric": name, "value": value} for name, value in measured.items()]
    return rows + [row for arm in ("full", "gaussian", "student_t") for row in rate_rows(folds, arm, seed)]


def rate_rows(folds: list[detection.Scored], arm: str, seed: int) -> list[dict]:
    """P(p <= t) of normal cells, conformal or parametric; above t it is too small a p-value to be believed."""
    p = np.concatenate([decisions.evidence(one, arm) for one in folds])
    is_null = np.concatenate([~np.isnan(one.test) for one in folds])
    null = dependence.null_uniformity(jax.random.key(seed), jnp.asarray(p), is_null=is_null)
    columns = (null.threshold, null.rate, null.lower, null.upper, null.binomial_p)
    names = ("level", "value", "lower", "upper", "binomial_p")
    common = {"seed": seed, "scenario": "clean", "arm": arm, "metric": "null_rate"}
    return [common | dict(zip(names, map(float, row), strict=True)) for row in zip(*columns, strict=True)]


def kind_rows(scenario: str, folds: list[detection.Scored], dataset: loader.TrafficDataset, seed: int) -> list[dict]:
    """Recall of each kind of anomaly by BY and BH at the headline level."""
    names = dataset.manifest["events"]["kinds"] if scenario == "incidents" else ["level_shift", "drop"]
    kind = jnp.asarray(np.concatenate([one.kind for one in folds]))
    rows = []
    for procedure in ("by", "bh"):
        found = fdr_metrics.recall_by_kind(jnp.asarray(headline(folds, procedure)), kind, len(names))
        common = {"seed": seed, "scenario": scenario, "arm": f"full+{procedure}", "level": HEADLINE}
        rows += [common | {"metric": f"recall/{n}", "value": float(v)} for n, v in zip(names, found, strict=True)]
    return rows


def event_rows(folds: list[detection.Scored], dataset: loader.TrafficDataset, seed: int) -> list[dict]:
    """Alignment with the incident log: events hit within an hour and two hops, time to detection, apparent FDP.

    Beside the recall stands what the same alarms would hit by chance: at the wrong time, over all shifts of the log.
    """
    rows = []
    for procedure in ("by", "bh"):
        rejected = [headline([one], procedure) for one in folds]
        common = {"seed": seed, "scenario": "incidents", "arm": f"full+{procedure}", "level": HEADLINE}
        rows += [common | row for row in incident_rows.alignment_rows(folds, rejected, dataset)]
    return rows


def headline(folds: list[detection.Scored], procedure: str) -> np.ndarray:
    """Decisions at the paper's level with the default p-values. [T, N] bool"""
    return decisions.decided(folds, f"full+{procedure}", (HEADLINE,))[HEADLINE]


def warn_of_size(folds: list[detection.Scored], dataset: loader.TrafficDataset, console: Console) -> None:
    """Says how many calibration scores BY's first threshold needs and how many there are."""
    needed = fdr.required_calibration_size(dataset.manifest["cells"], HEADLINE, "by")
    have = min(int((~np.isnan(one.calibration)).sum()) for one in folds)
    if have < needed:
        console.print(
            f"[yellow]warning:[/] BY at level {HEADLINE} over {dataset.manifest['cells']} cells needs {needed:,} "
            f"calibration scores to reject a single cell; the smallest fold has {have:,}. "
            "Several cells at once can still be rejected; e-BH and BH need fewer."
        )


def print_table(rows: list[dict], dataset: loader.TrafficDataset, console: Console) -> None:
    """Mean over seeds at the headline level."""
    for scenario in sorted({row["scenario"] for row in rows} - {"clean"}):
        kind = f"{dataset.manifest['dataset']} ({dataset.manifest['data']})"
        table = Table(title=f"{kind}: {scenario}, target FDR {HEADLINE:.0%}")
        names = ("fdr_step", "fdr_pooled", "recall", "f1")
        for column in ("p-values + procedure", *names):
            table.add_column(column, justify="left" if "+" in column else "right")
        for arm in decisions.ARMS:
            cells = []
            for name in names:
                wanted = {"scenario": scenario, "arm": arm, "level": HEADLINE, "metric": name}
                values = [row["value"] for row in rows if wanted.items() <= row.items()]
                cells.append(f"{np.mean(values):.3f}")
            table.add_row(arm, *cells)
        console.print(table)
