"""One line a method, one column a recording: who forecasts and who detects best where, from results rows alone."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.tables import ours, readme_tables

LEVEL = 0.05


class Column(NamedTuple):
    """A recording and its rows."""

    name: str  # folder under results/
    kind: str  # real or synthetic
    rows: list[dict]


class Cell(NamedTuple):
    """A mean over seeds, and whether the paired interval of the difference to ours leaves zero out."""

    value: float
    differs: bool | None  # None if it was not compared
    note: str = ""
    eligible: bool = True  # to be the best of its column


def render(folder: Path) -> str:
    """All overviews as markdown; empty where nothing was run."""
    forecasts, detections = columns(folder, "forecast"), columns(folder, "detect")
    parts = []
    if forecasts:
        for metric, title in (("nrmse", "NRMSE"), ("crps", "CRPS")):
            told = f"**{title} of the forecasters**, 15 to 60 min ahead, mean over seeds; the smaller the better."
            parts += grid(told, forecasts, lambda column, metric=metric: forecast_cells(column.rows, metric), min)
    if detections:
        told = (
            "**F1 of the detectors (false-discovery rate per step)** on injected anomalies, at target 5 % where a rule "
            "has one, mean over seeds; bold is the largest F1 among those that stay within 5 %. Ours is full+by."
        )
        parts += grid(told, detections, lambda column: detect_cells(column.rows), max)
    return "\n".join(parts) + "\n" if parts else ""


def columns(folder: Path, stage: str) -> list[Column]:
    """Recordings that have rows of a stage, real ones first."""
    found = [(path.parent.name, ours.picked(path)) for path in sorted(folder.glob(f"*/{stage}.jsonl"))]
    named = [Column(name, rows[0]["data"], rows) for name, rows in found if rows]
    return sorted(named, key=lambda column: column.kind)


def grid(title: str, recordings: list[Column], cells_of: Callable, best: Callable) -> list[str]:
    """A table with the best of each column in bold."""
    found = [cells_of(column) for column in recordings]
    methods = dict.fromkeys(method for cells in found for method in cells)
    top = [best((cell.value for cell in cells.values() if cell.eligible), default=None) for cells in found]
    lines = [
        f"{title} A star: the paired 95 % interval of the difference to ours leaves zero out; a question mark: not "
        "compared.",
        "",
        "| method | " + " | ".join(f"{column.name} ({column.kind})" for column in recordings) + " |",
        "|---|" + "---|" * len(recordings),
    ]
    for method in methods:
        shown = [_text(cells.get(method), leader) for cells, leader in zip(found, top, strict=True)]
        lines.append(f"| {method} | " + " | ".join(shown) + " |")
    return [*lines, ""]


def forecast_cells(rows: list[dict], metric: str) -> dict[str, Cell]:
    """Each forecaster's mean over seeds."""
    pooled = [row for row in rows if row["fold"] == "all"]
    compared = {row["metric"]: row["value"] for row in pooled if row["method"] == "comparison"}
    cells = {}
    for method in dict.fromkeys(row["method"] for row in pooled if row["method"] != "comparison"):
        values = [float(row["value"]) for row in pooled if (row["method"], row["metric"]) == (method, metric)]
        stem = f"{metric}_{method}_minus_ours"
        bounds = [compared[f"{stem}_{end}"] for end in ("lower", "upper") if f"{stem}_{end}" in compared]
        differs = _leaves_zero_out(*bounds) if bounds else False if method == "pu_gat_plus" else None
        cells[method] = Cell(float(np.mean(values)), differs)
    return cells


def detect_cells(rows: list[dict]) -> dict[str, Cell]:
    """Each rule's F1 with its false-discovery rate; the paired interval is the mean of the seeds' intervals."""
    here = [row for row in rows if row["scenario"] == "injected" and row.get("level", 0.0) in (None, LEVEL)]
    cells = {}
    for arm in dict.fromkeys(row["arm"] for row in here if row["metric"] == "f1"):
        f1, rate = (
            np.mean([row["value"] for row in readme_tables.of_arm(here, arm, metric)]) for metric in ("f1", "fdr_step")
        )
        pairs = [(row["lower"], row["upper"]) for row in readme_tables.of_arm(here, arm, "f1_minus_ours")]
        differs = _leaves_zero_out(*np.mean(pairs, axis=0)) if pairs else False if arm == "full+by" else None
        cells[arm] = Cell(float(f1), differs, f" ({rate:.3f})", bool(rate <= LEVEL))
    return cells


def _leaves_zero_out(lower: float, upper: float) -> bool:
    return bool(lower > 0.0 or upper < 0.0)


def _text(cell: Cell | None, best: float | None) -> str:
    if cell is None:
        return ""
    text = f"{cell.value:.3f}" + ("?" if cell.differs is None else "*" * cell.differs)
    return (f"**{text}**" if cell.eligible and cell.value == best else text) + cell.note
