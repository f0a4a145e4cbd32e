"""The paper's tables on trimming and on dependence, from the scores that the detect stage saved."""

import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from scipy.special import ndtri

from data import loader
from experiments.evaluation import decisions
from experiments.presets import ExperimentConfig
from experiments.stages import detect as detect_stage
from experiments.stages import detection
from experiments.stages.detection import Scored
from experiments.tables import paper
from stream_jax.conformal import event_metrics, fdr_metrics, p_values

LEVEL = 0.05  # the paper's


def trimming(dataset: loader.TrafficDataset, cfg: ExperimentConfig, out: Path, console: Console) -> list[dict]:
    """FDR and recall of BY when the largest calibration scores are discarded, and apparent FDP on logged incidents."""
    rows = []
    for seed in range(cfg.seeds):
        scored = saved_scores(dataset, cfg, out, seed, console)
        for setting in paper.TABLES["trimming"].rows:
            rejected = [trimmed_rejections(one, float(setting)) for one in scored["injected"]]
            metrics = fdr_metrics.detection_metrics(_counts(scored["injected"], rejected))
            measured = {"FDR": float(metrics.fdr_step), "recall": float(metrics.recall)}
            if "incidents" in scored:
                found = [trimmed_rejections(one, float(setting)) for one in scored["incidents"]]
                measured["event FDR"] = apparent_fdp(scored["incidents"], found, dataset)
            rows += [{"setting": setting, "metric": k, "seed": seed, "value": v} for k, v in measured.items()]
    return rows


def dependence(dataset: loader.TrafficDataset, cfg: ExperimentConfig, out: Path, console: Console) -> list[dict]:
    """Correlation of p-values within blocks, and FDR with the 95 % limit of a bootstrap by blocks of that length.

    Cells of a step are drawn together whatever the hops; a bootstrap cannot move the mean, only its limit.
    """
    rows = []
    for seed in range(cfg.seeds):
        scored = saved_scores(dataset, cfg, out, seed, console)
        for setting in paper.TABLES["dependence"].rows:
            steps, hops = (int(part) for part in setting.split(" x "))
            near = within_hops(np.asarray(dataset.graph.senders), np.asarray(dataset.graph.receivers), hops)
            p = [np.where(np.isnan(one.test), np.nan, decisions.evidence(one, "full")) for one in scored["clean"]]
            value = block_correlation(p, near, steps)
            rows.append({"setting": setting, "metric": "rho_block", "seed": seed, "value": value})
            for procedure in ("bh", "by"):
                rejected = detect_stage.headline(scored["injected"], procedure)
                counts = _counts(scored["injected"], [rejected])
                spread = fdr_metrics.bootstrap_metrics(jax.random.key(seed), counts, block_steps=steps)
                row = {
                    "value": float(fdr_metrics.detection_metrics(counts).fdr_step),
                    "upper": float(spread.upper_limit.fdr_step),
                }
                rows.append({"setting": setting, "metric": f"FDR of {procedure.upper()}", "seed": seed} | row)
    return rows


def saved_scores(
    dataset: loader.TrafficDataset, cfg: ExperimentConfig, out: Path, seed: int, console: Console
) -> dict[str, list[Scored]]:
    """Every scenario's scores of one seed, as the detect stage left them."""
    scenarios = ["clean", "injected"] + (["incidents"] if dataset.manifest["events"] else [])
    scored: dict[str, list[Scored]] = {name: [] for name in scenarios}
    for fold in cfg.folds(dataset.num_folds):
        place = detection.place_of(dataset, fold, seed, cfg, out, console)
        for name, one in detect_stage.score_fold(place, scenarios).items():
            scored[name].append(one)
    return scored


def trimmed_rejections(scored: Scored, share: float) -> np.ndarray:
    """Decisions of BY on p-values from which this share of the largest calibration scores was removed. [T, N] bool"""
    pooled, test = jnp.asarray(scored.calibration[~np.isnan(scored.calibration)]), jnp.asarray(scored.test)
    with warnings.catch_warnings():  # that they are invalid is what the table shows
        warnings.simplefilter("ignore", p_values.InvalidPValueWarning)
        p = p_values.paper_trimmed_p_values(pooled, test, trim_fraction=share)
    return decisions.reject(np.asarray(p), ~np.isnan(scored.test), "by", LEVEL, scored.weight)


def apparent_fdp(folds: list[Scored], rejected: list[np.ndarray], dataset: loader.TrafficDataset) -> float:
    """Share of the alarms that no logged incident explains: an upper bound, since logs are incomplete."""
    log = dataset.events()
    alarms, unexplained = 0, 0.0
    for one, decision in zip(folds, rejected, strict=True):
        is_here = (log["start"] >= one.time[0]) & (log["start"] <= one.time[-1])
        here = {name: log[name][is_here] for name in ("cell", "start", "stop")}
        events = event_metrics.EventLog(here["cell"], here["start"] - one.time[0], here["stop"] - one.time[0])
        found = event_metrics.align_events(decision, events, dataset.graph.senders, dataset.graph.receivers)
        alarms += found.num_alarms
        unexplained += found.apparent_fdp * found.num_alarms
    return unexplained / max(alarms, 1)


def within_hops(senders: np.ndarray, receivers: np.ndarray, hops: int) -> np.ndarray:
    """Which cells lie within this many edges of each other, itself included. [N, N] bool"""
    count = int(max(senders.max(), receivers.max())) + 1
    edge = np.eye(count, dtype=bool)
    edge[senders, receivers] = edge[receivers, senders] = True
    near = np.eye(count, dtype=bool)
    for _ in range(hops):
        near = (near.astype(np.int64) @ edge) > 0
    return near


def block_correlation(folds: list[np.ndarray], near: np.ndarray, steps: int) -> float:
    """Mean correlation of two p-values of a block: cells within the hops of a centre, consecutive steps.

    p-values ([T, N] each, NaN where not tested) are read on the normal scale and standardised; a cell-step is no pair
    with itself.
    """
    products, pairs = 0.0, 0.0
    for p in folds:
        z = ndtri(np.clip(p, 1e-6, 1 - 1e-6))
        z = (z - np.nanmean(z)) / np.nanstd(z)
        seen = ~np.isnan(z)
        z = np.where(seen, z, 0.0)
        for first in range(0, len(z) - steps + 1, steps):
            block, here = z[first : first + steps].sum(axis=0), seen[first : first + steps].sum(axis=0)  # [N]
            squares = (z[first : first + steps] ** 2).sum(axis=0)
            total, number = near @ block, near @ here.astype(float)
            products += float((total**2 - near @ squares).sum())
            pairs += float((number**2 - number).sum())
    return products / max(pairs, 1.0)


def _counts(folds: list[Scored], rejected: list[np.ndarray]) -> fdr_metrics.StepCounts:
    label = np.concatenate([one.kind > 0 for one in folds])
    tested = np.concatenate([~np.isnan(one.test) & one.judged for one in folds])
    decision = jnp.asarray(np.concatenate(rejected))
    return fdr_metrics.count_steps(decision, jnp.asarray(label), tested=jnp.asarray(tested))
