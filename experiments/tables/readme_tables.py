"""The README's tables from results rows: forecasting, detection, control, and what benchmarks measured.

Only rows are read; what was not run is not shown.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from experiments.evaluation import decisions, results
from experiments.tables import ours, speed_tables
from experiments.tables.control_tables import control_tables

FORECAST = {"nrmse": "NRMSE", "mae": "MAE", "coverage": "coverage", "riw": "RIW", "winkler": "Winkler", "crps": "CRPS"}
DETECT = {
    "fdr_step": "FDR per step",
    "fdr_pooled": "FDR pooled",
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
}
OF_OURS = ("pu_gat_plus", "pu_gat_ensemble")  # forecasters that are no rivals to each other
RANKING = {"average_precision": "AP", "vus_pr": "VUS-PR"}
ON_RESIDUALS = ("gaussian", "student_t")  # p-values that judge the residual itself
ON_THE_SCORE = ("unweighted", "soft_rank")  # that judge the score of single cells


def render(folder: Path) -> str:
    """All tables as markdown, from the rows under `folder` alone."""
    return forecasting(folder) + detection(folder) + control(folder) + speed(folder)


def forecasting(folder: Path) -> str:
    """A table for every recording that has forecasts."""
    return _joined(forecast_tables(ours.picked(path)) for path in sorted(folder.glob("*/forecast.jsonl")))


def detection(folder: Path) -> str:
    """A table for every recording that has detections."""
    return _joined(detect_tables(ours.picked(path)) for path in sorted(folder.glob("*/detect.jsonl")))


def control(folder: Path) -> str:
    """Tables for every recording and network that was driven."""
    paths = sorted(folder.glob("*/control.jsonl"))
    return _joined(control_tables(ours.picked(path, network)) for path in paths for network in ours.networks(path))


def speed(folder: Path) -> str:
    """A table for every benchmark that has rows."""
    found = {name: results.read_rows(folder / "bench" / f"{name}.jsonl") for name in speed_tables.TABLES}
    return _joined(speed_tables.TABLES[name](rows) for name, rows in found.items() if rows)


def _joined(tables: Iterable[list[str]]) -> str:
    """Lines of several tables as one text; empty if there are none."""
    lines = [line for table in tables for line in table]
    return "\n".join(lines) + "\n" if lines else ""


def forecast_tables(rows: list[dict]) -> list[str]:
    """Mean over seeds (± half its 95 % interval) of all test parts together, the best of each column in bold."""
    first = rows[0]
    pooled = [row for row in rows if row["fold"] == "all"]
    methods = [name for name in dict.fromkeys(row["method"] for row in pooled) if name != "comparison"]
    values = {
        (method, metric): [float(r["value"]) for r in pooled if (r["method"], r["metric"]) == (method, metric)]
        for method in methods
        for metric in (*FORECAST, "noise_floor", "coverage_lower", "coverage_upper")
    }
    best = {m: min(np.mean(values[name, m]) for name in methods) for m in FORECAST if m != "coverage"}
    lines = [
        f"**Forecasting, {_recording(first)}**, preset `{first['preset']}`, 15 to 60 min ahead, "
        f"{first['device']}; target coverage 90 %; ± is half a 95 % interval over seeds. Last column: NRMSE above that "
        "of pu_gat_plus on the same steps, paired block bootstrap.",
        "",
        "| method | seeds | "
        + " | ".join(FORECAST.values())
        + " | parameters | epochs | s per epoch | NRMSE above ours |",
        "|---|---|" + "---|" * (len(FORECAST) + 4),
    ]
    for method in methods:
        cells = [_cell(values[method, metric], best.get(metric)) for metric in FORECAST]
        cells += [_size(rows, method, metric) for metric in ("parameters", "epochs", "seconds_per_epoch")]
        cells.append(_paired(pooled, method))
        lines.append(f"| {method} | {len(values[method, 'nrmse'])} | " + " | ".join(cells) + " |")
    floor = np.mean(values[methods[0], "noise_floor"])
    nearest = _runner_up(values, methods)
    notes = _standing(values, nearest) + _by_fold(rows, nearest) + _by_horizon(pooled) + _jointly(rows)
    return [*lines, "", f"Counting-noise floor of NRMSE: {floor:.3f}.{notes}", ""]


def detect_tables(rows: list[dict]) -> list[str]:
    """Every arm at the headline level on injected anomalies, alarms beside logged incidents, and the null p-values."""
    first = rows[0]
    lines = [
        f"**Detection, {_recording(first)}**, preset `{first['preset']}`, anomalies injected into 5 % of the "
        f"cell-steps, target FDR 5 % where a rule has one; {_seeds(rows)}, 95 % block-bootstrap intervals. AP and "
        "VUS-PR judge the ranking behind the decisions. Last column: F1 above that of full+by, which is CRFN-BY, on "
        "the same steps, paired block bootstrap.",
        "",
        "| detector | " + " | ".join((*DETECT.values(), *RANKING.values())) + " | F1 above ours |",
        "|---|" + "---|" * (len(DETECT) + len(RANKING) + 1),
    ]
    injected = [row for row in rows if row["scenario"] == "injected"]
    here = [row for row in injected if row.get("level", 0.0) in (None, 0.05)]
    for arm in dict.fromkeys(row["arm"] for row in here if row["metric"] == "f1"):
        found = [of_arm(here, arm, metric) for metric in DETECT]
        found += [of_arm(injected, _ranking_behind(arm), metric) for metric in RANKING]
        found.append(of_arm(here, arm, "f1_minus_ours"))
        lines.append(f"| {arm} | " + " | ".join(_with_bounds(some) for some in found) + " |")
    wanted = {"metric": "null_rate", "seed": 0, "arm": "full"}
    null = {row["level"]: row for row in rows if wanted.items() <= row.items()}
    rates = ", ".join(
        f"P(p ≤ {t:g}) = {row['value']:.4f} [{row['lower']:.4f}, {row['upper']:.4f}]" for t, row in null.items()
    )
    lines += ["", f"P-values on the test part without injections (first seed): {rates}.{_incidents(rows)}", ""]
    return lines


def _recording(row: dict) -> str:
    """Whose rows these are, whether the data are real, and how many cells they have where the rows say so."""
    cells = f", {row['cells']} cells" if "cells" in row else ""
    return f"{row['dataset']} ({row['data']} data{cells})"


def _seeds(rows: list[dict]) -> str:
    count = len({row["seed"] for row in rows})
    return f"mean over {count} seeds" if count > 1 else "1 seed"


def of_arm(rows: list[dict], arm: str, metric: str) -> list[dict]:
    """Rows of one rule and metric."""
    return [row for row in rows if {"arm": arm, "metric": metric}.items() <= row.items()]


def _ranking_behind(arm: str) -> str:
    """The order in which a rule rejects: by residuals, by our score, by our p-values over weights, or a rival's own."""
    method = arm.split("+")[0]
    ours = dict.fromkeys(ON_RESIDUALS, "residual") | dict.fromkeys(ON_THE_SCORE, "score")
    return (ours | dict.fromkeys(decisions.WEIGHTED, "weighted")).get(method, method)


def _with_bounds(rows: list[dict]) -> str:
    """Mean over seeds of a value and of the bounds of its interval."""
    rows = [row for row in rows if not isinstance(row["value"], str)]
    if not rows:
        return ""
    text = f"{np.mean([row['value'] for row in rows]):.3f}"
    bounds = [(row["lower"], row["upper"]) for row in rows if "lower" in row]
    return text + (" [{:.3f}, {:.3f}]".format(*np.mean(bounds, axis=0)) if bounds else "")


def _incidents(rows: list[dict]) -> str:
    """Alarms of the first seed against the log of incidents, and what alarms at shifted times would have met."""
    parts = []
    for arm in ("full+by", "full+bh"):
        wanted = {"seed": 0, "scenario": "incidents", "arm": arm}
        of = {row["metric"]: row["value"] for row in rows if wanted.items() <= row.items()}
        if "events" in of:
            parts.append(
                f"{arm} raises {of['alarms']:.0f} alarms and meets {of['event_recall']:.1%} of {of['events']:.0f} "
                f"(by chance {of['event_recall_by_chance']:.1%}, at most {of['event_recall_by_chance_upper']:.1%})"
            )
    return f" Logged incidents: {'; '.join(parts)}." if parts else ""


def _cell(values: list[float], best: float | None) -> str:
    if not values:
        return ""
    spread = f" ± {results.half_width(values):.3f}" if len(values) > 1 else ""
    text = f"{np.mean(values):.3f}{spread}"
    return f"**{text}**" if best is not None and np.mean(values) == best else text


def _size(rows: list[dict], method: str, metric: str) -> str:
    """Mean over folds; empty where there is nothing to train or to time."""
    found = [row["value"] for row in rows if (row["method"], row["metric"]) == (method, metric)]
    return "" if not found else f"{np.mean(found):,.0f}" if metric == "parameters" else f"{np.mean(found):.1f}"


def _paired(rows: list[dict], method: str) -> str:
    """How much worse a method is than ours, with its interval."""
    found = {row["metric"]: row["value"] for row in rows if row["method"] == "comparison"}
    stem = f"nrmse_{method}_minus_ours"
    if f"{stem}_estimate" not in found:
        return ""
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*(found[f"{stem}_{part}"] for part in ("estimate", "lower", "upper")))


def _runner_up(values: dict[tuple[str, str], list[float]], methods: list[str]) -> str | None:
    """The method nearest to ours, or the one ahead of it; variants of ours are no rivals."""
    others = [method for method in methods if method.split(":")[0] not in OF_OURS]
    if not others or "pu_gat_plus" not in methods:
        return None
    return min(others, key=lambda method: np.mean(values[method, "nrmse"]))


def _standing(values: dict[tuple[str, str], list[float]], nearest: str | None) -> str:
    if nearest is None:
        return ""
    leads = np.mean(values["pu_gat_plus", "nrmse"]) <= np.mean(values[nearest, "nrmse"])
    return f" {'Runner-up' if leads else 'Ahead of pu_gat_plus'} by NRMSE: {nearest}."


def _by_fold(rows: list[dict], nearest: str | None) -> str:
    """NRMSE of ours and of the nearest in each fold, the earliest first; days may differ much."""
    folds = sorted({row["fold"] for row in rows if row["metric"] == "nrmse"} - {"all"})
    if nearest is None or not folds:
        return ""
    told = []
    for method in ("pu_gat_plus", nearest):
        each = [{"method": method, "metric": "nrmse", "fold": fold}.items() for fold in folds]
        means = [np.mean([float(row["value"]) for row in rows if one <= row.items()]) for one in each]
        told.append(f"{method} " + " / ".join(f"{mean:.3f}" for mean in means))
    return f" NRMSE fold by fold: {', '.join(told)}."


def _jointly(rows: list[dict]) -> str:
    """STACI's sets, over folds and seeds."""
    found = [row["value"] for row in rows if (row["method"], row["metric"]) == ("staci", "joint_coverage")]
    return f" STACI's sets hold the busiest cells all at once {np.mean(found):.1%} of the time." if found else ""


def _by_horizon(rows: list[dict]) -> str:
    """Coverage of ours at each horizon, mean over seeds, and of the worst cluster."""
    ours = [row for row in rows if row["method"] == "pu_gat_plus" and row["metric"].startswith("coverage_")]
    mean = lambda metric: np.mean([float(r["value"]) for r in ours if r["metric"] == metric])  # noqa: E731
    if not ours:
        return ""
    each = " / ".join(f"{mean(f'coverage_h{h}'):.3f}" for h in range(1, 5))
    bounds = f"[{mean('coverage_lower'):.3f}, {mean('coverage_upper'):.3f}]"
    worst = mean("coverage_worst_cluster")
    return f" Coverage of pu_gat_plus by horizon: {each}, overall interval {bounds}, worst cluster {worst:.3f}."
