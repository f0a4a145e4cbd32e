"""Figures of the detect stage: FDR and power against the target, null p-values, recall by kind, detections on a map."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from data.loader import TrafficDataset
from data.spark_etl.quality import draw_cells
from experiments import decisions, detection

matplotlib.use("Agg")
SHOWN_ARMS = ("full+by", "full+bh", "soft_rank+e_bh", "paper_trim+by")


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
    """Realised per-step FDR with the diagonal, and recall, for each procedure, on injected anomalies."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for arm in SHOWN_ARMS:
        for axes, metric in ((left, "fdr_step"), (right, "recall")):
            picked = [row for row in rows if (row["scenario"], row["arm"], row["metric"]) == ("injected", arm, metric)]
            levels = sorted({row["level"] for row in picked})
            mean = [np.mean([row["value"] for row in picked if row["level"] == level]) for level in levels]
            low = [np.min([row["lower"] for row in picked if row["level"] == level]) for level in levels]
            high = [np.max([row["upper"] for row in picked if row["level"] == level]) for level in levels]
            (line,) = axes.plot(levels, mean, marker="o", label=arm)
            axes.fill_between(levels, low, high, alpha=0.15, color=line.get_color())
    left.plot([0, 0.2], [0, 0.2], color="black", linewidth=0.8, linestyle="--", label="target")
    left.set(xlabel="target FDR", ylabel="realised FDR, mean over steps")
    right.set(xlabel="target FDR", ylabel="recall", ylim=(0, 1))
    left.legend(fontsize=8)
    figure.suptitle(f"{kind}: 5 % injected anomalies", fontsize=10)
    return figure


def null_p_values(folds: list[detection.Scored], kind: str) -> Figure:
    """Histogram of p-values on the untouched test part: flat if they are valid and nothing happened."""
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    p = np.concatenate([decisions.evidence(one, "full")[~np.isnan(one.test)] for one in folds])
    axes.hist(p, bins=40, range=(0, 1), density=True, color="tab:blue", edgecolor="white")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(xlabel="p-value", ylabel="density", title=f"{kind}: test part without injections")
    return figure


def recall_by_kind(rows: list[dict], kind: str) -> Figure:
    """Share of the anomalous cell-steps found, by kind."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    picked = [row for row in rows if row["metric"].startswith("recall/")]
    names = sorted({(row["scenario"], row["metric"].removeprefix("recall/")) for row in picked})
    for offset, arm in enumerate(("full+by", "full+bh")):
        values = [
            np.nanmean(
                [
                    row["value"]
                    for row in picked
                    if (row["scenario"], row["metric"], row["arm"]) == (s, f"recall/{n}", arm)
                ]
            )
            for s, n in names
        ]
        axes.bar(np.arange(len(names)) + 0.4 * offset, values, width=0.38, label=arm)
    axes.set_xticks(np.arange(len(names)) + 0.2, [f"{n}\n({s})" for s, n in names], fontsize=8)
    axes.set(ylabel="recall", ylim=(0, 1), title=f"{kind}: target FDR 5 %")
    axes.legend(fontsize=8)
    return figure


def detections(folds: list[detection.Scored], dataset: TrafficDataset, kind: str) -> Figure:
    """Where and when cells were rejected at 5 %, against the labels, in the last fold."""
    one = folds[-1]
    tested = ~np.isnan(one.test)
    rejected = decisions.reject(decisions.evidence(one, "full"), tested, "bh", 0.05)
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.2))
    draw_cells(left, figure, dataset.geometry, rejected.sum(axis=0).astype(float), "rejections in the test part")
    step, cell = np.nonzero(one.kind > 0)
    right.scatter(step, cell, s=14, color="tab:orange", label="labelled", marker="s", linewidths=0)
    step, cell = np.nonzero(rejected)
    right.scatter(step, cell, s=4, color="tab:blue", label="rejected by BH at 5 %")
    right.set(xlabel="step of the test part", ylabel="cell")
    right.legend(fontsize=8, loc="upper right")
    figure.suptitle(kind, fontsize=10)
    return figure
