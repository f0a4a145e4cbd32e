"""Figures of the detect stage: FDR and power against the target, null p-values, recall by kind, detections on a map."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data.loader import TrafficDataset
from data.spark_etl.quality import draw_cells
from experiments.evaluation import decisions
from experiments.stages import detection

matplotlib.use("Agg")
# Colour follows the detector, so that every panel and dataset can be read with one legend.
ARM_COLOURS = {
    "full+by": ("BY (ours)", "#2a78d6"),
    "full+bh": ("BH", "#1baf7a"),
    "unweighted+by": ("BY, no weights", "#4a3aa7"),
    "soft_rank+e_bh": ("e-BH", "#eda100"),
    "paper_trim+by": ("BY, paper's trimming", "#e34948"),
    "gaussian+by": ("BY, Gaussian p", "#eb6834"),
}
BINS = 40


def draw_all(
    folder: Path, dataset: TrafficDataset, scored: dict[str, list[detection.Scored]], rows: list[dict]
) -> None:
    """Draws every figure; scores are those of the first seed, rates the mean over seeds."""
    kind = f"{dataset.manifest['dataset']}, {dataset.manifest['data']} data"
    marked = "incidents" if "incidents" in scored else "injected"
    figures = {
        "fdr_and_power": fdr_and_power(rows, kind),
        "null_p_values": null_p_values(scored["clean"], kind),
        "recall_by_kind": recall_by_kind(rows, kind),
        "detections": detections(scored[marked], dataset, f"{kind}, {marked}"),
    }
    for stem, figure in figures.items():
        figure.savefig(folder / f"{stem}.png", dpi=130)


def fdr_and_power(rows: list[dict], kind: str) -> Figure:
    """Realised FDR, per step and pooled, with the diagonal, and recall, on injected anomalies."""
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    panels = figure.subplots(1, 3)
    for axes, metric in zip(panels, ("fdr_step", "fdr_pooled", "recall"), strict=True):
        for arm, (name, colour) in ARM_COLOURS.items():
            _curve(axes, rows, arm, metric, name, colour)
        axes.set_xlabel("target FDR")
    for axes, label in zip(panels, ("FDR, mean over steps", "FDR, pooled over steps"), strict=False):
        axes.plot([0, 0.2], [0, 0.2], color="black", linewidth=0.8, linestyle="--", label="target")
        axes.set(ylabel=label, ylim=(0, None))
    panels[2].set(ylabel="recall of anomalous cell-steps", ylim=(0, 1))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize=8)
    figure.suptitle(f"{kind}: 5 % injected anomalies, 95 % block-bootstrap intervals", fontsize=10)
    return figure


def null_p_values(folds: list[detection.Scored], kind: str) -> Figure:
    """Histogram of p-values on the untouched test part, flat if they are valid, and its small end."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    p = np.concatenate([decisions.evidence(one, "full")[~np.isnan(one.test)] for one in folds])
    left.hist(p, bins=BINS, range=(0, 1), density=True, color="#2a78d6", edgecolor="white")
    left.axhline(1.0, color="black", linewidth=0.8)
    left.set(xlabel="p-value", ylabel="density")
    ordered = np.sort(p)
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    right.loglog(ordered, share, color="#2a78d6", label="test part")
    right.loglog([1e-5, 1], [1e-5, 1], color="black", linewidth=0.8, linestyle="--", label="uniform")
    right.set(xlabel="t", ylabel="share of p-values ≤ t", xlim=(1e-5, 1), ylim=(1e-5, 1))
    right.legend(fontsize=8)
    figure.suptitle(f"{kind}: test part without injections", fontsize=10)
    return figure


def recall_by_kind(rows: list[dict], kind: str) -> Figure:
    """Share of the anomalous cell-steps found, by kind."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    picked = [row for row in rows if row["metric"].startswith("recall/")]
    names = sorted({(row["scenario"], row["metric"].removeprefix("recall/")) for row in picked})
    for offset, arm in enumerate(("full+by", "full+bh")):
        label, colour = ARM_COLOURS[arm]
        values = [
            _mean(picked, {"scenario": scenario, "metric": f"recall/{name}", "arm": arm}) for scenario, name in names
        ]
        axes.bar(np.arange(len(names)) + 0.4 * offset, values, width=0.36, label=label, color=colour)
    axes.set_xticks(np.arange(len(names)) + 0.2, [f"{name}\n({scenario})" for scenario, name in names], fontsize=8)
    axes.set(ylabel="recall", ylim=(0, 1), title=f"{kind}: target FDR 5 %")
    axes.legend(fontsize=8)
    return figure


def detections(folds: list[detection.Scored], dataset: TrafficDataset, kind: str) -> Figure:
    """Where and when cells were rejected by BH at 5 %, against the labels, in the last fold."""
    one = folds[-1]
    rejected = decisions.decided([one], "full+bh", (0.05,))[0.05]
    figure = Figure(figsize=(13, 8), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.1, 1))
    left, right = top.subplots(1, 2)
    draw_cells(left, top, dataset.geometry, (one.kind > 0).sum(axis=0).astype(float), "labelled steps")
    draw_cells(right, top, dataset.geometry, rejected.sum(axis=0).astype(float), "rejected steps")
    left.set_title("labels", fontsize=9)
    right.set_title("detections", fontsize=9)
    _timeline(bottom.subplots(), one, rejected, dataset)
    figure.suptitle(f"{kind}: BH at 5 %", fontsize=10)
    return figure


def _timeline(axes: Axes, one: detection.Scored, rejected: np.ndarray, dataset: TrafficDataset) -> None:
    """Labels as bars, detections as dots, cells as rows; steps that the outage rule took out are grey."""
    hour = (one.time - one.time[0]) * dataset.manifest["bin_s"] / 3600.0
    width = dataset.manifest["bin_s"] / 3600.0
    for at in hour[one.outage]:
        axes.axvspan(at, at + width, color="0.8", linewidth=0)
    step, cell = np.nonzero(one.kind > 0)
    axes.scatter(hour[step], cell, s=12, color="#eda100", marker="s", linewidths=0, label="labelled")
    step, cell = np.nonzero(rejected & (one.kind > 0))
    axes.scatter(hour[step], cell, s=5, color="#2a78d6", label="detected, labelled")
    step, cell = np.nonzero(rejected & (one.kind == 0))
    axes.scatter(hour[step], cell, s=8, color="#e34948", marker="x", linewidths=0.8, label="detected, not labelled")
    axes.set(xlabel="hours of the test part", ylabel="cell", xlim=(0, hour[-1] + width))
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _curve(axes: Axes, rows: list[dict], arm: str, metric: str, name: str, colour: str) -> None:
    """A metric against the target: mean over seeds, with the widest of their intervals."""
    wanted = ("injected", arm, metric)
    picked = [row for row in rows if (row["scenario"], row["arm"], row["metric"]) == wanted]
    levels = sorted({row["level"] for row in picked})
    mean = [np.mean([row["value"] for row in picked if row["level"] == level]) for level in levels]
    low = [np.min([row["lower"] for row in picked if row["level"] == level]) for level in levels]
    high = [np.max([row["upper"] for row in picked if row["level"] == level]) for level in levels]
    style = "--" if arm.startswith("label_trim") else "-"  # lies on BY where calibration is clean
    axes.plot(levels, mean, style, marker="o", markersize=4, label=name, color=colour)
    axes.fill_between(levels, low, high, alpha=0.12, color=colour, linewidth=0)


def _mean(rows: list[dict], wanted: dict) -> float:
    values = [row["value"] for row in rows if wanted.items() <= row.items()]
    return float(np.nanmean(values)) if values else float("nan")
