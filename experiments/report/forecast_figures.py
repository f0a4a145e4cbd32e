"""Figures of the forecast stage: PIT, reliability, coverage over time, interval widths on a map, example forecasts."""

from pathlib import Path

import jax
import matplotlib
import numpy as np
from matplotlib.figure import Figure

from data.loader import TrafficDataset
from data.spark_etl.quality import draw_cells
from experiments.presets import ExperimentConfig
from experiments.stages import forecasting
from stream_jax.conformal import diagnostics, intervals

matplotlib.use("Agg")
ROLLING = 8  # steps over which coverage is averaged for the eye
NAME_SHOWN = 60  # characters of a cell's name in a title


def draw_all(
    folder: Path,
    dataset: TrafficDataset,
    outcomes: dict[str, list[forecasting.Outcome]],
    learned: dict[str, list[dict]],
    cfg: ExperimentConfig,
) -> None:
    """Draws every figure of our method (or, without it, of the last one) from its first seed, and gamma of all seeds.

    Args: learned: of each method its rows `gamma/<stream>/<layer>/head_<k>`, none for a method without gamma.
    """
    name = forecasting.OURS if forecasting.OURS in outcomes else list(outcomes)[-1]
    folds = [first_seed(outcome) for outcome in outcomes[name]]
    kind = f"{dataset.manifest['dataset']}, {dataset.manifest['data']} data, {name}"
    figures = {
        "calibration": calibration(folds, kind),
        "coverage_over_time": coverage_over_time(folds, cfg.conformal.target, kind),
        "width_map": width_map(folds, dataset, kind),
        "examples": examples(folds, kind, dataset.names),
    }
    if any(learned.values()):
        figures["gamma"] = gammas({name: rows for name, rows in learned.items() if rows}, kind)
    for stem, figure in figures.items():
        figure.savefig(folder / f"{stem}.png", dpi=130)


def first_seed(outcome: forecasting.Outcome) -> forecasting.Outcome:
    """The outcome of seed 0, without the seed axis."""
    forecast, interval, cluster = jax.tree.map(
        lambda leaf: leaf[0], (outcome.forecast, outcome.interval, outcome.cluster)
    )
    return outcome._replace(forecast=forecast, interval=interval, cluster=cluster)


def calibration(folds: list[forecasting.Outcome], kind: str) -> Figure:
    """PIT histogram and reliability curve of the network's own sigma, before any conformal correction."""
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *(one._replace(cluster=None) for one in folds))
    pit = diagnostics.pit_histogram(joined.forecast, joined.target, joined.mask)
    curve = diagnostics.reliability(joined.forecast, joined.target, joined.mask)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    share = np.asarray(pit.share) * len(pit.share)
    edges = np.linspace(0, 1, len(share) + 1)
    left.bar(edges[:-1], share, width=np.diff(edges), align="edge", color="tab:blue", edgecolor="white")
    left.axhline(1.0, color="black", linewidth=0.8)
    left.set(xlabel="probability integral transform", ylabel="density", title=f"PIT, KS = {float(pit.ks):.3f}")
    right.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    right.plot(np.asarray(curve.nominal), np.asarray(curve.observed), marker="o", markersize=3)
    error = f"calibration error = {float(curve.error):.3f}"
    right.set(xlabel="nominal coverage", ylabel="observed coverage", title=f"Reliability, {error}")
    figure.suptitle(f"{kind}: before conformal calibration", fontsize=10)
    return figure


def coverage_over_time(folds: list[forecasting.Outcome], alpha: float, kind: str) -> Figure:
    """Share of cells covered at each test origin, by horizon, smoothed over two hours."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    axes = figure.subplots()
    horizon = folds[0].target.shape[1]
    for h in range(horizon):
        start = 0
        for number, one in enumerate(folds):
            hit = np.asarray(intervals.contains(one.interval, one.target))[:, h]
            seen = one.mask[:, h]
            share = (hit & seen).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
            smooth = np.convolve(share, np.ones(ROLLING) / ROLLING, mode="valid")
            label = f"{h + 1} steps ahead" if number == 0 else None
            axes.plot(start + ROLLING - 1 + np.arange(len(smooth)), smooth, color=f"C{h}", label=label, linewidth=1)
            start += len(share)
    axes.axhline(1 - alpha, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="test origin (all folds, one after another)", ylabel="coverage over cells", title=kind)
    axes.legend(ncols=horizon, fontsize=8, loc="lower right")
    return figure


def width_map(folds: list[forecasting.Outcome], dataset: TrafficDataset, kind: str) -> Figure:
    """Mean width of the intervals of each cell, relative to its mean flow, at the last horizon."""
    width = np.concatenate([np.asarray(diagnostics.width(one.interval))[:, -1] for one in folds])
    width = np.where(np.isfinite(width), width, np.nan)
    flow = np.concatenate([np.where(one.mask[:, -1], one.target[:, -1], np.nan) for one in folds])
    relative = np.nanmean(width, axis=0) / np.maximum(np.nanmean(flow, axis=0), 1e-6)
    figure = Figure(figsize=(6, 5.4), layout="constrained")
    axes = figure.subplots()
    draw_cells(
        axes,
        figure,
        dataset.geometry,
        np.minimum(relative, np.nanquantile(relative, 0.98)),
        "interval width / mean flow",
    )
    axes.set_title(f"{kind}\none hour ahead", fontsize=10)
    return figure


def plain(name: str) -> str:
    """A name as a title: not too long, and no formula, which matplotlib sees between dollar signs."""
    return (name if len(name) <= NAME_SHOWN else name[: NAME_SHOWN - 1] + "…").replace("$", r"\$")


def examples(folds: list[forecasting.Outcome], kind: str, names: list[str]) -> Figure:
    """A busy and a quiet cell, with the band issued one hour before."""
    one = folds[-1]
    flow = np.where(one.mask[:, 0], one.target[:, 0], np.nan)
    order = np.argsort(np.nanmean(flow, axis=0))
    figure = Figure(figsize=(10, 6), layout="constrained")
    for axes, cell, what in zip(
        figure.subplots(2, 1), (order[-1], order[len(order) // 5]), ("busy", "quiet"), strict=True
    ):
        step = np.arange(len(one.target))
        upper = np.where(np.isfinite(one.interval.upper[:, -1, cell]), one.interval.upper[:, -1, cell], np.nan)
        axes.fill_between(
            step, one.interval.lower[:, -1, cell], upper, alpha=0.3, label="90 % interval, one hour ahead"
        )
        axes.plot(step, one.forecast.mean[:, -1, cell], label="forecast, one hour ahead")
        observed = np.where(one.mask[:, -1, cell], one.target[:, -1, cell], np.nan)
        axes.plot(step, observed, ".", color="black", markersize=3, label="observed")
        axes.set(ylabel="vehicles per step", title=f"{what} cell {plain(names[cell])}")
    axes.set_xlabel("test origin of the last fold")
    axes.legend(fontsize=8)
    figure.suptitle(kind, fontsize=10)
    return figure


def gammas(learned: dict[str, list[dict]], kind: str) -> Figure:
    """Every learned gamma by layer, one dot a stream, head, fold and seed, beside the value it started from."""
    figure = Figure(figsize=(5.0 * len(learned), 3.8), layout="constrained")
    for axes, (method, rows) in zip(figure.subplots(1, len(learned), squeeze=False)[0], learned.items(), strict=True):
        parts = [row["metric"].split("/") for row in rows]
        layers = sorted({layer for _, _, layer, _ in parts})
        place = np.array([layers.index(layer) for _, _, layer, _ in parts], float)
        beside = np.array([0.15 if stream == "residual" else -0.15 for _, stream, _, _ in parts])
        value = np.array([row["value"] for row in rows])
        colour = np.where(beside > 0, "tab:orange", "tab:blue")
        axes.scatter(place + beside, value, s=14, alpha=0.6, c=colour)
        axes.axhline(np.log(2.0), color="black", linewidth=0.8, linestyle="--")
        axes.axhline(0.0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(layers)), [name.replace("_", " ") for name in layers])
        axes.set(ylabel="gamma", title=f"{method}: {(value < 0).mean():.0%} negative")
    figure.suptitle(f"{kind}\ntrend left, residual right of each layer; dashed: where training began", fontsize=9)
    return figure
